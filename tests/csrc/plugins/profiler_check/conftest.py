"""The shim under sanitizers: ASan and UBSan, then TSan."""

from __future__ import annotations

from tests.csrc.plugins import sanitized
from tests.csrc.plugins.profiler_check.built import build

check = sanitized.fixture(build, "profiler-check")
check_threads = sanitized.fixture(build, "profiler-check-threads", "thread")
