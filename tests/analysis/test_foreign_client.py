"""Clients that are not NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.analysis.rules.foreign_client import decode
from psmkit.model import Severity, Verdict
from tests.analysis.texts import find, job_of, of, ranks

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


STRANGER = "psm proxy refused a datagram of process 42, which runs as uid 65534: this process runs as uid 0; run all ranks as one user"
OLD_STRANGER = (
    "psm proxy refused process 42: a datagram of uid 65534 came, this process runs as uid 0: run all ranks as one user"
)
ASKED = "proxyUDSRecvReq::ncclProxyMsgGetFd rank 1 opId 0xe1f58731351f668e handle=983656cf1ff8245e"


@pytest.mark.parametrize("text", [STRANGER, OLD_STRANGER])
def test_process_of_another_user_is_named_and_fails_no_run(tmp_path: Path, text: str) -> None:
    logs = ranks()
    logs[2].warn("", text, "service")
    job_of(tmp_path, [log.work().destroy() for log in logs])
    report = analyze([tmp_path])
    assert report.verdict is Verdict.HEALTHY
    (finding,) = (f for f in report.findings if f.code == "PSM106")
    assert finding.severity is Severity.WARNING and not finding.culprits
    assert "process 42 of uid 65534" in finding.title and "uid 0" in finding.title


REFUSED = "psm proxy refused process 42: bad magic 0x50584daf of a message, expected 0x50584d50: the sender is no proxy of libpsm"


@pytest.mark.parametrize("ended", [True, False])
def test_refusal_of_libpsms_proxy_fails_no_run(tmp_path: Path, ended: bool) -> None:
    logs = ranks()
    logs[2].warn("", REFUSED, "service")
    job_of(tmp_path, [log.work().destroy() if ended else log for log in logs])
    report = analyze([tmp_path])
    assert report.verdict is (Verdict.HEALTHY if ended else Verdict.INCONCLUSIVE)
    (finding,) = of(report.findings, "PSM401")
    assert finding.severity is Severity.WARNING and not finding.culprits


def test_rank_that_libpsms_proxy_refused_fails_by_its_own_words(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].warn("", REFUSED.replace("42", str(logs[1].pid)), "service")
    logs[1].warn(
        "",
        "psm p2p send rank 1 peer 2 channel 0 is not connected, connect ended with PSM_ERR_PROTOCOL (cause other, rank -1): the proxy of "
        "rank 2 refused this rank: bad magic 0x50584daf of a message, expected 0x50584d50",
    )
    job_of(tmp_path, logs)
    report = analyze([tmp_path])
    assert report.verdict is Verdict.FAILED and "refused this rank" in report.reason


def test_processes_of_several_users_are_counted(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].warn("", STRANGER, "service").warn("", STRANGER.replace("42", "43").replace("65534", "1001"), "service")
    (finding,) = find("foreign_client", tmp_path, [log.work().destroy() for log in logs])
    assert finding.title.startswith("2 processes of uid 1001 and 65534 reached the proxy of rank 2")


def test_stop_by_a_descriptor_in_version_0_1_is_a_hang(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].line(ASKED, "service").warn("", OLD_STRANGER, "service")
    logs[1].warn("proxy.cc:1", "ncclProxyCallBlockingUDS call to tpRank 2(1357d0b8e3547195) failed : -20")
    job_of(tmp_path, logs)
    report = analyze([tmp_path])
    assert report.verdict is Verdict.HUNG
    assert "uid 65534" in report.reason and "rank 2" in report.reason


def test_a_process_that_prints_on_after_a_scraper_is_not_said_to_hang(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].warn("misc/socket.cc:484", WRONG.format("74656d2f20544547"), "service")
    logs[2].line("Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM", "async")
    text = "".join(line + "\n" for log in logs for line in log.lines)
    (tmp_path / "job.log").write_text(text)
    report = analyze([tmp_path / "job.log"])
    assert report.verdict is Verdict.INCONCLUSIVE and "GET /met" in report.reason
    assert not report.runs[0].culprits
