"""NCCL 2.0 to 2.3, whose lines do not look like today's."""

from __future__ import annotations

from pathlib import Path

import psmkit
from psmkit.logparse import scan


def early(ranks: int = 2, name: str = "") -> str:
    out = []
    for r in range(ranks):
        head = f"gpu01:{4212 + r}:{4240 + r} [{r}] {name}INFO "
        out += [
            f"{head}NET : Using interface ib0:10.0.0.{r}<0>",
            f"{head}Using internal Network Socket",
            f"{head}comm 0x7f6c2400{r}9b0 rank {r} nranks {ranks}",
            f"{head}CUDA Dev {r}, IB Ports : mlx5_0/1(SOC)",
        ]
    return "\n".join(["NCCL version 2.2.13+cuda8.0", *out, ""])


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.log"
    path.write_text(text)
    return str(path)


def test_lines_without_the_name_are_nccls(tmp_path: Path) -> None:
    found = scan([write(tmp_path, early())])
    assert [(p.name, p.lines) for p in found.processes] == [("gpu01:4212", 4), ("gpu01:4213", 4)]
    assert [(i.rank, i.nranks) for i in found.instances] == [(0, 2), (1, 2)]
    assert found.totals.unmatched == 0


def test_a_warning_without_the_name_fails_its_rank(tmp_path: Path) -> None:
    warning = "\ngpu01:4213:4241 [1] transport/p2p.cu:526 WARN failed to open CUDA IPC handle : 11 invalid argument\n"
    report = psmkit.analyze([write(tmp_path, early() + warning + "gpu01:4213:4241 [1] INFO init.cu:475 -> 1\n")])
    assert report.verdict == "failed"
    assert [(c.rank, c.pid) for c in report.culprits] == [(1, 4213)]
    assert report.reason.endswith("failed to open CUDA IPC handle : 11 invalid argument")
    assert report.reason.count("gpu01") == 1


def test_a_line_needs_all_of_the_prefix(tmp_path: Path) -> None:
    others = (
        "gpu01:4212:4240 INFO started\n[0] INFO worker ready\n12:30:41 [0] INFO step\n"
        "app:1:2 [0] WARN disk is nearly full\nhost:7 [0] INFO x\n2026-01-01 12:30:41 [1] INFO y\n"
    )
    assert not scan([write(tmp_path, early() + others)]).processes[2:]


def test_both_forms_may_stand_in_one_log(tmp_path: Path) -> None:
    text = early().replace("INFO CUDA", "NCCL INFO CUDA")
    assert [p.lines for p in scan([write(tmp_path, text)]).processes] == [4, 4]
