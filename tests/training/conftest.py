"""A folder of its own for data sets, and files of small sets in the real formats."""

import numpy as np
import pytest
import torch

from memgauge.data import catalogue, cifar, files, idx


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("MEMGAUGE_DATA", str(folder))
    return folder


@pytest.fixture(autouse=True)
def torch_as_it_is():
    """Weights are the same in whatever order tests run; how many threads a training sets does not outlive it."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_network(monkeypatch):
    """Every address is one where nothing listens."""
    for name, what in list(catalogue._KNOWN.items()):
        nowhere = tuple(
            catalogue.Download(f"http://127.0.0.1:9/{one.file}", one.md5) for one in what.downloads
        )
        replaced = {field: getattr(what, field) for field in what.__slots__} | {"downloads": nowhere}
        monkeypatch.setitem(catalogue._KNOWN, name, catalogue.Description(**replaced))


@pytest.fixture
def mnist_files(tmp_path):
    """Twenty pictures to train on and ten held out, as the four files of MNIST."""
    random = np.random.default_rng(0)
    folder = tmp_path / "given"
    folder.mkdir()
    for name, count in zip(catalogue._MNIST_FILES, (20, 20, 10, 10), strict=True):
        shape = (count,) if "labels" in name else (count, 28, 28)
        idx.write_idx(folder / name, random.integers(0, 10, shape, np.uint8))
    return folder


@pytest.fixture
def cifar_files(tmp_path):
    """Six files of four pictures each."""
    random = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in catalogue.CIFAR_FILES:
        pictures = random.integers(0, 256, (4, 32, 32, 3), np.uint8)
        cifar.write_records(folder / name, pictures, random.integers(0, 10, 4, np.uint8))
    return folder


@pytest.fixture
def checksums():
    return files._write_checksums
