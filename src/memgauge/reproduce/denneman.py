"""Denneman 2022: VGG-16 by hand, training against inference.

The text's own unit is found by its numbers: it divides bytes by 1024 and then by 1000.
Its tables are pictures; the numbers here are those of the text. Ours are read off a
real VGG-16 by the same layer table that `--method formula` prints.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from functools import cache

from memgauge.arguments import TargetOptions
from memgauge.by_hand import both, by_hand
from memgauge.formula.optimizers import state_rows
from memgauge.formula.records import Formula, LayerRow, OptimizerUse, ParameterShape
from memgauge.reproduce.architectures import architectures
from memgauge.reproduce.gaps import gap_section
from memgauge.reproduce.records import (
    ELEMENTS,
    GB,
    GB_MIXED,
    KB,
    KB_BINARY,
    LAYERS,
    MB,
    MB_MIXED,
    PARAMETERS,
    TIMES,
    Cell,
    Reproduction,
    Section,
    Table,
    claim,
    ours_only,
    totals_of,
)
from memgauge.units import GIB, MIB

BATCH, FLOAT_BYTES = 32, 4
DEVICE = "nvidia-a100-80gb"
_COUNTED = ("Conv2d", "MaxPool2d", "Linear")


def reproduction() -> Reproduction:
    """Return the article's numbers beside ours."""
    return Reproduction(
        name="denneman",
        title="Training vs Inference - Memory Consumption by Neural Networks",
        author="Frank Denneman",
        year=2022,
        source="https://frankdenneman.nl, 15 July 2022",
        sections=(
            _images(),
            _first_layers(),
            _layer_table(),
            _parameters(),
            architectures(),
            _feature_maps(),
            _large_image(),
            *_training(),
        ),
    )


@cache
def _vgg16(batch_size: int = BATCH, mode: str = "train", optimizer: str | None = None) -> Formula:
    return by_hand("zoo:vgg16", options=TargetOptions(batch_size=batch_size, mode=mode, optimizer=optimizer))


def _rows(formula: Formula, *kinds: str) -> list[LayerRow]:
    return [row for row in formula.layers if row.kind in kinds]


def _images() -> Section:
    eight_k = 7680 * 4320
    small = 224 * 224 * 3
    return Section(
        title="Images",
        claims=(
            claim(
                "one 8K image, uncompressed",
                "265",
                eight_k * 8,
                MB,
                f"8 bytes a pixel, as four channels of 16 bits, are our reading; three channels of 8 bits are "
                f"{eight_k * 3 / 1e6:.1f} MB, as a float32 input of a network {eight_k * 12 / 1e6:.1f} MB",
                is_reading=True,
            ),
            claim(
                "32 of them",
                "8",
                32 * eight_k * 8,
                GB,
                f"{32 * eight_k * 8 / 1e9:.2f} GB without rounding, {32 * eight_k * 8 / GIB:.2f} GiB",
                is_reading=True,
            ),
            claim(
                "32 JPEGs of them",
                "896",
                32 * 28 * 10**6,
                MB,
                "28 MB for one is 896 / 32: a file's size cannot be computed",
                is_reading=True,
            ),
            claim(
                "a 224 × 224 image on disk",
                "19",
                small // 8,
                KB,
                f"602 / 32, see the next line; or one bit for each value. A file varies; in memory it is {small:,} B "
                f"as bytes and {small * FLOAT_BYTES:,} B as float32",
                is_reading=True,
            ),
            claim(
                "32 of them",
                "602",
                32 * small // 8,
                KB,
                f"one picture as float32 has the same {small * FLOAT_BYTES:,} B: the article seems to take the picture "
                f"in memory for 32 files. The float32 batch that a network is given is {32 * small * FLOAT_BYTES / 1e6:.2f} MB",
                is_reading=True,
            ),
        ),
    )


def _first_layers() -> Section:
    formula = _vgg16()
    first, second = _rows(formula, "Conv2d")[:2]
    flat = _rows(formula, "MaxPool2d")[-1]
    kinds = [len(_rows(formula, kind)) for kind in _COUNTED]
    convolutions, poolings, dense = kinds
    return Section(
        title="The first layers of VGG-16, and how many there are",
        claims=(
            claim("weights of the first convolution", "1,728", _weights(first), PARAMETERS),
            claim("its parameters", "1,792", first.parameters, PARAMETERS, first.parameter_formula),
            claim("their memory", "7", first.parameter_bytes, KB_BINARY),
            claim("weights of the second convolution", "36,864", _weights(second), PARAMETERS),
            claim("its parameters", "36,928", second.parameters, PARAMETERS, second.parameter_formula),
            claim(
                "their memory",
                "147",
                second.parameter_bytes,
                KB,
                f"cut off, and another unit than the 7 KB before: {second.parameter_bytes / 1024:.2f} KiB",
            ),
            claim(
                "activations after flattening",
                "25,088",
                flat.feature_map_bytes // FLOAT_BYTES // BATCH,
                ELEMENTS,
                "512 × 7 × 7",
            ),
            claim("convolutions", "13", convolutions, LAYERS),
            claim("poolings", "5", poolings, LAYERS),
            claim("fully connected layers", "3", dense, LAYERS),
            claim("all of them", "21", sum(kinds), LAYERS),
            claim("layers with parameters", "16", convolutions + dense, LAYERS),
        ),
    )


def _weights(row: LayerRow) -> int:
    """Return a convolution's parameters without its biases, one for each output channel."""
    return row.parameters - row.output_shapes[0][1]


def _layer_table() -> Section:
    """Ours for the two tables that are pictures in the article."""
    rows: list[tuple[Cell, ...]] = [
        (
            row.kind,
            "×".join(map(str, row.output_shapes[0][1:])),
            row.parameter_formula or "none",
            row.parameters,
            row.parameter_bytes,
            row.feature_map_bytes,
        )
        for row in _rows(_vgg16(), *_COUNTED)
    ]
    rows.append(("all", "", "", *totals_of(rows, 3, 4, 5)))
    columns = ("layer", "output", "formula", "parameters", "parameter_bytes", "feature_map_bytes")
    return Section(
        title="VGG-16 layer by layer, feature maps at batch 32",
        table=Table(columns=columns, rows=tuple(rows)),
        notes=(
            "The article shows its own tables as pictures; the numbers that its text names are the claims.",
        ),
    )


def _parameters() -> Section:
    formula = _vgg16()
    size = formula.inference.parameter_bytes
    return Section(
        title="Memory of the parameters",
        claims=(
            claim(
                "all parameters of VGG-16",
                "540",
                size,
                MB_MIXED,
                f"the sum is right, the unit is its own: {size / 1e6:.1f} MB or {size / MIB:.1f} MiB",
            ),
            claim("GPT-3, 175 billion parameters in float32", "700", 175 * 10**9 * FLOAT_BYTES, GB),
        ),
    )


def _feature_maps() -> Section:
    formula = _vgg16()
    first = _rows(formula, "Conv2d")[0]
    counted = sum(row.feature_map_bytes for row in _rows(formula, "Conv2d", "MaxPool2d"))
    size = first.feature_map_bytes
    return Section(
        title="Memory of the feature maps at batch 32",
        claims=(
            claim("activations of the first convolution", "102,760,448", size // FLOAT_BYTES, ELEMENTS),
            claim(
                "their memory",
                "401.40",
                size,
                MB_MIXED,
                f"divided by 1024, then by 1000, and cut off: it is {size / 1e6:.2f} MB or {size / MIB:.2f} MiB",
            ),
            claim(
                "all feature maps",
                "1.88",
                counted,
                GB_MIXED,
                f"convolutions and poolings; {counted / 1e9:.3f} GB or {counted / GIB:.3f} GiB. 244 × 244 in the "
                "text is a slip: the number is that of 224 × 224",
            ),
            ours_only(
                "with the fully connected layers",
                sum(row.feature_map_bytes for row in _rows(formula, *_COUNTED)),
                GB_MIXED,
                digits=3,
            ),
            ours_only(
                "with every layer that returns a tensor: ReLU, dropout, the last pooling too",
                sum(row.feature_map_bytes for row in formula.layers),
                GB_MIXED,
                "what counting by hand gives if in-place ReLUs are not left out",
                digits=3,
            ),
        ),
    )


def _large_image() -> Section:
    one = sum(vgg16_maps(3840, 2160)) * FLOAT_BYTES
    check = sum(vgg16_maps(224, 224)) * FLOAT_BYTES
    scaled = check * 3840 * 2160 // (224 * 224)
    his_one = (Decimal("1.88") / BATCH).quantize(Decimal("0.001"), rounding=ROUND_DOWN)
    his_scaled = his_one * 3840 * 2160 / (224 * 224)
    return Section(
        title="The 4K image through the same convolutions",
        claims=(
            claim(
                "feature maps of one image of 3840 × 2160",
                "9.6",
                one,
                GB_MIXED,
                f"{one / 1e9:.2f} GB or {one / GIB:.2f} GiB. 1.88 / {BATCH} cut to {his_one} and scaled by the pixels "
                f"gives {his_scaled:.2f}, which is his 9.6",
            ),
            claim("of 32 images", "307.2", BATCH * one, GB_MIXED, f"theirs is {BATCH} × the rounded 9.6"),
            ours_only(
                "one image, scaled by the number of pixels only",
                scaled,
                GB_MIXED,
                "poolings round down: 2160 halves to 67 at the last",
            ),
        ),
        notes=("Convolutions and poolings only: the dense layers are built for 224 × 224.",),
    )


def vgg16_maps(width: int, height: int) -> list[int]:
    """Return the elements of each feature map of VGG-16's convolutions and poolings for one image."""
    from memgauge.zoo.vgg16 import BLOCKS, CHANNELS

    maps = []
    for channels, convolutions in zip(CHANNELS, BLOCKS, strict=True):
        maps += [channels * width * height] * convolutions
        width, height = width // 2, height // 2
        maps.append(channels * width * height)
    return maps


def _training() -> tuple[Section, ...]:
    sgd = both("zoo:vgg16", device=DEVICE, options=TargetOptions(optimizer="sgd"))
    adam = both("zoo:vgg16", device=DEVICE)
    rows = [
        ("training, SGD, batch 32", sgd.formula_bytes, sgd.trace_bytes),
        ("training, Adam, batch 32", adam.formula_bytes, adam.trace_bytes),
    ]
    found = None
    for batch_size in (32, 1):
        options = TargetOptions(batch_size=batch_size, mode="infer")
        found = both("zoo:vgg16", device=DEVICE, options=options)
        rows.append((f"inference, batch {batch_size}", found.formula_bytes, found.trace_bytes))
    assert found is not None
    largest = found.formula.inference.layers
    pair = [row.path for row in found.formula.layers].index(largest[0])
    table = Section(
        title="Training against inference",
        claims=(
            claim(
                "memory of the parameters during training, in sizes of the parameters",
                "2",
                _multiple("SGD"),
                TIMES,
                "weights and gradients; a learning rate is one number and takes no memory",
            ),
            claim(
                "the same with Adam",
                "3",
                _multiple("Adam"),
                TIMES,
                "Adam keeps two moments for each weight",
            ),
            claim(
                "the two most expensive consecutive layers, number of the first",
                "1",
                pair + 1,
                LAYERS,
                f"the article expects the first two layers; by formula they are {' and '.join(largest)}, a convolution "
                "and its ReLU. The ReLU is done in place, so in truth the second map is that of the next convolution: "
                "as large",
            ),
        ),
        table=Table(columns=("what", "formula_bytes", "trace_bytes"), rows=tuple(rows)),
        notes=(
            "Formula: parameters, gradients, optimizer state, every layer's output and its gradient, input; for "
            "inference parameters, the two largest consecutive outputs, input. Trace: three steps on "
            f"{DEVICE}, allocated, the context not included.",
        ),
    )
    return table, gap_section("training VGG-16 with SGD, batch 32", sgd)


def _multiple(name: str) -> int:
    one = ParameterShape((10**6,), 8 * FLOAT_BYTES)
    state = sum(row.state_bytes for row in state_rows(OptimizerUse((name,), (({}, (one,)),))))
    return 2 + state // one.count_bytes
