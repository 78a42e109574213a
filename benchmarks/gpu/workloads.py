"""About sixty training and inference steps in plain torch; nothing else is imported.

Each name of `SUITE` stands for a network and the settings that differ from float32 training with
Adam. `parts(name)` returns build, batch and step, for a real run and for an estimate alike.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Setting:
    """One workload of the suite."""

    network: str
    batch: int
    optimizer: str = "adam"
    precision: str = "float32"
    checkpointing: bool = False
    attention: str = ""  # "", "math", "flash", "efficient", "cudnn"
    channels_last: bool = False
    cudnn_benchmark: bool = False
    tf32: bool = True
    alloc_conf: str = ""
    infer: bool = False
    empty_cache: bool = False
    graphed: bool = False  # forward and backward are captured as CUDA graphs


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x), inplace=True)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(out.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, setting: Setting, *, causal: bool, vocabulary: int = 8192, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 8, causal) for _ in range(6))
        self.head = nn.Linear(width, vocabulary)
        self.checkpointing = setting.checkpointing

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, 256)
        self.rnn = kind(256, 512, 2, batch_first=True)
        self.head = nn.Linear(512, 8192)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = _conv(3, 64), _conv(64, 128)
        self.middle, self.up = _conv(128, 256), nn.ConvTranspose2d(256, 128, 2, stride=2)
        self.up1, self.up2 = _conv(256, 128), nn.ConvTranspose2d(128, 64, 2, stride=2)
        self.last = nn.Sequential(_conv(128, 64), nn.Conv2d(64, 10, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.up1(torch.cat([self.up(self.middle(F.max_pool2d(b, 2))), b], 1))
        return self.last(torch.cat([self.up2(c), a], 1)).mean((2, 3))


def _conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(1000))


def _residual() -> nn.Module:
    stages: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
    ]
    channels = 64
    for width in (64, 128, 256, 512):
        stages += [nn.Conv2d(channels, width, 1, 2), Residual(width), Residual(width)]
        channels = width
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def _mobile() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False)]
    for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        inputs = next(m.out_channels for m in reversed(layers) if isinstance(m, nn.Conv2d))
        layers += [
            nn.Conv2d(inputs, 6 * inputs, 1, bias=False), nn.BatchNorm2d(6 * inputs), nn.SiLU(),
            nn.Conv2d(6 * inputs, 6 * inputs, 3, stride, 1, groups=6 * inputs, bias=False),
            nn.BatchNorm2d(6 * inputs), nn.SiLU(), nn.Conv2d(6 * inputs, width, 1, bias=False),
        ]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))


def _mlp() -> nn.Module:
    widths = (1024, 4096, 4096, 2048, 1000)
    layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


NETWORKS: dict[
    str, tuple[Callable[[Setting], nn.Module], Callable[[int], tuple[torch.Tensor, torch.Tensor]]]
] = {
    "mlp": (lambda s: _mlp(), lambda n: (torch.randn(n, 1024), torch.randint(0, 1000, (n,)))),
    "vgg": (lambda s: _vgg_at(128), lambda n: _pictures(n, 128)),
    "residual": (lambda s: _residual(), lambda n: _pictures(n, 224)),
    "mobile": (lambda s: _mobile(), lambda n: _pictures(n, 224)),
    "unet": (lambda s: UNet(), lambda n: (_pictures(n, 128)[0], torch.randint(0, 10, (n,)))),
    "encoder": (lambda s: Transformer(s, causal=False), lambda n: _tokens(n, 512)),
    "decoder": (lambda s: Transformer(s, causal=True), lambda n: _tokens(n, 1024)),
    "lstm": (lambda s: Recurrent(nn.LSTM), lambda n: _tokens(n, 128)),
    "gru": (lambda s: Recurrent(nn.GRU), lambda n: _tokens(n, 128)),
}


def _vgg_at(size: int) -> nn.Module:
    model = _vgg()
    model[-1] = nn.Linear(512 * (size // 16) ** 2, 1000)  # type: ignore[operator]
    return model


def _pictures(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(0, 1000, (count,))


def _tokens(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 8192, (count, length))
    return ids, ids


def _suite() -> dict[str, Setting]:
    base = {
        "mlp": Setting("mlp", 512), "vgg": Setting("vgg", 32), "residual": Setting("residual", 32),
        "mobile": Setting("mobile", 32), "unet": Setting("unet", 16), "encoder": Setting("encoder", 8),
        "decoder": Setting("decoder", 4), "lstm": Setting("lstm", 32), "gru": Setting("gru", 32),
    }  # fmt: skip
    suite: dict[str, Setting] = {}
    for name, setting in base.items():
        suite[name] = setting
        suite[f"{name} infer"] = replace(setting, infer=True)
        suite[f"{name} amp-float16"] = replace(setting, precision="amp-float16")
        suite[f"{name} twice the batch"] = replace(setting, batch=2 * setting.batch)
    for name in ("vgg", "residual", "mobile"):
        suite[f"{name} channels_last"] = replace(base[name], channels_last=True)
        suite[f"{name} cudnn.benchmark"] = replace(base[name], cudnn_benchmark=True)
        suite[f"{name} no TF32"] = replace(base[name], tf32=False)
    suite["residual channels_last amp"] = replace(
        base["residual"], channels_last=True, precision="amp-float16"
    )
    for kind in ("sgd", "sgd,momentum", "adamw", "adam,fused", "rmsprop"):
        suite[f"decoder {kind}"] = replace(base["decoder"], optimizer=kind)
    for kernel in ("math", "flash", "efficient", "cudnn"):
        suite[f"encoder {kernel}"] = replace(base["encoder"], attention=kernel, precision="amp-bfloat16")
    suite["decoder bfloat16"] = replace(base["decoder"], precision="amp-bfloat16")
    suite["decoder checkpointing"] = replace(base["decoder"], checkpointing=True)
    suite["decoder empty_cache"] = replace(base["decoder"], empty_cache=True)
    suite["decoder graphed"] = replace(base["decoder"], graphed=True)
    suite["mlp graphed"] = replace(base["mlp"], graphed=True)
    for conf in ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"):
        suite[f"residual {conf}"] = replace(base["residual"], alloc_conf=conf)
        suite[f"decoder {conf}"] = replace(base["decoder"], alloc_conf=conf)
    return suite


SUITE = _suite()
_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def parts(name: str) -> tuple[Callable[[], Any], Callable[[], Any], Callable[..., Any]]:
    """Return build, batch and step of a workload; the device is torch's default device."""
    setting = SUITE[name]
    make, data = NETWORKS[setting.network]

    def build() -> Any:
        torch.backends.cudnn.benchmark = setting.cudnn_benchmark
        torch.backends.cudnn.allow_tf32 = setting.tf32
        model = make(setting)
        if setting.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if setting.infer:
            return model.eval()
        optimizer = _optimizer(setting.optimizer, model.train())
        if setting.graphed:
            model = torch.cuda.make_graphed_callables(model, (data(setting.batch)[0],))
        return model, optimizer

    def batch() -> Any:
        x, y = data(setting.batch)
        return (x.to(memory_format=torch.channels_last) if setting.channels_last else x), y

    def step(model: nn.Module, *rest: Any) -> None:
        x, y = rest[-1]
        kernel = sdpa_kernel(_BACKENDS[setting.attention]) if setting.attention else contextlib.nullcontext()
        with kernel, _precision(setting.precision):
            if setting.infer:
                with torch.no_grad():
                    model(x)
                return
            output = model(x)
            loss = F.cross_entropy(output.flatten(0, -2), y.flatten())
        optimizer = rest[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if setting.empty_cache:
            torch.cuda.empty_cache()

    return build, batch, step


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adam,fused": lambda p: torch.optim.Adam(p, fused=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
        "sgd,momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "rmsprop": torch.optim.RMSprop,
    }
    return kinds[name](model.parameters())


def _precision(name: str) -> contextlib.AbstractContextManager[Any]:
    if name == "float32":
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=getattr(torch, name.removeprefix("amp-")))
