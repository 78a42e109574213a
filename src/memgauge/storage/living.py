"""Whether a run file is still being written: by the sampler that its header names."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def is_alive(header: Mapping[str, Any]) -> bool:
    """Return whether the sampler runs; a file without `boot` was made where there is no /proc."""
    pid, started_ticks = int(header.get("sampler_pid") or 0), header.get("sampler_started_ticks")
    boot = header.get("boot")
    if not boot:
        import psutil

        try:
            return int(psutil.Process(pid).create_time() * 100) == started_ticks
        except psutil.Error:
            return False
    try:
        if Path("/proc/sys/kernel/random/boot_id").read_text().strip() != boot:
            return False
        data = Path(f"/proc/{pid}/stat").read_bytes()
        fields = data[data.rindex(b")") + 2 :].split()
        return int(fields[19]) == started_ticks and fields[0] not in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return False


def recording_process(path: Path) -> int | None:
    """Return the number of the process that records into a file; None if it has ended, or is this one.

    The header alone is read: who asks is a sampler, which is to stay small.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as db:
            header = {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM header")}
        if isinstance(header.get("ended"), dict) or not is_alive(header):
            return None
        return None if header["sampler_pid"] == os.getpid() else int(header["sampler_pid"])
    except (sqlite3.Error, ValueError, TypeError):
        return None  # damaged, so nobody's
