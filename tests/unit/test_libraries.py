"""A handful of library models: resolved, traced, and small ones really run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from memgauge.arguments import TargetOptions
from memgauge.errors import UnsupportedError, UsageError
from memgauge.targets import resolve
from memgauge.workload import Workload

torch = pytest.importorskip("torch")
compat = pytest.importorskip("memgauge.frameworks.torch.torchvision_compat")
trace = pytest.importorskip("memgauge.frameworks.torch.trace").trace

LIBRARIES = ("torchvision", "timm", "transformers")
pytestmark = [
    pytest.mark.skipif(not all(map(find_spec, LIBRARIES)), reason="the extra [models] is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries, about themselves
]


def run_step(workload: Workload) -> object:
    objects = workload.build()
    objects = objects if isinstance(objects, tuple) else (objects,)
    return workload.step(*objects, workload.batch())


def parameters(workload: Workload) -> int:
    objects = workload.build(device="meta")
    model = objects[0] if isinstance(objects, tuple) else objects
    return sum(p.numel() for p in model.parameters())


TINY_BERT = {
    "hidden_size": "16",
    "num_attention_heads": "2",
    "intermediate_size": "32",
    "num_hidden_layers": "2",
}
TINY_LLAMA = {**TINY_BERT, "num_key_value_heads": "1", "vocab_size": "99"}


# -- torchvision --------------------------------------------------------------------------------------


def test_torchvision_models_are_without_weights_and_of_the_known_size() -> None:
    assert parameters(resolve("torchvision:resnet18")) == 11_689_512


@pytest.mark.parametrize(
    ("name", "size"), [("resnet50", 224), ("inception_v3", 299), ("efficientnet_b7", 600), ("vit_h_14", 224)]
)
def test_pictures_have_the_size_that_the_weights_were_trained_with(name: str, size: int) -> None:
    workload = resolve(f"torchvision:{name}", TargetOptions(batch_size=1))
    assert workload.batch(device="meta")[0].shape == (1, 3, size, size)


@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_auxiliary_heads_take_part_in_training(name: str) -> None:
    workload = resolve(f"torchvision:{name}", TargetOptions(batch_size=2))
    objects = workload.build(device="meta")
    workload.step(*objects, workload.batch(device="meta"))
    named = dict(objects[0].named_parameters())
    assert all(p.grad is not None for key, p in named.items() if "aux" in key.lower())


def test_a_film_has_sixteen_frames() -> None:
    workload = resolve("torchvision:r3d_18", TargetOptions(batch_size=1))
    assert workload.batch(device="meta")[0].shape == (1, 3, 16, 112, 112)


def test_segmentation_and_flow_run_on_paper() -> None:
    for name in ("lraspp_mobilenet_v3_large", "raft_small"):
        workload = resolve(f"torchvision:{name}", TargetOptions(batch_size=2, image_size=128))
        objects = workload.build(device="meta")
        workload.step(*objects, workload.batch(device="meta"))


def test_detection_gets_pictures_boxes_and_masks() -> None:
    workload = resolve("torchvision:maskrcnn_resnet50_fpn", TargetOptions(batch_size=2))
    pictures, targets = workload.batch()
    assert [p.shape for p in pictures] == [(3, 480, 640)] * 2
    assert {key: tuple(t.shape) for key, t in targets[0].items()} == {
        "boxes": (8, 4),
        "labels": (8,),
        "masks": (8, 480, 640),
    }
    boxes = targets[0]["boxes"]
    assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_quantised_models_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="study torchvision:resnet50"):
        resolve("torchvision:quantized_resnet50")


def test_blocks_of_torchvision_are_checkpointed() -> None:
    options = TargetOptions(batch_size=2, image_size=64, checkpointing=True)
    run_step(resolve("torchvision:resnet18", options))
    with pytest.raises(UnsupportedError, match="no blocks to checkpoint"):
        resolve("torchvision:vgg11", options).build(device="meta")


def test_a_picture_model_takes_no_sequence_length() -> None:
    for target in ("torchvision:resnet18", "timm:resnet18", "transformers:vit"):
        with pytest.raises(UsageError, match=r"takes no sequence length .given: 5"):
            resolve(target, TargetOptions(sequence_length=5))


def test_builders_take_arguments_and_refuse_unknown_ones() -> None:
    assert parameters(resolve("torchvision:resnet18", sets={"num_classes": "10"})) == 11_181_642
    with pytest.raises(UsageError, match="no_such"):
        resolve("torchvision:resnet18", sets={"no_such": "1"}).build(device="meta")


def test_a_file_may_import_torchvision_whatever_its_operators_do(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(
        dedent("""
        import torchvision
        from memgauge.workload import Workload

        def main():
            model = lambda: torchvision.models.resnet18(weights=None)
            return Workload(build=model, batch=model, step=model, description={"classes": 3})
        """)
    )
    target = f"{tmp_path / 'uses.py'}:main"
    code = f"from memgauge.targets import resolve; print(resolve({target!r}).description)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "'classes': 3" in done.stdout, done.stderr


# -- timm ---------------------------------------------------------------------------------------------


def test_timm_models_take_their_own_size_or_that_of_a_tag() -> None:
    def size(target: str) -> tuple[int, ...]:
        return tuple(resolve(target, TargetOptions(batch_size=1)).batch(device="meta")[0].shape)

    assert size("timm:vit_tiny_patch16_384") == (1, 3, 384, 384)
    assert size("timm:resnet50.a1_in1k") == (1, 3, 224, 224)
    assert size("timm:efficientnet_x_b3") == (
        1,
        3,
        288,
        288,
    )  # in timm 1.0.9 it has no configuration but b3's
    with pytest.raises(UsageError, match="has no weights 'nothing'"):
        resolve("timm:resnet50.nothing")


def test_timm_models_are_rebuilt_for_another_size() -> None:
    workload = resolve("timm:vit_tiny_patch16_224", TargetOptions(batch_size=1, image_size=64, mode="infer"))
    result = run_step(workload)
    assert isinstance(result, torch.Tensor)
    assert result.shape == (1, 1000)


def test_timm_models_without_classes_train_on_their_features() -> None:
    workload = resolve("timm:vit_small_patch14_dinov2", TargetOptions(batch_size=1, image_size=28))
    run_step(workload)
    assert workload.description["classes"] == 0


# -- transformers -------------------------------------------------------------------------------------


def test_transformers_models_have_the_known_sizes() -> None:
    assert parameters(resolve("transformers:gpt2")) == 124_439_808
    assert parameters(resolve("transformers:bert")) == 109_514_298  # with the masked-language head


@pytest.mark.parametrize(
    ("target", "sets", "model_class"),
    [
        ("bert", TINY_BERT, "BertForMaskedLM"),
        ("llama", TINY_LLAMA, "LlamaForCausalLM"),
        (
            "t5",
            {"d_model": "16", "d_ff": "32", "num_layers": "1", "num_heads": "2"},
            "T5ForConditionalGeneration",
        ),
        ("vit", {**TINY_BERT, "image_size": "32"}, "ViTForImageClassification"),
    ],
)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_tiny_model_of_each_kind_really_runs(
    target: str, sets: dict[str, str], model_class: str, mode: str
) -> None:
    workload = resolve(f"transformers:{target}", TargetOptions(batch_size=2, mode=mode), sets)
    assert workload.description["model_class"] == model_class
    run_step(workload)


def test_a_picture_model_is_built_for_the_size_that_is_asked_for() -> None:
    workload = resolve("transformers:vit", TargetOptions(batch_size=2, image_size=64), TINY_BERT)
    assert workload.description["batch"]["pixel_values"] == [2, 3, 64, 64]  # type: ignore[index]
    run_step(workload)


@pytest.mark.parametrize("precision", ["bfloat16", "amp-bfloat16"])
def test_precisions_of_transformers(precision: str) -> None:
    options = TargetOptions(batch_size=2, sequence_length=8, precision=precision)
    run_step(resolve("transformers:llama", options, TINY_LLAMA))


def test_checkpointing_of_transformers() -> None:
    workload = resolve("transformers:llama", TargetOptions(batch_size=2, checkpointing=True), TINY_LLAMA)
    model, _ = workload.build()
    assert model.is_gradient_checkpointing
    with pytest.raises(UnsupportedError, match="no checkpointing of its own"):
        resolve("transformers:ctrl", TargetOptions(checkpointing=True))


def test_a_configuration_file_decides_on_class_and_sizes(tmp_path: Path) -> None:
    written = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        **{key: int(value) for key, value in TINY_BERT.items()},
    }
    (tmp_path / "config.json").write_text(json.dumps(written))
    for target in (tmp_path, tmp_path / "config.json"):
        workload = resolve(f"transformers:{target}", TargetOptions(batch_size=2))
        assert workload.description["model_class"] == "BertForSequenceClassification"
    run_step(workload)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "holds no configuration"), ('{"model_type": "brt"}', "nearest: bert")],
)
def test_a_bad_configuration_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        resolve(f"transformers:{tmp_path}")
    with pytest.raises(UsageError, match="there is no such file"):
        resolve(f"transformers:{tmp_path / 'other.json'}")


def test_configurations_are_set_by_attribute() -> None:
    with pytest.raises(UsageError, match=r"has no attribute 'hidden_sise'.*nearest: hidden_size"):
        resolve("transformers:bert", sets={"hidden_sise": "3"})
    with pytest.raises(UsageError, match="num_hidden_layers='x': expected int"):
        resolve("transformers:bert", sets={"num_hidden_layers": "x"})


def test_a_sequence_beyond_the_positions_is_refused() -> None:
    with pytest.raises(UsageError, match="sequence_length is 2048; transformers:gpt2 has 1024 positions"):
        resolve("transformers:gpt2", TargetOptions(sequence_length=2048))


def test_text_stands_beside_a_token_for_each_piece_of_a_picture() -> None:
    sets = {f"text_config.{key}": value for key, value in TINY_LLAMA.items()}
    sets |= {f"vision_config.{key}": value for key, value in TINY_BERT.items()}
    sets |= {"vision_config.image_size": "28", "vision_config.patch_size": "14"}
    workload = resolve("transformers:llava", TargetOptions(batch_size=2, sequence_length=10), sets)
    pieces = (28 // 14) ** 2
    assert workload.description["batch"]["input_ids"] == [2, 10 + pieces]  # type: ignore[index]
    batch = workload.batch()
    assert (batch["input_ids"][:, :pieces] == batch["input_ids"][0, 0]).all()
    run_step(workload)


def test_parts_and_generators_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="part of other models"):
        resolve("transformers:blip_text_model")
    with pytest.raises(UnsupportedError, match="no forward"):
        resolve("transformers:bark")


DETECTORS = [
    "fasterrcnn_mobilenet_v3_large_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "ssdlite320_mobilenet_v3_large",
]


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_is_followed_without_declared_values(name: str, mode: str) -> None:
    found = trace(resolve(f"torchvision:{name}", TargetOptions(batch_size=2, mode=mode)), steps=1)
    assert any("detectors are taken" in text for text in found.assumptions)


def test_a_detector_pools_each_sampled_box_once_and_masks_only_the_positive_ones() -> None:
    options = TargetOptions(batch_size=2)
    sets = {"box_batch_size_per_image": "64", "box_positive_fraction": "0.5", "min_size": "200"}
    found = trace(resolve("torchvision:maskrcnn_resnet50_fpn", options, sets), steps=1)
    pooled = [e.requested_bytes for e in found.events if e.operator == "torchvision.roi_align"]
    # 64 boxes of each of two pictures, 256 channels of 7 x 7; half of them positive, 14 x 14 for their masks; and
    # the masks themselves, 28 x 28, cut from one channel
    boxes, masks, targets = 2 * 64 * 256 * 7 * 7 * 4, 2 * 32 * 256 * 14 * 14 * 4, 2 * 32 * 28 * 28 * 4
    assert sum(pooled) == boxes + masks + targets


def test_an_error_names_the_line_of_the_library_that_reads_and_the_users_own() -> None:
    ops = compat.import_torchvision().ops

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        ops.remove_small_boxes(model(x)[:, :4], 1.0)

    with pytest.raises(UnsupportedError, match=r"ops/boxes\.py:\d+, called at .*test_libraries\.py:\d+"):
        trace(Workload(build=lambda: torch.nn.Linear(8, 8), batch=lambda: torch.randn(32, 8), step=step))


def test_only_torchvisions_own_lines_are_answered(tmp_path: Path) -> None:
    folder = tmp_path / "my-torchvision-models"
    folder.mkdir()
    (folder / "rpn.py").write_text(
        dedent("""
        import torch
        from memgauge.workload import Workload

        def step(model, x):
            scores, self = model(x), model
            keep = torch.where(scores >= self.score_thresh)[0]

        def job():
            def build():
                model = torch.nn.Linear(8, 8)
                model.score_thresh = 0.5
                return model
            return Workload(build=build, batch=lambda: torch.randn(512, 8), step=step)
        """)
    )
    with pytest.raises(UnsupportedError, match="depends on values"):
        trace(resolve(f"{folder / 'rpn.py'}:job"), steps=1)


def test_what_a_program_declares_for_itself_does_not_reach_into_a_detector() -> None:
    workload = resolve("torchvision:maskrcnn_resnet50_fpn", TargetOptions(batch_size=1, mode="infer"))
    found, said = (
        {e.requested_bytes for e in trace(replace(workload, values=values), steps=1).events}
        for values in ({}, {"item": 3, "nonzero": 5, "nms": 7})
    )
    assert found == said
