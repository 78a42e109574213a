"""The number of a layer's parameters, written out with the layer's own sizes.

`64 × (3 × 3 × 3) + 64` is a convolution from 3 to 64 channels with a 3 x 3 kernel
and a bias. A kind that is not listed, or whose parameters are not what its kind
says (weight norm, adapters), gets the sum of its parameters' shapes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn


def parameter_formula(module: nn.Module, parameters: Sequence[nn.Parameter]) -> str:
    """Return the formula for the number of elements in `parameters`, which belong to `module`.

    Args:
        module: The layer.
        parameters: All parameters that are counted with it, those of its children included.

    The result evaluates to the true count; it is empty if there are no parameters.
    """
    if not parameters:
        return ""
    count = sum(p.numel() for p in parameters)
    for kind, written in _KINDS:
        if isinstance(module, kind):
            text = written(module)
            if evaluate(text) == count:
                return text
    return " + ".join(_product(p.shape) for p in parameters)


def evaluate(formula: str) -> int:
    """Return the value of a formula of whole numbers, `×`, `+` and brackets; 0 for an empty one."""
    return _value(ast.parse(formula.replace("×", "*") or "0", mode="eval").body)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left), _value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right
    raise ValueError(f"not a formula: {ast.dump(node)}")


def _product(sizes: Sequence[int]) -> str:
    return " × ".join(str(n) for n in sizes) or "1"


def _bias(module: Any, count: int) -> str:
    return f" + {count}" if module.bias is not None else ""


def _convolution(module: Any) -> str:
    inputs = module.in_channels // module.groups
    return f"{module.out_channels} × ({_product((inputs, *module.kernel_size))})" + _bias(
        module, module.out_channels
    )


def _transposed_convolution(module: Any) -> str:
    outputs = module.out_channels // module.groups
    return f"{module.in_channels} × ({_product((outputs, *module.kernel_size))})" + _bias(
        module, module.out_channels
    )


def _linear(module: Any) -> str:
    return f"{module.out_features} × {module.in_features}" + _bias(module, module.out_features)


def _bilinear(module: Any) -> str:
    sizes = (module.out_features, module.in1_features, module.in2_features)
    return _product(sizes) + _bias(module, module.out_features)


def _embedding(module: Any) -> str:
    return f"{module.num_embeddings} × {module.embedding_dim}"


def _recurrent(module: Any) -> str:
    """Gates × hidden × (inputs + hidden) weights and two biases, for each layer and direction."""
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    hidden, directions = module.hidden_size, 2 if module.bidirectional else 1
    parts = []
    for layer in range(module.num_layers):
        inputs = module.input_size if layer == 0 else hidden * directions
        bias = f" + 2 × {gates} × {hidden}" if module.bias else ""
        parts += [f"{gates} × {hidden} × ({inputs} + {hidden}){bias}"] * directions
    return " + ".join(parts)


def _recurrent_cell(module: Any) -> str:
    gates = {nn.LSTMCell: 4, nn.GRUCell: 3}.get(type(module), 1)
    bias = f" + 2 × {gates} × {module.hidden_size}" if module.bias else ""
    return f"{gates} × {module.hidden_size} × ({module.input_size} + {module.hidden_size}){bias}"


def _attention(module: Any) -> str:
    """Projections of queries, keys and values in one matrix, and the output's projection."""
    width = module.embed_dim
    bias = f" + 3 × {width}" if module.in_proj_bias is not None else ""
    output = f"{width} × {width}" + _bias(module.out_proj, width)
    return f"3 × {width} × {width}{bias} + {output}"


def _scale_and_shift(module: Any) -> str:
    """A weight and a bias for each channel or feature."""
    sizes = [math.prod(p.shape) for p in (module.weight, getattr(module, "bias", None)) if p is not None]
    return f"{len(sizes)} × {sizes[0]}" if len(sizes) > 1 else str(sizes[0])


_KINDS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed_convolution),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    (nn.Linear, _linear),
    (nn.Bilinear, _bilinear),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    (nn.RNNBase, _recurrent),
    (nn.RNNCellBase, _recurrent_cell),
    (nn.MultiheadAttention, _attention),
    ((nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), _scale_and_shift),
)
