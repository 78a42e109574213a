"""What `import memgauge` offers, and that it costs next to nothing."""

from __future__ import annotations

import subprocess
import sys
from types import FunctionType

import pytest

import memgauge

HEAVY = ("torch", "tensorflow", "keras", "jax", "numpy", "typer", "rich", "msgspec", "pynvml", "psutil")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def heavy_after(statement: str) -> list[str]:
    """Return the heavy packages that a fresh process has loaded after `statement`."""
    return run(f"{statement}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])").split()


def test_names_are_sorted_and_each_is_there() -> None:
    assert memgauge.__all__ == sorted(memgauge.__all__)
    for name in memgauge.__all__:
        assert getattr(memgauge, name) is not None


def test_no_public_name_is_left_out() -> None:
    assert set(memgauge.__all__) == {
        "Estimate",
        "Measurement",
        "MemgaugeError",
        "Monitor",
        "Workload",
        "__version__",
        "compare",
        "estimate",
        "mark",
        "measure",
        "phase",
    }
    assert set(memgauge.__all__) <= set(dir(memgauge))


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimat'"):
        getattr(memgauge, "estimat")  # noqa: B009


def test_importing_loads_no_framework_and_nothing_heavy() -> None:
    assert heavy_after("import memgauge") == []


def test_the_check_for_heavy_imports_can_fail() -> None:
    assert "msgspec" in heavy_after("import memgauge\nmemgauge.Estimate")


def test_functions_are_got_without_their_framework() -> None:
    code = "from memgauge import Workload, estimate, measure, compare, MemgaugeError"
    assert {"torch", "numpy", "typer", "rich"}.isdisjoint(heavy_after(code))


def test_the_command_line_starts_without_a_framework() -> None:
    assert {"torch", "numpy"}.isdisjoint(heavy_after("import memgauge.cli"))


def test_importing_takes_little_time() -> None:
    code = "import time; t = time.perf_counter(); import memgauge; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.15


@pytest.mark.parametrize(
    "code",
    [
        "from memgauge import estimate, measure, compare",
        "import memgauge.estimate; from memgauge import estimate, measure, compare",
        "import memgauge.estimate, memgauge.measure; from memgauge import estimate, measure, compare",
        "from memgauge.estimate import replay; from memgauge import estimate, measure, compare",
        "import memgauge; memgauge.measure; import memgauge.estimate; from memgauge import *",
        "from importlib import import_module as i; i('memgauge.measure'); i('memgauge.estimate');"
        "from memgauge import *",
    ],
)
def test_estimate_and_measure_are_functions_in_whatever_order_files_are_imported(code: str) -> None:
    kinds = run(f"{code}\nprint(*[type(f).__name__ for f in (estimate, measure, compare)])")
    assert kinds == "function function function"


def test_the_files_of_these_names_can_still_be_imported() -> None:
    from importlib import import_module

    assert isinstance(import_module("memgauge.estimate").estimate, FunctionType)
    assert memgauge.estimate is import_module("memgauge.estimate").estimate


def test_a_public_name_can_be_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memgauge, "estimate", len)
    assert getattr(memgauge, "estimate") is len  # noqa: B009


def test_a_function_that_uses_the_package_can_be_sent_to_another_process() -> None:
    use = "f = lambda: memgauge.mark('x')"  # what joblib does for a worker
    assert (
        run(f"import memgauge, cloudpickle\n{use}\nprint(cloudpickle.loads(cloudpickle.dumps(f))())")
        == "None"
    )
