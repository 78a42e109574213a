"""What each data set is: counts, shape, files, and the checksums that their publishers give."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memgauge.errors import UsageError, nearest

_MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_LARGEST = 2**40  # values of one data set; more is a slip of the pen


@dataclass(frozen=True, slots=True)
class Download:
    """One file on the network: its address and the MD5 that its publisher gives."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Description:
    """A data set before it is loaded.

    Attributes:
        name: As asked for.
        rows: Pictures to train on.
        height, width, channels: Of a picture.
        classes: How many there are.
        value_bytes: Of one value as it is stored: 1 for bytes, 4 for floats.
        kind: `idx` or `cifar` (files), `synthetic` (random floats), `digits` (comes with scikit-learn).
        files: Names of the files, training set first.
        downloads: Where they are.
    """

    name: str
    rows: int
    height: int
    width: int
    channels: int
    classes: int
    value_bytes: int
    kind: str
    files: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()

    @property
    def picture_values(self) -> int:
        return self.height * self.width * self.channels

    @property
    def pictures_bytes(self) -> int:
        """Size of the training pictures as they are stored."""
        return self.rows * self.picture_values * self.value_bytes


def _idx(name: str, place: str, sums: tuple[str, ...]) -> Description:
    downloads = tuple(
        Download(f"{place}/{file}.gz", md5) for file, md5 in zip(_MNIST_FILES, sums, strict=True)
    )
    return Description(name, 60_000, 28, 28, 1, 10, 1, "idx", _MNIST_FILES, downloads)


_KNOWN = {
    # The digits of E. Alpaydin and C. Kaynak, as scikit-learn ships them: 1,797 of 8 × 8, values 0 to 16.
    "digits": Description("digits", 1_500, 8, 8, 1, 10, 1, "digits"),
    # MD5 sums: torchvision/datasets/mnist.py, 0.28.
    "mnist": _idx(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    # MD5: https://www.cs.toronto.edu/~kriz/cifar.html, the binary version.
    "cifar10": Description(
        "cifar10",
        50_000,
        32,
        32,
        3,
        10,
        1,
        "cifar",
        CIFAR_FILES,
        (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
            ),
        ),
    ),
    # Torres et al. 2021, section 2.1: 703 MB and 6,867 MB in memory, so float32.
    "dt1": Description("dt1", 60_000, 32, 32, 3, 10, 4, "synthetic"),
    "dt2": Description("dt2", 600_000, 32, 32, 3, 10, 4, "synthetic"),
}
NAMES = (*_KNOWN, "synthetic:ROWSxHxWxC[:CLASSES]")
_SYNTHETIC = re.compile(r"synthetic:(\d+)x(\d+)x(\d+)x(\d+)(?::(\d+))?")


def describe(name: str) -> Description:
    """Return what a data set is: `mnist`, `dt1`, `synthetic:1000x32x32x3`, `synthetic:1000x32x32x3:100`.

    Raises:
        UsageError: There is no such data set, or its numbers cannot be.
    """
    if name in _KNOWN:
        return _KNOWN[name]
    found = _SYNTHETIC.fullmatch(name)
    if found is None:
        if name.startswith("synthetic"):
            raise UsageError(
                f"data {name!r}: write synthetic:ROWSxHEIGHTxWIDTHxCHANNELS, for example synthetic:1000x32x32x3, "
                "with :CLASSES behind it if they are not 10"
            )
        raise UsageError(f"data {name!r} is unknown{nearest(name, _KNOWN)}; it is {', '.join(NAMES)}")
    rows, height, width, channels = (int(part) for part in found.groups()[:4])
    classes = int(found[5] or 10)
    if min(rows, height, width, channels) < 1 or classes < 2:
        raise UsageError(
            f"data {name!r}: rows, height, width and channels must be at least 1, classes at least 2"
        )
    if rows * height * width * channels > _LARGEST:
        raise UsageError(f"data {name!r}: that is more than 2^40 values")
    return Description(name, rows, height, width, channels, classes, 4, "synthetic")
