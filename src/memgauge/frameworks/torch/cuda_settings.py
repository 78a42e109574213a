"""What a traced program sets for CUDA by itself: the allocator's settings, and workspaces of cuBLAS.

torch reads the allocator's variable when CUDA begins, which is at the first tensor on the card, and cuBLAS's at
the first product. What is set later has no effect, but for calls of the allocator's own function.
"""

from __future__ import annotations

import torch

from memgauge import environment
from memgauge.allocators.settings import parse_cuda_settings
from memgauge.devices.stack import Stack
from memgauge.environment import Own
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.values import ValueReader
from memgauge.records import OF_THE_ENVIRONMENT, OWN_SETTINGS


class OwnSettings:
    """The settings that a program makes itself, and what was there before it."""

    def __init__(self, values: ValueReader) -> None:
        self.conf: str | None = None  # the allocator's variable, if the program has set that
        self.calls: list[str] = []
        self._values = values
        self._given = environment.variables()
        self._options: dict[str, str] = {}
        self._has_begun = False

    def start(self, own: Own, stack: Stack) -> None:
        """Set the variables that options stand for, and then those that the program set while it was loaded."""
        self._options = stack.variables()
        environment.put(dict(self._options))
        self._given = environment.variables()
        environment.put(own.variables)
        for text in own.calls:
            self.call(text)

    def begin(self) -> None:
        """CUDA begins: what the allocator's variable says now holds."""
        if self._has_begun:
            return
        self._has_begun = True
        text = environment.allocator_text(environment.variables())
        if text != environment.allocator_text(self._given):
            self.conf = text or ""
            parse_cuda_settings(self.conf)

    def call(self, text: str) -> None:
        """Note a call of `torch._C._accelerator_setAllocatorSettings`."""
        self.begin()
        parse_cuda_settings(text)
        self.calls.append(text)

    def assume(self) -> None:
        """Say which settings of the allocator are the program's."""
        self.begin()
        said = [text or "none" for text in (*([] if self.conf is None else [self.conf]), *self.calls)]
        if said:
            self._values.assume(f"{OWN_SETTINGS}: {', then '.join(said)}")

    def variable(self, name: str) -> str | None:
        """Return the value of a variable of cuBLAS, and say whose it is unless an option gave it."""
        now = environment.variables().get(name)
        if now and now != self._given.get(name):
            self._values.assume(f"{name} of the program: {now}")
        elif now and name not in self._options:
            self._values.assume(f"{name}{OF_THE_ENVIRONMENT}{now}")
        return now or None

    def patch(self, patches: Patches) -> None:
        """Have the allocator's own function come here, by both of its names."""
        patches.set(torch._C, "_accelerator_setAllocatorSettings", self.call)
        for module in (torch.cuda, torch.cuda.memory):
            patches.set(module, "_set_allocator_settings", self.call)
