"""Jobs made of lines and inputs that are not NCCL's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from psmkit import logparse
from psmkit.analysis.facts.job import Job, make_job
from psmkit.model import Finding, Severity

__all__ = ["coded", "errors", "nccl", "run_rule"]

Rule = Callable[[Job], list[Finding]]


def nccl(*ranks: int, nranks: int, host: str = "node0", ended: bool = False) -> str:
    """The NCCL lines of ranks of one communicator; the process id of rank r is 1000 + r, its GPU at bus (r+1)000."""
    out = []
    for step in ("START", "COMPLETE"):
        for r in ranks:
            tail = f"comm 0x55{r:04x} rank {r} nranks {nranks} cudaDev {r} nvmlDev {r} busId {r + 1}000 commId 0xabc0"
            out.append(f"{host}:{1000 + r}:{1000 + r} [{r}] NCCL INFO ncclCommInitRank {tail} - Init {step}")
    if ended:
        for r in ranks:
            tail = f"comm 0x55{r:04x} rank {r} nranks {nranks} cudaDev {r} busId {r + 1}000"
            out.append(f"{host}:{1000 + r}:{1000 + r} [{r}] NCCL INFO {tail} - Destroy COMPLETE")
    return "".join(line + "\n" for line in out)


def run_rule(rule: Rule, folder: Path, **texts: str) -> list[Finding]:
    """The findings of a rule over files; ``name__json`` is written as ``name.json``."""
    paths = []
    for name, text in texts.items():
        path = folder / (name.replace("__", ".") if "__" in name else f"{name}.log")
        path.write_text(text)
        paths.append(str(path))
    with closing(logparse.scan(sorted(paths))) as scan:
        return rule(make_job(scan))


def coded(findings: list[Finding], code: str) -> list[Finding]:
    """Those of one code."""
    return [f for f in findings if f.code == code]


def errors(findings: list[Finding]) -> list[Finding]:
    """Those that are errors."""
    return [f for f in findings if f.severity is Severity.ERROR]
