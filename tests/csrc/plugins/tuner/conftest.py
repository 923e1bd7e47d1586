"""The tuner plugin under sanitizers: ASan and UBSan, then TSan."""

from __future__ import annotations

from tests.csrc.plugins import sanitized
from tests.csrc.plugins.tuner.built import build

tuner = sanitized.fixture(build, "tuner")
tuner_threads = sanitized.fixture(build, "tuner-threads", "thread")
