"""Whether the true drivers are named always, and nothing else ever.

    python -m benchmarks.studies.drivers [--repetitions 20] [--trials 100] [--batch 2048] [--forest]

Memory depends on width, depth and batch only; learning rate, epochs and a dummy are irrelevant by construction. Each
repetition has its own Sobol design and its own noise of 0.5 %. `--batch 512` makes the batch
explain about one percent; `--forest` shows what Optuna's fANOVA says of the same trials.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from memgauge.study.analysis.drivers import analyse
from memgauge.study.design import points
from memgauge.study.records import Predicted, StudyRecord, Trial
from memgauge.study.space import Parameter, Space

TRUE = {"width", "depth", "batch_size"}


def space(largest_batch: int) -> Space:
    """Return the space, batches up to `largest_batch`."""
    return Space(
        {
            "width": Parameter(low=32, high=512, log=True),
            "depth": Parameter(low=1, high=8),
            "batch_size": Parameter(low=16, high=largest_batch, log=True),
            "learning_rate": Parameter(low=1e-5, high=0.1, log=True),
            "epochs": Parameter(low=1, high=10),
            "dummy": Parameter(low=0.0, high=1.0),
        }
    )


def study(seed: int, trials: int, largest_batch: int = 2048) -> StudyRecord:
    """Return simulated trials: 16 bytes per parameter (Adam), 8 per activation, 300 MB fixed."""
    source = np.random.default_rng(10_000 + seed)
    found = []
    for number, p in enumerate(points("sobol", space(largest_batch), trials, seed)):
        width, depth, batch = int(p["width"]), int(p["depth"]), int(p["batch_size"])  # type: ignore[call-overload]
        parameters, activations = (
            784 * width + width**2 * (depth - 1) + 10 * width,
            batch * (width * depth + 10),
        )
        memory = (16 * parameters + 8 * activations + 3e8) * (1 + source.normal(0, 0.005))
        found.append(
            Trial(
                number=number,
                status="done",
                params=p,
                figures={"peak_resident_bytes": int(memory)},
                predicted=Predicted(parameters=parameters, activations=activations),
            )
        )
    return StudyRecord(name=f"simulated {seed}", file={}, trials=found)


def forest(record: StudyRecord) -> dict[str, float]:
    """Return the importances by Optuna's fANOVA."""
    import optuna
    from optuna.distributions import FloatDistribution, IntDistribution
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {
        "width": IntDistribution(32, 512, log=True),
        "depth": IntDistribution(1, 8),
        "batch_size": IntDistribution(16, 4096, log=True),
        "learning_rate": FloatDistribution(1e-5, 0.1, log=True),
        "epochs": IntDistribution(1, 10),
        "dummy": FloatDistribution(0, 1),
    }
    made = optuna.create_study()
    for t in record.trials:
        made.add_trial(
            optuna.create_trial(
                params=dict(t.params), distributions=distributions, value=t.figures["peak_resident_bytes"]
            )
        )
    return get_param_importances(made, evaluator=FanovaImportanceEvaluator(seed=0))


def main() -> None:
    """Print what is named in each repetition."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--batch", type=int, default=2048, help="largest batch")
    parser.add_argument("--forest", action="store_true")
    arguments = parser.parse_args()
    named: Counter[str] = Counter()
    right, times = 0, []
    for seed in range(arguments.repetitions):
        record = study(seed, arguments.trials, arguments.batch)
        if arguments.forest:
            print(seed, {k: round(v, 3) for k, v in forest(record).items()})
            continue
        begin = time.perf_counter()
        (figure,) = analyse(record, seed=seed).figures
        times.append(time.perf_counter() - begin)
        drivers = {i.name for i in figure.importances if i.verdict == "driver"}
        right += drivers == TRUE
        named.update(drivers)
        shares = ", ".join(f"{i.name} {100 * i.share:.2f} %" for i in figure.importances)
        print(
            f"{seed:3d} {'right' if drivers == TRUE else 'WRONG'}  floor {100 * (figure.floor or 0):.2f} %  {shares}",
            flush=True,
        )
    if times:
        print(
            f"{right} of {arguments.repetitions} right; named: {dict(named)}; median {np.median(times):.1f} s per analysis"
        )


if __name__ == "__main__":
    main()
