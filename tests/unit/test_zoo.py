"""The networks of the zoo have the sizes of their papers, and take a step."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from memgauge import zoo
from memgauge.arguments import TargetOptions
from memgauge.errors import UnsupportedError, UsageError
from memgauge.targets import resolve
from memgauge.workload import Workload
from memgauge.zoo.ranges import _COUNTS, _SHARES

torch = pytest.importorskip("torch")


def modules_of(workload: Workload, device: str = "meta") -> list[torch.nn.Module]:
    objects = workload.build(device=device)
    return [
        o for o in (objects if isinstance(objects, tuple) else (objects,)) if isinstance(o, torch.nn.Module)
    ]


def run_step(workload: Workload, steps: int = 1) -> object:
    """Do real steps on the CPU and return what the last one gave back."""
    objects = workload.build()
    objects = objects if isinstance(objects, tuple) else (objects,)
    result = None
    for _ in range(steps):
        result = workload.step(*objects, workload.batch())
    gradients = [p.grad for m in objects if isinstance(m, torch.nn.Module) for p in m.parameters()]
    if workload.mode == "train":
        assert any(g is not None and torch.isfinite(g).all() for g in gradients)
    else:
        assert all(g is None for g in gradients)
    return result


def test_importing_the_zoo_imports_no_framework() -> None:
    code = "import sys, memgauge.zoo, memgauge.targets; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_zoo_is_sorted_and_every_network_is_described() -> None:
    assert list(zoo.NAMES) == sorted(zoo.NAMES)
    for name in zoo.NAMES:
        said = zoo.describe(name)
        assert said.endswith(".") and "Arguments" not in said and "parameters" not in said


def test_an_unknown_name_lists_the_zoo() -> None:
    with pytest.raises(UsageError, match=r"nearest: resnet50.*torres-cnn"):
        zoo.find("resnet-50")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mlp", [784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10]),
        ("torres-cnn", [896 + 18_496 + 36_928 + 32_800 + 330]),
        ("gpt2", [124_439_808]),
        ("llama-8b", [8_030_261_248]),
        ("llama-70b", [70_553_706_496]),
        ("lstm", [13_987_678]),
        ("dcgan", [3_576_704, 2_765_568]),
    ],
)
def test_parameters_are_as_many_as_published(name: str, counts: list[int]) -> None:
    assert [sum(p.numel() for p in m.parameters()) for m in modules_of(resolve(f"zoo:{name}"))] == counts


PICTURES = {
    "alexnet": ("alexnet", 61_100_840),
    "vgg16": ("vgg16", 138_357_544),
    "googlenet": ("googlenet", 13_004_888),
    "resnet50": ("resnet50", 25_557_032),
    "vit-b16": ("vit_b_16", 86_567_656),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_have_the_parameters_of_torchvision(name: str) -> None:
    (model,) = modules_of(resolve(f"zoo:{name}"))
    assert sum(p.numel() for p in model.parameters()) == PICTURES[name][1]


@pytest.mark.parametrize("options", [{}, {"mode": "infer", "batch_size": 3}], ids=["train", "infer"])
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_layer_by_layer_torchvisions(name: str, options: dict[str, object]) -> None:
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    from memgauge.by_hand import by_hand

    asked = TargetOptions(**options)
    ours, theirs = (by_hand(t, options=asked) for t in (f"zoo:{name}", f"torchvision:{PICTURES[name][0]}"))
    assert [(r.kind, r.output_shapes, r.parameters) for r in ours.layers] == [
        (r.kind, r.output_shapes, r.parameters) for r in theirs.layers
    ]
    assert ours.training == theirs.training


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["googlenet", "resnet50", "vit-b16"])
def test_pictures_take_the_memory_of_torchvisions(name: str, checkpointing: bool) -> None:
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    from memgauge.estimate import estimate

    asked = TargetOptions(batch_size=4, checkpointing=checkpointing)
    ours, theirs = (
        estimate(t, options=asked, threads=1, host=False)
        for t in (f"zoo:{name}", f"torchvision:{PICTURES[name][0]}")
    )
    if checkpointing and name == "googlenet":  # our stem is a row of blocks, theirs are single attributes
        assert ours.peak.tensor_bytes <= theirs.peak.tensor_bytes
    else:
        assert ours.peak == theirs.peak


@pytest.mark.parametrize(
    ("target", "sets", "other"),
    [
        ("zoo:vgg16", {"blocks": "1,1,2,2,2"}, "vgg11"),
        ("zoo:vgg16", {"blocks": "2,2,4,4,4"}, "vgg19"),
        ("zoo:resnet50", {"blocks": "3,4,23,3"}, "resnet101"),
        ("zoo:resnet50", {"blocks": "3,8,36,3"}, "resnet152"),
        ("zoo:vit-b16", {"layers": "24", "width": "1024", "heads": "16"}, "vit_l_16"),
    ],
)
def test_relatives_by_their_sizes_have_the_parameters_of_torchvision(
    target: str, sets: dict[str, str], other: str
) -> None:
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    counts = [
        sum(p.numel() for m in modules_of(w) for p in m.parameters())
        for w in (resolve(target, sets=sets), resolve(f"torchvision:{other}"))
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("name", "model_type", "config"),
    [
        ("gpt2", "GPT2", {}),
        (
            "llama-8b",
            "Llama",
            {
                "hidden_size": 4096,
                "intermediate_size": 14_336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 128_256,
            },
        ),
        (
            "llama-70b",
            "Llama",
            {
                "hidden_size": 8192,
                "intermediate_size": 28_672,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "vocab_size": 128_256,
            },
        ),
    ],
)
def test_language_models_have_the_parameters_of_transformers(
    name: str, model_type: str, config: dict[str, int]
) -> None:
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{model_type}Config")(**config)
    kind = "GPT2LMHeadModel" if model_type == "GPT2" else "LlamaForCausalLM"
    with torch.device("meta"):
        theirs = getattr(transformers, kind)(made)
    theirs.tie_weights()
    (ours,) = modules_of(resolve(f"zoo:{name}"))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_every_network_has_the_arguments_of_the_command_line() -> None:
    for name in zoo.NAMES:
        found = zoo.defaults(name)
        assert {"batch_size", "optimizer", "precision", "checkpointing", "mode"} <= set(found)
        assert {"image_size", "sequence_length", "widths", "width"} & set(found)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_every_network_is_described_with_its_arguments_and_source(name: str) -> None:
    text = zoo.find(name).__doc__ or ""
    assert "Args:" in text
    assert "Source" in text or name == "mlp"


SMALL = {
    "mlp": {"widths": "8,6,6,3", "batch_size": "2"},
    "torres-cnn": {"batch_size": "2"},
    "gpt2": {"layers": "2", "width": "32", "heads": "2", "sequence_length": "8", "batch_size": "2"},
    "lstm": {"vocabulary": "50", "width": "8", "sequence_length": "5", "batch_size": "2"},
    "dcgan": {"width": "4", "batch_size": "2"},
    "alexnet": {"image_size": "63", "classes": "3", "batch_size": "2", "width": "4"},
    "vgg16": {"image_size": "32", "classes": "3", "batch_size": "2", "width": "4"},
    "googlenet": {"image_size": "32", "classes": "3", "batch_size": "2", "width": "4"},
    "resnet50": {
        "image_size": "32",
        "classes": "3",
        "blocks": "1,1,1,1",
        "batch_size": "2",
        "width": "4",
    },
    "vit-b16": {"image_size": "32", "layers": "2", "width": "16", "heads": "2", "batch_size": "2"},
}
_LLAMA = "layers=2 width=32 heads=4 kv_heads=2 feed_forward=48 vocabulary=60 sequence_length=6 batch_size=2"
for _name in ("llama-8b", "llama-70b"):
    SMALL[_name] = dict(pair.split("=") for pair in _LLAMA.split())


def test_every_network_of_the_zoo_is_run_small() -> None:
    assert set(SMALL) == set(zoo.NAMES)


@pytest.mark.parametrize("name", SMALL)
def test_a_real_step_trains(name: str) -> None:
    run_step(resolve(f"zoo:{name}", sets=SMALL[name]), steps=2)


@pytest.mark.parametrize("precision", ["bfloat16", "amp-bfloat16", "float64"])
@pytest.mark.parametrize("name", ["mlp", "torres-cnn", "gpt2"])
def test_other_precisions_train(name: str, precision: str) -> None:
    workload = resolve(f"zoo:{name}", TargetOptions(precision=precision), SMALL[name])
    run_step(workload)
    dtype = {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(precision, torch.float32)
    assert {p.dtype for m in modules_of(workload, "cpu") for p in m.parameters()} == {dtype}


def test_a_gradient_scaler_takes_part_where_build_returns_one() -> None:
    workload = resolve("zoo:mlp", TargetOptions(precision="amp-float16"), SMALL["mlp"])
    model, optimizer = workload.build()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    before = model.output.weight.clone()
    workload.step(model, optimizer, scaler, workload.batch())
    assert not torch.equal(before, model.output.weight)


@pytest.mark.parametrize("name", SMALL)
def test_checkpointing_gives_the_same_gradients(name: str) -> None:
    gradients = []
    sets = SMALL[name] | (
        {"dropout": "0"} if name == "lstm" else {}
    )  # its layers' dropouts draw in another order
    for checkpointing in (False, True):
        workload = resolve(f"zoo:{name}", TargetOptions(checkpointing=checkpointing), sets)
        torch.manual_seed(0)
        objects = workload.build()
        models = [o for o in objects if isinstance(o, torch.nn.Module)]
        if name == "lstm":
            _fill_alike(models)
        torch.manual_seed(1)
        workload.step(*objects, workload.batch())
        gradients.append([p.grad for model in models for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


def _fill_alike(models: list[torch.nn.Module]) -> None:
    """Give parameters values by their order, whatever operators they belong to."""
    for number, parameter in enumerate(p for model in models for p in model.parameters()):
        torch.manual_seed(number)
        torch.nn.init.uniform_(parameter, -0.3, 0.3)


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        ("alexnet", 128),
        ("dcgan", 32),
        ("googlenet", 32),
        ("gpt2", 4),
        ("llama-70b", 4),
        ("llama-8b", 4),
        ("lstm", 32),
        ("resnet50", 32),
        ("vgg16", 32),
        ("vit-b16", 16),
    ],
)
def test_checkpointing_takes_less_memory(name: str, batch_size: int) -> None:
    """In the two that are missing, a multilayer perceptron and three convolutions, one block is nearly all."""
    from memgauge.estimate import estimate

    kept, again = (
        estimate(
            f"zoo:{name}",
            options=TargetOptions(batch_size=batch_size, optimizer="sgd", checkpointing=checkpointing),
            sets={"layers": "3"} if "llama" in name else {},
            threads=1,
            host=False,
        ).peak.tensor_bytes
        for checkpointing in (False, True)
    )
    assert again is not None and kept is not None
    assert again < 0.95 * kept


def test_inference_returns_logits_and_leaves_no_gradients() -> None:
    workload = resolve("zoo:mlp", TargetOptions(mode="infer"), SMALL["mlp"])
    result = run_step(workload)
    assert isinstance(result, torch.Tensor)
    assert result.shape == (2, 3)
    assert not result.requires_grad
    assert "optimizer" not in workload.description


def test_a_small_llama_attends_to_the_past_only() -> None:
    from memgauge.zoo.llama_model import Llama, Shape

    torch.manual_seed(0)
    shape = Shape(layers=2, width=32, heads=4, key_value_heads=2, feed_forward=48, vocabulary=60)
    model = Llama(shape, sequence_length=6)
    tokens = torch.randint(0, 60, (1, 6))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 60
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :-1], after[:, :-1], atol=1e-6)
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-3)
    model(tokens).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_gpt2_starts_as_unsure_as_its_vocabulary_is_large() -> None:
    from memgauge.zoo.language import next_token_loss

    torch.manual_seed(0)
    workload = resolve("zoo:gpt2", sets=SMALL["gpt2"])
    (model,) = modules_of(workload, "cpu")
    torch.nn.init.normal_(model.tokens.weight, std=0.02)
    assert next_token_loss(model, workload.batch()).item() == pytest.approx(math.log(50_257), rel=0.05)


def test_digits_are_real_pictures_in_three_equal_channels() -> None:
    pytest.importorskip("sklearn")
    workload = resolve("zoo:torres-cnn", sets={"data": "digits", "batch_size": "5"})
    pictures, classes = workload.batch()
    assert pictures.shape == (5, 3, 32, 32)
    assert torch.equal(pictures[:, 0], pictures[:, 2])
    assert pictures.min() >= 0 and pictures.max() == 1
    assert classes.dtype == torch.int64
    run_step(workload)


def test_a_dcgan_makes_pictures_in_inference() -> None:
    pictures = run_step(
        resolve("zoo:dcgan", TargetOptions(mode="infer", precision="float64"), SMALL["dcgan"])
    )
    assert isinstance(pictures, torch.Tensor)
    assert (pictures.shape, pictures.dtype) == ((2, 3, 64, 64), torch.float64)


def test_googlenet_gives_one_result_in_inference_and_three_in_training() -> None:
    sets = SMALL["googlenet"]
    assert run_step(resolve("zoo:googlenet", TargetOptions(mode="infer"), sets)).shape == (2, 3)
    (model,) = modules_of(resolve("zoo:googlenet", sets=sets), "cpu")
    assert [tuple(t.shape) for t in model(torch.randn(2, 3, 32, 32))] == [(2, 3)] * 3
    (alone,) = modules_of(resolve("zoo:googlenet", sets={"auxiliary": "false"}))
    assert sum(p.numel() for p in alone.parameters()) == 6_624_904


@pytest.mark.parametrize(
    ("name", "sets", "message"),
    [
        ("mlp", {"widths": "3"}, "widths='3'"),
        ("mlp", {"widths": "3,x"}, "widths='3,x'"),
        ("torres-cnn", {"image_size": "17"}, "at least 18"),
        ("torres-cnn", {"data": "cats"}, "random or digits"),
        ("gpt2", {"sequence_length": "1025"}, "1024 positions"),
        ("gpt2", {"heads": "7"}, "7 heads"),
        ("mlp", {"optimizer": "adm"}, "nearest: adam"),
        ("mlp", {"optimizer": "sgd,momentu=1"}, "momentum"),
        ("mlp", {"optimizer": "muon"}, "matrices only"),
        ("mlp", {"optimizer": "sparseadam"}, "sparse gradients"),
        ("resnet50", {"blocks": "3,4"}, "4 numbers"),
        ("vgg16", {"blocks": "1,x,1,1,1"}, "5 numbers"),
        ("vgg16", {"image_size": "31"}, "at least 32"),
        ("alexnet", {"image_size": "62"}, "at least 63"),
        ("vit-b16", {"image_size": "40"}, "patches of 16"),
        ("vit-b16", {"heads": "7"}, "7 heads"),
        ("torres-cnn", {"filters": "3,3"}, "3 numbers"),
        ("dcgan", {"precision": "amp-float16"}, "precision 'amp-float16' is unknown"),
        ("mlp", {"batch_size": "0"}, "batch_size is 0"),
        ("dcgan", {"image_size": "48"}, "image_size=48"),
        ("dcgan", {"image_size": "4"}, "image_size=4"),
        ("llama-8b", {"heads": "7"}, "does not divide into 7 heads"),
        ("llama-8b", {"kv_heads": "5"}, "kv_heads=5"),
    ],
)
def test_arguments_out_of_range_are_refused(name: str, sets: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(f"zoo:{name}", sets=sets)


def test_what_cannot_be_checkpointed_says_so() -> None:
    with pytest.raises(UnsupportedError, match="widths 8,3"):
        resolve("zoo:mlp", TargetOptions(checkpointing=True), {"widths": "8,3"}).build()
    with pytest.raises(UnsupportedError, match="no blocks"):
        resolve("zoo:lstm", TargetOptions(checkpointing=True), {"layers": "1"}).build()


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        *((name, "0", f"{name} is 0; it must be at least 1") for name in _COUNTS),
        ("layers", "-1", "layers is -1; it must be at least 1"),
        ("dropout", "1.5", "dropout is 1.5; it must be from 0 to 1"),
        ("dropout", "-0.1", "dropout is -0.1"),
        ("dropout", "nan", "dropout is nan"),
    ],
)
def test_a_number_out_of_range_is_refused_by_every_network_that_takes_it(
    argument: str, value: str, message: str
) -> None:
    takers = [name for name in zoo.NAMES if argument in zoo.defaults(name)]
    assert takers
    for name in takers:
        with pytest.raises(UsageError, match=re.escape(message)):
            resolve(f"zoo:{name}", sets={argument: value})


def test_every_number_that_a_network_takes_has_a_range() -> None:
    for name in zoo.NAMES:
        numbers = {n for n, v in zoo.defaults(name).items() if isinstance(v, int | float)}
        assert numbers - {"checkpointing", "auxiliary"} <= {*_COUNTS, *_SHARES}


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "googlenet", "resnet50", "dcgan"])
def test_width_scales_a_network(name: str) -> None:
    counts = [
        sum(
            p.numel()
            for m in modules_of(resolve(f"zoo:{name}", sets={"width": width}))
            for p in m.parameters()
        )
        for width in ("1", "32", "64", "128")
    ]
    assert counts == sorted(set(counts))
    assert counts[2] == sum(p.numel() for m in modules_of(resolve(f"zoo:{name}")) for p in m.parameters())


@pytest.mark.parametrize("size", [8, 16, 128])
def test_a_dcgan_is_as_deep_as_its_pictures_are_large(size: int) -> None:
    sets = {"width": "2", "batch_size": "2", "image_size": str(size)}
    run_step(resolve("zoo:dcgan", sets=sets))
    pictures = run_step(resolve("zoo:dcgan", TargetOptions(mode="infer"), sets))
    assert isinstance(pictures, torch.Tensor) and pictures.shape == (2, 3, size, size)


def test_every_plain_optimizer_of_torch_takes_a_step() -> None:
    from memgauge.frameworks.torch.recipe import optimizers

    assert {"sgd", "adam", "adamw", "adagrad", "rmsprop", "adafactor", "lbfgs"} <= set(optimizers())
    for name in optimizers():
        run_step(resolve("zoo:mlp", sets={**SMALL["mlp"], "optimizer": name}))
    workload = resolve("zoo:mlp", sets={**SMALL["mlp"], "optimizer": "sgd,momentum=0.9,lr=0.1"})
    group = workload.build()[1].param_groups[0]
    assert (group["momentum"], group["lr"]) == (0.9, 0.1)
