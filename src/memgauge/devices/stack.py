"""What runs between a program and the card: versions, and the switches that change memory."""

from __future__ import annotations

import re

import msgspec

from memgauge import environment
from memgauge.errors import UsageError
from memgauge.units import KIB

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?(?:[a-z+.-].*)?")
_WORKSPACES = re.compile(r":([0-9]+):([0-9]+)")
_LARGEST_INT, _LARGEST_SIZE = 2**31 - 1, 2**64 - 1
# Least CUDA with kernels for a major compute capability: NVIDIA, CUDA Toolkit release notes of these
# versions. Kernels of x.0 run on x.1 to x.9 as well (Blackwell Compatibility Guide, 1.2; pytorch PR 45130),
# so that an RTX 3090 (8.6) works with CUDA 11.0, which knows 8.0 only (contexts.toml).
_LEAST_CUDA = {7: (9, 0), 8: (11, 0), 9: (11, 8), 10: (12, 8), 12: (12, 8)}
# CUDA 13 has none below 7.5 (its release notes, "Deprecated Architectures"; pytorch issue 190385); torch's
# builds for those cards have 12.6 (RELEASE.md, CUDA support matrix).
_LEAST_FOR_CUDA_13, _CUDA_BEFORE_13 = (7, 5), (12, 6)
# CUDA 12 has none below 5.0 (pytorch PR 101187: Kepler). torch's builds with CUDA 11.8 have some for 3.7 up to the last
# of them, 2.7 (its warnings name sm_37: 2.7.1+cu118); 2.8 has none with CUDA 11 (pytorch issue 147383).
_LEAST_FOR_CUDA_12, _CUDA_BEFORE_12 = (5, 0), (11, 8)
_LAST_WITH_CUDA_11 = (2, 7)
_ANY_CUDA = (99, 9)
# No torch before 2.7 was released with CUDA 12.8 or newer, none before 2.0 with 11.8 or newer, none from 2.0 on with less than 11 (RELEASE.md,
# release compatibility matrix: 2.0 has 11.7 and 11.8, 2.6 ends with 12.6, 2.7 begins 12.8).
_FIRST_WITHOUT_CUDA_10 = (2, 0)
_FIRST_TORCH = (((12, 8), (2, 7)), ((11, 8), (2, 0)))  # with that CUDA or newer
# What torch's standard builds come with: the default wheels of PyTorch's release notes (1.7: 11.0 … 2.13: 13.0).
_USUAL_CUDA = (
    ((2, 11), (13, 0)), ((2, 8), (12, 8)), ((2, 6), (12, 4)), ((2, 1), (12, 1)), ((2, 0), (11, 7)),
    ((1, 13), (11, 7)), ((1, 12), (11, 3)), ((1, 9), (11, 1)), ((1, 7), (11, 0)), ((0, 0), (10, 1)),
)  # fmt: skip
# What is known of torch begins and ends with these release notes, of CUDA with them and the contexts of contexts.toml.
_OLDEST_TORCH, _NEWEST_TORCH = (1, 7), (2, 13)
_OLDEST_CUDA, _NEWEST_CUDA = (10, 1), (13, 0)


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The software that the run will use; None leaves a choice to torch's own defaults.

    Attributes:
        torch: Version of torch, (major, minor).
        cuda: Version of CUDA that this torch is built with; None: the usual one of that torch.
        cublas_workspace_config: Value of CUBLAS_WORKSPACE_CONFIG.
        cublaslt_workspace_kib: CUBLASLT_WORKSPACE_SIZE, KiB.
        cublaslt_unified: TORCH_CUBLASLT_UNIFIED_WORKSPACE; None: by the version of torch.
        cudnn: torch.backends.cudnn.enabled; None leaves what the program sets.
        cudnn_benchmark: torch.backends.cudnn.benchmark, likewise.
        cudnn_deterministic: torch.backends.cudnn.deterministic, likewise.
        tf32: torch.backends.cudnn.allow_tf32, likewise (torch's default is True for convolutions).
    """

    torch: tuple[int, int] = _NEWEST_TORCH
    cuda: tuple[int, int] | None = None
    cublas_workspace_config: str | None = None
    cublaslt_workspace_kib: int | None = None
    cublaslt_unified: bool | None = None
    cudnn: bool | None = None
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    tf32: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            UsageError: Two settings cannot both hold.
        """
        if self.cudnn is False:
            for name, value in (
                ("benchmark", self.cudnn_benchmark),
                ("deterministic", self.cudnn_deterministic),
            ):
                if value:
                    raise UsageError(
                        f"cuDNN is off, so cudnn.{name}=on changes nothing; leave one of them out"
                    )
        if self.cublaslt_workspace_kib is not None and not 0 <= self.cublaslt_workspace_kib < 2**31:
            raise UsageError(
                f"CUBLASLT_WORKSPACE_SIZE {self.cublaslt_workspace_kib}: write KiB as a whole number, such as 4096"
            )
        if self.cublas_workspace_config is not None:
            workspace_config_bytes(self.cublas_workspace_config)

    @property
    def cuda_version(self) -> tuple[int, int]:
        """Return the version of CUDA; that of torch's standard builds where none is given."""
        return self.cuda if self.cuda is not None else _usual_cuda(self.torch)

    def variables(self) -> dict[str, str]:
        """Return the variables of the environment that these settings stand for."""
        kib, unified = self.cublaslt_workspace_kib, self.cublaslt_unified
        given = {
            environment.CUBLAS: self.cublas_workspace_config,
            environment.CUBLASLT: None if kib is None else str(kib),
            environment.CUBLASLT_UNIFIED: None if unified is None else str(int(unified)),
        }
        return {name: value for name, value in given.items() if value is not None}

    def on_card(self, title: str, capability: tuple[int, int] | None) -> Stack:
        """Return the same with a CUDA that has kernels for a card: the usual one, or else the nearest.

        Args:
            title: The card's, for messages.
            capability: Its compute capability; where it is None, nothing is known and nothing changes.

        Raises:
            UsageError: The CUDA that is given has none, or no CUDA of this torch has.
        """
        if capability is None:
            return self
        card = f"{title} (compute capability {_written(capability)})"
        least = _LEAST_CUDA.get(capability[0], (0, 0))
        most = _newest_cuda(capability)
        if self.cuda is None:
            cuda = max(min(self.cuda_version, most), least)
            if cuda < (12, 0) and self.torch > _LAST_WITH_CUDA_11:
                raise UsageError(
                    f"torch {_written(self.torch)} has no kernels for {card}: these end with CUDA {_written(most)}; "
                    f"write --torch {_written(_LAST_WITH_CUDA_11)} or older"
                )
            if self.torch < _first_torch(cuda):
                raise UsageError(
                    f"torch {_written(self.torch)} has no kernels for {card}: these need CUDA {_written(least)}; "
                    f"write --torch {_written(_first_torch(cuda))} or newer"
                )
            return msgspec.structs.replace(self, cuda=cuda)
        if self.cuda < least:
            wanted = f"--cuda {_written(least)} or newer"
        elif self.cuda[0] > most[0]:
            wanted = f"--cuda {_written(most)}"
        else:
            return self
        raise UsageError(f"CUDA {_written(self.cuda)} has no kernels for {card}; write {wanted}")

    def beyond_known(self) -> tuple[str, ...]:
        """Return a line for each version that is newer than the newest that is known, whose rules it is given."""
        versions = ("torch", self.torch, _NEWEST_TORCH), ("CUDA", self.cuda_version, _NEWEST_CUDA)
        return tuple(
            f"{name} {_written(version)} is newer than {_written(newest)}, the newest that is known: "
            f"what is known of {_written(newest)} is taken to hold for it"
            for name, version, newest in versions
            if version > newest
        )

    @property
    def is_lazy(self) -> bool:
        """Return whether CUDA loads kernels when they are first called.

        Source: pytorch PR 86509 (1.13: CUDA_MODULE_LOADING=LAZY is set, where CUDA is 11.7 or newer).
        """
        return self.torch >= (1, 13) and self.cuda_version >= (11, 7)


def _newest_cuda(capability: tuple[int, int]) -> tuple[int, int]:
    """Return the newest CUDA with kernels for a compute capability, of those that torch's builds have."""
    if capability < _LEAST_FOR_CUDA_12:
        return _CUDA_BEFORE_12
    return _CUDA_BEFORE_13 if capability < _LEAST_FOR_CUDA_13 else _ANY_CUDA


def _usual_cuda(torch: tuple[int, int]) -> tuple[int, int]:
    return next(cuda for since, cuda in _USUAL_CUDA if torch >= since)


def _first_torch(cuda: tuple[int, int]) -> tuple[int, int]:
    """Return the first torch that was released with that CUDA or newer, as far as that is known."""
    return next((torch for since, torch in _FIRST_TORCH if cuda >= since), (0, 0))


def check_known(torch: tuple[int, int] | None, cuda: tuple[int, int] | None) -> None:
    """Refuse versions before the oldest that is known, for what a user writes; None is not given.

    Raises:
        UsageError: One of them is older.
    """
    for option, version, oldest in (("--torch", torch, _OLDEST_TORCH), ("--cuda", cuda, _OLDEST_CUDA)):
        if version is not None and version < oldest:
            raise UsageError(
                f"{option} {_written(version)}: the oldest that is known is {_written(oldest)}; write that or newer"
            )


def check_release(torch: tuple[int, int], cuda: tuple[int, int]) -> None:
    """Refuse a torch and a CUDA that were never released together, for what a user writes.

    What is installed is not asked: vendors build early versions of torch with newer CUDA.

    Raises:
        UsageError: There is no such release.
    """
    if torch < _first_torch(cuda):
        hint = f", or --torch {_written(_first_torch(cuda))} or newer"
    elif cuda < (11, 0) and torch >= _FIRST_WITHOUT_CUDA_10:
        hint = " or newer"
    elif cuda < (12, 0) and torch > _LAST_WITH_CUDA_11:
        hint = f", or --torch {_written(_LAST_WITH_CUDA_11)} or older"
    else:
        return
    raise UsageError(
        f"torch {_written(torch)} was never released with CUDA {_written(cuda)}; "
        f"write --cuda {_written(_usual_cuda(torch))}{hint}"
    )


def _written(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def parse_version(text: str, what: str) -> tuple[int, int]:
    """Return `(2, 6)` for `2.6`, `2.6.0` and `2.6.0+cu124`.

    Raises:
        UsageError: The text is no version.
    """
    found = _VERSION.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{what} {text!r} is no version; write for example 2.6")
    return int(found[1]), int(found[2])


def workspace_config_bytes(text: str) -> int:
    """Return the bytes that torch takes for a value of CUBLAS_WORKSPACE_CONFIG (`:4096:2:16:8`).

    Each size counts as often as it says, since PR 89027 (torch 2.0), however much that is: torch has no limit, and
    runs out of memory at the first product.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp `parseChosenWorkspaceSize`.

    Raises:
        UsageError: There is no such pair: torch would warn and take its default. Or a number is above an int's, at
            which torch raises (`std::stoi`; newer ones read 64 bits), or the sum does not fit its `size_t`.
    """
    pairs = _WORKSPACES.findall(text)
    if not pairs or _WORKSPACES.sub("", text):
        raise UsageError(
            f"CUBLAS_WORKSPACE_CONFIG {text!r}: write :SIZE:COUNT pairs, SIZE in KiB, such as :4096:8"
        )
    largest = max(int(number) for pair in pairs for number in pair)
    total = sum(int(size) * int(count) for size, count in pairs) * KIB
    if largest > _LARGEST_INT or total > _LARGEST_SIZE:
        raise UsageError(
            f"CUBLAS_WORKSPACE_CONFIG {text!r}: torch cannot read numbers above {_LARGEST_INT} or a sum above 64 bits; "
            "write :SIZE:COUNT pairs, SIZE in KiB, such as :4096:8"
        )
    return total
