"""Other predictors, where they are installed: what each says of the same case, in bytes.

torchinfo (its total: input, forward and backward, parameters) and accelerate (four times the
weights, as `accelerate estimate-memory` prints for Adam). What cannot be asked is left out.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from benchmarks.accuracy.cases import Case


def answers(case: Case) -> dict[str, int]:
    """Return the peers' answers by name."""
    found: dict[str, int] = {}
    for name, ask in (("torchinfo", _torchinfo), ("accelerate", _accelerate)):
        if importlib.util.find_spec(name) is not None:
            try:
                found[name] = ask(case)
            except Exception:  # a peer that cannot answer has no answer
                continue
    return found


def _model_and_batch(case: Case) -> tuple[Any, Any]:
    import torch

    workload = case.workload()
    with torch.device("meta"):
        return workload.build()[0], workload.batch()


def _torchinfo(case: Case) -> int:
    import torchinfo

    model, batch = _model_and_batch(case)
    inputs = batch if isinstance(batch, dict) else batch[0]
    said = torchinfo.summary(model, input_data=inputs, device="meta", verbose=0)
    return int(said.total_input + said.total_output_bytes + said.total_param_bytes)


def _accelerate(case: Case) -> int:
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(_model_and_batch(case)[0])
    return int(4 * total)
