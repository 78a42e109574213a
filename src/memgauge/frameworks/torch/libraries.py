"""Architectures of torchvision, timm and transformers as workloads, without weights or network."""

from __future__ import annotations

from collections.abc import Mapping

from memgauge.arguments import TargetOptions
from memgauge.errors import UsageError
from memgauge.workload import Workload


def library_workload(
    library: str, name: str, options: TargetOptions, sets: Mapping[str, str] | None = None
) -> Workload:
    """Return the workload of one architecture.

    Args:
        library: `torchvision`, `timm` or `transformers`.
        name: As the library calls it; for transformers a model type, or the path of a
            `config.json` or of the directory that holds it.
        options: Batch, sizes, optimizer (Adam if None), precision, mode, checkpointing.
        sets: Arguments of the model's constructor, as text; for transformers the
            attributes of its configuration.

    Raises:
        UsageError: The name, an option or an argument is unknown.
        MissingError: The library is not installed.
        UnsupportedError: This model, or this option with it, cannot be studied.
    """
    # Each of the three takes seconds to import; only the one asked for is.
    if library == "torchvision":
        from memgauge.frameworks.torch.torchvision_models import torchvision_workload

        return torchvision_workload(name, options, sets or {})
    if library == "timm":
        from memgauge.frameworks.torch.timm_models import timm_workload

        return timm_workload(name, options, sets or {})
    if library == "transformers":
        from memgauge.frameworks.torch.transformers_models import transformers_workload

        return transformers_workload(name, options, sets or {})
    raise UsageError(f"there is no library {library!r}; it is torchvision, timm or transformers")
