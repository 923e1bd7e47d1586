"""What NCCL's own diagnostics print, behind a prefix without a thread."""

from __future__ import annotations

from pathlib import Path

import psmkit
from psmkit.analysis.facts.job import Job
from psmkit.logparse import scan
from psmkit.model import Finding, Severity
from tests.analysis.texts import find, job_of, ranks

EDGE = (
    "srcRank=1 srcCudaDev=1 srcNvmlDev=1 dstRank=0 dstCudaDev=0 dstNvmlDev=0 path=PHB handle=CUMEM_POSIX_FD "
    "expected=0x0000000003000001 got=0x0000000000000000 verify=0x0000000000000000; check the affected pair with 'nvidia-smi topo -p2p p'"
)


def said(tmp_path: Path, *texts: str, host: str = "node0") -> list[Finding]:
    logs = ranks()
    logs[0].lines += [f"{host}:{logs[0].pid} NCCL DIAG {text}" for text in texts]
    return find("diagnostics", tmp_path, logs)


def test_a_check_that_failed_is_a_warning_in_its_own_words(tmp_path: Path) -> None:
    (found,) = said(tmp_path, f"[INFO] p2p: write mismatch {EDGE}")
    assert (found.code, found.severity, found.run) == ("PSM607", Severity.WARNING, 0)
    assert found.title.startswith("NCCL's diagnostics: p2p: write mismatch srcRank=1 srcCudaDev=1")
    assert "NCCL DIAG [INFO] p2p: write mismatch" in found.evidence[0].text
    assert found.next_step.startswith("Data between these two GPUs cannot be trusted")


def test_checks_of_one_kind_are_one_finding(tmp_path: Path) -> None:
    slow = (
        "[INFO] net bw: cross-nic rank {} (n07): 148.2 Gbit/s, >30% off median 391.4 Gbit/s in comm 0x1f3a5c7e9b2d4f60"
    )
    (found,) = said(tmp_path, slow.format(3), slow.format(5))
    assert found.title.endswith("(and 1 more line)") and len(found.evidence) == 2


def test_checks_that_passed_or_could_not_be_made_are_no_finding(tmp_path: Path) -> None:
    assert not said(
        tmp_path,
        "=== RAS Diagnostics ===",
        "[OK]   ECC: no uncorrected volatile errors across 4 ranks in comm 0x1f3a5c7e9b2d4f60",
        "[INFO] net bw: capability probe timed out in comm 0x1f3a5c7e9b2d4f60",
        "[INFO] NVLink: unavailable via NVML across 4 ranks in comm 0x1f3a5c7e9b2d4f60",
        "[INFO] Xid 43 detected at least 3 times on host n07. No user action or further investigation is required for this Xid.",
        "RAS diagnostics completed in 12.5 ms across 4 ranks",
    )


def test_the_whole_name_of_a_host_is_the_host_of_the_other_lines(tmp_path: Path) -> None:
    (found,) = said(tmp_path, f"[INFO] p2p: write mismatch {EDGE}", host="node0.cluster.example")
    assert found.run == 0


def test_its_lines_are_lines_of_their_process(tmp_path: Path) -> None:
    logs = ranks()
    logs[0].lines.append(f"node0:{logs[0].pid} NCCL DIAG === NCCL Diagnostics ===")
    job: Job = job_of(tmp_path, logs)
    assert len(job.scan.processes) == len(logs)
    (event,) = job.events("diag.begin")
    assert (event.level, job.rank_of(event.proc)) == ("DIAG", 0)


def test_a_notice_is_no_warning(tmp_path: Path) -> None:
    """From 2.32 on NCCL has a level between warnings and INFO."""
    log = tmp_path / "x.log"
    log.write_text("node0:7101:7101 [0] init.cc:12 (ncclCommInit) NCCL ATTN Something that nobody knows\n")
    found = scan([log])
    assert found.totals.unmatched == 1 and not len(found.events)
    assert not [f for f in psmkit.analyze([log]).findings if f.severity is Severity.ERROR]
