"""The names of a gap's items: what a storage is that no layer returned, and why each item exists."""

from __future__ import annotations

from memgauge.records import MemoryEvent

REMAINDER = "remainder"
_BACKWARD = "backward"


def extra_name(made: MemoryEvent, kind: str, *, is_layer: bool, output: int) -> str:
    """Return what a live activation is that no layer returned, by the operator that made it.

    Args:
        made: The request of the storage.
        kind: The type of the module that was running.
        is_layer: Whether that module is a layer, with an output that was matched already.
        output: Which of the operator's requests it is, counted from 0.
    """
    if made.phase.endswith(_BACKWARD):
        return "activations computed again by checkpointing"
    operator = made.operator.removeprefix("aten.")
    if output % REQUESTS.get(operator, 1) > 0:
        return _BESIDE[operator]
    if operator in _BY_OPERATOR:
        return _BY_OPERATOR[operator]
    if "attention" in operator:
        return "results and statistics of attention functions"
    if "Dropout" in kind:
        return "masks of dropout"
    if is_layer:
        return "inputs and intermediate results that layers save"
    return "results of functions between layers"


# Operators that request more than their result, by name: how many requests, and what those beside are.
_INDICES, _MASK, _STATISTICS = "indices of pooling", "masks of dropout", "statistics of normalisation"
_SEVERAL = {
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), (2, _INDICES)),
    **dict.fromkeys(("adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d"), (2, _INDICES)),
    **dict.fromkeys(("native_dropout", "_fused_dropout"), (2, _MASK)),
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_batch_norm"), (3, _STATISTICS)),
    **dict.fromkeys(("cudnn_batch_norm", "miopen_batch_norm"), (4, _STATISTICS)),
    **dict.fromkeys(("_fused_rms_norm",), (2, _STATISTICS)),
}
REQUESTS = {operator: count for operator, (count, _) in _SEVERAL.items()}
_BESIDE = {operator: name for operator, (_, name) in _SEVERAL.items()}

_BY_OPERATOR = {
    "bernoulli_": _MASK,
    "_to_copy": "copies in another element type",
    "clone": "copies",
    "_weight_norm_interface": "weights that layers compute from their parameters",
    "_log_softmax": "results of the loss",
    "nll_loss_forward": "results of the loss",
    "nll_loss2d_forward": "results of the loss",
}

WHY = {
    "rounding by the allocator": "blocks are multiples of the allocator's unit, or larger free ones that it does not split",
    "in-place results counted twice": "the layer writes over its input; two layers, one storage",
    "views counted as memory": "flatten, reshape and identities return their input in another shape",
    "outputs that are parameters, input or kept elsewhere": "the layer hands on a tensor of another category",
    "outputs not made yet at the peak": "the peak comes before these layers run",
    "outputs that nothing keeps for backward": "no later operator needs them, so they are freed in the forward pass",
    "outputs that backward had already freed": "backward frees each layer's output once it is used",
    "storages larger than the output in them": "the output is a part of a larger tensor",
    "outputs of layers beyond the two largest": "results that are still referred to, such as a residual connection",
    "indices of pooling": "max-pooling keeps an int64 index for each output: 8 bytes beside 4",
    "masks of dropout": "what was kept is remembered for backward",
    "statistics of normalisation": "mean and inverse deviation of each channel or row",
    "results and statistics of attention functions": "queries, keys, values, results and log-sums are no layer's output",
    "copies in another element type": "autocast and casts keep a second copy",
    "copies": "what the program clones, what a reshape that is no view copies, what autograd keeps before an in-place layer",
    "weights that layers compute from their parameters": "weight normalisation makes the weight anew in each forward pass",
    "outputs that checkpointing computes again": "checkpointing drops them in the forward pass and makes them again in backward",
    "outputs made while the optimizer steps": "an optimizer that asks for the loss runs the network in its own phase: short-lived",
    "optimizer state of parameters that the loss does not reach": "the optimizer passes over parameters without a gradient",
    "gradients of parameters that the loss does not reach": "the layer is not used, or only by a part that is not trained: it never has a gradient",
    "results of the loss": "log-probabilities and the loss belong to no layer",
    "results of functions between layers": "a sum, a concatenation or an activation written as a function",
    "inputs and intermediate results that layers save": "what a layer's own operators keep for backward",
    "activations computed again by checkpointing": "one block at a time is computed again in backward",
    "parameters that are not there at the peak": "the peak comes before they are all made",
    "more parameters than counted": "temporary copies while building",
    "gradients that are not there at the peak": "freed by zero_grad, and not made yet for the layers that backward has not reached",
    "gradients larger than their parameters": "another element type or layout than the parameter",
    "optimizer state that is not there at the peak": "made in the first optimizer step, or filled up over many (LBFGS)",
    "more optimizer state than the formula says": "state that is no part of the optimizer's own formula",
    "input that is not there at the peak": "the batch is dropped or not made yet",
    "more input than one batch": "an earlier batch, or tensors made on the way to the batch",
    "gradients of in-place results and views counted twice": "one storage has one gradient",
    "gradients of activations live only until they are used": "backward needs the gradients of one layer at a time, not all at once",
    "short-lived results beyond gradients of activations": "intermediate results of backward or of the optimizer",
    "buffers, such as running statistics": "kept beside the parameters, without a gradient",
    "workspaces of kernels": "taken and given back within one operator",
    "tensors that the program keeps elsewhere": "an averaged copy, a scaler, a list of losses",
    "memory without a known use": "held, but not known for what",
    REMAINDER: "what no rule above names",
}
