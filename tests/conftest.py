"""What holds for every test."""

from __future__ import annotations

import signal

# A shell ignores these for what runs in the background or under nohup, and processes hand that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
