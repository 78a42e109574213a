"""Denneman's table of architectures: layers and parameters, counted on real definitions."""

from __future__ import annotations

from dataclasses import dataclass

from memgauge.by_hand import by_hand
from memgauge.formula.records import Formula, LayerRow
from memgauge.reproduce.records import LAYERS, MILLION, Cell, Claim, Section, Table, claim

FLOAT_BYTES = 4


@dataclass(frozen=True)
class _Architecture:
    name: str
    theirs: tuple[str, str, str]  # convolutions, fully connected layers, millions of parameters
    target: str
    sets: tuple[tuple[str, str], ...]
    why: tuple[str, str, str]


_ARCHITECTURES = (
    _Architecture(
        "AlexNet",
        ("5", "3", "61"),
        "zoo:alexnet",
        (),
        ("", "", "the form of 2014; that of 2012, in two halves, has a little less: in the table below"),
    ),
    _Architecture(
        "GoogLeNet",
        ("21", "1", "40"),
        "zoo:googlenet",
        (("auxiliary", "false"),),
        (
            "21 is the depth: 3 in the stem and 2 for each of 9 inceptions; an inception has 6 side by side and in a row",
            "",
            "does not hold: 6.6 million, or 13.0 million with the two classifiers for training",
        ),
    ),
    _Architecture(
        "ResNet",
        ("49", "1", "50"),
        "zoo:resnet50",
        (),
        (
            "49 is the main path; 4 shortcuts have a convolution of their own",
            "",
            "does not hold: ResNet-50 has 25.6 million; its name counts layers, not millions",
        ),
    ),
    _Architecture("VGG-16", ("13", "3", "138"), "zoo:vgg16", (), ("", "", "")),
)


def architectures() -> Section:
    """Return his table of four architectures beside real definitions, and the relatives that he may have meant."""
    claims: list[Claim] = []
    rows: list[tuple[Cell, ...]] = []
    for found in _ARCHITECTURES:
        formula = by_hand(found.target, sets=dict(found.sets))
        convolutions = _of_kind(formula, "Conv2d")
        dense = len(_of_kind(formula, "Linear"))
        pairs = (
            ("convolutions", len(convolutions), LAYERS),
            ("fully connected layers", dense, LAYERS),
            ("parameters", formula.parameters, MILLION),
        )
        claims += [
            claim(f"{found.name}, {what}", theirs, ours, unit, why)
            for (what, ours, unit), theirs, why in zip(pairs, found.theirs, found.why, strict=True)
        ]
    two_halves = alexnet_2012_parameters()
    rows.append(("AlexNet (2012, two halves)", 5, 3, two_halves, two_halves * FLOAT_BYTES))
    for name, target, sets in (
        ("AlexNet (2014 form)", "zoo:alexnet", {}),
        ("GoogLeNet", "zoo:googlenet", {"auxiliary": "false"}),
        ("GoogLeNet with auxiliary classifiers", "zoo:googlenet", {}),
        ("ResNet-50", "zoo:resnet50", {}),
        ("ResNet-101", "zoo:resnet50", {"blocks": "3,4,23,3"}),
        ("ResNet-152", "zoo:resnet50", {"blocks": "3,8,36,3"}),
        ("VGG-16", "zoo:vgg16", {}),
    ):
        formula = by_hand(target, sets=sets)
        counts = [len(_of_kind(formula, kind)) for kind in ("Conv2d", "Linear")]
        rows.append((name, *counts, formula.parameters, formula.inference.parameter_bytes))
    columns = ("network", "convolutions", "fully connected", "parameters", "parameter_bytes")
    return Section(
        title="The table of architectures, counted on real definitions",
        claims=tuple(claims),
        table=Table(columns=columns, rows=tuple(rows)),
    )


def alexnet_2012_parameters() -> int:
    """Return the parameters of AlexNet as first published, three of its convolutions in two halves.

    Source: Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks"
    (2012), figure 2: outputs, inputs that one output sees, kernel.
    """
    convolutions = ((96, 3, 11), (256, 48, 5), (384, 256, 3), (384, 192, 3), (256, 192, 3))
    dense = ((4096, 256 * 6 * 6), (4096, 4096), (1000, 4096))
    weights = sum(o * i * k * k for o, i, k in convolutions) + sum(o * i for o, i in dense)
    return weights + sum(layer[0] for layer in (*convolutions, *dense))


def _of_kind(formula: Formula, kind: str) -> list[LayerRow]:
    return [row for row in formula.layers if row.kind == kind]
