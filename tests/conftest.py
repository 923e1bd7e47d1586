"""For all tests."""

from __future__ import annotations

import signal

# Started in the background, a shell's child ignores SIGINT, and so do its children: tests that interrupt them would wait.
signal.signal(signal.SIGINT, signal.default_int_handler)
