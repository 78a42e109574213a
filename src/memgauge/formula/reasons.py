"""The names of a gap's items: what a storage is that no layer returned, and why each item exists."""

from __future__ import annotations

from memgauge.records import MemoryEvent

REMAINDER = "remainder"
_BACKWARD = "backward"


def extra_name(made: MemoryEvent, kind: str, *, is_layer: bool) -> str:
    """Return what a live activation is that no layer returned, by the operator that made it."""
    operator = made.operator
    if made.phase.endswith(_BACKWARD):
        return "activations computed again by checkpointing"
    for part, name in _BY_OPERATOR:
        if part in operator:
            return name
    if "Dropout" in kind:
        return "masks of dropout"
    if is_layer:
        return "inputs and intermediate results that layers save"
    return "results of functions between layers"


_BY_OPERATOR = (
    ("max_pool", "indices of pooling"),
    ("dropout", "masks of dropout"),
    ("bernoulli", "masks of dropout"),
    ("norm", "statistics of normalisation"),
    ("attention", "results and statistics of attention functions"),
    ("_to_copy", "copies in another element type"),
    ("clone", "copies in another layout"),
    ("contiguous", "copies in another layout"),
    ("log_softmax", "results of the loss"),
    ("nll_loss", "results of the loss"),
)

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
    "copies in another layout": "a reshape that cannot be a view",
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
