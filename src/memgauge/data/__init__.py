"""Data sets of pictures: real ones from files, synthetic ones of any size, digits without any file.

    catalogue    what each data set is, where its files come from, their checksums
    idx cifar    the two file formats, read and written
    files        finding a data set's files: given, downloaded, or generated in the same format
    loading      from files to arrays, in memory or memory-mapped
    records      the loaded data set

numpy is imported here, no framework.
"""

from __future__ import annotations

from memgauge.data.catalogue import NAMES, Description, describe
from memgauge.data.files import check_files, data_folder, fetch
from memgauge.data.loading import load
from memgauge.data.records import DataSet, order

__all__ = [
    "NAMES",
    "DataSet",
    "Description",
    "check_files",
    "data_folder",
    "describe",
    "fetch",
    "load",
    "order",
]
