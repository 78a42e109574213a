"""Training steps with what programs do around them: data, logs, copies, checkpoints."""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from memgauge.workload import Workload


def _classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 100))


def best_weights_kept() -> Workload:
    """Early stopping: a deep copy of the state dict is kept, another pass is evaluated."""
    kept: dict[str, object] = {}

    def build():
        model = _classifier()
        return model, torch.optim.Adam(model.parameters())

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        kept["best"] = copy.deepcopy(model.state_dict())
        model.eval()
        with torch.inference_mode():
            kept["score"] = model(x).sum().item()
        model.train()

    return Workload(build=build, batch=lambda: torch.randn(300, 100), step=step)


def checkpoints_on_disk() -> Workload:
    """Starts from a file of weights and writes a checkpoint after each step."""
    folder = Path(tempfile.mkdtemp(prefix="memgauge-steps-"))
    torch.save(_classifier().state_dict(), folder / "start.pt")

    def build():
        model = _classifier()
        model.load_state_dict(torch.load(folder / "start.pt"))
        return model, torch.optim.AdamW(model.parameters())

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")

    return Workload(build=build, batch=lambda: torch.randn(300, 100), step=step)


def numpy_batches() -> Workload:
    """Batches that share memory with NumPy arrays; predictions are logged as arrays."""
    draw = np.random.default_rng(0)

    def build():
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
        return model, torch.optim.NAdam(model.parameters())

    def batch():
        images = draw.random((256, 1, 28, 28), dtype=np.float32)
        return torch.from_numpy(images), torch.as_tensor(draw.integers(0, 10, 256))

    def step(model, optimizer, batch):
        images, labels = batch
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels, weight=torch.linspace(0.5, 1.5, 10))
        loss.backward()
        optimizer.step()
        assert not math.isnan(float(loss.detach().cpu()))
        return logits.detach().softmax(-1).cpu().numpy(), (logits.argmax(1) == labels).sum().item()

    return Workload(build=build, batch=batch, step=step)


def loader_batches() -> Workload:
    """Batches of a shuffling DataLoader."""
    data = torch.utils.data.TensorDataset(torch.randn(640, 30), torch.randint(0, 3, (640,)))

    def build():
        model = nn.Linear(30, 3)
        return model, torch.optim.RAdam(model.parameters())

    def batch():
        return next(iter(torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)))

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def random_scale() -> Workload:
    """A number drawn into an empty tensor, rows chosen by index, mixed-up pairs."""

    def build():
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        head = nn.Linear(16, 10)
        return model, head, torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)

    def batch():
        return torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def step(model, head, optimizer, batch):
        x, y = batch
        share = torch.empty(1).uniform_(0.3, 0.7).item()
        order = torch.randperm(len(x))
        optimizer.zero_grad()
        features = model(share * x + (1 - share) * x.index_select(0, order))
        logits = head(features.index_select(0, order))
        loss = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


STEPS = (best_weights_kept, checkpoints_on_disk, numpy_batches, loader_batches, random_scale)
