"""Redaction: no host, address, path, user or pid of the report is left in any format; equal things stay equal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import psmkit
from psmkit.model import Evidence, Report, Shape
from psmkit.names import Redactor
from psmkit.report import FORMATS, Options, render
from psmkit.report.redact import redact

from . import samples

SECRETS = (
    "gpu17.corp.example.com",
    "gpu17",
    "10.12.13.14",
    "fe80::a6bf:1ff:fe3b:1234",
    "alice",
    "20403",
    "20453",
    "/scratch/projects",
    "run.log",
    "node-a",
    "nccl.rank3",
    "04:3f:72:aa:bb:cc",
)

TEXT = (
    "gpu17:20403:20453 [3] NCCL INFO connect to 10.12.13.14<5000> from [fe80::a6bf:1ff:fe3b:1234%eth0]<6000> "
    "peer gpu17.corp.example.com<7000> pid 20403, file /scratch/projects/x/run.log, /home/alice/job.py, "
    "user=alice alice@gpu17 mac 04:3f:72:aa:bb:cc (respSize 240, opId 0x7f2a5c001b70, version 2.26.2)"
)


def secret() -> Report:
    report = samples.hung()
    first, *others = sorted(report.findings, key=lambda f: f.code)
    spoken = dataclasses.replace(
        first,
        title="gpu17:20403 never answered 10.12.13.14",
        explanation=TEXT,
        next_step="Look at /scratch/projects/x/run.log on gpu17 (pid 20403).",
        evidence=(Evidence("/scratch/projects/x/run.log", 5, TEXT),),
    )
    coverage = dataclasses.replace(
        report.coverage,
        notes=("/scratch/projects/x/run.log does not end with a line end", "logs/nccl.rank3.log is torn"),
        shapes=(Shape("NCCL INFO from alice at #", 1, "logs/nccl.rank3.log", 2),),
        rerun_with={"NCCL_DEBUG_FILE": "/home/alice/nccl.%h.%p.log"},
    )
    return dataclasses.replace(
        report, findings=(spoken, *others), coverage=coverage, reason="gpu17 (pid 20403) is silent"
    )


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_secret_is_left(form: str) -> None:
    page = render(redact(secret()), form, Options(verbose=True, width=200))
    assert [word for word in SECRETS if word in page] == []


def test_what_is_no_secret_stays() -> None:
    page = render(redact(secret()), "json")
    for word in (
        "respSize 240",
        "0x7f2a5c001b70",
        "version 2.26.2",
        "NVIDIA/nccl#2379",
        samples.COMM,
        "NCCL 2.26.2+cuda12.8",
    ):
        assert word in page


def test_equal_things_stay_equal() -> None:
    report = redact(secret())
    row = next(row for row in report.ranks if row.rank == 3)
    (culprit,) = report.culprits
    assert (row.host, row.pid) == (culprit.host, culprit.pid)
    finding = next(finding for finding in report.findings if finding.code == "PSM101")
    assert f"{row.host}:{row.pid}" in finding.processes
    assert finding.evidence[0].text.startswith(f"host2:{row.pid}:")


def test_the_same_report_gets_the_same_placeholders() -> None:
    assert redact(secret()) == redact(secret())


def test_the_report_keeps_its_shape() -> None:
    before, after = json.loads(render(secret(), "json")), json.loads(render(redact(secret()), "json"))
    assert [f["code"] for f in before["findings"]] == [f["code"] for f in after["findings"]]
    assert before["matching"] == after["matching"]
    assert [row["state"] for row in before["ranks"]] == [row["state"] for row in after["ranks"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node7:123456:123460 [0] NCCL INFO x", "host1:1:2 [0] NCCL INFO x"),
        ("[1,3]<stdout>: node7:77:78 [0] NCCL WARN pid 77 gone", "[1,3]<stdout>: host1:1:2 [0] NCCL WARN pid 1 gone"),
        ("transport/net.cc:123 -> 2", "transport/net.cc:123 -> 2"),
        ("NCCL_DEBUG=INFO, 240 bytes, 3/4 done, a/b", "NCCL_DEBUG=INFO, 240 bytes, 3/4 done, a/b"),
        ("/dev/shm/nccl-abc and /sys/class/net/eth1/speed", "/dev/shm/nccl-abc and /sys/class/net/eth1/speed"),
        ("Out of memory: Killed process 4242 (python)", "Out of memory: Killed process 1 (python)"),
        ("python[4242]: segfault at 0", "python[1]: segfault at 0"),
        ("127.0.0.1<0> lo", "127.0.0.1<0> lo"),
        ("2.26.2.1 is 1.2.3.400", "ip1 is 1.2.3.400"),
        ("at 12:30:45 :: done", "at 12:30:45 :: done"),
        ("open /home/bob/x.py", "open path1"),
    ],
)
def test_one_text(text: str, expected: str) -> None:
    redactor = Redactor()
    redactor.learn(text)
    assert redactor.text(text) == expected


def test_a_container_where_every_pid_is_one() -> None:
    redactor = Redactor()
    text = "pod-a:1:22 [0] NCCL INFO rank 1 of 22, pid 1"
    redactor.learn("pod-b:22:1 [0] NCCL INFO x")
    redactor.learn(text)
    assert redactor.text(text) == "host2:2:1 [0] NCCL INFO rank 1 of 22, pid 2"


def test_a_short_pid_is_replaced_behind_its_host_and_no_other_number() -> None:
    report = samples.hung()
    (culprit,) = report.culprits
    culprit = dataclasses.replace(culprit, host="gpu17", pid=77, why="gpu17:77 took 77 requests of node-a:20401")
    first, *others = report.findings
    spoken = dataclasses.replace(
        first,
        title="rank 3 (gpu17:77) failed after 77 steps of gpu17:4791",
        explanation="No line names gpu17:77, xgpu17:77 or gpu17:777.",
        next_step="Look at gpu17:77.",
    )
    report = dataclasses.replace(
        report, culprits=(culprit,), findings=(spoken, *others), reason="no communicator line names gpu17:77"
    )
    done = redact(report)
    name = f"{done.culprits[0].host}:{done.culprits[0].pid}"
    host, mate = done.culprits[0].host, done.findings[0].processes[0]
    assert host != "gpu17" and done.culprits[0].pid != 77
    assert done.reason == f"no communicator line names {name}"
    assert done.culprits[0].why.startswith(f"{name} took 77 requests of ")
    assert done.findings[0].title == f"rank 3 ({name}) failed after 77 steps of {host}:4791"
    assert done.findings[0].explanation == f"No line names {name}, xgpu17:77 or {host}:777."
    assert mate.startswith("host")
    for form in FORMATS:
        page = render(done, form, Options(verbose=True, width=200))
        assert "gpu17:77" not in page.replace("xgpu17:77", "") and f"{host}:77 " not in page


def test_a_short_pid_in_a_line_of_the_lab_is_replaced() -> None:
    redactor = Redactor()
    redactor.learn("psm lab: rank 0, process node0:42, ended well after 0.713 s")
    assert redactor.text("node0:42 sent 42 bytes to node0:4791") == "host1:1 sent 42 bytes to host1:4791"


def test_processes_that_only_the_lab_names_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "lab.log"
    lines = [f"psm lab: rank {rank}, process nodez:4{rank}, ended well after 0.713 s\n" for rank in range(3)]
    file.write_text("".join(lines))
    report = redact(psmkit.analyze([str(file)]))
    assert report.reason.endswith("were not given: host1:1, host1:2 and host1:3")
