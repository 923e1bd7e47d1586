"""``psmkit lab run`` and ``psmkit lab report``: ranks on emulated CUDA that send each other data through libpsm."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.output import show, show_page, width

if TYPE_CHECKING:
    from psmkit import Report
    from psmkit.lab.transfer import Case, LabRun

__all__ = ["DOUBT", "judge", "report", "run"]

_FORMAT = click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="How to write it.  [text]"
)
_REASONS = 8
DOUBT = 3  # exit status
_LISTS: dict[str, tuple[str, str, str]] = {
    "pattern": ("pair", "PATTERNS", "Who sends to whom: pair, ring, alltoall, random."),
    "share": ("auto", "SHARES", "How memory is shared: auto, cumem, cuda-ipc, memfd, posix, same-process."),
    "zero_copy": ("never", "ZERO_COPIES", "never: through the FIFO; registered, always: one copy."),
    "app_stream": ("nonblocking", "STREAMS", "The application's stream: legacy, blocking, nonblocking."),
}


def _lists(function: Callable[..., int]) -> Callable[..., int]:
    for name, (default, _, text) in reversed(_LISTS.items()):
        option = "--" + name.replace("_", "-")
        function = click.option(option, name, default=default, metavar="NAME[,...]", help=f"{text}  [{default}]")(
            function
        )
    return function


@click.command("run")
@click.option("--ranks", type=click.IntRange(1, 64), default=2, help="Processes.  [2]")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, help="Pretended nodes.  [1]")
@_lists
@click.option("--size", default="64K", metavar="BYTES[,...]", help="Bytes per peer, with K, M or G.  [64K]")
@click.option("--iters", type=click.IntRange(1), default=2, help="Groups of sends and recvs a case.  [2]")
@click.option("--channels", type=click.IntRange(1, 64), default=1, help="Connections a peer.  [1]")
@click.option("--steps", type=click.IntRange(1, 64), help="Slots of a FIFO.")
@click.option("--buffer-size", metavar="BYTES", help="Bytes of a FIFO.")
@click.option("--variant", default="split", help="Of the transport; net/NAME: of the one between nodes.  [split]")
@click.option("--seed", type=int, default=1, help="Of the data, and of the pattern random.  [1]")
@click.option(
    "--fault", "faults", multiple=True, metavar="FAULT", help="As PSM_FAULTS takes it (docs/faults.md). Repeatable."
)
@click.option(
    "--differ",
    "differs",
    multiple=True,
    metavar="rank=N,KEY=VALUE",
    help="What one rank does otherwise: steps=4, shorter=100, skip=recv, ... Repeatable.",
)
@click.option(
    "--cuda",
    type=click.Choice(("emulated", "real")),
    default="emulated",
    help="real: the GPUs of this machine, which the ranks take in turn.  [emulated]",
)
@click.option(
    "--gpus", type=click.IntRange(1, 64), default=8, help="Emulated GPUs a node; ranks take them in turn.  [8]"
)
@click.option(
    "--link", type=click.Choice(("nvswitch", "nvlink", "pcie")), default="nvswitch", help="What joins them.  [nvswitch]"
)
@click.option("--deadline", type=click.FloatRange(0.1), default=60.0, help="Seconds for the whole run.  [60]")
@click.option(
    "--timeout", type=click.FloatRange(0.001), help="Seconds of a wait of the control plane.  [a third of --deadline]"
)
@click.option(
    "--debug", type=click.Choice(("WARN", "INFO", "TRACE")), default="INFO", help="Level of the logs.  [INFO]"
)
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="A new folder for the evidence.",
)
@_FORMAT
def run(ranks: int, nodes: int, size: str, folder: Path, form: str, **given: Any) -> int:
    """Run ranks that send each other data through libpsm, and check every byte.

    Each rank is a process on emulated CUDA, or with --cuda real on the GPUs of this machine. Lists, such as --size 1,64K,4M, make a case of each; the same processes run them one after the
    other. DIR keeps logs, records, output, stacks of ranks that did not end, and result.json; `psmkit lab report DIR` shows it again.

    Exit status: 0 all data is right, nothing is left, and the analysis of DIR finds no failure, hang or leak, and no misuse of CUDA; 1 otherwise; 2 it could
    not be run.
    """
    from psmkit.lab import real, transfer
    from psmkit.lab.emulation import Emulation
    from psmkit.lab.topology import LINKS, Machine

    machine = None
    if given["gpus"] != 8 or given["link"] != "nvswitch":
        machine = Machine(given["gpus"], link=next(k for k in LINKS if k == given["link"]))
    deadline: float = given["deadline"]
    stall = min(10.0, deadline / 4)
    faults = ";".join(given["faults"])
    cuda: Emulation | real.RealCuda
    if given["cuda"] == "real":
        if machine:
            raise click.UsageError("--gpus and --link are of the emulated CUDA, and --cuda real asks for the real one")
        cuda = real.find(folder, transfer.program(), leaks=True, faults=faults, stall_report=stall)
    else:
        cuda = Emulation(folder, faults=faults, stall_report=stall, leaks=True)
    done = transfer.start(
        _cases(size, stall, given),
        ranks,
        folder,
        deadline=deadline,
        differs=transfer.differ(given["differs"]),
        emulation=cuda,
        machine=machine,
        nodes=nodes,
        debug=given["debug"],
    )
    return _show(done, form)


def _cases(size: str, stall: float, given: dict[str, Any]) -> list[Case]:
    from psmkit.lab import transfer

    lists = [_words(name, given[name]) for name in _LISTS]
    sizes = [transfer.size(text) for text in size.split(",")]
    timeout = given["timeout"] or given["deadline"] / 3
    cases: list[Case] = []
    for pattern, share, zero_copy, stream in itertools.product(*lists):
        for each in sizes:
            case = transfer.Case(
                name=str(len(cases)),
                pattern=pattern,
                size=each,
                iters=given["iters"],
                channels=given["channels"],
                app_stream=stream,
                variant=given["variant"],
                seed=given["seed"] % (1 << 64),
                steps=given["steps"],
                buffer_size=None if given["buffer_size"] is None else transfer.size(given["buffer_size"]),
                share=share,
                zero_copy=zero_copy,
                timeout_ms=max(1, round(timeout * 1000)),
                stall_report_ms=max(1, round(stall * 1000)),
            )
            cases.append(case)
    return cases


def _words(name: str, text: str) -> list[str]:
    from psmkit.lab import transfer

    allowed: tuple[str, ...] = getattr(transfer, _LISTS[name][1])
    words = text.split(",")
    for word in words:
        if word not in allowed:
            raise click.BadParameter(
                f"{word!r}; one of {', '.join(allowed)} is meant", param_hint="--" + name.replace("_", "-")
            )
    return words


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_FORMAT
def report(folder: Path, form: str) -> int:
    """Show again what `psmkit lab run` found, from its folder. The exit status is the same."""
    from psmkit.lab import transfer

    return _show(transfer.read(folder), form)


def _show(done: LabRun, form: str) -> int:
    from psmkit import analyze

    evidence = done.evidence()
    found = analyze([str(path) for path in evidence]) if evidence else None
    status, doubt = judge(done, found)
    if form == "json":
        import json
        from dataclasses import asdict

        data = asdict(done.outcome) | {"good": status == 0, "cases": done.cases, "settings": done.settings}
        if found is not None:
            codes = sorted({f.code for f in found.findings})
            data["analysis"] = {"verdict": found.verdict.value, "reason": found.reason, "codes": codes}
        show(json.dumps(data, indent=1) + "\n")
        return status
    _page(done, status, doubt, found)
    return status


def judge(done: LabRun, found: Report | None) -> tuple[int, str]:
    """The exit status, and where all cases are good and it is not 0, what is wrong then."""
    from psmkit import Verdict

    if not done.outcome.good:
        return 1, ""
    if found is None:
        return DOUBT, "there is nothing to analyse"
    if found.verdict in (Verdict.FAILED, Verdict.HUNG):
        return 1, f"the analysis says {found.verdict.value}"
    if found.verdict is Verdict.INCONCLUSIVE:
        return DOUBT, "the analysis cannot say that the run is healthy"
    if found.verdict is Verdict.LEAKING:
        return DOUBT, "the analysis says leaking"
    # Handles and memory misused: the data was right by luck. A stream that stood still for a while (PSM515) came to its end.
    misused = sorted(
        {f.code for f in found.findings if f.code.startswith("PSM5") and f.code != "PSM515" and f.severity.weight}
    )
    return (DOUBT, f"CUDA is misused ({', '.join(misused)})") if misused else (0, "")


def _page(done: LabRun, status: int, doubt: str, found: Report | None) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    outcome, cases = done.outcome, len(done.cases)
    page = Page(width(sys.stdout))
    bytes_moved = sum(int(r.get("bytes", 0)) for rank in outcome.ranks for r in rank.reports)
    head = Span("good", "good") if status == 0 else Span("in doubt" if status == DOUBT else "not good", "error")
    page.add(
        head,
        f": {len(outcome.ranks)} ranks, {cases} case{'s' if cases != 1 else ''}, {bytes_moved} bytes checked, {outcome.seconds:.1f} s",
    )
    if doubt:
        page.wrap(f"all cases are good, but {doubt}")
    page.blank()
    rows, reasons = [], []
    for rank in outcome.ranks:
        right = sum(r.get("status") == "PSM_OK" for r in rank.reports)
        bad = next((r for r in rank.reports if r.get("status") != "PSM_OK"), None)
        error = str(bad.get("status")) if bad else ""
        where = str(bad.get("stage")) if bad else rank.stage
        reason = f"case {bad.get('name')}: {bad.get('text')}" if bad else rank.text
        rows.append([str(rank.rank), str(rank.pid), f"{right}/{cases}", rank.state, where, error])
        if reason:
            reasons.append(f"rank {rank.rank}: {reason}")
    lines = fit(["rank", "pid", "right", "state", "stage", "error"], rows, page.width)
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    page.blank()
    for reason in reasons[:_REASONS]:
        page.wrap(reason, hang="    ")
    if len(reasons) > _REASONS:
        page.wrap(f"... and {len(reasons) - _REASONS} more ranks (--format json)")
    page.blank()
    for what, left in (("shared memory", outcome.shared_memory), ("processes", outcome.processes)):
        if left:
            page.wrap(f"left behind, {what}: {', '.join(left)}")
    if reaped := done.settings.get("reaped"):
        page.wrap(f"removed by the reaper, left by ranks that were killed: {', '.join(reaped)}")
    stacks = [path for rank in outcome.ranks for path in rank.stacks]
    if stacks:
        page.wrap(f"stacks: {', '.join(stacks)}")
    page.wrap(f"analysis: {found.verdict.value}: {found.reason}" if found else "analysis: the run left nothing to read")
    # Why: in a run that stands still this is where both ends stand.
    first = next((f for f in found.findings if f.title == found.reason), None) if found else None
    if first is not None:
        page.wrap(first.explanation, indent="    ", hang="    ")
    page.wrap(f"evidence: psmkit analyze {' '.join(map(str, done.evidence()))}")
    show_page(page)
