"""What `psmkit lab run` and `psmkit lab nccl` show of a run: the judgement, the ranks, why they failed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from psmkit.cli.output import width
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.lab.runner import RankOutcome
    from psmkit.lab.transfer import LabRun
    from psmkit.model import Report
    from psmkit.report.layout import Page

__all__ = ["DOUBT", "as_json", "begin", "judge", "show_ranks"]

DOUBT = 3  # exit status
_REASONS = 8


def judge(done: LabRun, found: Report | None) -> tuple[int, str]:
    """The exit status, and what is in doubt when all cases are good and the status is not 0."""
    from psmkit import Verdict
    from psmkit.model import CODES, Family

    if not done.outcome.good:
        return 1, ""
    if found is None:
        return DOUBT, "the run left nothing to analyse"
    if found.verdict in (Verdict.FAILED, Verdict.HUNG):
        return 1, f"the analysis says {found.verdict.value}"
    if done.idle:
        return DOUBT, f"{counted(len(done.idle), 'fault')} that you asked for never fired"
    if done.fell_back:
        return DOUBT, "no line shows that all calls went by copy engines, as you asked"
    if found.verdict is Verdict.INCONCLUSIVE:
        return DOUBT, "the analysis cannot say that the run is healthy"
    if found.verdict is Verdict.LEAKING:
        return DOUBT, "the analysis says leaking"
    # Misuse of handles or memory: the data was correct by luck. A stream that stalled for a while (PSM515) still ended.
    memory = {f.code for f in found.findings if f.severity.weight and CODES[f.code].family is Family.MEMORY}
    misused = sorted(memory - {"PSM515"})
    return (DOUBT, f"CUDA is misused ({', '.join(misused)})") if misused else (0, "")


def as_json(done: LabRun, found: Report | None, status: int, analysis: dict[str, Any] | None = None) -> str:
    """The result as JSON. ``analysis`` adds to what is said of the report."""
    data = asdict(done.outcome) | {"good": status == 0, "cases": done.cases, "settings": done.settings}
    if found is not None:
        codes = sorted({f.code for f in found.findings})
        data["analysis"] = {"verdict": found.verdict.value, "reason": found.reason, "codes": codes, **(analysis or {})}
    return json.dumps(data, indent=1) + "\n"


def begin(done: LabRun, status: int, doubt: str) -> Page:
    """A page with its headline."""
    from psmkit.report.layout import Page, Span

    ranks = done.outcome.ranks
    page = Page(width(sys.stdout))
    moved = sum(int(r.get("bytes", 0)) for rank in ranks for r in rank.reports)
    page.add(
        Span("good", "good") if status == 0 else Span("in doubt" if status == DOUBT else "not good", "error"),
        f": {counted(len(ranks), 'rank')}, {counted(len(done.cases), 'case')}, {counted(moved, 'byte')} checked, {done.outcome.seconds:.1f} s",
    )
    if doubt:
        page.wrap(f"all cases are good, but {doubt}")
    return page


def show_ranks(page: Page, done: LabRun, *, stage_of_failure: bool) -> None:
    """The table of ranks, the first reasons, the faults that never fired, and the calls that copy engines did.

    Args:
        stage_of_failure: a rank that failed and hangs since is shown where it failed, and not where it hangs.
    """
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    rows, reasons = [], []
    for rank in done.outcome.ranks:
        bad = next((r for r in rank.reports if r.get("status") != "PSM_OK"), None)
        failed = bad is not None and (stage_of_failure or rank.state == "failed")
        rows.append(_row(rank, len(done.cases), bad, str(bad.get("stage")) if bad and failed else rank.stage))
        if reason := f"case {bad.get('name')}: {bad.get('text')}" if bad else rank.text:
            reasons.append(f"rank {rank.rank}: {reason}")
    page.blank()
    lines = fit(["rank", "pid", "right", "state", "stage", "error"], rows, page.width)
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    page.blank()
    for reason in reasons[:_REASONS]:
        page.wrap(reason, hang="    ")
    if (more := len(reasons) - _REASONS) > 0:
        page.wrap(f"and {counted(more, 'more rank')} (--format json shows all)")
    page.blank()
    for text in done.idle:
        page.wrap(f"never fired: {text}", hang="    ")
    if engine := done.settings.get("engine"):
        page.wrap(_by_engine(engine), hang="    ")
        for text in done.fell_back:
            page.wrap(f"not by copy engine: {text}", hang="    ")


def _by_engine(engine: dict[str, Any]) -> str:
    """How many calls went by copy engines, and what shows that."""
    asked, kernels = counted(engine["asked"], "call"), counted(engine["kernels"], "kernel launch", "kernel launches")
    how = "a line [Copy Engine] of NCCL for each" if engine["lines"] else "NCCL's lines about their set-up"
    if over_nodes := engine.get("hierarchical"):
        how = f"NCCL's lines, {over_nodes} of them [Hierarchical CE]"
    return f"copy engine: {engine['shown']} of {asked}, by {how}; {kernels}"


def _row(rank: RankOutcome, cases: int, bad: dict[str, Any] | None, where: str) -> list[str]:
    right = sum(r.get("status") == "PSM_OK" for r in rank.reports)
    error = str(bad.get("status")) if bad else ""
    return [str(rank.rank), str(rank.pid), f"{right}/{cases}", rank.state, where, error]
