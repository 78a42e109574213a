from __future__ import annotations

import pytest

from memgauge.errors import UsageError
from memgauge.study.design import points
from memgauge.study.file import parse
from memgauge.study.plan import points_of, subject_of, training_of
from memgauge.study.space import Parameter, Space

GOOD = '[study]\nname = "a"\ntarget = "t.py:make"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no [study]"),
        ('[study]\nname = "a"\ndesing = "grid"', "[study] desing: unknown (nearest: design"),
        (GOOD, "[space] is empty"),
        (GOOD + "[spaec.x]\nvalues = [1]", "[spaec] is unknown (nearest: space"),
        (GOOD + "[space.x]\nvalue = [1]", "[space.x] value: unknown (nearest: values"),
        (GOOD + "[space.x]\nvalues = []", "at least one value"),
        (GOOD + "[space.x]\nvalues = [1, 1]", "comes twice"),
        (GOOD + "[space.x]\nlow = 5\nhigh = 1", "must not be above"),
        (GOOD + "[space.x]\nlow = 0\nhigh = 1\nlog = true", "begins above 0"),
        (GOOD + "[space.x]\nlow = 0.0\nhigh = 1.0", "a grid needs values"),
        (GOOD + "[space]\nx = 3", "what does not vary belongs to [fixed]"),
        (GOOD + '[space.x]\nvalues = [1]\nwhen = "y > 1"', "there is no parameter 'y'"),
        (GOOD + '[space.x]\nvalues = [1]\nwhen = "__import__(1)"', "cannot stand there"),
        (GOOD + "[fixed]\nx = 1\n[space.x]\nvalues = [1]", "stands in [fixed] and varies"),
        (GOOD + 'record = ["peak_alocated_bytes"]\n[space.x]\nvalues = [1]', "nearest: peak_allocated_bytes"),
        (GOOD + "repeats = 0\n[space.x]\nvalues = [1]", "at least 1"),
        (GOOD + 'interval = "9s"\n[space.x]\nvalues = [1]', "out of range"),
        (GOOD + '[limits]\ntrial_memory = "lots"\n[space.x]\nvalues = [1]', "not an amount of memory"),
        (GOOD + 'design = "sobol"\n[space.x]\nlow = 0\nhigh = 9', "needs trials = N"),
        (GOOD + 'design = "list"\n[space.x]\nvalues = [1]', "takes its points from [[list]]"),
        (GOOD + 'threads = "two"\n[space.x]\nvalues = [1]', "Expected `int"),
        ("[study", "is not TOML"),
        (GOOD + "[space.x]\nlow = 0\nhigh = 1_000_000_000_000", "the grid has more than"),
        (
            GOOD + 'design = "random"\ntrials = 100_000_000\n[space.x]\nlow = 0.0\nhigh = 1.0',
            "points at most",
        ),
        (GOOD + "[space.x]\nvalues = [1.0, nan]", "no value that can be tried"),
        (GOOD + "[space.x]\nvalues = [99999999999999999999]", "is too large"),
        (GOOD + 'design = "sobol"\ntrials = 2\nseed = -1\n[space.x]\nlow = 0\nhigh = 9', "seed = -1"),
        (GOOD + '[space.x]\nvalues = [1]\n[space.y]\nvalues = [2]\nwhen = "x == 2"', "holds at no point"),
        (
            GOOD + 'design = "sobol"\ntrials = 4\n[space.x]\nlow = 1\nhigh = 2\n'
            '[space.y]\nvalues = [2]\nwhen = "x >= 5"',
            "holds at no point",
        ),
    ],
)
def test_what_is_wrong_in_a_study_file_is_named(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        points_of(parse(text, "study.toml"))
    assert says in str(error.value)


def test_circular_conditions_are_refused() -> None:
    with pytest.raises(UsageError, match="depend on each other"):
        Space({"a": Parameter(values=(1,), when="b == 1"), "b": Parameter(values=(1,), when="a == 1")})


def test_a_parameter_exists_only_where_its_condition_holds() -> None:
    space = Space(
        {
            "nodes_2": Parameter(values=(8, 16), when="hidden_layers >= 2"),
            "hidden_layers": Parameter(low=1, high=2),
            "momentum": Parameter(
                values=(0.5,), when="optimizer in ('sgd', 'nag') and not hidden_layers == 1"
            ),
            "optimizer": Parameter(values=("adam", "sgd")),
        }
    )
    found = points("grid", space, None, 0)
    # one layer: adam, sgd; two layers: two widths each with adam and sgd, momentum with the latter
    assert len(found) == 2 + 4
    assert all(("nodes_2" in p) == (p["hidden_layers"] == 2) for p in found)
    assert all(("momentum" in p) == (p["hidden_layers"] == 2 and p["optimizer"] == "sgd") for p in found)


def test_steps_of_a_range_are_as_they_are_written() -> None:
    assert Parameter(low=0.1, high=0.5, step=0.1).levels() == (0.1, 0.2, 0.3, 0.4, 0.5)


@pytest.mark.parametrize("design", ["random", "sobol"])
def test_a_longer_design_begins_with_the_shorter_one(design: str) -> None:
    space = Space({"x": Parameter(low=1, high=1000), "y": Parameter(low=1e-4, high=0.1, log=True)})
    few, many = points(design, space, 20, 3), points(design, space, 90, 3)
    assert (len(few), len(many)) == (20, 90)
    assert many[:20] == few
    assert points(design, space, 20, 4) != few
    assert all(1 <= p["x"] <= 1000 and 1e-4 <= p["y"] <= 0.1 for p in many)  # type: ignore[operator]


def test_a_sobol_design_covers_each_half_of_each_parameter_equally() -> None:
    space = Space({"x": Parameter(low=0.0, high=1.0), "y": Parameter(low=0.0, high=1.0)})
    found = points("sobol", space, 64, 0)
    assert sum(p["x"] < 0.5 for p in found) == sum(p["y"] < 0.5 for p in found) == 32  # type: ignore[operator]


def test_a_small_space_is_exhausted_not_repeated() -> None:
    space = Space({"x": Parameter(values=(1, 2, 3))})
    assert sorted(p["x"] for p in points("random", space, 50, 0)) == [1, 2, 3]


def test_layers_and_nodes_become_widths() -> None:
    file = parse('[study]\nname = "a"\n[space.hidden_layers]\nlow = 1\nhigh = 3', "s")
    assert training_of({"hidden_layers": 2, "nodes": 64}, file).widths == (64, 64)
    assert training_of({"hidden_layers": 2, "nodes_1": 8, "nodes_2": 9, "nodes_3": 7}, file).widths == (8, 9)
    with pytest.raises(UsageError, match="neither nodes nor nodes_2"):
        training_of({"hidden_layers": 2, "nodes_1": 8}, file)
    with pytest.raises(UsageError, match=r"no parameter of a training.*nearest: batch_size"):
        training_of({"batchsize": 2}, file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[fixed]\nhidden_layers = 1\n[space.nodes_x]\nvalues = [4]",
            "nodes_x is no parameter of a training",
        ),
        (
            "[fixed]\nhidden_layers = 2\nnodes = 8\n[space.nodes_9]\nvalues = [4, 8]",
            'write [space.nodes_9] when = "hidden_layers >= 9"',
        ),
    ],
)
def test_a_layer_that_cannot_be_is_refused(text: str, says: str) -> None:
    file = parse('[study]\nname = "a"\n' + text, "study.toml")
    with pytest.raises(UsageError) as error:
        subject_of(file, points_of(file)[0], 1)
    assert says in str(error.value)


def test_options_of_a_library_s_model_and_arguments_of_a_function_are_told_apart() -> None:
    file = parse(
        '[study]\nname = "a"\ntarget = "torchvision:resnet18"\n[space.batch_size]\nvalues = [2]', "s"
    )
    subject = subject_of(file, {"batch_size": 2}, 1)
    assert (subject.options.batch_size, subject.sets) == (2, {})
    file = parse(GOOD + "[space.batch_size]\nvalues = [2]", "s")
    assert subject_of(file, {"batch_size": 2, "flag": True}, 1).sets == {"batch_size": "2", "flag": "true"}
