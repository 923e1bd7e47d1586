"""The net plugin under sanitizers: ASan and UBSan, then TSan."""

from __future__ import annotations

from tests.csrc.plugins import sanitized
from tests.csrc.plugins.net.built import build

net = sanitized.fixture(build, "net")
net_threads = sanitized.fixture(build, "net-threads", "thread")
