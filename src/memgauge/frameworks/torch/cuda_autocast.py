"""`torch.autocast("cuda")` on the CPU stand-ins: CUDA's lists of casts instead of the CPU's.

    lower precision   matrix products, convolutions, attention: inputs to float16 (or what was asked for)
    float32           norms, losses, exp, pow, interpolation: inputs to float32
    float32 result    softmax, sums, cumulative sums: `dtype=float32`, so that no cast copy is made
    promote           several inputs to the widest among them

Copies of weights are kept until the outermost autocast ends. The stand-ins have
the dispatcher's AutocastCPU key; kernels for it are replaced while a trace runs.

Source: aten/src/ATen/autocast_mode.h and .cpp of torch 2.13. Which operators take
part is read off torch's own registrations for CUDA, so the lists below only
sort them: what is in none of them is cast to the lower precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memgauge.frameworks.torch.cuda_placement import Placement
from memgauge.frameworks.torch.cuda_rnn import flat_count, views_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# AT_FORALL_FP32, without overloads
FLOAT32 = _names(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"""
)
# AT_FORALL_FP32_SET_OPT_DTYPE, and `norm` of AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE
FLOAT32_RESULT = _names(
    """prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"""
)
# AT_FORALL_PROMOTE
PROMOTE = _names(
    """addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"""
)
_BANNED = {
    "binary_cross_entropy": "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe "
    "to autocast. Use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss.",
}

_KEY = torch._C.DispatchKey.AutocastCPU
_AUTOCAST = torch._C.DispatchKeySet(_KEY)


class Autocast:
    """The cast functions, and the copies of weights they keep."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.lower = torch.float16

    def clear(self) -> None:
        """Drop the copies of weights: the outermost autocast has ended."""
        self._copies.clear()

    def kernel(self, func: Any) -> Callable[..., Any]:
        """Return the autocast kernel of an operator."""
        name = func._schema.name.removeprefix("aten::")
        if name in _BANNED:
            return _refusal(_BANNED[name])
        if name == "_cudnn_rnn":
            return self._recurrent
        policy = (
            self._to_float32 if name in FLOAT32
            else self._float32_result if name in FLOAT32_RESULT
            else self._promoted if name in PROMOTE
            else self._to_lower
        )  # fmt: skip

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                return policy(func, args, kwargs)

        return call

    # -- policies -------------------------------------------------------------------------------------

    def _to_lower(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*self._cast(args, self.lower), **self._cast(kwargs, self.lower))

    def _to_float32(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*self._cast(args, torch.float32), **self._cast(kwargs, torch.float32))

    def _float32_result(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        if self._eligible(args[0]) and given.get("dtype") is None:
            if func._schema.name == "aten::norm":  # fp32_append_dtype: the overload that takes one
                return torch.norm(
                    given["self"],
                    given.get("p", 2),
                    given.get("dim"),
                    given.get("keepdim", False),
                    dtype=torch.float32,
                )
            given["dtype"] = torch.float32
            return func(given.pop("self"), **given)
        return func(*args, **kwargs)

    def _promoted(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [t for t in _flat((*args, *kwargs.values())) if self._eligible(t)]
        widest = torch.float32 if any(t.dtype is torch.float32 for t in tensors) else self.lower
        return func(*self._cast(args, widest), **self._cast(kwargs, widest))

    def _recurrent(
        self,
        input: Any,
        weight: Any,
        stride0: int,
        buffer: Any,
        hx: Any,
        cx: Any,
        kind: int,
        hidden: int,
        *rest: Any,
    ) -> Any:
        """Weights go to the lower precision in a flat buffer made at each call (AutocastRNN.cpp)."""
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            if self._eligible(weight[0]) and weight[0].dtype is not self.lower:
                with self._placement.at(True):
                    buffer = torch.zeros(flat_count(weight, stride0, kind, hidden), dtype=self.lower)
                weight = [view.copy_(w) for view, w in zip(views_of(buffer, weight), weight, strict=True)]
            states = self._cast((hx, cx), self.lower)
            arguments = (self._one(input, self.lower), weight, stride0, buffer, *states, kind, hidden, *rest)
            return torch.ops.aten._cudnn_rnn.default(*arguments)

    # -- casting --------------------------------------------------------------------------------------

    def _eligible(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype is not torch.float64
            and self._placement.on_device(value)
        )

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._one(value, dtype)
        if isinstance(value, dict):
            return {k: self._cast(v, dtype) for k, v in value.items()}
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(self._cast(v, dtype) for v in value)
        return value

    def _one(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Cast one tensor; a weight's copy in the lower precision is kept (`cached_cast`)."""
        if not self._eligible(tensor) or tensor.dtype is dtype:
            return tensor
        keep = (
            dtype is self.lower
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keep:
            return tensor.to(dtype)
        kept = self._copies.get(id(tensor))
        if kept is None:
            kept = self._copies[id(tensor)] = (tensor, tensor.to(dtype))
        return kept[1]


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _refusal(text: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(text)

    return refuse


def operators_of(key: str) -> list[Any]:
    """Return the operators that torch has a kernel for at a dispatch key."""
    found = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten":
            found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return found


def register(library: torch.library.Library, autocast: Autocast) -> None:
    """Replace the CPU's autocast kernels by CUDA's."""
    on_cuda = {*operators_of("AutocastCUDA"), torch.ops.aten._cudnn_rnn.default}
    for func in operators_of("AutocastCPU"):
        if func not in on_cuda:
            library.impl(func, torch.library.fallthrough_kernel, "AutocastCPU", allow_override=True)
    for func in on_cuda:
        library.impl(func, autocast.kernel(func), "AutocastCPU", allow_override=True)
