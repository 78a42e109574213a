"""Which points of a space are tried: all (grid), random ones, a Sobol sequence, or a list.

The first n points of a larger design are those of the smaller one, so a study can be extended.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence

from memgauge.errors import UsageError, missing_extra, nearest
from memgauge.study.records import Params
from memgauge.study.space import Space

DESIGNS = ("grid", "random", "sobol", "list")
MOST_POINTS = 100_000
_TRIES = 50  # draws per point that is still wanted, before a space counts as exhausted
_LOOKS = 5_000  # random points among which a condition has to hold somewhere


def key_of(params: Params) -> str:
    """Return what tells one point from another."""
    return json.dumps(params, sort_keys=True)


def points(
    design: str, space: Space | None, trials: int | None, seed: int, listed: Sequence[Params] = ()
) -> list[Params]:
    """Return the points of a design, each once.

    Args:
        design: `grid`, `random`, `sobol` or `list`.
        space: What is varied; None for a list.
        trials: How many points, for random and sobol.
        seed: Where their sequence begins.
        listed: The points of a list.

    Raises:
        UsageError: The design does not go with the space, or is too large.
    """
    if design == "list":
        return _unique(listed)
    assert space is not None
    if design == "grid":
        return _grid(space)
    if trials is None:
        raise UsageError(f'design = "{design}" needs trials = N, the number of points')
    found: dict[str, Params] = {}
    draws = _random(space, seed) if design == "random" else _sobol(space, seed)
    _refuse_never_tried(
        space, (space.point(shares) for shares in itertools.islice(_random(space, seed), _LOOKS))
    )
    size = space.size()
    if min(trials, size) > MOST_POINTS:
        raise UsageError(f"[study] trials = {trials:,}: a study has {MOST_POINTS:,} points at most")
    for drawn, shares in enumerate(draws):
        point = space.point(shares)
        found.setdefault(key_of(point), point)
        if len(found) >= min(trials, size) or drawn >= _TRIES * max(trials, 100):
            break
    return list(found.values())


def _unique(listed: Sequence[Params]) -> list[Params]:
    return list({key_of(p): dict(p) for p in listed}.values())


def _grid(space: Space) -> list[Params]:
    for name, parameter in space.parameters.items():
        if parameter.count is None:
            raise UsageError(
                f'[space.{name}]: a grid needs values = […] or a step; or take design = "sobol" or "random"'
            )
    found: dict[str, Params] = {}
    many = UsageError(
        f"the grid has more than {MOST_POINTS:,} points; take fewer values, or "
        'design = "sobol" with trials = N'
    )
    if any((p.count or 0) > MOST_POINTS for p in space.parameters.values()):
        raise many

    def extend(params: Params, names: Sequence[str]) -> None:
        if not names:
            found.setdefault(key_of(params), params)
            if len(found) > MOST_POINTS:
                raise many
            return
        name, rest = names[0], names[1:]
        if not space.exists(name, params):
            extend(params, rest)
            return
        for value in space.parameters[name].levels() or ():
            extend({**params, name: value}, rest)

    extend({}, list(space.parameters))
    _refuse_never_tried(space, found.values())
    return list(found.values())


def _refuse_never_tried(space: Space, points: Iterable[Params]) -> None:
    """Refuse a parameter whose condition holds at none of these points."""
    left = {name for name, parameter in space.parameters.items() if parameter.when is not None}
    for point in points:
        left -= set(point)
        if not left:
            return
    for name in space.parameters:
        if name in left:
            when = space.parameters[name].when
            raise UsageError(f"[space.{name}] when = {when!r} holds at no point: it is never tried")


def _random(space: Space, seed: int) -> Iterator[dict[str, float]]:
    source = random.Random(seed)
    while True:
        yield {name: source.random() for name in space.parameters}


def _sobol(space: Space, seed: int) -> Iterator[dict[str, float]]:
    """Yield a scrambled Sobol sequence (scipy.stats.qmc; Owen scrambling), 64 points at a time."""
    try:
        from scipy.stats import qmc
    except ModuleNotFoundError as error:
        raise missing_extra("scipy", "study") from error
    names = list(space.parameters)
    sequence = qmc.Sobol(len(names), scramble=True, rng=seed)
    for _ in itertools.repeat(None):
        for row in sequence.random_base2(6) if sequence.num_generated == 0 else sequence.random(64):
            yield dict(zip(names, map(float, row), strict=True))


def check_design(design: str) -> None:
    """Raise `UsageError` if there is no such design."""
    if design not in DESIGNS:
        raise UsageError(
            f"design = {design!r} is unknown{nearest(design, DESIGNS)}; it is {', '.join(DESIGNS)}"
        )
