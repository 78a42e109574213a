"""Real processes: the monitor needs Linux's /proc."""

from __future__ import annotations

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("recording needs /proc", allow_module_level=True)
