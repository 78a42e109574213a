"""Training memory by hand: a question and two answers.

The sums are arithmetic on the two numbers that the question gives. What it asks, how
much the training would really take, is answered by a network with exactly these numbers.
"""

from __future__ import annotations

from memgauge.arguments import TargetOptions
from memgauge.by_hand import both, by_hand
from memgauge.formula.optimizers import state_rows
from memgauge.formula.records import Both, OptimizerUse, ParameterShape
from memgauge.reproduce.gaps import gap_section
from memgauge.reproduce.records import (
    ELEMENTS,
    MB_BINARY,
    PARAMETERS,
    TIMES,
    Cell,
    Reproduction,
    Section,
    Table,
    Unit,
    claim,
    ours_only,
)
from memgauge.units import GIB, MIB

ACTIVATIONS, PARAMETER_COUNT, BATCH, PIXELS = 532_752, 19_072_984, 128, 180 * 50 * 1
FLOAT_BYTES = 4
# A GPU of those years; only its allocator matters here.
DEVICE = "nvidia-gtx-titan-x"


def reproduction() -> Reproduction:
    """Return the question's and the answers' numbers beside ours."""
    return Reproduction(
        name="question-and-answers",
        title="How to calculate the memory needed to train a neural network (question and answers)",
        author="a question with two answers on a public question-and-answer site",
        year=2016,
        source="shared as text; it refers to http://cs231n.github.io/convolutional-networks/#computational-considerations",
        sections=(_question(), _answer(), _rules(), _outputs(), *_network()),
    )


def _question() -> Section:
    activations = ACTIVATIONS * FLOAT_BYTES
    parameters = 3 * PARAMETER_COUNT * FLOAT_BYTES
    batch = BATCH * PIXELS * FLOAT_BYTES
    return Section(
        title="The question's sum",
        claims=(
            claim("values in a picture of 180 × 50 × 1", "9,000", PIXELS, ELEMENTS),
            claim(
                "activations",
                "2.03",
                activations,
                MB_BINARY,
                f"of one picture: the batch of {BATCH} holds {activations * BATCH / MIB:,.2f} MiB, and as much "
                "again for the gradients of activations",
            ),
            claim(
                "parameters × 3",
                "218.27",
                parameters,
                MB_BINARY,
                "weights, gradients and one moment: SGD with momentum; plain SGD is × 2, Adam × 4",
            ),
            claim("a batch of pictures", "4.39", batch, MB_BINARY),
            claim(
                "total",
                "224.69",
                activations + parameters + batch,
                MB_BINARY,
                f"{_in_mib(activations)} + {_in_mib(parameters)} + {_in_mib(batch)}, each rounded first, is their number. "
                "And it is a sum of too little: activations and their gradients are not multiplied by the batch",
                is_cut=False,
            ),
            claim(
                "gradients of activations for the batch, on top",
                "260.13",
                ACTIVATIONS * BATCH * FLOAT_BYTES,
                MB_BINARY,
                "a right suspicion with the wrong reason: they are kept to go backward, not to be "
                "normalised; and the activations of the batch themselves are as large and still missing",
            ),
        ),
    )


def _answer() -> Section:
    both_kinds = 2 * ACTIVATIONS * FLOAT_BYTES
    parameters = 3 * PARAMETER_COUNT * FLOAT_BYTES
    batch = BATCH * PIXELS * FLOAT_BYTES
    total = both_kinds * BATCH + parameters + batch
    return Section(
        title="The answer's sum",
        claims=(
            claim("activations and their gradients, one picture", "4.06", both_kinds, MB_BINARY),
            claim("parameters × 3", "218.27", parameters, MB_BINARY, "as in the question"),
            claim("a batch of pictures", "4.39", batch, MB_BINARY),
            claim(
                "total",
                "742.34",
                total,
                MB_BINARY,
                f"{both_kinds / MIB:.4f} was rounded to {_in_mib(both_kinds)} before it was multiplied by {BATCH}: "
                f"{_in_mib(both_kinds)} × {BATCH} + {_in_mib(parameters)} + {_in_mib(batch)} is their number",
            ),
        ),
    )


def _in_mib(count_bytes: int) -> str:
    return f"{count_bytes / MIB:.2f}"


def _rules() -> Section:
    total = (
        2 * ACTIVATIONS * FLOAT_BYTES * BATCH
        + 3 * PARAMETER_COUNT * FLOAT_BYTES
        + BATCH * PIXELS * FLOAT_BYTES
    )
    gib = Unit("", GIB, "", "bytes")
    rows = []
    optimizers: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("SGD", "SGD", {}),
        ("SGD, momentum", "SGD", {"momentum": 0.9}),
        ("Adagrad", "Adagrad", {}),
        ("RMSprop", "RMSprop", {}),
        ("Adam", "Adam", {}),
        ("Adam, amsgrad", "Adam", {"amsgrad": True}),
    )
    for title, name, options in optimizers:
        kept = _multiple(name, options)
        rows.append((title, kept, kept * PARAMETER_COUNT * FLOAT_BYTES))
    return Section(
        title="The answer's rules",
        claims=(
            claim(
                "parameters, gradients and momentum, in sizes of the parameters",
                "3",
                _multiple("SGD", {"momentum": 0.9}),
                TIMES,
                "right for SGD with momentum, Adagrad and plain RMSprop",
            ),
            claim(
                "the same for Adam, which the answer names beside them",
                "3",
                _multiple("Adam", {}),
                TIMES,
                "Adam keeps two moments: weights, gradients, exp_avg, exp_avg_sq",
            ),
            ours_only(
                "their total, divided by 1024² as the answer says, is in MiB and not in GB; in GiB",
                total,
                gib,
                "1024² is mebi; GiB needs 1024³",
            ),
        ),
        table=Table(
            columns=("optimizer", "sizes of the parameters", "parameters_to_state_bytes"), rows=tuple(rows)
        ),
    )


def _multiple(name: str, options: dict[str, object]) -> int:
    """Return parameters, gradients and state in sizes of the parameters, counters left out."""
    one = ParameterShape((PARAMETER_COUNT,), 8 * FLOAT_BYTES)
    state = sum(row.state_bytes for row in state_rows(OptimizerUse((name,), ((options, (one,)),))))
    return 2 + state // one.count_bytes


def _outputs() -> Section:
    """The answer's rule for the activations of a convolution, on the first layers of three networks."""
    rows: list[tuple[Cell, ...]] = []
    for target, size, about in (
        ("zoo:vgg16", 224, "3 × 3, stride 1, padding 1: holds"),
        ("zoo:torres-cnn", 32, "3 × 3, stride 1, no padding: the border is lost"),
        ("zoo:resnet50", 224, "7 × 7, stride 2: a quarter"),
        ("zoo:alexnet", 224, "11 × 11, stride 4: a sixteenth"),
    ):
        first = by_hand(target, options=TargetOptions(batch_size=1, image_size=size)).layers[0]
        _, channels, height, width = first.output_shapes[0]
        rows.append((target, size * size * channels, channels * height * width, about))
    return Section(
        title="The answer's rule for the activations of a convolution",
        table=Table(columns=("first convolution of", "by the rule", "really", "why"), rows=tuple(rows)),
        notes=(
            "The rule: width and height of the input times the layer's channels. It holds for stride 1 with padding "
            "that keeps the size, and only there; what is stored is the output, so its size is what counts. "
            "Poolings shrink as well, and the rule has no line for them.",
        ),
    )


def _network() -> tuple[Section, ...]:
    from memgauge.zoo.pooled_cnn import pooled_cnn

    workload = pooled_cnn()
    momentum = both(workload, device=DEVICE)
    plain = _phase_peaks(both(pooled_cnn(optimizer="sgd"), device=DEVICE))
    adam = both(pooled_cnn(optimizer="adam"), device=DEVICE)
    alone = both(pooled_cnn(mode="infer", batch_size=1), device=DEVICE)
    many = both(pooled_cnn(mode="infer"), device=DEVICE)
    sizes_of = workload.description
    channels = sizes_of["channels"]
    assert isinstance(channels, tuple)
    outputs = sum(row.feature_map_bytes for row in momentum.formula.layers) // FLOAT_BYTES // BATCH
    sizes = Section(
        title="A network of that size",
        claims=(
            claim(
                "activations of one picture", "532,752", outputs, ELEMENTS, "our network has exactly these"
            ),
            claim("parameters", "19,072,984", momentum.formula.parameters, PARAMETERS, "and exactly these"),
            claim(
                "training at batch 128 with momentum, by formula",
                "742.34",
                momentum.formula_bytes,
                MB_BINARY,
                "the answer's formula, rounded at the end only; 128 labels of 8 bytes are in it",
            ),
            claim(
                "the same, traced on a GPU's allocator",
                "742.34",
                momentum.trace_bytes,
                MB_BINARY,
                "activations and their gradients are not all alive at one instant; the table below names every byte",
            ),
            claim(
                "with Adam, traced",
                "742.34",
                adam.trace_bytes,
                MB_BINARY,
                f"the optimizer is part of the question; the formula says {adam.formula_bytes / MIB:,.2f} MiB",
            ),
            claim(
                "the backward pass against the forward pass of the same step, highest of each, plain SGD",
                "3",
                plain["backward"] / plain["forward"],
                TIMES,
                "the first answer passes on from the lecture that backward may take up to three times as much; here "
                f"{_in_mib(plain['backward'])} against {_in_mib(plain['forward'])} MiB: the forward pass of training "
                "already holds all activations",
            ),
            ours_only(
                "the same against a forward pass alone, in inference",
                plain["backward"] / many.trace_bytes,
                TIMES,
                f"{_in_mib(many.trace_bytes)} MiB: inference keeps two feature maps, not all. The factor depends on "
                "network and batch; optimizer state, which is neither forward nor backward, is not in it",
            ),
        ),
        notes=(
            f"The network: 3 × 3 convolutions with {', '.join(str(n) for n in channels)} channels, each followed "
            f"by ReLU in place and 2 × 2 max-pooling; dense layers of {sizes_of['units']} and {sizes_of['classes']}. "
            "Input 180 × 50 × 1.",
            "Traced: three steps, caching allocator of CUDA. The CUDA context and library workspaces come on top.",
        ),
    )
    prediction = Section(
        title="Prediction",
        claims=(
            ours_only(
                "by the answer: parameters and all activations of one picture",
                (PARAMETER_COUNT + ACTIVATIONS) * FLOAT_BYTES,
                MB_BINARY,
                "too much: only two consecutive feature maps are alive at a time",
            ),
            ours_only("by formula, one picture", alone.formula_bytes, MB_BINARY),
            ours_only("traced, one picture", alone.trace_bytes, MB_BINARY),
            ours_only(
                "traced, a batch of 128",
                many.trace_bytes,
                MB_BINARY,
                "that one never predicts in batches is wrong: batches are usual, and cost this",
            ),
        ),
    )
    return sizes, gap_section(f"the network with momentum, batch {BATCH}", momentum), prediction


def _phase_peaks(found: Both) -> dict[str, int]:
    """Return the highest allocated of forward and backward in the first step."""
    names = {"step 1 forward": "forward", "step 1 backward": "backward"}
    return {names[p.name]: p.allocated_bytes or 0 for p in found.trace.phases if p.name in names}
