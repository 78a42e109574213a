"""The numbers of four texts, made again: theirs, ours, and the reason for each difference.

    records        one claim, a table, a text
    questions      training memory by hand, questions and answers (2016-2018)
    denneman       training against inference (2022)
    mahendran      memory against hyperparameters (2021)
    torres         memory of a CNN's training in TensorFlow and PyTorch (2021)

Only numbers and citations are theirs. Ours are computed when asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from memgauge.errors import UsageError, nearest
from memgauge.reproduce.records import Reproduction

_PLACES = {
    "question-and-answers": "questions",
    "denneman": "denneman",
    "mahendran": "mahendran",
    "torres": "torres",
}
NAMES = tuple(_PLACES)


def reproduce(name: str, tell: Callable[[str], None] = lambda stage: None) -> Reproduction:
    """Return one text's numbers beside ours.

    Args:
        name: One of `NAMES`.
        tell: Is told what is being computed.

    Raises:
        UsageError: There is no text of that name.
    """
    if name not in _PLACES:
        raise UsageError(f"there is no text {name!r}{nearest(name, NAMES)}; it is {', '.join(NAMES)}")
    tell(f"computing {name}")
    made: Reproduction = importlib.import_module(f"memgauge.reproduce.{_PLACES[name]}").reproduction()
    return made
