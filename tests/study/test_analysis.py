from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from memgauge.study.analysis.censoring import bound_of
from memgauge.study.analysis.drivers import analyse
from memgauge.study.analysis.fanova import importances
from memgauge.study.analysis.mechanism import mechanism
from memgauge.study.analysis.surrogate import feature, takes_logarithm
from memgauge.study.records import Background, Machine, Params, Predicted, StudyRecord, Trial

FIGURE = "peak_resident_bytes"


def made(rows: list[tuple[Params, float]], **more: object) -> StudyRecord:
    trials = [
        Trial(number=i, status="done", params=p, figures={FIGURE: int(y)}, **more)
        for i, (p, y) in enumerate(rows)
    ]  # type: ignore[arg-type]
    return StudyRecord(name="made", file={}, trials=trials)


def known_truth(seed: int, n: int = 100) -> StudyRecord:
    """Memory that depends on width, depth and batch only, with half a percent of noise."""
    source = np.random.default_rng(1000 + seed)
    rows: list[tuple[Params, float]] = []
    for _ in range(n):
        width, depth = int(2 ** source.uniform(5, 10)), int(source.integers(1, 9))
        batch, rate = int(2 ** source.uniform(5, 11)), float(10 ** source.uniform(-4, -1))
        parameters = 784 * width + width**2 * (depth - 1) + 10 * width
        memory = (16 * parameters + 8 * batch * width * depth + 3e8) * (1 + source.normal(0, 0.005))
        params: Params = {
            "width": width,
            "depth": depth,
            "batch_size": batch,
            "rate": rate,
            "epochs": int(source.integers(1, 11)),
        }
        rows.append((params, memory))
    return made(rows)


def drivers(study: StudyRecord) -> set[str]:
    (figure,) = analyse(study, [FIGURE]).figures
    return {i.name for i in figure.importances if i.verdict == "driver"}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_true_drivers_are_named_and_no_others(seed: int) -> None:
    assert drivers(known_truth(seed)) == {"width", "depth", "batch_size"}


def test_the_conclusion_says_so_in_words() -> None:
    found = analyse(known_truth(3), [FIGURE])
    assert any(line.startswith("resident, largest process is driven by width (") for line in found.conclusion)
    assert any(
        line.startswith("resident, largest process, rate: no effect beyond noise (0.")
        for line in found.conclusion
    )


def test_noise_alone_names_nothing() -> None:
    source = np.random.default_rng(5)
    rows: list[tuple[Params, float]] = [
        (
            {
                "a": int(source.integers(1, 9)),
                "b": float(source.random()),
                "c": str(source.choice(["x", "y"])),
            },
            3e8 + 1e6 * source.normal(),
        )
        for _ in range(80)
    ]
    study = made(rows)
    assert drivers(study) == set()
    assert "stands out from noise" in analyse(study, [FIGURE]).conclusion[0]


def test_a_name_can_drive_and_an_absent_parameter_is_a_value() -> None:
    source = np.random.default_rng(6)
    rows: list[tuple[Params, float]] = []
    for _ in range(60):
        kind, other = str(source.choice(["sgd", "adam", "rmsprop"])), float(source.random())
        params: Params = {"kind": kind, "other": other}
        if kind == "adam":
            params["beta"] = float(source.random())
        rows.append((params, 1e8 * (1 + (kind == "adam") * 2) + 1e5 * source.normal()))
    assert drivers(made(rows)) == {"kind"}  # not beta, which exists for adam only and does nothing


def test_importances_agree_with_optuna_s_fanova_where_a_forest_can_see_them() -> None:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    source = np.random.default_rng(2)
    a, b, c = source.random(300), source.random(300), source.random(300)
    y = 100 + 3 * a + b  # variances 9 : 1
    features = [feature(n, [float(x) for x in v]) for n, v in (("a", a), ("b", b), ("c", c))]
    ours = importances(features, y, takes_logarithm(features, y)).shares.mean(axis=0)
    study = optuna.create_study()
    space = {n: optuna.distributions.FloatDistribution(0, 1) for n in "abc"}
    for i in range(300):
        study.add_trial(
            optuna.create_trial(params={"a": a[i], "b": b[i], "c": c[i]}, distributions=space, value=y[i])
        )
    theirs = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    assert ours[:2] == pytest.approx([0.9, 0.1], abs=0.03)
    assert [theirs[n] for n in "abc"] == pytest.approx(ours, abs=0.06)


def test_the_regression_finds_the_bytes_per_parameter_and_activation() -> None:
    source = np.random.default_rng(4)
    parameters, activations = source.uniform(1e5, 5e6, 60), source.uniform(1e5, 8e6, 60)
    values = 2e8 + 12 * parameters + 4 * activations + source.normal(0, 1e5, 60)
    found = mechanism("all trials", parameters, activations, values, [False] * 60)
    assert found is not None
    by_name = {c.name: c for c in found.coefficients}
    assert by_name["parameters"].low < 12 < by_name["parameters"].high
    assert by_name["activations"].low < 4 < by_name["activations"].high
    assert by_name["parameters"].bytes == pytest.approx(12, rel=0.01)


def test_censored_trials_pull_the_regression_back_to_the_truth() -> None:
    source = np.random.default_rng(4)
    parameters = source.uniform(1e5, 5e6, 80)
    noise = source.normal(0, 4e6, 80)
    values = 2e8 + 12 * parameters + noise
    limit = 2.3e8
    is_censored = values > limit
    seen = np.minimum(values, limit)
    ours = mechanism("all", parameters, np.zeros(80), seen, is_censored)
    naive = mechanism("all", parameters, np.zeros(80), seen, [False] * 80)
    assert ours is not None and naive is not None and ours.censored == is_censored.sum() > 10
    errors = [abs(m.coefficients[1].bytes - 12) for m in (ours, naive)]
    assert errors[0] < errors[1] / 3 and errors[1] > 3


def test_trials_out_of_memory_count_as_above_the_limit() -> None:
    study = known_truth(1)
    limit = float(np.quantile([t.figures[FIGURE] for t in study.trials], 0.85))
    above = sum(t.figures[FIGURE] > limit for t in study.trials)
    study.trials = [
        t
        if t.figures[FIGURE] <= limit
        else Trial(number=t.number, params=t.params, status="out-of-memory", censored_at_bytes=int(limit))
        for t in study.trials
    ]
    found = analyse(study, [FIGURE])
    (figure,) = found.figures
    assert (figure.trials, figure.censored) == (100 - above, above) and above > 3
    assert any("above their limit" in w for w in found.warnings)
    assert any(f"{above} trials ran out of memory" in c for c in found.conclusion)


def test_a_limit_of_resident_memory_is_no_bound_of_what_was_not_seen() -> None:
    stopped = Trial(
        number=0,
        params={},
        status="out-of-memory",
        censored_at_bytes=600,
        figures={"peak_network_bytes": 400, "average_system_used_bytes": 9000},
    )
    assert bound_of(stopped, "peak_resident_bytes") == 600
    assert bound_of(stopped, "peak_network_bytes") == 400  # above the baseline: what it had reached
    assert bound_of(stopped, "peak_allocated_bytes") is None
    assert bound_of(stopped, "average_system_used_bytes") is None
    assert bound_of(msgspec.structs.replace(stopped, status="done"), "peak_network_bytes") is None


def test_repeats_are_no_points_and_what_is_the_same_everywhere_drives_nothing() -> None:
    # Four points, each three times: any of the three parameters could be the one.
    source = np.random.default_rng(0)
    rows: list[tuple[Params, float]] = [
        (p, y + source.normal(0, 1e4))
        for p, y in (
            ({"batch": 10, "mode": "a"}, 2e8),
            ({"batch": 99, "mode": "a"}, 2.1e8),
            ({"batch": 99, "mode": "b"}, 2.2e8),
            ({"width": 5}, 3e8),
        )
        for _ in range(3)
    ]
    (figure,) = analyse(made(rows), [FIGURE]).figures
    assert not figure.importances
    assert (
        "4 different points are too few to tell 3 parameters apart; 5 are the least" in figure.conclusion[0]
    )
    (figure,) = analyse(made([({"width": 5}, 2e8 + i) for i in range(9)]), [FIGURE]).figures
    assert "nothing was varied" in figure.conclusion[0]


def test_an_interaction_is_told_and_only_where_there_is_one() -> None:
    source = np.random.default_rng(2)
    points = [
        (float(w), int(d)) for w, d in zip(source.uniform(1, 9, 60), source.integers(1, 9, 60), strict=True)
    ]

    def told(memory: Callable[[float, int], float]) -> str:
        rows = [({"w": w, "d": d}, 1e8 + 1e6 * memory(w, d) + source.normal(0, 1e5)) for w, d in points]
        return "\n".join(analyse(made(rows), [FIGURE]).conclusion)  # type: ignore[arg-type]

    assert ", what one does depends on the other: w × d" in told(lambda w, d: w * d)
    assert "depends on the other" not in told(lambda w, d: 9 * w + 9 * d)


def test_what_does_nothing_alone_is_named_with_what_it_depends_on() -> None:
    source = np.random.default_rng(5)
    rows: list[tuple[Params, float]] = []
    for i in range(64):  # balanced: alone neither of them moves anything
        a, b = i % 4, "xy"[i // 4 % 2]
        memory = 1e8 + 1e7 * ((a > 1) != (b == "x")) + source.normal(0, 1e5)
        rows.append(({"a": a, "b": b, "c": float(source.random())}, memory))
    found = analyse(made(rows), [FIGURE]).conclusion
    assert any("depends on the other: a × b" in line for line in found)
    told = {name: line for name in "abc" for line in found if f", {name}: " in line}
    assert "on its own, but see a × b" in told["a"] and "on its own, but see a × b" in told["b"]
    assert "but see" not in told["c"]
    assert any("nothing that was varied stands out on its own" in line for line in found)


def test_medians_are_listed_in_the_order_of_the_values() -> None:
    rows: list[tuple[Params, float]] = [({"batch": b}, 1e8 + b) for b in (16, 4, 8, 8, 4, 16)]
    (_, medians) = analyse(made(rows), [FIGURE]).conclusion
    assert medians.index("; 4:") < medians.index(", 8:") < medians.index(", 16:")


def test_what_others_did_is_no_driver_without_a_warning_and_no_formula() -> None:
    source = np.random.default_rng(3)
    figure = "average_system_used_bytes"
    trials = [
        Trial(
            number=i,
            status="done",
            params={"width": i},
            figures={figure: int(2e9 + source.uniform(0, 4e9))},
            predicted=Predicted(parameters=i, activations=i),
            background=Background(reasons=("others kept 2 cores busy",)),
        )
        for i in range(1, 25)
    ]
    found = analyse(StudyRecord(name="noisy", file={}, trials=trials), [figure])
    assert any("what others did meanwhile" in w for w in found.warnings)
    assert not any("bytes per parameter" in line for line in found.conclusion)


def test_a_design_that_is_too_small_is_said_to_be() -> None:
    assert any("small design" in w for w in analyse(known_truth(0, 15), [FIGURE]).warnings)
    assert "too few" in analyse(known_truth(0, 4), [FIGURE]).conclusion[0]


def test_memory_that_never_moves_is_said_to_be_the_same() -> None:
    rows: list[tuple[Params, float]] = [({"a": i}, 1e6) for i in range(10)]
    assert "in every trial" in analyse(made(rows), [FIGURE]).conclusion[0]


def test_the_machine_is_a_factor_if_there_are_several() -> None:
    source = np.random.default_rng(0)
    trials = [
        Trial(
            number=i,
            status="done",
            params={"x": float(source.random())},
            figures={FIGURE: int(3e8 + 5e7 * (i % 2) + 1e5 * source.normal())},
            machine=Machine(name=f"m{i % 2}"),
        )
        for i in range(40)
    ]
    assert drivers(StudyRecord(name="two", file={}, trials=trials)) == {"machine"}


def test_a_trial_that_was_repeated_for_a_disturbance_counts_once() -> None:
    noise = Background(reasons=("others kept 2.0 cores busy",))
    trials = [Trial(number=i, status="done", params={"x": i}, figures={FIGURE: 100 + i}) for i in range(9)]
    trials += [Trial(number=9, status="done", params={"x": 0}, figures={FIGURE: 100}, repeats_trial=10)]
    trials += [Trial(number=10, status="done", params={"x": 0}, figures={FIGURE: 10**6}, background=noise)]
    found = analyse(StudyRecord(name="r", file={}, trials=trials), [FIGURE])
    assert found.figures[0].high_bytes < 10**6 and found.disturbed == 0


def test_predicted_against_measured_is_told() -> None:
    study = made(
        [({"x": i}, 1000 + i) for i in range(9)],
        predicted=Predicted(host_low_bytes=900, host_expected_bytes=1010, host_high_bytes=1100),
    )
    (agreement,) = analyse(study).agreement
    assert agreement.inside_range == 1.0 and agreement.median_error == pytest.approx(6 / 1004, abs=1e-4)


def test_few_trials_get_medians_and_no_claim() -> None:
    rows: list[tuple[Params, float]] = [
        ({"framework": f, "batch_size": b}, 2**20 * (300 + 10 * b + (500 if f == "keras" else 0)))
        for f in ("torch", "keras")
        for b in (1, 2)
    ]
    found = analyse(made(rows), [FIGURE])
    assert found.warnings == () and not found.figures[0].importances
    assert "4 trials are too few" in found.conclusion[0]
    assert found.conclusion[1].endswith("median by framework; torch: 315.0 MiB, keras: 815.0 MiB.")


def test_a_warning_that_all_figures_share_is_given_once_and_each_line_names_its_figure() -> None:
    study = known_truth(0, n=20)
    both = [
        msgspec.structs.replace(t, figures={FIGURE: t.figures[FIGURE], "peak_pss_bytes": t.figures[FIGURE]})
        for t in study.trials
    ]
    found = analyse(StudyRecord(name="made", file={}, trials=both), [FIGURE, "peak_pss_bytes"])
    small = [w for w in found.warnings if "small design" in w]
    assert len(small) == 1 and small[0].startswith("all figures: 20 trials for 5 parameters")
    titles = {f.title for f in found.figures}
    assert all(any(line.startswith(t) for t in titles) for line in found.conclusion)


def test_names_that_look_like_numbers_are_drawn_as_names() -> None:
    from memgauge.report.study_figures import against_parameters, parallel

    rows: list[tuple[Params, float]] = [
        ({"widths": (64, 2**i), "rate": 10.0**-i}, 3e8 + 1e6 * i) for i in range(1, 11)
    ]
    study = made(rows)
    (figure,) = analyse(study, [FIGURE]).figures
    drawn = against_parameters(study.trials, figure).to_dict()
    kinds = {drawn["layout"][f"xaxis{n or ''}"].get("type") for n in ("", 2)}
    assert kinds == {"category", "log"}
    axes = {d["label"]: d for d in parallel(study.trials, FIGURE).to_dict()["data"][0]["dimensions"]}
    assert "64,2" in axes["widths"]["ticktext"]
    assert min(axes["rate"]["values"]) == -10  # orders of magnitude


def test_worse_than_the_mean_is_no_share() -> None:
    from msgspec.structs import replace

    from memgauge.report.study_page import _evidence

    found = analyse(known_truth(0, 40), [FIGURE]).figures[0]
    assert "left-out trials explained to 9" in "".join(_evidence(found))
    worse = "".join(_evidence(replace(found, explained=-1.026)))
    assert "left-out trials not explained" in worse and "-102" not in worse
