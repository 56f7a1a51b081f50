"""What every test can count on."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and what they start inherits that; tests interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
