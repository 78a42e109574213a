"""A TARGET becomes a workload, or an error that says what to write instead."""

from __future__ import annotations

import pickle
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from memgauge.arguments import TargetOptions, arguments_for, convert, parse_sets
from memgauge.errors import MissingError, UsageError, WorkloadError
from memgauge.targets import Target, parse_target, resolve
from memgauge.usercode import user_traceback

PLAIN = """
    import memgauge.workload

    def training(batch_size: int = 4, width: int = 3, scale: float = 1.0, deep: bool = False, name: str = ""):
        facts = dict(batch_size=batch_size, width=width, scale=scale, deep=deep, name=name)
        same = lambda *_: None
        return memgauge.workload.Workload(build=same, batch=same, step=same, description=facts)

    def other():
        return 3

    def broken():
        return helper()

    def helper():
        raise ValueError("no such thing as 12")

    def needs(width):
        return training(width=width)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(dedent(PLAIN))
    return path


@pytest.fixture(autouse=True)
def _leave_import_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


# -- parsing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zoo:gpt2", Target("zoo", "gpt2")),
        ("torchvision:resnet50", Target("torchvision", "resnet50")),
        ("timm:resnet50.a1_in1k", Target("timm", "resnet50.a1_in1k")),
        ("transformers:llama", Target("transformers", "llama")),
        ("transformers:models/config.json", Target("transformers", "models/config.json")),
        ("dir/train.py:main", Target("file", "dir/train.py", "main")),
        ("C:\\work\\train.py:main", Target("file", "C:\\work\\train.py", "main")),
        ("package.module:main", Target("module", "package.module", "main")),
        ("  zoo:mlp  ", Target("zoo", "mlp")),
    ],
)
def test_every_form_is_told_apart(text: str, expected: Target) -> None:
    assert parse_target(text) == expected
    assert str(expected) == text.strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no TARGET"),
        ("resnet50", "did you mean zoo:resnet50"),
        ("nonsense", "torchvision:NAME"),
        ("zoo:", "zoo:gpt2"),
        (":main", "is not a TARGET"),
        ("train.py", "names no function"),
        ("train.py:", "names no function"),
        ("some thing:main", "is not a TARGET"),
        ("train.py:a-b", "is not the name of a function"),
        ("torchvison:vit-b", "torchvision:vit-b"),
    ],
)
def test_what_is_no_target_is_refused_with_a_way_on(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_target(text)


def test_a_file_without_function_lists_its_functions(file: Path) -> None:
    with pytest.raises(UsageError, match="it has training, other, broken, helper, needs"):
        parse_target(str(file))


# -- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch_size", "image_size", "sequence_length"])
@pytest.mark.parametrize("value", [0, -3])
def test_a_size_below_one_is_refused_by_name_and_value(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        TargetOptions(**{name: value})


def test_unknown_precision_and_mode_name_the_choices() -> None:
    with pytest.raises(UsageError, match=r"bfloat16.*amp-float16"):
        TargetOptions(precision="bf16")
    with pytest.raises(UsageError, match="train or infer"):
        TargetOptions(mode="eval")


def test_only_what_differs_from_the_default_counts_as_given() -> None:
    assert TargetOptions(batch_size=8, mode="infer").given() == {"batch_size": 8, "mode": "infer"}


def test_sets_are_pairs() -> None:
    assert parse_sets(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UsageError, match="--set name=value"):
        parse_sets(["a"])
    with pytest.raises(UsageError, match="twice: '1' and '2'"):
        parse_sets(["a=1", "a=2"])


# -- conversion ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("3", int, 3),
        ("1e-3", float, 1e-3),
        ("yes", bool, True),
        ("False", bool, False),
        ("3", str, "3"),
        ("none", int | None, None),
        ("3", int | None, 3),
        ("3.5", int | float, 3.5),
        ("big", int | str, "big"),
        ("7", int | str, 7),
        ("(1, 2)", tuple[int, int], (1, 2)),
        ("[1, 2]", list[int], [1, 2]),
        ("3", None, 3),
        ("text", None, "text"),
        ("true", None, True),
    ],
)
def test_text_takes_the_annotated_type(text: str, annotation: object, expected: object) -> None:
    assert convert("key", text, annotation) == expected


@pytest.mark.parametrize(
    ("text", "annotation", "kind"),
    [("3.5", int, "int"), ("x", float, "float"), ("maybe", bool, "true or false"), ("x", int | None, "int")],
)
def test_text_of_another_type_is_refused_with_value_and_type(
    text: str, annotation: object, kind: str
) -> None:
    with pytest.raises(UsageError, match=f"key={text!r}: expected {kind}"):
        convert("key", text, annotation)


def test_without_an_annotation_the_default_decides() -> None:
    assert convert("key", "3", None, 1.0) == 3.0
    assert convert("key", "on", None, False) is True
    assert convert("key", "3", None, "a") == "3"


def test_annotations_written_as_text_are_understood() -> None:
    def function(width: int, ratio: Unknown = 0.5) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    arguments = arguments_for(function, "function", TargetOptions(), {"width": "3", "ratio": "2"})
    assert arguments == {"width": 3, "ratio": 2.0}


# -- files --------------------------------------------------------------------------------------------


def test_a_function_gets_options_and_sets_in_their_types(file: Path) -> None:
    sets = {"width": "7", "scale": "2", "deep": "true", "name": "5"}
    workload = resolve(f"{file}:training", TargetOptions(batch_size=64), sets)
    expected = {"batch_size": 64, "width": 7, "scale": 2.0, "deep": True, "name": "5"}
    assert {key: workload.description[key] for key in expected} == expected
    assert workload.description["target"] == f"{file}:training"


@pytest.mark.parametrize("target", ["zoo:mlp", "train.py:training", "transformers:vit"])
def test_an_argument_that_is_given_twice_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match=r"--batch-size 64 and --set batch_size=2 both say batch_size"):
        resolve(target, TargetOptions(batch_size=64), {"batch_size": "2"})


def test_an_option_that_the_function_does_not_take_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r"takes no image_size .given: 64.; it takes batch_size, width"):
        resolve(f"{file}:training", TargetOptions(image_size=64))


def test_an_unknown_argument_offers_the_nearest(file: Path) -> None:
    with pytest.raises(UsageError, match=r"takes no widht .nearest: width"):
        resolve(f"{file}:training", sets={"widht": "3"})


def test_a_batch_size_of_zero_is_refused_as_an_argument_too(file: Path) -> None:
    with pytest.raises(UsageError, match="batch_size is 0"):
        resolve(f"{file}:training", sets={"batch_size": "0"})


def test_a_missing_argument_names_the_way_to_give_it(file: Path) -> None:
    with pytest.raises(UsageError, match="--set width=VALUE"):
        resolve(f"{file}:needs")


def test_a_missing_file_offers_its_neighbours(file: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no such file \(nearest: train.py\)"):
        resolve(f"{file.with_name('trian.py')}:training")


def test_a_missing_function_lists_those_there_are(file: Path) -> None:
    with pytest.raises(UsageError, match=r"nearest: training.*training, other, broken"):
        resolve(f"{file}:trainning")


def test_a_function_that_raises_is_quoted_with_its_own_lines_only(file: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        resolve(f"{file}:broken")
    text = str(caught.value)
    assert "raised ValueError" in text
    assert "no such thing as 12" in text
    assert "in helper" in text
    assert "usercode.py" not in text


def test_a_function_that_returns_no_workload_is_told_how_to_end(file: Path) -> None:
    with pytest.raises(WorkloadError, match="returned an int, not a Workload; end it with"):
        resolve(f"{file}:other")


def test_a_file_that_cannot_be_read_as_python_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    with pytest.raises(WorkloadError, match="SyntaxError"):
        resolve(f"{tmp_path / 'bad.py'}:f")


def test_a_file_that_exits_does_not_end_the_program(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(WorkloadError, match="could not be imported"):
        resolve(f"{tmp_path / 'leaves.py'}:f")


def test_a_missing_package_says_which(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import surely_not_installed_anywhere\n")
    with pytest.raises(MissingError, match="surely_not_installed_anywhere"):
        resolve(f"{tmp_path / 'needy.py'}:f")


def test_siblings_dataclasses_and_pickling_work(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("WIDTH = 5\n")
    (tmp_path / "whole.py").write_text(
        dedent("""
        from __future__ import annotations
        from dataclasses import dataclass, field
        import parts
        from memgauge.workload import Workload

        @dataclass
        class Settings:
            width: int = parts.WIDTH
            names: list[str] = field(default_factory=list)

        def main():
            same = lambda *_: None
            return Workload(build=same, batch=same, step=same, description={"settings": Settings()})
        """)
    )
    settings = resolve(f"{tmp_path / 'whole.py'}:main").description["settings"]
    assert settings.width == 5  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_equally_named_siblings_of_two_directories_are_not_mixed_up(tmp_path: Path) -> None:
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "sibling_of_two.py").write_text(f"NUMBER = {number}\n")
        (directory / "main.py").write_text(
            dedent("""
            import sibling_of_two
            from memgauge.workload import Workload

            def main():
                same = lambda *_: None
                return Workload(build=same, batch=same, step=same, description={"n": sibling_of_two.NUMBER})
            """)
        )
    assert [resolve(f"{tmp_path / str(n) / 'main.py'}:main").description["n"] for n in (1, 2, 1)] == [1, 2, 1]


def test_a_changed_file_is_read_again(file: Path) -> None:
    resolve(f"{file}:training")
    file.write_text(dedent(PLAIN).replace("width: int = 3", "width: int = 30"))
    assert resolve(f"{file}:training").description["width"] == 30


def test_a_workload_itself_may_be_the_target(file: Path) -> None:
    file.write_text(dedent(PLAIN) + "\nready = training()\n")
    assert resolve(f"{file}:ready").description["width"] == 3
    with pytest.raises(UsageError, match="takes no options"):
        resolve(f"{file}:ready", sets={"width": "1"})


# -- modules, libraries, zoo --------------------------------------------------------------------------


def test_a_module_is_found_in_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.rename(file.with_name("my_own_module.py"))
    assert resolve("my_own_module:training").description["width"] == 3
    del sys.modules["my_own_module"]


def test_an_unknown_module_lists_the_forms() -> None:
    with pytest.raises(UsageError, match="there is no module 'surely_not_there' here; a TARGET is zoo:NAME"):
        resolve("surely_not_there.part:main")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("zoo:gpt3", "gpt2"),
        ("torchvision:resnet51", "resnet50"),
        ("timm:resnet51", "resnet50"),
        ("transformers:lama", "llama"),
    ],
)
def test_an_unknown_model_offers_the_nearest(text: str, near: str) -> None:
    library = text.partition(":")[0]
    pytest.importorskip("torch")
    if library != "zoo" and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    with pytest.raises(UsageError, match=f"nearest: .*{near}"):
        resolve(text)


def test_the_traceback_of_an_error_without_user_frames_is_not_empty() -> None:
    assert "ValueError: 7" in user_traceback(ValueError(7))
    try:
        parse_target("")
    except UsageError as error:
        assert "test_targets.py" in user_traceback(error)
        assert 'targets.py", line' not in user_traceback(error).replace("test_targets.py", "")
