"""Training steps off the beaten track: unusual operators, autograd of one's own, other sciences."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize

from memgauge.workload import Workload


def custom_function() -> Workload:
    """Custom autograd functions: one saves less than torch would, one quantises straight through."""

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x)
            return grad_output * (s * (1 + x * (1 - s)))

    class Quantize(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bits):
            scale = (2**bits - 1) / x.abs().amax().clamp(min=1e-8)
            return torch.round(x * scale) / scale

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output, None

    class Layer(nn.Linear):
        def forward(self, x):
            return Swish.apply(F.linear(Quantize.apply(x, 8), Quantize.apply(self.weight, 4), self.bias))

    def build():
        model = nn.Sequential(Layer(256, 1024), Layer(1024, 1024), Layer(1024, 256), nn.Linear(256, 1))
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(1024, 256), torch.rand(1024, 1)

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def in_place() -> Workload:
    """Everything that can be done in place is done in place, ASGD."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Conv1d(8, 64, 7, padding=3)
            self.convs = nn.ModuleList([nn.Conv1d(64, 64, 3, padding=1, bias=False) for _ in range(6)])
            self.gains = nn.ParameterList([nn.Parameter(torch.full((64, 1), 0.5)) for _ in range(6)])
            self.out = nn.Conv1d(64, 8, 1)

        def forward(self, x):
            x = self.inside(x).relu_()
            for conv, gain in zip(self.convs, self.gains, strict=True):
                y = conv(x).add_(0.1)
                y.mul_(0.5).clamp_(-3, 3)
                F.leaky_relu_(y, 0.1)
                x = x.clone().add_(y * gain).div_(1.5)
                F.dropout(x, 0.1, self.training, inplace=True)
            return self.out(x).tanh_()

    def build():
        model = Net()
        return model, torch.optim.ASGD(model.parameters(), lr=1e-2)

    def batch():
        return torch.randn(12, 8, 1024)

    def step(model, optimizer, signal):
        noisy = signal.clone()
        noisy[:, :, ::4] = 0
        noisy += 0.1 * torch.randn_like(noisy)
        optimizer.zero_grad()
        loss = (model(noisy) - signal).pow_(2).mean()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def fourier_operator() -> Workload:
    """A Fourier neural operator: rfft2, complex weights on low modes, irfft2."""

    class SpectralConv2d(nn.Module):
        def __init__(self, width, modes):
            super().__init__()
            self.modes = modes
            scale = 1 / width**2
            self.weights1 = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))
            self.weights2 = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))

        def forward(self, x):
            m = self.modes
            x_ft = torch.fft.rfft2(x)
            out = torch.zeros_like(x_ft)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", x_ft[:, :, :m, :m], self.weights1)
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", x_ft[:, :, -m:, :m], self.weights2)
            return torch.fft.irfft2(out, s=x.shape[-2:])

    class FNO(nn.Module):
        def __init__(self, width=32, modes=12):
            super().__init__()
            self.lift = nn.Linear(3, width)
            self.spectral = nn.ModuleList([SpectralConv2d(width, modes) for _ in range(4)])
            self.local = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(4)])
            self.project = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 1))

        def forward(self, a):
            n = a.size(1)
            line = torch.linspace(0, 1, n, device=a.device)
            grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).expand(a.size(0), n, n, 2)
            x = self.lift(torch.cat([a, grid], dim=-1)).permute(0, 3, 1, 2)
            for spectral, local in zip(self.spectral, self.local, strict=True):
                x = F.gelu(spectral(x) + local(x))
            return self.project(x.permute(0, 2, 3, 1))

    def build():
        model = FNO()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)

    def batch():
        return torch.randn(8, 64, 64, 1), torch.randn(8, 64, 64, 1)

    def step(model, optimizer, batch):
        a, u = batch
        optimizer.zero_grad()
        error = (model(a) - u).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)
        loss = error.mean()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def complex_network() -> Workload:
    """Complex linear layers with a modReLU, trained on magnitudes, SGD on complex parameters."""

    class ComplexLinear(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(outside, inside, dtype=torch.cfloat) / math.sqrt(inside))
            self.bias = nn.Parameter(torch.zeros(outside))

        def forward(self, z):
            z = z @ self.weight.conj().T
            r = z.abs()
            return z * (F.relu(r + self.bias) / (r + 1e-6))

    def build():
        model = nn.Sequential(ComplexLinear(512, 768), ComplexLinear(768, 768), ComplexLinear(768, 64))
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def batch():
        return torch.randn(512, 512, dtype=torch.complex64), torch.rand(512, 64)

    def step(model, optimizer, batch):
        z, y = batch
        optimizer.zero_grad()
        out = model(z)
        loss = F.mse_loss(out.real.square() + out.imag.square(), y) + 0.01 * torch.angle(out).pow(2).mean()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def spectrogram_classifier() -> Workload:
    """Log-mel features by stft inside the model, 1-D convolutions and statistics pooling."""

    class AudioNet(nn.Module):
        def __init__(self, classes=35):
            super().__init__()
            self.register_buffer("window", torch.hann_window(400))
            self.register_buffer("mel", torch.rand(201, 64))
            self.net = nn.Sequential(
                nn.Conv1d(64, 128, 5, padding=2), nn.BatchNorm1d(128), nn.ELU(),
                nn.Conv1d(128, 256, 3, stride=2, padding=1, groups=4), nn.BatchNorm1d(256), nn.ELU(),
                nn.Conv1d(256, 256, 3, padding=2, dilation=2), nn.BatchNorm1d(256), nn.ELU(),
            )  # fmt: skip
            self.head = nn.Linear(512, classes)

        def forward(self, wave):
            spectrum = torch.stft(wave, 400, 160, window=self.window, return_complex=True)
            x = torch.log(spectrum.abs().pow(2).transpose(1, 2) @ self.mel + 1e-6)
            x = self.net((x - x.mean(1, keepdim=True)).transpose(1, 2))
            return self.head(torch.cat([x.mean(dim=2), x.std(dim=2)], dim=1))

    def build():
        model = AudioNet()
        return model, torch.optim.RAdam(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(32, 16000), torch.randint(0, 35, (32,))

    def step(model, optimizer, batch):
        wave, label = batch
        optimizer.zero_grad()
        loss = F.multi_margin_loss(model(wave), label)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def recurrent_block() -> Workload:
    """One block applied many times with shared weights, deep supervision on every pass."""

    def build():
        block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, activation="gelu", batch_first=True)
        model = nn.ModuleDict({"embed": nn.Embedding(32, 128), "block": block, "read": nn.Linear(128, 32)})
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch():
        puzzle = torch.randint(0, 32, (8, 81))
        return puzzle, puzzle.flip(1)

    def step(model, optimizer, batch):
        puzzle, solution = batch
        x0 = x = model["embed"](puzzle)
        losses = []
        for i in range(8):
            x = model["block"](x + x0)
            if i % 2:
                losses.append(F.cross_entropy(model["read"](x).flatten(0, 1), solution.flatten()))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [x.item() for x in losses]

    return Workload(build=build, batch=batch, step=step)


def loss_dependent() -> Workload:
    """Python logic on the loss: leave out bad batches, keep the best weights, change the learning rate."""
    best = {}

    def build():
        best.clear()
        best["loss"] = float("inf")
        model = nn.Sequential(nn.Linear(800, 2000), nn.ReLU(), nn.Dropout(0.3), nn.Linear(2000, 800))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        return model, optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    def batch():
        return torch.rand(512, 800)

    def step(model, optimizer, scheduler, x):
        tries = 0
        while tries < 2:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            if not math.isfinite(loss.item()) or loss.item() > 100:
                return None  # a bad batch
            loss.backward()
            optimizer.step()
            tries += 1
        scheduler.step(loss)
        if loss.item() < best["loss"]:
            best["loss"] = loss.item()
            best["weights"] = {k: v.cpu().clone() for k, v in model.state_dict().items()}
        return loss.item()

    return Workload(build=build, batch=batch, step=step, values={"item": 0.3})


def equilibrium() -> Workload:
    """A deep equilibrium model: iterate to a fixed point without a graph, backward through a hook."""

    class Equilibrium(nn.Module):
        def __init__(self, width=384):
            super().__init__()
            self.inject, self.linear = nn.Linear(128, width), nn.Linear(width, width)
            self.norm, self.read = nn.LayerNorm(width), nn.Linear(width, 10)
            nn.init.normal_(self.linear.weight, std=0.01)

        def f(self, z, x):
            return self.norm(torch.tanh(self.linear(z) + x))

        def forward(self, inputs):
            x = self.inject(inputs)
            with torch.no_grad():
                z = torch.zeros_like(x)
                for _ in range(12):
                    z, before = self.f(z, x), z
                    if (z - before).norm().item() < 1e-9:
                        break
            z = self.f(z, x)
            if self.training:
                z0 = z.clone().detach().requires_grad_()
                f0 = self.f(z0, x.detach())

                def backward_hook(grad):
                    g = grad
                    for _ in range(6):
                        g = torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad
                    return g

                z.register_hook(backward_hook)
            return self.read(z)

    def build():
        model = Equilibrium()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(1500, 128), torch.randint(0, 10, (1500,))

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def private_gradients() -> Workload:
    """One gradient per sample with torch.func (vmap of grad), clipped, noised and averaged."""

    def build():
        model = nn.Sequential(
            nn.Conv2d(1, 16, 5, 2), nn.Tanh(), nn.Conv2d(16, 32, 4, 2), nn.Tanh(),
            nn.Flatten(), nn.Linear(32 * 5 * 5, 64), nn.Tanh(), nn.Linear(64, 10),
        )  # fmt: skip
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def batch():
        return torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,))

    def step(model, optimizer, batch):
        x, y = batch
        params = {k: v.detach() for k, v in model.named_parameters()}

        def loss_of(params, sample, target):
            out = torch.func.functional_call(model, params, (sample.unsqueeze(0),))
            return F.cross_entropy(out, target.unsqueeze(0))

        grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            clipped = torch.einsum("b,b...->...", scale, grads[name])
            p.grad = (clipped + torch.randn_like(p)) / len(x)
        optimizer.step()
        optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def message_passing() -> Workload:
    """A graph network: gather along edges, index_add into nodes, scatter_add for the degree."""
    nodes, edges, width = 4000, 24000, 64

    class Conv(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.message = nn.Sequential(
                nn.Linear(2 * inside + 8, outside), nn.ReLU(), nn.Linear(outside, outside)
            )
            self.update = nn.Linear(inside + outside, outside)

        def forward(self, x, edge_index, edge_attr):
            src, dst = edge_index
            m = self.message(torch.cat([x[src], x[dst], edge_attr], dim=-1))
            total = torch.zeros(x.size(0), m.size(1), device=x.device).index_add_(0, dst, m)
            ones = torch.ones(dst.size(0), device=x.device)
            degree = torch.zeros(x.size(0), device=x.device).scatter_add(0, dst, ones).clamp(min=1)
            return F.relu(self.update(torch.cat([x, total / degree[:, None]], dim=-1)))

    class GNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([Conv(16, width), Conv(width, width), Conv(width, width)])
            self.out = nn.Linear(width, 1)

        def forward(self, x, edge_index, edge_attr, graph):
            for conv in self.convs:
                x = conv(x, edge_index, edge_attr)
            pooled = x.new_zeros(100, width).scatter_reduce(0, graph[:, None].expand_as(x), x, "amax")
            return self.out(pooled).squeeze(-1)

    def build():
        model = GNN()
        return model, torch.optim.Adam(model.parameters(), lr=5e-4)

    def batch():
        graph = torch.arange(nodes) // (nodes // 100)
        return (
            torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges)), torch.randn(edges, 8), graph,
            torch.randn(100),
        )  # fmt: skip

    def step(model, optimizer, batch):
        *graph, y = batch
        optimizer.zero_grad()
        loss = F.l1_loss(model(*graph), y)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def graph_attention() -> Workload:
    """Attention over the edges of a graph: a softmax by scatter, node classification by a mask."""
    nodes, edges = 2700, 13000

    class GATLayer(nn.Module):
        def __init__(self, inside, outside, heads):
            super().__init__()
            self.lin = nn.Linear(inside, outside * heads, bias=False)
            self.att_src = nn.Parameter(torch.randn(heads, outside) * 0.1)
            self.att_dst = nn.Parameter(torch.randn(heads, outside) * 0.1)
            self.heads, self.outside = heads, outside

        def forward(self, x, src, dst):
            h = self.lin(x).view(-1, self.heads, self.outside)
            a = (h * self.att_src).sum(-1)[src] + (h * self.att_dst).sum(-1)[dst]
            a = F.leaky_relu(a, 0.2)
            index = dst[:, None].expand_as(a)
            top = torch.full_like(a[: x.size(0)], -1e9).scatter_reduce(0, index, a, "amax").detach()
            a = (a - top[dst]).exp()
            total = torch.zeros_like(top).scatter_add_(0, index, a)
            a = F.dropout(a / (total[dst] + 1e-16), 0.6, self.training)
            out = torch.zeros_like(h).index_add(0, dst, h[src] * a.unsqueeze(-1))
            return out.flatten(1)

    class GAT(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = GATLayer(1433, 8, 8), GATLayer(64, 7, 1)

        def forward(self, x, edge_index):
            x = F.dropout(x, 0.6, self.training)
            x = F.elu(self.conv1(x, *edge_index))
            x = F.dropout(x, 0.6, self.training)
            return F.log_softmax(self.conv2(x, *edge_index), dim=1)

    def build():
        model = GAT()
        return model, torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)

    def batch():
        train_mask = torch.arange(nodes) < 140
        x = (torch.rand(nodes, 1433) < 0.01).float()
        return x, torch.randint(0, nodes, (2, edges)), torch.randint(0, 7, (nodes,)), train_mask

    def step(model, optimizer, batch):
        x, edge_index, y, train_mask = batch
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.nll_loss(out[train_mask], y[train_mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    return Workload(build=build, batch=batch, step=step, values={"nonzero": 140})


def sparse_adjacency() -> Workload:
    """A graph convolution with a sparse adjacency matrix and torch.sparse.mm."""
    nodes, edges = 8000, 80000

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = nn.Linear(300, 256, bias=False), nn.Linear(256, 16, bias=False)

        def forward(self, x, adjacency):
            x = F.relu(torch.sparse.mm(adjacency, self.w1(x)))
            return torch.sparse.mm(adjacency, self.w2(F.dropout(x, 0.5, self.training)))

    def build():
        model = GCN()
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def batch():
        index = torch.randint(0, nodes, (2, edges))
        return torch.randn(nodes, 300), index, torch.rand(edges), torch.randint(0, 16, (nodes,))

    def step(model, optimizer, batch):
        x, index, weight, y = batch
        adjacency = torch.sparse_coo_tensor(index, weight, (nodes, nodes))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, adjacency), y)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def recommender() -> Workload:
    """DLRM: many embedding tables, pairwise interactions, two MLPs, Adagrad."""
    tables = (20_000, 10_000, 80_000, 500, 30, 8_000, 200_000, 2_000)

    class DLRM(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.emb_l = nn.ModuleList([nn.EmbeddingBag(n, dim, mode="sum") for n in tables])
            self.bot_l = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, dim), nn.ReLU())
            pairs = (len(tables) + 1) * len(tables) // 2
            self.top_l = nn.Sequential(
                nn.Linear(pairs + dim, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
            )
            rows, columns = torch.tril_indices(len(tables) + 1, len(tables) + 1, offset=-1)
            self.register_buffer("rows", rows)
            self.register_buffer("columns", columns)

        def forward(self, dense, sparse):
            x = self.bot_l(dense)
            ly = [emb(index) for emb, index in zip(self.emb_l, sparse, strict=True)]
            t = torch.stack([x, *ly], dim=1)
            z = torch.bmm(t, t.transpose(1, 2))[:, self.rows, self.columns]
            return self.top_l(torch.cat([x, z], dim=1)).squeeze(1)

    def build():
        model = DLRM()
        return model, torch.optim.Adagrad(model.parameters(), lr=0.01)

    def batch():
        sparse = [torch.randint(0, n, (2048, 4)) for n in tables]
        return torch.rand(2048, 13), sparse, torch.randint(0, 2, (2048,)).float()

    def step(model, optimizer, batch):
        dense, sparse, clicked = batch
        optimizer.zero_grad()
        loss = F.binary_cross_entropy(model(dense, sparse), clicked)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def physics_informed() -> Workload:
    """Burgers' equation in double precision: derivatives of the network by autograd.grad, L-BFGS."""

    def build():
        layers = [nn.Linear(2, 64, dtype=torch.float64), nn.Tanh()]
        for _ in range(4):
            layers += [nn.Linear(64, 64, dtype=torch.float64), nn.Tanh()]
        model = nn.Sequential(*layers, nn.Linear(64, 1, dtype=torch.float64))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
        return model, optimizer

    def batch():
        return torch.rand(2000, 1, dtype=torch.float64), torch.rand(2000, 1, dtype=torch.float64) * 2 - 1

    def derivative(u, x):
        return torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), create_graph=True)[0]

    def step(model, optimizer, batch):
        t, x = (v.requires_grad_(True) for v in batch)

        def closure():
            optimizer.zero_grad()
            u = model(torch.cat([t, x], dim=1))
            u_t, u_x = derivative(u, t), derivative(u, x)
            residual = u_t + u * u_x - (0.01 / math.pi) * derivative(u_x, x)
            start = model(torch.cat([torch.zeros_like(t), x], dim=1)) + torch.sin(math.pi * x)
            loss = residual.pow(2).mean() + start.pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    return Workload(build=build, batch=batch, step=step)


def quasi_newton() -> Workload:
    """A regression by L-BFGS with a line search: the history grows by a pair in each of its iterations."""

    def build():
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
        search = {"line_search_fn": "strong_wolfe", "max_iter": 10, "max_eval": 20}
        return model, torch.optim.LBFGS(model.parameters(), **search)

    def batch():
        return torch.randn(128, 256), torch.randn(128, 256)

    def step(model, optimizer, batch):
        x, y = batch

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    return Workload(build=build, batch=batch, step=step)


def neural_ode() -> Workload:
    """An ordinary differential equation with a learned right side, Runge-Kutta steps unrolled."""

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(33, 192), nn.Softplus(), nn.Linear(192, 192), nn.Softplus())
            self.last = nn.Linear(192, 32)

        def forward(self, t, y):
            return self.last(self.net(torch.cat([y, t.expand(len(y), 1)], dim=1)))

    def rk4(f, t, y, dt):
        k1 = f(t, y)
        k2 = f(t + dt / 2, y + dt / 2 * k1)
        k3 = f(t + dt / 2, y + dt / 2 * k2)
        k4 = f(t + dt, y + dt * k3)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def build():
        field = Field()
        return field, torch.optim.Rprop(field.parameters(), lr=1e-3)

    def batch():
        return torch.randn(256, 32), torch.randn(11, 256, 32)

    def step(field, optimizer, batch):
        y, path = batch
        times = torch.linspace(0, 1, 11, device=y.device)
        points = [y]
        for t, later in pairwise(times):
            points.append(rk4(field, t, points[-1], later - t))
        loss = (torch.stack(points) - path).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def gaussian_process() -> Workload:
    """The marginal likelihood of a kernel by Cholesky, solves and a log determinant."""

    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 4))
            self.log_scale, self.log_noise = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.tensor(-1.0))

        def forward(self, x):
            z = self.features(x) / self.log_scale.exp()
            square = (z.unsqueeze(1) - z.unsqueeze(0)).pow(2).sum(-1)
            return torch.exp(-0.5 * square) + (self.log_noise.exp() + 1e-3) * torch.eye(
                len(x), device=x.device
            )

    def build():
        kernel = Kernel()
        return kernel, torch.optim.Adam(kernel.parameters(), lr=0.05)

    def batch():
        x = torch.randn(700, 16)
        return x, torch.sin(x.sum(dim=1))

    def step(kernel, optimizer, batch):
        x, y = batch
        L = torch.linalg.cholesky(kernel(x))
        alpha = torch.cholesky_solve(y.unsqueeze(1), L).squeeze(1)
        loss = 0.5 * y @ alpha + L.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def second_order() -> Workload:
    """Hutchinson's estimate of the Hessian's diagonal by Hessian-vector products, an optimizer by hand."""

    class DiagonalNewton(torch.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        def step(self):
            params = [p for g in self.param_groups for p in g["params"]]
            grads = [p.grad for p in params]
            z = [torch.randint_like(p, 0, 2) * 2 - 1 for p in params]
            products = torch.autograd.grad(grads, params, grad_outputs=z)
            with torch.no_grad():
                for p, h, v in zip(params, products, z, strict=True):
                    state = self.state[p]
                    if not state:
                        state["hessian"] = torch.zeros_like(p)
                    state["hessian"].mul_(0.9).add_((h * v).abs(), alpha=0.1)
                    p.addcdiv_(p.grad, state["hessian"] + 1e-2, value=-self.param_groups[0]["lr"])

    def build():
        model = nn.Sequential(
            nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 10)
        )
        return model, DiagonalNewton(model.parameters())

    def batch():
        return torch.randn(256, 256), torch.randint(0, 10, (256,))

    def step(model, optimizer, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        loss.backward(create_graph=True)
        optimizer.step()
        for p in model.parameters():
            p.grad = None  # breaks the reference cycle between gradient and graph

    return Workload(build=build, batch=batch, step=step)


def hypernetwork() -> Workload:
    """One network writes the weights of another, which torch.func.functional_call then runs."""

    def build():
        main = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
        main.requires_grad_(False)
        count = sum(p.numel() for p in main.parameters())
        hyper = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, count))
        return main, hyper, torch.optim.Adam(hyper.parameters(), lr=1e-4)

    def batch():
        return torch.randn(4, 64), torch.rand(4096, 2), torch.rand(4, 4096, 3)

    def step(main, hyper, optimizer, batch):
        codes, places, colors = batch
        flat, loss = hyper(codes), 0.0
        for row, wanted in zip(flat, colors, strict=True):
            weights, at = {}, 0
            for name, p in main.named_parameters():
                weights[name] = row[at : at + p.numel()].view_as(p)
                at += p.numel()
            loss = loss + F.mse_loss(torch.func.functional_call(main, weights, (places,)), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def symmetric_parametrization() -> Workload:
    """Weights under parametrizations of one's own and orthogonal ones, cached in the forward pass."""

    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    def build():
        layers = [nn.Linear(512, 512) for _ in range(4)]
        for layer in layers[:3]:
            parametrize.register_parametrization(layer, "weight", Symmetric())
        nn.utils.parametrizations.orthogonal(layers[3])
        model = nn.Sequential(*(m for layer in layers for m in (layer, nn.GELU())))
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(1024, 512)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        with parametrize.cached():
            loss = F.mse_loss(model(model(x)), x)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def tensor_products() -> Workload:
    """Einsum, tensordot, kron and bilinear layers: a factorised model of triples, Adam."""

    class Tucker(nn.Module):
        def __init__(self, entities=20_000, relations=200, d=96, r=24):
            super().__init__()
            self.entities, self.relations = nn.Embedding(entities, d), nn.Embedding(relations, r)
            self.core = nn.Parameter(torch.rand(r, d, d) * 0.2 - 0.1)
            self.small = nn.ParameterList([nn.Parameter(torch.randn(n, n) * 0.1) for n in (4, 8)])
            self.mix = nn.Linear(d, 32)
            self.pair = nn.Bilinear(32, 32, d)

        def forward(self, head, relation):
            h, r = self.entities(head), self.relations(relation)
            w = torch.tensordot(r, self.core, dims=1)
            x = torch.einsum("bi,bij->bj", h, w)
            y = self.mix(x) @ torch.kron(*self.small)
            x = x + self.pair(y, y)
            return torch.einsum("bd,nd->bn", x, self.entities.weight)

    def build():
        model = Tucker()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        tail = torch.zeros(96, 20_000).scatter_(1, torch.randint(0, 20_000, (96, 5)), 1.0)
        return torch.randint(0, 20_000, (96,)), torch.randint(0, 200, (96,)), tail

    def step(model, optimizer, batch):
        head, relation, tail = batch
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(head, relation), 0.9 * tail + 1 / 20_000)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def linear_attention() -> Workload:
    """Causal linear attention by cumsum, and a state scanned step by step with unbind and stack."""
    batch_size, length, heads, dim = 4, 128, 4, 32

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(16, heads * dim)
            self.qkv = nn.Linear(heads * dim, 3 * heads * dim, bias=False)
            self.decay = nn.Parameter(torch.linspace(-3, 3, heads * dim))
            self.out = nn.Linear(heads * dim, 16)

        def forward(self, x):
            x = self.inside(x)
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, heads, dim).unbind(2)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            kv = torch.einsum("blhi,blhj->blhij", k, v).cumsum(dim=1)
            z = 1 / (torch.einsum("blhi,blhi->blh", q, k.cumsum(dim=1)) + 1e-6)
            x = x + torch.einsum("blhi,blhij,blh->blhj", q, kv, z).flatten(2)
            a, state, states = torch.sigmoid(self.decay), torch.zeros_like(x[:, 0]), []
            for u in x.unbind(1):
                state = a * state + (1 - a) * u
                states.append(state)
            return self.out(torch.stack(states, dim=1))

    def build():
        model = Mixed()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def batch():
        return torch.randn(batch_size, length + 1, 16)

    def step(model, optimizer, x):
        loss = F.smooth_l1_loss(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def sorted_losses() -> Workload:
    """Hard examples by topk, a quantile, sort, gather and where: an autoencoder for outliers."""

    def build():
        model = nn.Sequential(
            nn.Linear(400, 1024), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(1024, 32),
            nn.Linear(32, 1024), nn.SELU(), nn.Linear(1024, 400),
        )  # fmt: skip
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.randn(2048, 400)

    def step(model, optimizer, x):
        out = model(x)
        error = (out - x).pow(2).mean(dim=1)
        hard = error.topk(512).values.mean()
        ordered, order = torch.sort(out[:, :64], dim=0, descending=True)
        rank = F.l1_loss(ordered, torch.gather(x[:, :64], 0, order))
        limit = torch.quantile(error.detach(), 0.9)
        trimmed = torch.where(error > limit, torch.zeros_like(error), error).sum() / (error <= limit).sum()
        loss = hard + 0.1 * rank + trimmed
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def saved_in_half() -> Workload:
    """saved_tensors_hooks pack what backward needs into bfloat16; a forward hook keeps features."""

    def pack(t):
        return (
            (t.dtype, t.to(torch.bfloat16)) if t.dtype == torch.float32 and t.numel() > 10_000 else (None, t)
        )

    def unpack(packed):
        dtype, t = packed
        return t if dtype is None else t.to(dtype)

    features = {}

    def build():
        features.clear()
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.Softplus(),
            nn.Conv2d(32, 32, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(512, 10),
        )  # fmt: skip
        model[5].register_forward_hook(lambda m, args, out: features.__setitem__("last", out.detach()))
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def batch():
        return torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return features["last"].norm()

    return Workload(build=build, batch=batch, step=step)


def local_attention() -> Workload:
    """Patches by unfold and fold, attention inside shifted windows by roll."""

    class Windows(nn.Module):
        def __init__(self, dim, heads, window, shift):
            super().__init__()
            self.attend = nn.MultiheadAttention(dim, heads, batch_first=True)
            self.norm, self.window, self.shift = nn.LayerNorm(dim), window, shift

        def forward(self, x):
            b, h, w, c = x.shape
            n = self.window
            y = torch.roll(self.norm(x), (-self.shift, -self.shift), dims=(1, 2))
            y = y.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)
            y, _weights = self.attend(y, y, y, average_attn_weights=False)
            y = y.view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            return x + torch.roll(y, (self.shift, self.shift), dims=(1, 2))

    class Restorer(nn.Module):
        def __init__(self, dim=96):
            super().__init__()
            self.inside, self.out = nn.Linear(3 * 16, dim), nn.Linear(dim, 3 * 16)
            self.blocks = nn.Sequential(*[Windows(dim, 4, 8, shift) for shift in (0, 4, 0, 4)])

        def forward(self, images):
            size = images.shape[-2:]
            x = F.unfold(images, kernel_size=4, stride=4).transpose(1, 2)
            x = self.blocks(self.inside(x).view(-1, size[0] // 4, size[1] // 4, 96))
            return F.fold(self.out(x).flatten(1, 2).transpose(1, 2), size, kernel_size=4, stride=4)

    def build():
        model = Restorer()
        return model, torch.optim.AdamW(model.parameters(), lr=2e-4)

    def batch():
        clean = torch.rand(4, 3, 128, 128)
        return clean + 0.1 * torch.randn_like(clean), clean

    def step(model, optimizer, batch):
        noisy, clean = batch
        loss = ((model(noisy) - clean).pow(2) + 1e-6).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def weighted_labels():
    """Many labels to a picture, of which few hold: each class has its weight."""

    def build():
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1024))
        loss = nn.BCEWithLogitsLoss(pos_weight=torch.full((1024,), 9.0))
        return model, loss, torch.optim.SGD(model.parameters(), lr=0.1)

    def batch():
        return torch.randn(512, 64), (torch.rand(512, 1024) < 0.1).float()

    def step(model, criterion, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def contrastive_mask():
    """Every pair but those with itself, chosen by a mask."""

    def build():
        model = nn.Linear(300, 128)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        z = nn.functional.normalize(model(x))
        others = ~torch.eye(len(z), dtype=torch.bool)
        logits = (z @ z.T / 0.5)[others].view(len(z), -1)
        loss = nn.functional.cross_entropy(logits, torch.arange(len(z)) % (len(z) - 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=lambda: torch.randn(1024, 300), step=step)


STEPS = (
    custom_function,
    in_place,
    fourier_operator,
    complex_network,
    spectrogram_classifier,
    recurrent_block,
    loss_dependent,
    equilibrium,
    private_gradients,
    message_passing,
    graph_attention,
    sparse_adjacency,
    recommender,
    physics_informed,
    quasi_newton,
    neural_ode,
    gaussian_process,
    second_order,
    hypernetwork,
    symmetric_parametrization,
    tensor_products,
    linear_attention,
    sorted_losses,
    saved_in_half,
    local_attention,
    weighted_labels,
    contrastive_mask,
)
