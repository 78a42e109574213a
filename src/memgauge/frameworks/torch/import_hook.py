"""Lets a user's own file say `import torchvision` where that would fail.

The first import of torchvision, whoever makes it, is done by
`torchvision_compat`; nothing is imported until then.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _Finder:
    """A finder that hands out torchvision, imported with care, exactly once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec whose loader gives back the module that is already imported."""
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        found = importlib.machinery.PathFinder.find_spec(name)
        if found is not None:
            from memgauge.frameworks.torch.torchvision_compat import import_torchvision

            import_torchvision()
            found.loader = _Done()  # type: ignore[assignment]  # has the two methods that are called
        return found


class _Done:
    """A loader with nothing left to do."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        return None


def torchvision_on_import() -> None:
    """Have the next `import torchvision` done by `torchvision_compat`."""
    if "torchvision" not in sys.modules and not any(type(f) is _Finder for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
