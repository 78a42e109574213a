"""The trace for CUDA against a build that has CUDA: torch's own fake tensors, and a real run."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from memgauge.allocators import cuda_caching  # noqa: E402
from memgauge.frameworks.torch.cuda_devices import Card  # noqa: E402
from memgauge.frameworks.torch.trace import trace  # noqa: E402
from memgauge.records import Category, Trace  # noqa: E402
from memgauge.workload import Workload  # noqa: E402

nn, F = torch.nn, torch.nn.functional
pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Any) -> Any:
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, rows, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(F.dropout(y.transpose(1, 2).reshape(batch, rows, width), 0.1))


def convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def attentive() -> nn.Module:
    return nn.Sequential(nn.Embedding(1000, 256), *(Block(256) for _ in range(4)), nn.Linear(256, 10))


def workload(name: str, precision: str = "float32") -> Workload:
    def build() -> Any:
        model = convolutional() if name == "convolutional" else attentive()
        return model, torch.optim.AdamW(model.parameters())

    def batch() -> Any:
        if name == "convolutional":
            return torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,))
        return torch.randint(0, 1000, (16, 512)), torch.randint(0, 10, (16 * 512,))

    def step(model: Any, optimizer: Any, made: Any) -> None:
        x, y = made
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=precision != "float32", dtype=torch.float16):
            loss = F.cross_entropy(model(x).flatten(0, -2), y)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


CASES = [
    ("convolutional", "float32"),
    ("convolutional", "float16"),
    ("attentive", "float32"),
    ("attentive", "float16"),
]


def predicted(name: str, precision: str) -> Trace:
    card = Card(capability=torch.cuda.get_device_capability())
    return trace(workload(name, precision), device="cuda", steps=STEPS, card=card)


def tensor_peak(result: Trace) -> int:
    current = highest = 0
    for event in result.events:
        if result.categories[event.storage] is not Category.WORKSPACE:
            current += event.requested_bytes
            highest = max(highest, current)
    return highest


class Recorder(TorchDispatchMode):
    """Adds up the storages of fake tensors on the device that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: set[int] = set()
        self.now = self.highest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
                self._meet(tensor.untyped_storage())
        return result

    def _meet(self, storage: Any) -> None:
        if storage._cdata in self._alive:
            return
        self._alive.add(storage._cdata)
        self.now += storage.nbytes()
        self.highest = max(self.highest, self.now)
        weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, address: int, size: int) -> None:
        self._alive.discard(address)
        self.now -= size


def run(work: Workload, around: Callable[[], None] = lambda: None) -> None:
    with torch.device("cuda"):
        objects = work.build()
    for _ in range(STEPS):
        with torch.device("cuda"):
            batch = work.batch()
        work.step(*objects, batch)
        del batch
        around()


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_the_trace_agrees_with_torchs_fake_cuda_tensors(name: str, precision: str) -> None:
    with FakeTensorMode(), Recorder() as recorder:
        run(workload(name, precision))
    assert tensor_peak(predicted(name, precision)) == pytest.approx(recorder.highest, rel=0.01)


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_the_replayed_trace_agrees_with_a_real_run(name: str, precision: str) -> None:
    """Without library workspaces on the real side: cuBLAS is told to take none, cuDNN's are no part of a trace."""
    code = (
        "import torch; from tests.device import test_fake_cuda as t; "
        f"t.run(t.workload({name!r}, {precision!r})); print(torch.cuda.max_memory_allocated())"
    )
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    measured = int(done.stdout.split()[-1])
    timeline = cuda_caching.replay(predicted(name, precision).events)
    assert max(timeline.allocated_bytes) == pytest.approx(measured, rel=0.02)
