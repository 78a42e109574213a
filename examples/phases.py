"""Phases by hand: memgauge monitor -o run.mg -- python examples/phases.py, then memgauge report run.mg."""

import torch

import memgauge

model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())

for epoch in range(3):
    memgauge.mark("epoch", epoch)
    with memgauge.phase("train", epoch):
        for _ in range(20):
            optimizer.zero_grad()
            inputs, targets = torch.randn(256, 784), torch.randint(0, 10, (256,))
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    with memgauge.phase("validate", epoch), torch.no_grad():
        model(torch.randn(4096, 784))
