"""Fixtures of the tests of studies."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ONE, Place, Server, postgres_programs

if sys.platform != "linux":
    pytest.skip("a study's trials are recorded through /proc", allow_module_level=True)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the study of one trial was run, to be copied."""
    place = Place(tmp_path_factory.mktemp("finished"))
    place.study(ONE)
    place.memgauge("study", "run", "study.toml")
    return place.folder


@pytest.fixture
def ran(finished: Path, tmp_path: Path) -> Place:
    """Return a place in which that study was run."""
    folder = tmp_path / "ran"
    shutil.copytree(finished, folder)
    return Place(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    programs = postgres_programs()
    if programs is None:
        said = "PostgreSQL's server is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    pytest.importorskip("psycopg")
    import tempfile

    folder = Path(
        tempfile.mkdtemp(prefix="memgauge-pg-", dir="/tmp")
    )  # a socket's path may have 107 characters
    found = Server(programs, folder)
    yield found
    found.stop()
    shutil.rmtree(folder, ignore_errors=True)
