"""Which of several errors is the cause: those of old releases, and those that stand above the only warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed


@pytest.mark.parametrize(
    ("reason", "culprits"), [("Connection timed out", [0]), ("No route to host", [0]), ("Connection refused", [1])]
)
def test_an_address_without_an_answer_is_the_cause_and_a_closed_connection_follows(
    reason: str, culprits: list[int], tmp_path: Path
) -> None:
    report = analyzed(
        tmp_path,
        "n1:18:30 [0] INFO comm 0x7fa42c00a3b0 rank 0 nranks 2\n"
        f"n1:18:29 [0] include/socket.h:360 WARN Call to connect failed : {reason}\n"
        "n1:18:29 [0] INFO transport/net_socket.cu:118 -> 2\n"
        "n1:18:30 [0] include/socket.h:371 WARN Connection closed by remote peer\n"
        "n1:18:30 [0] INFO transport/net_socket.cu:166 -> 2\n"
        "n1:18:30 [0] INFO bootstrap.cu:259 -> 2\n",
    )
    assert report.verdict == "failed"
    assert [c.rank for c in report.culprits] == culprits


def chain(pid: int, device: int) -> str:
    return "".join(
        f"n1:{pid}:{pid + 9} [{device}] NCCL INFO {place} -> 3\n" for place in ("bootstrap.cc:256", "init.cc:516")
    ) + "".join(f"n1:{pid}:{pid} [{device}] NCCL INFO {place} -> 3\n" for place in ("group.cc:421", "group.cc:106"))


@pytest.mark.parametrize("above", [True, False])
def test_errors_above_the_only_warning_do_not_follow_from_it(above: bool, tmp_path: Path) -> None:
    warn = "n1:70:79 [1] misc/socket.cc:397 NCCL WARN Net : connecting to address  with family 33621 is neither AF_INET(2) nor AF_INET6(10)\n"
    cause = warn + chain(70, 1)
    other = "".join(f"n1:90:90 [5] NCCL INFO {place} -> 3\n" for place in ("group.cc:421", "group.cc:106"))
    report = analyzed(tmp_path, other + cause if above else cause + other)
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert ("follow from it." in error.explanation) is not above
    assert ("is not clear" in error.explanation) is above


def test_the_finding_that_explains_an_error_heads_the_report(tmp_path: Path) -> None:
    warn = "\nn1:70:79 [1] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 5967872)\n"
    report = analyzed(tmp_path, warn + chain(70, 1).replace("-> 3", "-> 2"))
    assert [f.code for f in report.findings if f.severity == "error"] == ["PSM503", "PSM401"]
    assert "could not create a shared memory segment" in report.reason and "full" not in report.reason
    other = warn.replace("(size 5967872)", "(size 5967872), error: Permission denied (13)")
    unsure = analyzed(tmp_path, other + chain(70, 1).replace("-> 3", "-> 2"))
    assert next(f.code for f in unsure.findings if f.severity == "error") == "PSM401"
