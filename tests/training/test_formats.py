"""The two file formats: what is written is read, whatever the shape; what is damaged is found."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memgauge.data import cifar, idx
from memgauge.errors import FileFormatError

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
sizes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


def bytes_of(shape, seed):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@quick
@given(shape=sizes, seed=st.integers(0, 2**32), zipped=st.booleans(), mapped=st.booleans())
def test_idx_reads_what_was_written(tmp_path, shape, seed, zipped, mapped):
    values, path = bytes_of(shape, seed), tmp_path / "values"
    idx.write_idx(path, values)
    assert path.read_bytes()[:4] == bytes((0, 0, 8, len(shape)))
    assert path.read_bytes()[4:8] == struct.pack(">I", shape[0])
    if zipped:
        zipped_path = tmp_path / "values.gz"
        zipped_path.write_bytes(gzip.compress(path.read_bytes()))
        found = idx.read_idx(zipped_path, len(shape))
    else:
        found = idx.read_idx(path, len(shape), mapped=mapped)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, values)


@quick
@given(shape=sizes, cut=st.data(), zipped=st.booleans())
def test_idx_that_is_cut_anywhere_is_found(tmp_path, shape, cut, zipped):
    path = tmp_path / "values"
    idx.write_idx(path, bytes_of(shape, 1))
    whole = path.read_bytes()
    kept = whole[: cut.draw(st.integers(0, len(whole) - 1))]
    if zipped:
        path = tmp_path / "values.gz"
        kept = gzip.compress(kept)
    path.write_bytes(kept)
    with pytest.raises(FileFormatError, match="values"):
        idx.read_idx(path, len(shape))


@quick
@given(shape=sizes, extra=st.binary(min_size=1, max_size=9), zipped=st.booleans())
def test_idx_with_bytes_too_many_is_found(tmp_path, shape, extra, zipped):
    path = tmp_path / "values"
    idx.write_idx(path, bytes_of(shape, 2))
    content = path.read_bytes() + extra
    if zipped:
        path = tmp_path / "values.gz"
        content = gzip.compress(content)
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"too long|more values"):
        idx.read_idx(path, len(shape))


@quick
@given(place=st.integers(0, 3), wrong=st.integers(0, 255))
def test_idx_of_another_kind_is_found(tmp_path, place, wrong):
    path = tmp_path / "values"
    idx.write_idx(path, bytes_of((3, 2, 2), 3))
    content = bytearray(path.read_bytes())
    if content[place] == wrong:
        return
    content[place] = wrong
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        idx.read_idx(path, 3)


def test_gzipped_idx_with_a_flipped_bit_is_found(tmp_path):
    path = tmp_path / "values.gz"
    plain = idx.header((50, 4, 4)) + bytes_of((50, 4, 4), 4).tobytes()
    content = bytearray(gzip.compress(plain))
    content[-6] ^= 1  # in the checksum that ends the file
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="damaged"):
        idx.read_idx(path, 3)


def test_a_gzipped_file_is_not_mapped(tmp_path):
    path = tmp_path / "values.gz"
    path.write_bytes(gzip.compress(idx.header((1,)) + b"\1"))
    with pytest.raises(FileFormatError, match="gunzip --keep"):
        idx.read_idx(path, 1, mapped=True)


@quick
@given(count=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_cifar_reads_what_was_written(tmp_path, count, seed):
    pictures = bytes_of((count, 32, 32, 3), seed)
    labels = np.random.default_rng(seed).integers(0, 10, count, np.uint8)
    path = tmp_path / "batch.bin"
    cifar.write_records(path, pictures, labels)
    content = path.read_bytes()
    assert len(content) == count * 3073
    # The record as its publisher describes it: label, then 1,024 of red, of green, of blue, row by row.
    assert content[0] == labels[0]
    assert content[1] == pictures[0, 0, 0, 0]
    assert content[1 + 1024 + 33] == pictures[0, 1, 1, 1]
    records = cifar.map_records(path)
    np.testing.assert_array_equal(cifar.pictures_of(records), pictures)
    np.testing.assert_array_equal(cifar.read_pictures(path), pictures)
    np.testing.assert_array_equal(cifar.labels_of(path, records), labels)


@quick
@given(kept=st.integers(0, 3 * 3073 - 1).filter(lambda size: size % 3073 or size == 0))
def test_cifar_that_is_cut_is_found(tmp_path, kept):
    path = tmp_path / "batch.bin"
    cifar.write_records(path, bytes_of((3, 32, 32, 3), 5), np.zeros(3, np.uint8))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FileFormatError, match="damaged or cut off"):
        cifar.map_records(path)


def test_cifar_with_a_label_that_is_no_class_is_found(tmp_path):
    path = tmp_path / "batch.bin"
    cifar.write_records(path, bytes_of((3, 32, 32, 3), 6), np.array([1, 10, 2], np.uint8))
    with pytest.raises(FileFormatError, match="record 2 has the label 10"):
        cifar.labels_of(path, cifar.map_records(path))
