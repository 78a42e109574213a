"""Ways of training: the same few networks under the loops that people write around them."""

from __future__ import annotations

import copy
import math
import random
from collections import deque
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from memgauge.workload import Workload


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers with ReLU in between."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet(classes: int = 10, width: int = 32) -> nn.Sequential:
    """Return three convolutions with batch norm and a linear head."""
    layers: list[nn.Module] = []
    for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def pictures(count: int = 32, size: int = 64, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    return torch.randn(count, 3, size, size), torch.randint(0, classes, (count,))


def accumulation() -> Workload:
    """Gradients accumulated over four micro-batches inside one step."""

    def build():
        model = convnet()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batch():
        return pictures(64)

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        for micro_x, micro_y in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = F.cross_entropy(model(micro_x), micro_y) / 4
            loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def accumulation_across_batches() -> Workload:
    """The optimizer steps only at every second batch, counted in Python."""

    batches = 0

    def build():
        nonlocal batches
        batches = 0
        model = mlp(512, 2048, 2048, 10)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(128, 512), torch.randint(0, 10, (128,))

    def step(model, optimizer, batch):
        nonlocal batches
        x, y = batch
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        batches += 1
        if batches % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def zero_grad_at_end() -> Workload:
    """Backward, step, then zero_grad: gradients are gone before the next forward pass."""

    def build():
        model = mlp(1024, 4096, 4096, 100)
        return model, torch.optim.Adam(model.parameters())

    def batch():
        return torch.randn(32, 1024), torch.randint(0, 100, (32,))

    def step(model, optimizer, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def never_zero_grad() -> Workload:
    """The forgotten zero_grad: gradients add up for ever, RMSprop (centered)."""

    def build():
        model = mlp(1024, 2048, 1024, 100)
        return model, torch.optim.RMSprop(model.parameters(), lr=1e-4, centered=True)

    def batch():
        return torch.randn(256, 1024), torch.randint(0, 100, (256,))

    def step(model, optimizer, batch):
        x, y = batch
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def zero_grad_keeps_memory() -> Workload:
    """zero_grad(set_to_none=False): zeroed gradients stay, backward adds to them, Adadelta."""

    def build():
        model = convnet(width=48)
        return model, torch.optim.Adadelta(model.parameters())

    def batch():
        return pictures(16)

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Workload(build=build, batch=batch, step=step)


def autocast_bfloat16() -> Workload:
    """Forward and loss under autocast to bfloat16, backward outside, AdamW."""

    def build():
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        model = nn.Sequential(nn.Linear(64, 256), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
        model.append(nn.Linear(256, 10))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    def batch():
        return torch.randn(8, 96, 64), torch.randint(0, 10, (8,))

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            logits = model(x).mean(dim=1)
            loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def autocast_grad_scaler() -> Workload:
    """Autocast to float16 with a GradScaler, unscaling before the clip, SGD."""

    def build(device="cpu"):
        model = mlp(784, 1024, 1024, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return model, optimizer, torch.amp.GradScaler(torch.device(device).type, init_scale=1024.0)

    def batch():
        return torch.randn(32, 784), torch.randint(0, 10, (32,))

    def step(model, optimizer, scaler, batch):
        x, y = batch
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Workload(build=build, batch=batch, step=step)


def pure_bfloat16() -> Workload:
    """Everything in bfloat16, optimizer state included, Adam."""

    def build():
        model = mlp(1024, 4096, 4096, 512).to(torch.bfloat16)
        return model, torch.optim.Adam(model.parameters(), lr=1e-4)

    def batch():
        return torch.randn(32, 1024, dtype=torch.bfloat16), torch.randn(32, 512, dtype=torch.bfloat16)

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


class MixerBlock(nn.Module):
    """An MLP-Mixer block: heavy in activations, so worth a checkpoint."""

    def __init__(self, tokens: int = 64, dim: int = 192) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, tokens))
        self.channel = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return tokens of the same shape."""
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class Mixer(nn.Module):
    """Mixer blocks of which the first `checkpointed` are recomputed in the backward pass."""

    def __init__(self, checkpointed: int, reentrant: bool, depth: int = 6) -> None:
        super().__init__()
        self.checkpointed, self.reentrant = checkpointed, reentrant
        self.inside = nn.Linear(48, 192)
        self.blocks = nn.ModuleList([MixerBlock() for _ in range(depth)])
        self.head = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.inside(x)
        for i, block in enumerate(self.blocks):
            if self.training and i < self.checkpointed:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            else:
                x = block(x)
        return self.head(x.mean(dim=1))


def _mixer(checkpointed: int, reentrant: bool) -> Workload:
    def build():
        model = Mixer(checkpointed, reentrant)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(12, 64, 48), torch.randint(0, 10, (12,))

    def step(model, optimizer, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def checkpoint_non_reentrant() -> Workload:
    """Every block checkpointed, use_reentrant=False."""
    return _mixer(6, reentrant=False)


def checkpoint_reentrant() -> Workload:
    """Every block checkpointed, use_reentrant=True."""
    return _mixer(6, reentrant=True)


def checkpoint_half() -> Workload:
    """The first half of the blocks checkpointed, the others kept."""
    return _mixer(3, reentrant=False)


def frozen_backbone() -> Workload:
    """Fine-tuning: the backbone neither trains nor updates its statistics, a new head does."""

    def build():
        backbone, head = convnet(classes=256, width=48), nn.Linear(256, 5)
        for p in backbone.parameters():
            p.requires_grad = False
        model = nn.Sequential(backbone, nn.ReLU(), nn.Dropout(0.5), head)
        return model, torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)

    def batch():
        return pictures(32, classes=5)

    def step(model, optimizer, batch):
        inputs, labels = batch
        model.train()
        model[0].eval()
        optimizer.zero_grad()
        with torch.set_grad_enabled(True):
            outputs = model(inputs)
            _, preds = torch.max(outputs, 1)
            loss = F.cross_entropy(outputs, labels)
            loss.backward()
            optimizer.step()
        return loss.item() * inputs.size(0), torch.sum(preds == labels.data)

    return Workload(build=build, batch=batch, step=step)


def lora() -> Workload:
    """Low-rank adapters beside frozen linear layers, AdamW on the adapters only."""

    class LoRALinear(nn.Module):
        def __init__(self, base, rank=8, alpha=16):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
            self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
            self.dropout, self.scaling = nn.Dropout(0.05), alpha / rank

        def forward(self, x):
            return self.base(x) + self.dropout(x) @ self.lora_A.T @ self.lora_B.T * self.scaling

    def adapt(module):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child))
            else:
                adapt(child)

    def build():
        model = nn.Sequential(nn.Embedding(2000, 384), *[MixerBlock(64, 384) for _ in range(4)])
        model.requires_grad_(False)
        adapt(model)
        model.append(nn.Linear(384, 2))
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)

    def batch():
        return torch.randint(0, 2000, (8, 64)), torch.randint(0, 2, (8,))

    def step(model, optimizer, batch):
        tokens, y = batch
        loss = F.cross_entropy(model(tokens)[:, 0], y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def ema_copy() -> Workload:
    """An averaged deep copy of the model, moved by lerp_ after each step."""

    def build():
        model = convnet(width=64)
        ema = copy.deepcopy(model).eval().requires_grad_(False)
        return model, ema, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch():
        return pictures(24, 48)

    @torch.no_grad()
    def update(ema, model, decay=0.999):
        for e, p in zip(ema.parameters(), model.parameters(), strict=True):
            e.lerp_(p, 1 - decay)
        for e, b in zip(ema.buffers(), model.buffers(), strict=True):
            e.copy_(b)

    def step(model, ema, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        update(ema, model)

    return Workload(build=build, batch=batch, step=step)


def averaged_weights() -> Workload:
    """torch.optim.swa_utils: AveragedModel and SWALR."""

    def build():
        model = mlp(784, 2048, 1024, 10)
        averaged = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, averaged, optimizer, torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)

    def batch():
        return torch.rand(256, 784), torch.randint(0, 10, (256,))

    def step(model, averaged, optimizer, schedule, batch):
        x, y = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        averaged.update_parameters(model)
        schedule.step()

    return Workload(build=build, batch=batch, step=step)


def clip_by_value() -> Workload:
    """Gradients clipped by value, Adagrad with foreach, an exponential schedule."""

    def build():
        model = nn.Sequential(mlp(256, 1024, 1024, 256), nn.Tanh(), nn.Linear(256, 1))
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, foreach=True)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)

    def batch():
        return torch.randn(2048, 256), torch.randn(2048, 1)

    def step(model, optimizer, schedule, batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.huber_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), clip_value=0.5)
        optimizer.step()
        schedule.step()

    return Workload(build=build, batch=batch, step=step)


def evaluate_after_training() -> Workload:
    """A training step and then an accuracy over a larger batch under no_grad."""

    def build():
        model = convnet()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return {"train": pictures(16), "test": pictures(96)}

    def step(model, optimizer, batch):
        x, y = batch["train"]
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            x, y = batch["test"]
            pred = model(x).argmax(dim=1, keepdim=True)
            correct += pred.eq(y.view_as(pred)).sum().item()
        return loss.item(), correct / len(y)

    return Workload(build=build, batch=batch, step=step, values={"item": 1})


def forgotten_no_grad() -> Workload:
    """Validation losses appended with their graphs: memory grows at every step."""
    history = []

    def build():
        history.clear()
        model = convnet(width=16)
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def batch():
        return pictures(16), pictures(32)

    def step(model, optimizer, batch):
        (x, y), (x_val, y_val) = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        history.append(F.cross_entropy(model(x_val), y_val))

    return Workload(build=build, batch=batch, step=step)


def sharpness_aware() -> Workload:
    """SAM: climb to the worst point nearby, take the gradient there, step from the old weights."""

    def build():
        model = convnet(width=40)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def batch():
        return pictures(16)

    def step(model, optimizer, batch, rho=0.05):
        x, y = batch
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            old = [p.clone() for p in model.parameters()]
            for p in model.parameters():
                p.add_(p.grad * (rho / (norm + 1e-12)))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, o in zip(model.parameters(), old, strict=True):
                p.copy_(o)
        optimizer.step()
        optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def distillation() -> Workload:
    """A large frozen teacher under no_grad, a small student, softened targets, Adam with foreach."""

    def build():
        teacher, student = convnet(100, width=64).eval(), convnet(100, width=16)
        return teacher, student, torch.optim.Adam(student.parameters(), lr=1e-3, foreach=True)

    def batch():
        return pictures(32, 48, classes=100)

    def step(teacher, student, optimizer, batch, T=4.0, alpha=0.7):
        x, y = batch
        with torch.no_grad():
            wanted = teacher(x)
        logits = student(x)
        soft = F.kl_div(F.log_softmax(logits / T, dim=1), F.softmax(wanted / T, dim=1), reduction="batchmean")
        loss = alpha * T * T * soft + (1 - alpha) * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def maml() -> Workload:
    """Meta-learning: inner steps with create_graph, the outer loss goes through all of them."""

    def build():
        model = mlp(1, 256, 256, 256, 1)
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.rand(4, 2, 400, 1) * 10 - 5, torch.rand(4, 1, 1, 1) * 5

    def step(model, optimizer, batch):
        xs, amplitudes = batch
        ys = amplitudes * torch.sin(xs)
        optimizer.zero_grad()
        outer = 0.0
        for x, y in zip(xs, ys, strict=True):
            weights = dict(model.named_parameters())
            for _ in range(2):
                inner = F.mse_loss(torch.func.functional_call(model, weights, x[0]), y[0])
                grads = torch.autograd.grad(inner, weights.values(), create_graph=True)
                weights = {n: w - 0.01 * g for (n, w), g in zip(weights.items(), grads, strict=True)}
            outer = outer + F.mse_loss(torch.func.functional_call(model, weights, x[1]), y[1])
        (outer / len(xs)).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def multi_task() -> Workload:
    """One trunk, three heads, three backward passes with retain_graph, two parameter groups."""

    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = mlp(512, 1024, 1024, 512)
            self.heads = nn.ModuleDict(
                {"age": nn.Linear(512, 1), "sex": nn.Linear(512, 2), "id": nn.Linear(512, 999)}
            )

        def forward(self, x):
            z = F.relu(self.trunk(x))
            return {name: head(z) for name, head in self.heads.items()}

    def build():
        model = MultiTask()
        groups = [{"params": model.trunk.parameters(), "lr": 1e-4}, {"params": model.heads.parameters()}]
        return model, torch.optim.NAdam(groups, lr=1e-3)

    def batch():
        target = {"age": torch.rand(512), "sex": torch.randint(2, (512,)), "id": torch.randint(999, (512,))}
        return torch.randn(512, 512), target

    def step(model, optimizer, batch):
        x, target = batch
        out = model(x)
        optimizer.zero_grad()
        F.l1_loss(out["age"].squeeze(1), target["age"]).backward(retain_graph=True)
        F.cross_entropy(out["sex"], target["sex"]).backward(retain_graph=True)
        F.cross_entropy(out["id"], target["id"]).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def image_text_contrast() -> Workload:
    """Two towers, the full matrix of similarities, a learned temperature, fused AdamW."""

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = convnet(classes=256)
            self.text = nn.Sequential(nn.EmbeddingBag(10_000, 256), nn.Linear(256, 256))
            self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, images, texts):
            i, t = F.normalize(self.image(images), dim=-1), F.normalize(self.text(texts), dim=-1)
            return self.logit_scale.exp() * i @ t.t()

    def build():
        model = Towers()
        return model, torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2, fused=True)

    def batch():
        return torch.randn(64, 3, 48, 48), torch.randint(0, 10_000, (64, 32))

    def step(model, optimizer, batch):
        logits = model(*batch)
        labels = torch.arange(len(logits), device=logits.device)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.logit_scale.data.clamp_(0, 4.6052)

    return Workload(build=build, batch=batch, step=step)


def momentum_contrast() -> Workload:
    """MoCo: a momentum encoder and a queue of negatives kept in a buffer."""

    class MoCo(nn.Module):
        def __init__(self, dim=128, K=16384):
            super().__init__()
            self.encoder_q, self.encoder_k = convnet(dim), convnet(dim)
            self.encoder_k.load_state_dict(self.encoder_q.state_dict())
            self.encoder_k.requires_grad_(False)
            self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
            self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def keys(self, im_k):
            for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
                k.data = k.data * 0.999 + q.data * 0.001
            return F.normalize(self.encoder_k(im_k), dim=1)

        @torch.no_grad()
        def enqueue(self, keys):
            ptr, n = int(self.queue_ptr), keys.shape[0]
            self.queue[:, ptr : ptr + n] = keys.T
            self.queue_ptr[0] = (ptr + n) % self.queue.shape[1]

        def forward(self, im_q, im_k):
            q, k = F.normalize(self.encoder_q(im_q), dim=1), self.keys(im_k)
            l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            self.enqueue(k)
            return torch.cat([l_pos, l_neg], dim=1) / 0.07

    def build():
        model = MoCo()
        return model, torch.optim.SGD(model.encoder_q.parameters(), lr=0.03, momentum=0.9)

    def batch():
        return torch.randn(32, 3, 32, 32), torch.randn(32, 3, 32, 32)

    def step(model, optimizer, batch):
        logits = model(*batch)
        loss = F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def proximal_policy() -> Workload:
    """PPO: several epochs of shuffled minibatches over one rollout, torch.distributions, clipping."""

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = mlp(512, 256, 256, 12), mlp(512, 256, 256, 1)

        def evaluate(self, obs, action=None):
            dist = torch.distributions.Categorical(logits=self.actor(obs))
            action = dist.sample() if action is None else action
            return action, dist.log_prob(action), dist.entropy(), self.critic(obs).squeeze(-1)

    def build():
        agent = Agent()
        return agent, torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

    def batch():
        return torch.randn(4096, 512), torch.randn(4096)

    def step(agent, optimizer, rollout):
        obs, rewards = rollout
        with torch.no_grad():
            actions, old_logprobs, _, values = agent.evaluate(obs)
            advantages, last = torch.zeros_like(rewards), 0.0
            for t in reversed(range(0, len(obs), 32)):  # generalised advantages, coarse
                last = rewards[t : t + 32] - values[t : t + 32] + 0.99 * 0.95 * last
                advantages[t : t + 32] = last
            returns = advantages + values
        for _ in range(2):
            for rows in torch.randperm(len(obs), device=obs.device).split(1024):
                _, logprob, entropy, value = agent.evaluate(obs[rows], actions[rows])
                ratio = (logprob - old_logprobs[rows]).exp()
                adv = advantages[rows]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                policy = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
                loss = policy + 0.5 * F.mse_loss(value, returns[rows]) - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def deep_q_learning() -> Workload:
    """DQN: a replay memory that grows, a target network copied now and then, AdamW with amsgrad."""
    memory = deque(maxlen=8)

    def make():
        return nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 9 * 9, 256), nn.ReLU(), nn.Linear(256, 6),
        )  # fmt: skip

    def build():
        memory.clear()
        policy_net, target_net = make(), make()
        target_net.load_state_dict(policy_net.state_dict())
        return policy_net, target_net, torch.optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)

    def batch():
        frames = torch.randint(0, 256, (64, 5, 84, 84), dtype=torch.uint8)
        return frames, torch.randint(0, 6, (64, 1)), torch.randn(64)

    def step(policy_net, target_net, optimizer, transitions):
        memory.append(transitions)
        frames, actions, rewards = random.choice(memory)
        state, following = frames[:, :4].float() / 255, frames[:, 1:].float() / 255
        taken = policy_net(state).gather(1, actions)
        with torch.no_grad():
            best = target_net(following).max(1).values
        loss = F.smooth_l1_loss(taken, (rewards + 0.99 * best).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy_net.parameters(), 100)
        optimizer.step()
        if len(memory) % 2 == 0:
            target_net.load_state_dict(policy_net.state_dict())

    return Workload(build=build, batch=batch, step=step)


def optimizer_in_backward() -> Workload:
    """Each parameter is stepped and its gradient dropped by a hook while backward runs."""

    def build():
        model = mlp(512, 3072, 3072, 3072, 64)
        optimizers = {p: torch.optim.Adam([p], lr=1e-4) for p in model.parameters()}

        def hook(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)
        return model, *optimizers.values()

    def batch():
        return torch.randn(32, 512), torch.randn(32, 64)

    def step(model, *rest):
        x, y = rest[-1]
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


STEPS = (
    accumulation,
    accumulation_across_batches,
    zero_grad_at_end,
    never_zero_grad,
    zero_grad_keeps_memory,
    autocast_bfloat16,
    autocast_grad_scaler,
    pure_bfloat16,
    checkpoint_non_reentrant,
    checkpoint_reentrant,
    checkpoint_half,
    frozen_backbone,
    lora,
    ema_copy,
    averaged_weights,
    clip_by_value,
    evaluate_after_training,
    forgotten_no_grad,
    sharpness_aware,
    distillation,
    maml,
    multi_task,
    image_text_contrast,
    momentum_contrast,
    proximal_policy,
    deep_q_learning,
    optimizer_in_backward,
)
