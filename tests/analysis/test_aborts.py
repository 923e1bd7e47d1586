"""What follows an abort is a consequence: the error before it is the cause, whatever is printed later."""

from __future__ import annotations

from pathlib import Path

from psmkit import analyze
from psmkit.model import Report, Severity, Verdict
from tests.analysis.texts import Rank, of, ranks

ACCEPT = "[Service thread] Accept failed Resource temporarily unavailable"


def report(tmp_path: Path, logs: list[Rank]) -> Report:
    tmp_path.mkdir(exist_ok=True)
    for log in logs:
        (tmp_path / f"nccl.rank{log.rank}.log").write_text("".join(line + "\n" for line in log.lines))
    return analyze([tmp_path])


def aborting(log: Rank) -> Rank:
    """What the threads of a rank print when its communicator is aborted."""
    log.line("socketProgressOpt: abort called", "service")
    log.warn("proxy.cc:1458", ACCEPT, "service").chain(3, "misc/socket.cc:826", thread="service")
    log.warn("proxy.cc:1497", "[Service thread] Could not receive type from localRank 0, res=3, closed=0", "service")
    log.warn(
        "proxy.cc:1521",
        f"[Proxy Service {log.rank}] Failed to execute operation Close from rank {log.rank}, retcode 3",
        "service",
    )
    return log.line("[Proxy Service UDS] exit: stop 1 abortFlag 1", "uds")


def cuda_failure(log: Rank) -> Rank:
    log.warn("transport/p2p.cc:276", "Cuda failure 1 'invalid argument'", "async")
    return log.chain(1, "transport/p2p.cc:352", "transport.cc:183", thread="async").fail(1)


def test_error_before_an_abort_is_the_cause_and_a_failing_accept_is_not(tmp_path: Path) -> None:
    logs = [Rank(r, 4).start() for r in range(4)]
    for log in logs:
        log.lines.insert(
            0,
            f"node0:{log.pid}:{log.pid} [{log.rank}] NCCL INFO NCCL_CUMEM_ENABLE set by environment to {0 if log.rank == 2 else 1}.",
        )
    cuda_failure(logs[2])
    for log in logs:
        aborting(log)
        log.abort()
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [2]
    assert "Cuda failure 1" in found.reason and not of(found.findings, "PSM504")
    assert all(
        f.severity is Severity.INFO for f in found.findings if f.evidence and "Accept failed" in f.evidence[0].text
    )
    assert of(found.findings, "PSM601"), "the differing setting is shown beside the failure"


def test_abort_alone_is_no_failure_of_the_service(tmp_path: Path) -> None:
    """A program that ends by aborting prints the same lines."""
    logs = ranks()
    for log in logs:
        aborting(log.work(2)).abort()
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.INCONCLUSIVE and not [f for f in found.findings if f.severity is Severity.ERROR]


def test_error_of_any_kind_after_the_abort_of_its_process_is_a_note(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].line("socketProgressOpt: abort called", "service")
    logs[1].warn("misc/shmutils.cc:87", "Call to open failed: Permission denied", "async").fail(2)
    cuda_failure(logs[3])
    found = report(tmp_path, logs)
    assert [c.rank for c in found.culprits] == [3]
    assert all(f.severity is Severity.INFO for f in found.findings if f.evidence and "Permission denied" in f.title)


def test_error_of_a_new_communicator_after_an_abort_counts(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.abort()
    for log in logs:
        log.lines += [
            line.replace("0x55d0c0", "0x66e0d0").replace("0x5c2b7a1e9d3f4680", "0x1111")
            for line in Rank(log.rank, 4).ready().lines[-2:]
        ]
    cuda_failure(logs[0])
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [0]


def test_error_of_one_communicator_counts_after_the_abort_of_another(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.lines += [
            line.replace("0x55d0c0", "0x66e0d0").replace("0x5c2b7a1e9d3f4680", "0x1111")
            for line in Rank(log.rank, 4).ready().lines[-2:]
        ]
        log.abort()
    cuda_failure(logs[0])
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [0]


def test_descriptors_that_run_out_before_the_abort_are_the_cause(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("proxy.cc:1458", "[Service thread] Accept failed Too many open files", "service").fail(2)
    for log in logs:
        aborting(log)
    found = report(tmp_path, logs)
    assert found.verdict is Verdict.FAILED and [c.rank for c in found.culprits] == [1] and of(found.findings, "PSM504")
