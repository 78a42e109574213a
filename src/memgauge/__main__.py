"""`memgauge` and `python -m memgauge`."""

import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C ends it quietly from the first import on."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an import would answer it by a traceback
    from memgauge.cli import main as run

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
