"""How each set's authors ran their networks, as workloads of ours.

What a set does not record is the plainest reading of its authors' scripts; docs/accuracy.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

from memgauge.frameworks.torch.timm_models import _configuration, _import_timm
from memgauge.frameworks.torch.torchvision_compat import import_torchvision
from memgauge.workload import Workload


def timm_script(name: str, batch_size: int, *, alone: bool = False) -> Workload:
    """Timm's train.py: SGD with Nesterov momentum, label smoothing, gradients cleared after the step.

    `torch.backends.cudnn.benchmark = True` is set by the script itself. Its loader copies the next
    batch ahead on a stream of its own (`PrefetchLoader`, by default), and the loop's variables keep
    the batch before until the next is there.

    Args:
        name: Of the network.
        batch_size: Pictures of a batch.
        alone: Without that loader, for predictors that know no GPU: a batch is made where it is used.
    """
    timm = _import_timm()
    from timm.data.loader import PrefetchLoader

    channels, size, _ = _configuration(timm, name)

    def batches() -> Iterator[Any]:
        while True:
            with torch.device("cpu"):
                pictures = torch.zeros((batch_size, channels, *size), dtype=torch.uint8)
                labels = torch.zeros(batch_size, dtype=torch.int64)
            yield pictures, labels

    def build() -> Any:
        torch.backends.cudnn.benchmark = True
        model = timm.create_model(name, pretrained=False)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=2e-5
        )
        if alone:
            return model, optimizer, {}
        ahead = PrefetchLoader(batches(), channels=channels, device=torch.device("cuda"))
        return model, optimizer, {"loader": iter(ahead)}

    def batch() -> Any:
        if alone:
            return torch.randn(batch_size, channels, *size), torch.zeros(batch_size, dtype=torch.int64)
        return None  # the loader's are made in the step, while the loop still holds the one before

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, loop: dict[str, Any], made: Any) -> None:
        loop["batch"] = made or next(loop["loader"])
        pictures, labels = loop["batch"]
        output = model(pictures)
        if isinstance(output, (tuple, list)):
            output = output[0]
        logprobs = log_softmax(output, dim=-1)
        nll = -logprobs.gather(dim=-1, index=labels.unsqueeze(1)).squeeze(1)
        loss = (0.9 * nll + 0.1 * -logprobs.mean(dim=-1)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def timm_benchmark(name: str, batch_size: int, image_size: int) -> Workload:
    """Timm's benchmark.py, training: float16 autocast, SGD with momentum, no search for kernels recorded.

    Attention is written out: `scaled_dot_product_attention` came with torch 2.0, these runs are older.
    """
    timm = _import_timm()
    channels, size, _ = _configuration(timm, name)
    asked = (image_size, image_size)

    def build() -> Any:
        torch.backends.cudnn.benchmark = True
        timm.layers.set_fused_attn(False)
        try:
            model = timm.create_model(
                name, pretrained=False, **({} if asked == size else {"img_size": asked})
            )
        except TypeError:  # a network that takes any size
            model = timm.create_model(name, pretrained=False)
        finally:
            timm.layers.set_fused_attn(True)
        return model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def batch() -> Any:
        return torch.randn(batch_size, channels, *asked), torch.zeros(batch_size, dtype=torch.int64)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        pictures, labels = batch
        optimizer.zero_grad(set_to_none=False)  # torch 1.12's default
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(pictures)
        if isinstance(output, (tuple, list)):
            output = output[0]
        cross_entropy(output, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def mlp(inputs: int, layers: list[tuple[str, int, int]], batch_size: int) -> Workload:
    """Linear layers and ReLUs as the row lists them, Adam, cross-entropy, float32."""

    def build() -> Any:
        modules: list[nn.Module] = []
        width = inputs
        for kind, outputs, _ in layers:
            modules.append(nn.Linear(width, outputs) if kind == "linear" else nn.ReLU())
            width = outputs
        model = nn.Sequential(*modules)
        return model, torch.optim.Adam(model.parameters())

    def batch() -> Any:
        return torch.randn(batch_size, inputs), torch.zeros(batch_size, dtype=torch.int64)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        x, y = batch
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
    "Adafactor": torch.optim.Adafactor,
}
VISION = {
    "ConvNeXtTiny": "convnext_tiny", "ConvNeXtBase": "convnext_base", "MnasNet": "mnasnet1_0",
    "MobileNetV2": "mobilenet_v2", "MobeNetV3": "mobilenet_v3_large", "MobeNetV3Small": "mobilenet_v3_small",
    "MobeNetV3Large": "mobilenet_v3_large",
    "VGG16": "vgg16", "VGG19": "vgg19", "ResNet101": "resnet101", "ResNet152": "resnet152",
    "RegNetX400MF": "regnet_x_400mf", "RegNetY400MF": "regnet_y_400mf",
}  # fmt: skip
_TEN_CLASSES = ("MnasNet", "MobeNetV3", "MobeNetV3Small", "MobeNetV3Large")
_TOKENS = 128


def xmem_vision(name: str, optimizer: str, batch_size: int, zero_grad: int) -> Workload:
    """XMem's loop for torchvision networks: CIFAR-10 at 86 × 86, the last outputs alive in the next forward."""
    import_torchvision()
    import torchvision

    classes = 10 if name in _TEN_CLASSES else 1000

    def build() -> Any:
        model = getattr(torchvision.models, VISION[name])(weights=None, num_classes=classes)
        return model, OPTIMIZERS[optimizer](model.parameters(), lr=1e-3), {}

    def batch() -> Any:
        return torch.randn(batch_size, 3, 86, 86), torch.zeros(batch_size, dtype=torch.int64)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, kept: dict[str, Any], batch: Any) -> None:
        pictures, labels = batch
        if zero_grad == 0:
            optimizer.zero_grad()
        outputs = model(pictures)
        loss = cross_entropy(outputs, labels)
        kept["outputs"], kept["loss"] = outputs, loss
        if zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if zero_grad == 2:
            optimizer.zero_grad()
        torch.max(outputs, 1)

    return Workload(build=build, batch=batch, step=step)


def xmem_language(
    name: str, optimizer: str, batch_size: int, zero_grad: int, *, alone: bool = False
) -> Workload:
    """XMem's loop for transformers: from configuration, 128 tokens, the optimizer made on the host.

    `alone`: the network is made where it is used, for predictors that know no GPU.
    """
    import_torchvision()
    make, vocabulary = _language_model(name)

    def build() -> Any:
        with nullcontext() if alone else torch.device("cpu"):
            model = make()
            kind = OPTIMIZERS[optimizer]
            made = kind(model.parameters(), lr=1e-3)
        if not alone:
            model.to("cuda")
        return model.train(), made, {}

    def batch() -> Any:
        ids = torch.randint(0, vocabulary, (batch_size, _TOKENS))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, kept: dict[str, Any], batch: Any) -> None:
        if zero_grad == 0:
            optimizer.zero_grad()
        outputs = model(**batch)
        loss = outputs.loss
        kept["outputs"], kept["loss"] = outputs, loss
        if zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if zero_grad == 2:
            optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def _keep_first_keys() -> None:
    """Let the cache of keys and values keep what it is first given, as transformers 4.51 does.

    Newer versions join it to an empty tensor, a copy that the products then share; 4.51 keeps the
    projections themselves beside the copies (cache_utils.py `DynamicCache.update`). The outputs of
    a step hold the cache until the next, so that this is alive during training.
    """
    from transformers import cache_utils

    layer = cache_utils.DynamicLayer
    if getattr(layer, "keeps_first", False):
        return
    later = layer.update

    def update(self: Any, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        return later(self, key_states, value_states, *args, **kwargs)

    layer.update = update
    layer.keeps_first = True


def _eager(kind: Any, config: Any) -> nn.Module:
    """Return a model whose attention is written out; T5 has no other in transformers 4.51."""
    model: nn.Module = kind._from_config(config, attn_implementation="eager")
    return model


def _language_model(name: str) -> tuple[Callable[[], nn.Module], int]:
    import transformers as t

    _keep_first_keys()
    short = name.rpartition("/")[2].lower()
    if short.startswith("gpt-neo"):
        # EleutherAI/gpt-neo-125M: config.json of the model's page.
        config = t.GPTNeoConfig(
            hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]]
        )
        return lambda: t.GPTNeoForCausalLM(config), config.vocab_size
    if short.startswith("opt-350m"):
        config = t.OPTConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096,
            word_embed_proj_dim=512, do_layer_norm_before=False,
        )  # fmt: skip
        return lambda: t.OPTForCausalLM(config), config.vocab_size
    if short.startswith("opt-125m"):
        config = t.OPTConfig()
        return lambda: t.OPTForCausalLM(config), config.vocab_size
    if short.startswith("t5-small"):
        config = t.T5Config(decoder_start_token_id=0, pad_token_id=0)
        return lambda: _eager(t.T5ForConditionalGeneration, config), config.vocab_size
    if short.startswith("t5-base"):
        config = t.T5Config(
            d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0, pad_token_id=0
        )
        return lambda: _eager(t.T5ForConditionalGeneration, config), config.vocab_size
    if short in ("gpt2", "distilgpt2"):
        config = t.GPT2Config(n_layer=6 if short == "distilgpt2" else 12)
        return lambda: t.GPT2LMHeadModel(config), config.vocab_size
    raise ValueError(f"no configuration of {name} is known here")


def t4_step(model: str, batch_size: int, sequence_length: int | None, image_size: int | None) -> Workload:
    """torch-preflight's calibration: autocast without a scaler, AdamW, weights loaded in float32.

    The rows say float16. The script that made them (tests/calibration/measure_cuda.py, `amp_dtype`) takes
    bfloat16 where `torch.cuda.is_bf16_supported()`, and torch says so on a T4 too, where it is emulated: no
    fused attention and no cuDNN then. Other networks were trained before in the same process, so that the
    handles of cuBLAS have their workspaces, and the cache was emptied. What the step names lives until it returns.
    """
    import_torchvision()
    short = model.partition(" ")[0].partition(":")[2]

    def build() -> Any:
        earlier = torch.randn(256, 256, requires_grad=True)
        (earlier @ earlier).sum().backward()  # type: ignore[no-untyped-call]
        del earlier
        torch.cuda.empty_cache()
        made: nn.Module
        if short == "resnet50":
            import torchvision

            made = torchvision.models.resnet50(weights=None)
        else:
            import transformers as t

            made = {
                "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config()),
                "distilbert-base-uncased": lambda: t.DistilBertModel(t.DistilBertConfig()),
                "bert-base-uncased": lambda: t.BertModel(t.BertConfig()),
            }[short]()
        return made.train(), torch.optim.AdamW(made.parameters())

    def batch() -> Any:
        if image_size:
            return torch.randn(batch_size, 3, image_size, image_size), torch.randint(0, 1000, (batch_size,))
        return torch.randint(0, 30000, (batch_size, sequence_length or 1)), None

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        x, y = batch
        optimizer.zero_grad()
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        with torch.autocast("cuda", dtype=dtype):
            if short == "resnet50":
                loss = cross_entropy(model(x), y)
            elif short == "gpt2":
                out = model(input_ids=x, labels=x)
                loss = out.loss
            else:
                out = model(input_ids=x)
                loss = out.last_hidden_state.float().pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)
