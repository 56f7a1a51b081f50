"""What every test can count on."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and their children inherit that; tests interrupt their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
