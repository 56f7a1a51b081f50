"""What every test can count on."""

from __future__ import annotations

import signal

# A shell starts its background jobs with SIGINT ignored, and so is whatever they start; tests interrupt what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
