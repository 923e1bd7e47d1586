"""Clients that are not NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.rules.foreign_client import decode
from psmkit.model import Severity
from tests.analysis.texts import find, ranks

WRONG = "socketFinalizeAccept: wrong magic {} != 7970663b906d70b9"


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (b"GET /met", "Prometheus"),
        (b"GET /ind", "HTTP"),
        (b"GET /hea", "health check"),
        (b"POST /ap", "HTTP"),
        (b"PRI * HT", "gRPC"),
        (b"SSH-2.0-", "SSH"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS"),
        (b"*1\r\n$4\r\n", "Redis"),
        (b"\0\0\0\0\0\0\0\0", "zeros"),
        (b"hello wo", "text"),
        (b"\xb9\x70\x6d\x90\x3b\x66\x70\x01", "another NCCL"),
    ],
)
def test_first_bytes_tell_the_protocol(first: bytes, protocol: str) -> None:
    shown, name = decode(int.from_bytes(first, "little"))
    assert protocol in name
    assert len(shown) == 8 and shown.isprintable()


def test_scraper_on_the_proxy_port_is_named_and_its_thread_looked_at(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].warn("misc/socket.cc:484", WRONG.format("74656d2f20544547"), "service").chain(
        3, "misc/socket.cc:553", thread="service"
    )
    found = find("foreign_client", tmp_path, logs)
    assert [(f.code, f.severity, f.culprits) for f in found] == [("PSM106", Severity.ERROR, (2,))]
    assert "GET /met" in found[0].title and "Prometheus" in found[0].title
    assert "printed nothing more" in found[0].explanation
    assert found[0].known_issue == "NVIDIA/nccl#1808"


def test_scraper_that_did_no_harm_is_a_warning(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].warn("misc/socket.cc:484", WRONG.format("74656d2f20544547"), "service")
    found = find("foreign_client", tmp_path, [log.work().destroy() for log in logs])
    assert [(f.severity, f.culprits) for f in found] == [(Severity.WARNING, ())]


def test_peers_of_the_job_are_not_foreign(tmp_path: Path) -> None:
    assert not find("foreign_client", tmp_path, [log.work() for log in ranks()])
