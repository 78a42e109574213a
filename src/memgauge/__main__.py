"""`python -m memgauge`."""

import sys

from memgauge.cli import main

if __name__ == "__main__":
    sys.exit(main())
