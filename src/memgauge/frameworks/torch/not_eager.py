"""What is not eager PyTorch: found, named, never silently treated as if it were.

torch.compile               traced as eager code, named in `unmodelled`
quantised modules, dtypes   an error that names the module
flex_attention, scan, ...   an error that names the operator and the user's line
nested tensors              the same, but for jagged ones on the CPU, which are followed into what they wrap
custom operators            an error, unless they have a fake implementation
several processes           an error that says what they would add
.cuda() on a CPU target     an error with the line to write instead
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memgauge.errors import UnsupportedError, WorkloadError
from memgauge.frameworks.torch.patches import Patches
from memgauge.frameworks.torch.scopes import named_modules
from memgauge.frameworks.torch.values import user_line

COMPILE_NOTE = (
    "torch.compile ({}) is traced as eager code: a compiled step usually takes less in forward and backward, "
    "and its first call more"
)
_QUANTISED = (
    "torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized", "torchao", "bitsandbytes",
    "auto_gptq", "gptqmodel", "awq", "hqq", "quanto", "optimum.quanto",
)  # fmt: skip
_QUANTISED_DTYPES = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)


@contextmanager
def watching(unmodelled: dict[str, None]) -> Iterator[None]:
    """Run compiled code as eager code, and say so in `unmodelled`."""
    with Patches() as patches:
        patches.set(torch, "compile", _as_eager(unmodelled))
        patches.set(torch.nn.Module, "compile", lambda self, *_, **__: _note(unmodelled, type(self).__name__))
        _refuse_nested_on_cuda(patches)
        _refuse_flex_attention(patches)
        patches.set(torch.nn.parallel.DistributedDataParallel, "__init__", _refuse_processes)
        if torch.distributed.is_available():
            patches.set(torch.distributed, "init_process_group", _refuse_processes)
        if "torch._dynamo" in sys.modules:  # something may have been compiled before the trace
            patches.enter_context(torch.compiler.set_stance("force_eager"))
            patches.enter_context(warnings.catch_warnings())
            warnings.filterwarnings(
                "ignore", message=".*global hooks on modules"
            )  # ours, of which layers are told
        yield


def _refuse_processes(*_: Any, **__: Any) -> None:
    raise UnsupportedError(
        f"{user_line()}: training by several processes is not followed; leave torch.distributed out and take the "
        "batch of one process. DistributedDataParallel adds buckets as large as all gradients (none with "
        "gradient_as_bucket_view=True), and NCCL some hundred MiB beside torch's allocator"
    )


def _note(unmodelled: dict[str, None], name: str) -> None:
    unmodelled.setdefault(COMPILE_NOTE.format(name))


def _as_eager(unmodelled: dict[str, None]) -> Callable[..., Any]:
    def compile(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile  # used as a decorator with arguments
        name = getattr(model, "__name__", None) or type(model).__name__
        _note(unmodelled, name)
        return model

    return compile


def inspect(objects: Any, functions: Iterable[Callable[..., Any]], unmodelled: dict[str, None]) -> None:
    """Look at what the workload built, and at the compiled functions that its own functions name.

    Raises:
        UnsupportedError: A module or a parameter is quantised.
    """
    for module, path in named_modules(objects).items():
        kind = type(module)
        if kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo"):
            _note(unmodelled, type(module._orig_mod).__name__)
        _refuse_quantised(kind, f'module "{path}" ({kind.__name__})')
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                where = f'parameter "{path}.{name}" ({type(tensor).__name__}, {tensor.dtype})'
                _refuse_quantised(type(tensor), where)
                if tensor.dtype in _QUANTISED_DTYPES:
                    raise UnsupportedError(_quantised(where))

    for function in functions:
        if hasattr(function, "_torchdynamo_orig_callable"):
            _note(unmodelled, function.__name__)
        for name, value in named_by(function):
            if hasattr(value, "_torchdynamo_orig_callable") and not isinstance(value, torch.nn.Module):
                _note(unmodelled, name)


def named_by(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals and the variables around it that a function names."""
    function = getattr(function, "_torchdynamo_orig_callable", function)  # what torch.compile wraps
    code = getattr(function, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
    known = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}
    yield from ((name, known[name]) for name in (*code.co_names, *code.co_freevars) if name in known)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _refuse_quantised(kind: type, what: str) -> None:
    module = f"{kind.__module__}."
    if any(module.startswith(f"{name}.") for name in _QUANTISED):
        raise UnsupportedError(_quantised(what))


def _quantised(what: str) -> str:
    return (
        f"{what} is quantised: its kernels take memory that torch's shape rules do not know; "
        "trace the model unquantised, or `memgauge measure` to really run it"
    )


def refuse_quantised_operator(name: str) -> None:
    """Name the user's line where quantised tensors are made; `meta` takes them for float32.

    Raises:
        UnsupportedError: The operator (`aten.quantize_per_tensor`) makes or takes quantised tensors.
    """
    if name.startswith(("quantized.", "aten.quantize_per_", "aten._empty_affine_quantized")):
        raise UnsupportedError(_quantised(f"{name} at {user_line()}"))


def refuse_higher_order(func: Any) -> None:
    """Name a higher-order operator (flex_attention, scan), which eager code cannot be followed through.

    Raises:
        UnsupportedError: Always.
    """
    name = func.name() if callable(getattr(func, "name", None)) else str(func)
    advice = (
        "use torch.nn.functional.scaled_dot_product_attention to trace it"
        if name.startswith("flex_attention")
        else "`memgauge measure` really runs it"
    )
    raise UnsupportedError(f"{name} at {user_line()} is not eager PyTorch but made to be compiled; {advice}")


# What makes a nested tensor of the strided layout, the fast path of `nn.TransformerEncoder` included.
_MAKES_NESTED = (
    "aten._nested_tensor_from_tensor_list",
    "aten._nested_tensor_from_mask",
    "aten._nested_from_padded",
    "aten._nested_view_from_buffer",
)


def refuse_nested_operator(name: str) -> None:
    """Name the user's line where strided nested tensors are made, for which `meta` has no shape rules.

    Raises:
        UnsupportedError: The operator (`aten._nested_tensor_from_mask`) makes a nested tensor.
    """
    if name in _MAKES_NESTED:
        advice = (
            "pass enable_nested_tensor=False to nn.TransformerEncoder, or pad by hand"
            if name.endswith("from_mask")
            else "pad to one length, or for a CPU target take layout=torch.jagged"
        )
        raise UnsupportedError(_nested(advice))


def _nested(advice: str) -> str:
    return f"{user_line()}: nested tensors are not followed here; {advice}; `memgauge measure` really runs it"


def _refuse_nested_on_cuda(patches: Patches) -> None:
    """Jagged tensors whose values are said to be on the card, but are the CPU's, abort the interpreter in C++."""
    from torch.nested._internal.nested_tensor import NestedTensor

    real = NestedTensor.__new__

    def new(cls: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        if values.device.type == "cuda":
            raise UnsupportedError(_nested("on a GPU only tensors of one length are: pad to it"))
        return real(cls, values, *args, **kwargs)

    patches.set(NestedTensor, "__new__", new)


def _refuse_flex_attention(patches: Patches) -> None:
    """Before it looks for CUDA's compiler, or for gradients, which it has none of on the CPU.

    Source: `flex_attention` asks `_validate_sdpa_input` first (torch/nn/attention/flex_attention.py, since torch 2.5),
    by a name of its own module, so that functions imported before the trace come here too.
    """
    from torch.nn.attention import flex_attention as module

    def refuse(*_: Any, **__: Any) -> None:
        refuse_higher_order("flex_attention")

    patches.set(module, "_validate_sdpa_input", refuse)


def without_shape_rule(name: str) -> UnsupportedError:
    """Return the error for an operator (`mylib.op`) that says nothing of its outputs."""
    return UnsupportedError(
        f"{name} at {user_line()}: torch has no shape rule for this operator; register one with "
        f'torch.library.register_fake("{name.replace(".", "::")}")'
    )


@contextmanager
def refusing_cuda() -> Iterator[None]:
    """For a CPU target: name the user's line where the device is hard-coded, instead of torch's assertion."""

    def refuse() -> None:
        raise hard_coded()

    with Patches() as patches:
        patches.set(torch.cuda, "_lazy_init", refuse)
        yield


def hard_coded() -> WorkloadError:
    """Return the error for `.cuda()` or `device="cuda"` in a trace for the CPU."""
    return WorkloadError(
        f"{user_line()}: .cuda() or device='cuda' is written out, but this is a trace for the CPU; "
        "write .to(device) and take it as an argument: def build(device), def batch(device); "
        "or leave it out, since memgauge places models and batches by itself"
    )
