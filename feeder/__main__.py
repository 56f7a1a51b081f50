"""``python -m feeder``: the same as the ``feeder`` command."""

from __future__ import annotations

import sys

from feeder.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
