"""Know the memory of a neural network before it runs, watch it while it runs, explain the difference.

The public names are imported when they are first asked for, so that
`import memgauge` costs next to nothing. `mark` and `phase` are there from the beginning: a process that is
forked while one of its parent's threads imports them would wait for that thread for ever.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memgauge.monitor.marks import mark, phase

if TYPE_CHECKING:
    from memgauge.errors import MemgaugeError
    from memgauge.estimate import estimate
    from memgauge.explain.compare import compare
    from memgauge.measure import measure
    from memgauge.monitor.recorder import Monitor
    from memgauge.records import Estimate, Measurement
    from memgauge.workload import Workload

    __version__: str

_HOMES = {
    "Estimate": "memgauge.records",
    "Measurement": "memgauge.records",
    "MemgaugeError": "memgauge.errors",
    "Monitor": "memgauge.monitor.recorder",
    "Workload": "memgauge.workload",
    "compare": "memgauge.explain.compare",
    "estimate": "memgauge.estimate",
    "measure": "memgauge.measure",
}

__all__ = [
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
]


class _Package(ModuleType):
    """The package: `estimate` and `measure` name the functions, though files have these names too.

    Importing `memgauge.estimate` makes Python set the attribute of that name to
    the module; here the function of the same name is set in its place. Both
    `from memgauge import estimate` and `from memgauge.estimate import …` work.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and _HOMES.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, as plain modules are by those who can (cloudpickle, and with it joblib)."""
        return importlib.import_module, (self.__name__,)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from memgauge.version import installed_version

        value: Any = installed_version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'memgauge' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
