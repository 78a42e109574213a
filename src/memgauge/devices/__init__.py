"""Facts about the devices that people train on, each with its source.

catalogue.toml   capacity, usable bytes, architecture            catalogue, find, read_device_file
contexts.toml    CUDA contexts as somebody saw them              context
forms            what may be written in a device file
stack            versions and switches of the software above     Stack
libraries        workspaces by library, architecture and shape
"""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from memgauge.devices.forms import misfit
from memgauge.errors import UsageError, nearest
from memgauge.units import GIB, MIB

GRADES = ("measured", "others", "vendor", "guessed")
# Share of the vendor's capacity that the driver reports, for a card described without it, and how far it
# may be off: those of the catalogue have 0.953 to 1.000, and 0.918 to 0.933 where ECC takes a sixteenth.
USABLE_SHARE, USABLE_SPREAD = 0.975, 0.025
# In a card's name, what is no part of its model: makers, families, the form of the module and of its memory.
_COMMON_WORDS = re.compile(
    r"nvidia|amd|geforce|tesla|instinct|(?<!titan)(?<!titan.)rtx|sxm\d|hbm\d\w?|[^a-z0-9]"
)
# What tells cards of one model apart.
_VARIANT = re.compile(r"-(\d+gb|pcie|nvl)$")
# Whose rates a card without any is taken to have: those of its compute capability, or of the newest before.
_STANDS_FOR_ITS_ARCHITECTURE = (
    "nvidia-v100-16gb",
    "nvidia-t4",
    "nvidia-a100-40gb",
    "nvidia-rtx-3090",
    "nvidia-rtx-4090",
    "nvidia-h100-80gb",
    "nvidia-b200",
    "nvidia-rtx-5090",
)
_AMD_ARCHITECTURES = ("cdna", "rdna", "gfx")
# As the compiler writes it (LLVM, User Guide for AMDGPU Backend, "Processors"), or as AMD calls it.
_AMD_ARCHITECTURE = re.compile(r"gfx\d{2,3}[0-9a-f]|(cdna|rdna)[1-4]?")
_RATES = (
    ("tf32", 0, 99_999, "TFLOPS"),
    ("half", 0, 99_999, "TFLOPS"),
    ("float32", 0.1, 99_999, "TFLOPS"),
    ("memory", 0.01, 99, "TB/s"),
)
_SMALLEST_BYTES, _LARGEST_BYTES = 256 * MIB, 4096 * GIB
_SMALLEST_CONTEXT = MIB  # those that somebody saw have a hundred times that (contexts.toml)
# Threads run in groups of so many: warps (CUDA C++ Programming Guide, "SIMT Architecture"), AMD's of 32 or 64.
_WARP = 32
# What makes a card this one and no other: a file that differs in it needs a name of its own.
_IDENTITY = ("capacity_bytes", "compute_capability", "multiprocessors", "threads_per_multiprocessor")


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One amount, how it is known, and from where."""

    bytes: int
    grade: str
    source: str


class Ladder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a process takes outside torch's allocator, step by step; each includes the ones before."""

    init: int
    product: int | None = None
    convolution: int | None = None
    backward: int | None = None
    optimizer: int | None = None

    @property
    def last(self) -> int:
        """Return the highest step that is known."""
        known = (self.init, self.product, self.convolution, self.backward, self.optimizer)
        return max(step for step in known if step is not None)


class PublishedRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a card computes, in TFLOPS (dense), and moves, in TB/s, at most; as its vendor says."""

    tf32: float = 0  # tensor cores, by type, with float32 sums; 0: it has none for it
    half: float = 0
    float32: float  # the ordinary units
    memory: float
    source: str


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device of the catalogue. `capacity_bytes` is None where the machine has to be asked."""

    name: str
    title: str
    also: tuple[str, ...] = ()  # what its driver calls it, where that is neither name nor title
    kind: str  # "cpu" or "cuda" (AMD's cards run torch's CUDA interface too)
    capacity_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None  # None on what is not NVIDIA's
    source: str = ""
    architecture: str = ""  # the vendor's name, or the compiler's: "ampere", "cdna2", "gfx90a"
    multiprocessors: int | None = None
    threads_per_multiprocessor: int | None = None
    usable: Figure | None = None  # what the driver reports as the card's total
    context: Figure | None = None  # outside torch's allocator; from a device file
    cublas_workspace: Figure | None = None  # each; from a device file
    rates: PublishedRates | None = None

    @property
    def is_nvidia(self) -> bool:
        """Return whether this is a card with NVIDIA's libraries."""
        is_amd = self.name.startswith("amd-") or self.architecture.lower().startswith(_AMD_ARCHITECTURES)
        return self.kind == "cuda" and not is_amd

    @property
    def is_newest_amd(self) -> bool:
        """Return whether torch gives its libraries more: gfx94 (CDNA 3) and gfx95 (CDNA 4)."""
        return self.architecture.lower().startswith(("cdna3", "cdna4", "gfx94", "gfx95"))

    @property
    def usable_figure(self) -> Figure | None:
        """Return what the driver reports as the total: as somebody printed it, or guessed from the capacity."""
        if self.usable is not None or self.capacity_bytes is None:
            return self.usable
        share = int(self.capacity_bytes * USABLE_SHARE)
        return Figure(bytes=share, grade="guessed", source=f"{USABLE_SHARE:.1%} of the vendor's capacity")


# Facts of a card that are tables themselves.
_TABLES: dict[str, type[msgspec.Struct]] = {
    "usable": Figure,
    "context": Figure,
    "cublas_workspace": Figure,
    "rates": PublishedRates,
}


@cache
def catalogue() -> dict[str, Device]:
    """Return every known device by name."""
    text = resources.files(__package__).joinpath("catalogue.toml").read_text()
    devices = msgspec.convert(tomllib.loads(text)["device"], list[Device])
    return {d.name: d for d in devices}


def find(name: str) -> Device:
    """Return the device of that name, or the one that a device file (`*.toml`) describes.

    What people and nvidia-smi call a card is its name too, if it is no other's: RTX 3090, NVIDIA A100-SXM4-40GB.

    Raises:
        UsageError: There is none, the nearest names are given; or there are several, which are given.
            Or the file has missing or absurd figures.
    """
    if name.endswith(".toml"):
        return read_device_file(Path(name))
    if name == "cuda" and calibration_file().is_file():
        return read_device_file(calibration_file())
    if name in catalogue():
        return catalogue()[name]
    said = _plain(name)
    # a card's own name comes before the model of others: NVIDIA H200 is no H200 NVL
    found = [d for d in gpus() if said == _plain(d.name)] or [d for d in gpus() if said in _names(d)]
    if len(found) > 1:
        raise UsageError(f"device {name!r} could be {' or '.join(d.name for d in found)}; write one of them")
    if not found:
        raise UsageError(
            f"unknown device {name!r}{nearest(name, catalogue(), 4)}; `memgauge devices` lists all, "
            "and a file such as card.toml can describe another (docs/devices.md)"
        )
    return found[0]


def _names(device: Device) -> set[str]:
    model = _VARIANT.sub("", device.name)
    return {_plain(name) for name in (device.name, device.title, model, *device.also)}


def _plain(name: str) -> str:
    """Return what tells a card from others in its name."""
    return _COMMON_WORDS.sub("", name.lower())


@cache
def rates_of_architecture(capability: tuple[int, int]) -> PublishedRates | None:
    """Return the rates of the card that stands for the newest architecture up to this one; None before 7.0."""
    known = [catalogue()[name] for name in _STANDS_FOR_ITS_ARCHITECTURE]
    upto = [d for d in known if d.compute_capability is not None and d.compute_capability <= capability]
    return max(upto, key=lambda d: d.compute_capability or (0, 0)).rates if upto else None


def calibration_file() -> Path:
    """Return where `memgauge calibrate` keeps what it measured: in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "memgauge" / "device.toml"


def gpus() -> list[Device]:
    """Return the catalogue's cards with a known capacity."""
    return [d for d in catalogue().values() if d.kind == "cuda" and d.capacity_bytes is not None]


def read_device_file(path: Path) -> Device:
    """Return the one device that a file in the catalogue's format describes.

    Raises:
        UsageError: There is no such file, it is no such description, or a figure is missing or absurd.
    """
    try:
        tables = tomllib.loads(path.expanduser().read_text(encoding="utf-8")).get("device")
    except OSError as error:
        raise UsageError(f"device file {path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"device file {path} is not TOML: {error}") from error
    if not isinstance(tables, list) or len(tables) != 1 or not isinstance(tables[0], dict):
        raise UsageError(f"device file {path}: write one [[device]] table; docs/devices.md has an example")
    table = {"kind": "cuda", "title": str(tables[0].get("name", "")), **tables[0]}
    wrong = misfit(table, Device, _TABLES)
    if wrong is not None:
        raise UsageError(f"device file {path}: {wrong}; docs/devices.md has an example")
    device = msgspec.convert(table, Device)
    _check(device, path)
    return device


def _check(device: Device, path: Path) -> None:
    where = f"device file {path}: "
    if device.kind != "cuda":
        raise UsageError(f'{where}kind = {device.kind!r}; only cards (kind = "cuda") can be described')
    if not device.name.strip():
        raise UsageError(f"{where}name is empty; results are shown under it")
    if device.name == "all":
        raise UsageError(f"{where}name = 'all' stands for every card (--device all); write another")
    if device.compute_capability is not None:
        major, minor = device.compute_capability
        if not (3 <= major <= 20 and 0 <= minor <= 9):
            raise UsageError(
                f"{where}compute_capability = [{major}, {minor}]: write it as NVIDIA does, such as [8, 6]"
            )
    if device.compute_capability is not None and not device.is_nvidia:
        raise UsageError(
            f"{where}architecture = {device.architecture!r} is AMD's and compute_capability is NVIDIA's; "
            "leave one of them out"
        )
    architecture = device.architecture.lower()
    if architecture.startswith(_AMD_ARCHITECTURES) and not _AMD_ARCHITECTURE.fullmatch(architecture):
        raise UsageError(
            f"{where}architecture = {device.architecture!r}: AMD has none of that name; "
            "write it as rocminfo does, such as 'gfx90a', or 'cdna2'"
        )
    if device.capacity_bytes is None:
        raise UsageError(f"{where}capacity_bytes is missing; write the card's memory in bytes")
    _check_name(device, where)
    figures = {
        "usable": device.usable,
        "context": device.context,
        "cublas_workspace": device.cublas_workspace,
    }
    for name, figure in figures.items():
        if figure is not None and figure.grade not in GRADES:
            known = ", ".join(GRADES)
            raise UsageError(f"{where}{name}.grade = {figure.grade!r}; it is one of {known}")
    capacity = device.capacity_bytes
    if not _SMALLEST_BYTES <= capacity <= _LARGEST_BYTES:
        raise UsageError(
            f"{where}capacity_bytes = {capacity}: a card has between 256 MiB and 4 TiB; write bytes, not GB"
        )
    for name, figure in figures.items():
        if figure is None:
            continue
        least, most = (capacity // 2, capacity) if name == "usable" else (0, capacity // 2)
        if name == "context":
            least = _SMALLEST_CONTEXT
        if not least <= figure.bytes <= most:
            raise UsageError(
                f"{where}{name}.bytes = {figure.bytes}: with a capacity of {capacity} it lies between {least} and {most}; "
                f"write bytes, or leave {name} out"
            )
    if device.rates is not None:
        for name, lowest, highest, unit in _RATES:
            rate = getattr(device.rates, name)
            if not lowest <= rate <= highest:
                raise UsageError(
                    f"{where}rates.{name} = {rate:g}: it lies between {lowest:g} and {highest:g} {unit}"
                )
    for name in ("multiprocessors", "threads_per_multiprocessor"):
        count = getattr(device, name)
        if count is not None and not 1 <= count <= 4096:
            raise UsageError(f"{where}{name} = {count}: it lies between 1 and 4096")
    if (device.threads_per_multiprocessor or 0) % _WARP:
        raise UsageError(
            f"{where}threads_per_multiprocessor = {device.threads_per_multiprocessor}: "
            f"it is a multiple of {_WARP}, such as 1536"
        )


def _check_name(device: Device, where: str) -> None:
    """Refuse the name of a card of the catalogue for another card: contexts and tables go by it."""
    known = catalogue().get(device.name)
    if known is None or known.name == "cuda":  # as calibrate names what is here
        return
    if known.kind != "cuda":
        raise UsageError(f"{where}name = {device.name!r} is {known.title}; give the card a name of its own")
    for fact in _IDENTITY:
        theirs, its = _written(getattr(known, fact)), _written(getattr(device, fact))
        if theirs != its:
            raise UsageError(
                f"{where}name = {device.name!r} is the catalogue's {known.title}, whose {fact} is {theirs}, not "
                f"{its}; give another card a name of its own, or write --device {known.name} for that one"
            )


def _written(fact: object) -> str:
    """Return a fact as a device file has it."""
    return "left out" if fact is None else str(list(fact) if isinstance(fact, tuple) else fact)
