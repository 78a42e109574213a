"""Data sets: given, downloaded, generated, mapped, damaged."""

import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import threading

import numpy as np
import pytest

from memgauge.data import NAMES, catalogue, describe, fetch, files, load, order
from memgauge.errors import FileFormatError, MemgaugeError, UsageError


def served(folder):
    handler = functools.partial(_Silent, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def mnist_server(mnist_files, tmp_path, monkeypatch):
    """A real server with the gzipped files of a small MNIST, and the sums that its publisher would give."""
    folder = tmp_path / "served"
    folder.mkdir()
    sums = []
    for name in catalogue._MNIST_FILES:
        zipped = gzip.compress((mnist_files / name).read_bytes())
        (folder / f"{name}.gz").write_bytes(zipped)
        sums.append(hashlib.md5(zipped).hexdigest())
    server = served(folder)
    place = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setitem(catalogue._KNOWN, "mnist", catalogue._idx("mnist", place, tuple(sums)))
    yield folder
    server.shutdown()
    server.server_close()


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    expected, found = load_digits(), load("digits")
    assert (found.rows, found.shape, found.classes, found.synthetic) == (1500, (8, 8, 1), 10, False)
    np.testing.assert_array_equal(found.parts[0][..., 0], expected.images[:1500])
    np.testing.assert_array_equal(found.labels, expected.target[:1500])
    np.testing.assert_array_equal(found.held_out[1], expected.target[1500:])


def test_given_files_are_read_and_mapped_alike(mnist_files):
    in_memory, mapped = (load("mnist", str(mnist_files), access) for access in ("memory", "mapped"))
    assert isinstance(mapped.parts[0].base, np.memmap) or isinstance(mapped.parts[0], np.memmap)
    assert not isinstance(in_memory.parts[0], np.memmap)
    chosen = np.array([19, 0, 7])
    for one, other in zip(in_memory.take(chosen), mapped.take(chosen), strict=True):
        np.testing.assert_array_equal(one, other)
    assert in_memory.rows == 20 and not in_memory.synthetic


def test_cifar_is_taken_across_its_files(cifar_files):
    for access in ("memory", "mapped"):
        data = load("cifar10", str(cifar_files.parent), access)  # the folder above, as the archive unpacks
        assert data.rows == 20 and len(data.parts) == 5
        chosen = np.array([19, 0, 4, 3])
        pictures, labels = data.take(chosen)
        everything = data.all_pictures()
        np.testing.assert_array_equal(pictures, everything[chosen])
        np.testing.assert_array_equal(labels, data.labels[chosen])


def test_a_given_folder_without_the_files_names_them(mnist_files):
    (mnist_files / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match=r"lacks t10k-labels-idx1-ubyte of mnist"):
        load("mnist", str(mnist_files))
    with pytest.raises(UsageError, match="is no folder"):
        load("mnist", str(mnist_files / "nowhere"))


def test_labels_that_do_not_match_the_pictures_are_found(mnist_files):
    from memgauge.data import idx

    idx.write_idx(mnist_files / "train-labels-idx1-ubyte", np.zeros(19, np.uint8))
    with pytest.raises(FileFormatError, match=r"19 labels for 20 pictures"):
        load("mnist", str(mnist_files))
    idx.write_idx(mnist_files / "train-labels-idx1-ubyte", np.full(20, 10, np.uint8))
    with pytest.raises(FileFormatError, match="label 10"):
        load("mnist", str(mnist_files))


def test_a_published_checksum_is_checked(mnist_files):
    plain = mnist_files / "train-images-idx3-ubyte"
    (mnist_files / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    with pytest.raises(FileFormatError, match="not f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        load("mnist", str(mnist_files))


def test_checksums_beside_the_files_are_checked(mnist_files, checksums):
    checksums(mnist_files, catalogue._MNIST_FILES)
    load("mnist", str(mnist_files))
    path = mnist_files / "train-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"train-images.*MD5"):
        load("mnist", str(mnist_files))


def test_a_download_is_checked_unpacked_and_found_again(mnist_server, own_folder):
    seen = []
    found = fetch(describe("mnist"), lambda name, count: seen.append((name, count)))
    assert [name for name, _ in seen] == [f"{name}.gz" for name in catalogue._MNIST_FILES]
    assert not found.synthetic
    assert sorted(p.name for p in (own_folder / "mnist").iterdir()) == sorted(
        [*catalogue._MNIST_FILES, files.CHECKSUMS]
    )
    data = load("mnist")
    assert data.rows == 20 and not data.synthetic and data.held_out is not None


def test_a_download_with_another_checksum_is_refused_and_leaves_nothing(mnist_server, own_folder):
    (mnist_server / "t10k-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(FileFormatError, match="MD5"):
        load("mnist")
    assert list(own_folder.iterdir()) == []


def test_cifar_is_unpacked_from_its_archive(cifar_files, tmp_path, own_folder, monkeypatch):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(cifar_files, "cifar-10-batches-bin")
        outside = tarfile.TarInfo("../../outside.bin")
        tar.addfile(outside, io.BytesIO(b""))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive.getvalue())
    server = served(tmp_path)
    url = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    what = catalogue.describe("cifar10")
    here = {field: getattr(what, field) for field in what.__slots__}
    here["downloads"] = (catalogue.Download(url, hashlib.md5(archive.getvalue()).hexdigest()),)
    monkeypatch.setitem(catalogue._KNOWN, "cifar10", catalogue.Description(**here))
    assert load("cifar10").rows == 20
    assert not (tmp_path / "outside.bin").exists()
    server.shutdown()
    server.server_close()


def test_without_network_valid_files_are_generated_and_say_so(no_network, own_folder):
    with pytest.raises(MemgaugeError, match="could not be fetched"):
        fetch(describe("mnist"))
    data = load("mnist")
    assert (data.rows, data.shape, data.synthetic, data.held_out) == (60_000, (28, 28, 1), True, None)
    folder = own_folder / "mnist-synthetic"
    assert "Random numbers" in (folder / files.SYNTHETIC).read_text()
    # They are files as the real ones: someone else's folder of them is read, and still known to be generated.
    assert load("mnist", str(folder)).synthetic
    assert (folder / "train-images-idx3-ubyte").stat().st_size == 47_040_016  # the size of the real file
    with (folder / "train-images-idx3-ubyte").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(FileFormatError, match=r"remove .*mnist-synthetic"):
        load("mnist")


def test_generated_cifar_has_the_counts_of_the_real_one(no_network, own_folder):
    data = load("cifar10", access="mapped")
    assert (data.rows, data.shape, data.classes) == (50_000, (32, 32, 3), 10)
    sizes = {p.stat().st_size for p in (own_folder / "cifar10-synthetic").glob("*.bin")}
    assert sizes == {30_730_000}  # the size of each real file


def test_synthetic_sets_have_any_size_and_are_the_same_mapped():
    in_memory, mapped = (load("synthetic:37x5x6x2:7", access=a) for a in ("memory", "mapped"))
    assert in_memory.shape == (5, 6, 2) and in_memory.rows == 37 and in_memory.synthetic
    assert in_memory.parts[0].dtype == np.float32 and in_memory.labels.max() < 7
    np.testing.assert_array_equal(in_memory.parts[0], mapped.parts[0])
    assert isinstance(mapped.parts[0], np.memmap)


def test_torres_sets_have_the_sizes_of_the_paper():
    assert describe("dt1").pictures_bytes // 2**20 == 703  # "703 Mbytes"
    assert describe("dt2").pictures_bytes == 10 * describe("dt1").pictures_bytes


def test_a_damaged_mapped_set_is_found(own_folder):
    load("synthetic:10x4x4x1", access="mapped")
    path = next(own_folder.glob("floats-*")) / "pictures.npy"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError, match="remove it"):
        load("synthetic:10x4x4x1", access="mapped")


def test_what_memory_or_disk_cannot_hold_is_refused_with_the_numbers():
    with pytest.raises(UsageError, match=r"takes 1,228,800,000,000 bytes in memory"):
        load("synthetic:100000000x32x32x3")
    with pytest.raises(UsageError, match="MEMGAUGE_DATA"):
        load("synthetic:100000000x32x32x3", access="mapped")


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MEMGAUGE_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(UsageError, match="MEMGAUGE_DATA"):
        load("synthetic:10x4x4x1", access="mapped")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mnits", "nearest: mnist"),
        ("synthetic:10x32", "ROWSxHEIGHTxWIDTHxCHANNELS"),
        ("synthetic:0x32x32x3", "at least 1"),
        ("synthetic:10x32x32x3:1", "classes at least 2"),
    ],
)
def test_a_wrong_name_gets_the_next_step(name, says):
    with pytest.raises(UsageError, match=says):
        describe(name)


def test_every_name_is_described():
    assert [describe(name).name for name in NAMES[:-1]] == list(NAMES[:-1])


def test_the_order_is_a_permutation_that_seed_and_epoch_decide():
    first = order(100, seed=1, epoch=0)
    assert sorted(first) == list(range(100))
    assert first.tolist() == order(100, seed=1, epoch=0).tolist()
    assert first.tolist() != order(100, seed=1, epoch=1).tolist()
    assert first.tolist() != order(100, seed=2, epoch=0).tolist()
