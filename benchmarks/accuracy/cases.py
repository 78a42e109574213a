"""One measured run, and which half of its set it belongs to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memgauge.devices.stack import Stack
from memgauge.workload import Workload

BUILD, REPORT = "build", "report"


@dataclass(frozen=True)
class Case:
    """One row of a set.

    Attributes:
        key: Names the row within its set; results are resumed by it.
        family: Models whose names begin alike; never divided between the halves.
        workload: Makes what was run, by the set's protocol.
        alone: The same for predictors that know no GPU; `workload` where nothing differs.
        device, stack: Where it ran.
        measured: What was read, by kind: `device`, `reserved`, `allocated` (bytes).
        environment: Runs whose driver is the same; one constant stands for what is not known of it.
        others: What published predictors said of the same run, bytes.
        facts: What else the row says (batch size, cap, ...).
    """

    key: str
    family: str
    workload: Callable[[], Workload]
    device: str
    stack: Stack
    measured: dict[str, int]
    environment: str
    others: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    alone: Callable[[], Workload] | None = None
    damaged: str = ""  # why the row cannot be right; reported with and without

    @property
    def half(self) -> str:
        """Return the half of the set: by a hash of the family."""
        return half_of(self.family)


def half_of(family: str) -> str:
    """Return `build` or `report`: whether the first byte of SHA-256 of the family's name is even."""
    return BUILD if hashlib.sha256(family.encode()).digest()[0] % 2 == 0 else REPORT


def family_of(model: str) -> str:
    """Return the letters that a model's name begins with: `resnetv` for `resnetv2_50`, `vit`, `swin`.

    A relative under another name is another family: `tf_efficientnet_b0` and `efficientnet_b0`.
    """
    found = re.match(r"[a-z]+", model.rpartition("/")[2].lower())
    return found.group() if found else model
