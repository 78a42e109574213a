"""What holds for every test."""

from __future__ import annotations

import signal

import pytest

# A shell ignores these for what runs in the background or under nohup, and processes hand that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side: those of the monitor in order, since they look at the machine; a file in one piece."""
    for item in items:
        of_monitor = item.path.parent.name == "monitor"
        item.add_marker(pytest.mark.xdist_group("monitor" if of_monitor else item.path.name))
