"""Real processes: the monitor needs Linux's /proc."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from jobs import STARTED

if sys.platform != "linux":
    pytest.skip("recording needs /proc", allow_module_level=True)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().close()
