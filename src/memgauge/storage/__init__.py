"""The run file: everything about one recorded run, in one SQLite file.

    header      what was run, where, when, how it ended          (table header)
    processes   each process of the tree                         (process)
    devices     GPUs                                             (device)
    samples     by lane, in chunks of columns                    (series, chunk)
    marks       what the job said: instants, phases              (mark)
    peaks       highest values by counters, with their kind      (peak)
    notes       what could not be read or was missed, and why    (note)
    documents   an estimate or a measurement, as JSON            (document)

There is one writer, the sampler. It writes in WAL mode: readers and the writer never wait
for each other, and a writer that is killed at any moment leaves every transaction that it
had finished. Where WAL is impossible (some network file systems) it is a rollback journal,
which is as safe, but a reader may delay the writer. When a run ends in order, the WAL is
folded into the file and removed, so that one file remains. Times are microseconds since the
run began, on the monotonic clock of the machine.
"""

from memgauge.columns import MISSING
from memgauge.storage.living import is_alive
from memgauge.storage.reader import RunFile
from memgauge.storage.schema import (
    APPLICATION_ID,
    MADE_BY,
    SPAN,
    VERSION,
    Device,
    Mark,
    Note,
    PeakRow,
    Process,
    Series,
    is_run_file,
    refuse_recorded,
)
from memgauge.storage.writer import Lane, RunWriter

__all__ = [
    "APPLICATION_ID",
    "MADE_BY",
    "MISSING",
    "SPAN",
    "VERSION",
    "Device",
    "Lane",
    "Mark",
    "Note",
    "PeakRow",
    "Process",
    "RunFile",
    "RunWriter",
    "Series",
    "is_alive",
    "is_run_file",
    "refuse_recorded",
]
