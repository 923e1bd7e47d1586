"""``psmkit lab nccl``: a real NCCL library on emulated CUDA."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.lab_options import fault_option
from psmkit.cli.lab_progress import Progress
from psmkit.cli.lab_run import DOUBT, judge
from psmkit.cli.output import show, show_page, width
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.lab.nccl import NcclCase
    from psmkit.lab.nccl_library import Library
    from psmkit.lab.transfer import LabRun
    from psmkit.model import Report
    from psmkit.report.layout import Page

__all__ = ["nccl"]

_REASONS = 8
_NAMES = 4
_LISTS: dict[str, tuple[str, str, str]] = {
    "pattern": (
        "alltoall",
        "PATTERNS",
        "pair, ring, alltoall, random (sends and recvs); allreduce, allgather, reducescatter, broadcast, reduce.",
    ),
    "type": ("uint8", "TYPES", "Type of the elements: int8, uint8, ... float16, bfloat16, float32, float64."),
    "op": ("sum", "OPS", "Operation of a reduction: sum, prod, max, min, avg."),
    "app_stream": ("nonblocking", "STREAMS", "The application's stream: legacy, blocking, nonblocking."),
    "memory": ("cuda", "MEMORIES", "Allocator of the buffers: cuda (cudaMalloc), nccl (ncclMemAlloc)."),
}


def _lists(function: Callable[..., int]) -> Callable[..., int]:
    for name, (default, _, text) in reversed(_LISTS.items()):
        option = "--" + name.replace("_", "-")
        function = click.option(option, name, default=default, metavar="NAME[,...]", help=f"{text}  [{default}]")(
            function
        )
    return function


def _variables(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for (name, equal, _), value in zip(pairs, values, strict=True):
        if not (name and equal):
            raise click.BadParameter(f"{value!r}: expected NAME=VALUE")
    return {name: text for name, _, text in pairs}


@click.command(
    "nccl",
    cls=Command,
    examples=(
        "psmkit lab nccl --lib ~/nccl/build --ranks 4 --pattern alltoall --out run1",
        "psmkit lab nccl --lib build/lib/libnccl.so.2 --env NCCL_P2P_USE_CUDA_MEMCPY=1 --out run2",
        "psmkit lab nccl --lib ~/nccl/build --differ rank=1,skip=recv --deadline 10 --out run3   # a hang",
    ),
)
@click.option(
    "--lib",
    "place",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="A libnccl.so, or its folder: NCCL or a fork, linked to the shared CUDA runtime.",
)
@click.option("--ranks", type=click.IntRange(1, 64), default=2, help="Number of ranks, each a process.  [2]")
@click.option("--gpus", type=click.IntRange(1, 64), help="Emulated GPUs of a node.  [one for each rank]")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, help="Number of emulated nodes.  [1]")
@click.option(
    "--link",
    type=click.Choice(("nvswitch", "nvlink", "pcie")),
    default="nvswitch",
    help="Link between the GPUs.  [nvswitch]",
)
@_lists
@click.option(
    "--size", default="64K", metavar="BYTES[,...]", help="Bytes per peer, or of a rank's part of a collective.  [64K]"
)
@click.option(
    "--iters",
    type=click.IntRange(0),
    default=2,
    help="Groups or collectives of a case; 0: only create and destroy the communicator.  [2]",
)
@click.option("--root", type=click.IntRange(0), default=0, help="Root of broadcast and reduce.  [0]")
@click.option("--register", is_flag=True, help="Register the buffers with the communicator.")
@click.option("--nonblocking-comm", is_flag=True, help="Create communicators that do not block.")
@click.option("--seed", type=int, default=1, help="Seed of the data and of the pattern random.  [1]")
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_variables,
    help="Set an environment variable of the ranks. Repeatable.",
)
@fault_option
@click.option(
    "--differ",
    "differs",
    multiple=True,
    metavar="rank=N,KEY=VALUE",
    help="Give one rank other settings: skip=recv, shorter=4K, NCCL_BUFFSIZE=65536, ... Repeatable.",
)
@click.option(
    "--kernels",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A library that runs NCCL's kernels on the host (PSM_HOSTCUDA_KERNELS).",
)
@click.option("--no-strict", is_flag=True, help="Allow the host to access device memory; by default that is a crash.")
@click.option(
    "--deadline",
    "--timeout",
    type=click.FloatRange(0.1),
    default=60.0,
    help="Seconds until a run that has not ended is stopped.  [60]",
)
@click.option("--debug", type=click.Choice(("WARN", "INFO", "TRACE")), default="INFO", help="Log level.  [INFO]")
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Write the evidence to this new folder.",
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def nccl(place: Path, ranks: int, size: str, folder: Path, form: str, **given: Any) -> int:
    """Run a real NCCL library in processes on emulated CUDA, and check every byte.

    Each rank is a process that loads the library, joins a communicator, and sends or reduces data. The folder of --out keeps logs, records,
    output, the stacks of ranks that did not end, the answer of NCCL's RAS, and result.json. `psmkit lab report DIR` shows the result again.
    The ranks inherit the NCCL_* variables of this shell.

    Exit status: 0 all data is correct, nothing is left behind, and the analysis says healthy; 1 a rank failed or hung; 2 the run could not
    start; 3 all data is correct, but the analysis finds a leak or misuse of CUDA, it is inconclusive, or a fault never fired.
    """
    from psmkit.lab import nccl as lab
    from psmkit.lab import nccl_library
    from psmkit.lab.emulation import Emulation
    from psmkit.lab.topology import LINKS, Machine

    library = nccl_library.find(place)
    kind = next(k for k in LINKS if k == given["link"])
    machine = Machine(given["gpus"] or -(-ranks // given["nodes"]), given["nodes"], kind)
    deadline: float = given["deadline"]
    environment: dict[str, str] = given["environment"]
    if given["kernels"]:
        environment = {"PSM_HOSTCUDA_KERNELS": given["kernels"]} | environment
    with Progress(deadline, folder) as progress:
        done = lab.start(
            library,
            _cases(size, given),
            ranks,
            folder,
            nodes=given["nodes"],
            machine=machine,
            deadline=deadline,
            differs=lab.differ(given["differs"]),
            emulation=Emulation(
                folder,
                strict=not given["no_strict"],
                faults=given["faults"],
                stall_report=min(10.0, deadline / 4),
                leaks=True,
            ),
            environment=environment,
            debug=given["debug"],
            watch=progress.watch,
        )
    return _show(done, library, form)


def _cases(size: str, given: dict[str, Any]) -> list[NcclCase]:
    from psmkit.lab import nccl as lab
    from psmkit.lab import transfer

    lists = [_words(name, given[name]) for name in _LISTS]
    sizes = [transfer.size(text) for text in size.split(",")]
    cases: list[NcclCase] = []
    for pattern, kind, op, stream, memory in itertools.product(*lists):
        for each in sizes:
            case = lab.NcclCase(
                name=str(len(cases)),
                pattern=pattern,
                size=each,
                iters=given["iters"],
                type=kind,
                op=op,
                root=given["root"],
                app_stream=stream,
                memory=memory,
                registered=int(given["register"]),
                blocking=int(not given["nonblocking_comm"]),
                seed=given["seed"] % (1 << 64),
            )
            cases.append(case)
    return cases


def _words(name: str, text: str) -> list[str]:
    from psmkit.lab import nccl as lab
    from psmkit.lab import transfer

    allowed: tuple[str, ...] = getattr(transfer if name == "app_stream" else lab, _LISTS[name][1])
    words = text.split(",")
    for word in words:
        if word not in allowed:
            raise click.BadParameter(
                f"{word!r}; expected one of {', '.join(allowed)}", param_hint="--" + name.replace("_", "-")
            )
    return words


def _show(done: LabRun, library: Library, form: str) -> int:
    from psmkit import analyze
    from psmkit.model.errors import PsmkitError

    evidence, report, why = done.evidence(), None, "the run left nothing to read"
    if evidence:
        try:
            report = analyze([str(path) for path in evidence])
        except PsmkitError as error:  # the library could not be loaded, for example
            why = str(error)
    status, doubt = judge(done, report)
    if form == "json":
        import json
        from dataclasses import asdict

        data = asdict(done.outcome) | {"good": status == 0, "cases": done.cases, "settings": done.settings}
        if report is not None:
            codes = sorted({f.code for f in report.findings})
            culprits = sorted({c.global_rank for c in report.culprits if c.global_rank is not None})
            data["analysis"] = {
                "verdict": report.verdict.value,
                "reason": report.reason,
                "codes": codes,
                "culprits": culprits,
            }
        show(json.dumps(data, indent=1) + "\n")
    else:
        _page(done, library, (status, doubt), report, why)
    return status


def _page(done: LabRun, library: Library, judged: tuple[int, str], report: Report | None, why: str) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    outcome, cases, settings = done.outcome, len(done.cases), done.settings
    status, doubt = judged
    page = Page(width(sys.stdout))
    moved = sum(int(r.get("bytes", 0)) for rank in outcome.ranks for r in rank.reports)
    page.add(
        Span("good", "good") if status == 0 else Span("in doubt" if status == DOUBT else "not good", "error"),
        f": {counted(len(outcome.ranks), 'rank')}, {counted(cases, 'case')}, {counted(moved, 'byte')} checked, {outcome.seconds:.1f} s",
    )
    if doubt:
        page.wrap(f"all cases are good, but {doubt}")
    page.wrap(f"{library.path}: NCCL {library.version or '?'}, CUDA runtime {library.cudart}")
    if library.missing:
        page.wrap(f"not provided by emulated CUDA: {', '.join(library.missing)}")
    page.blank()
    rows, reasons = [], []
    for rank in outcome.ranks:
        right = sum(r.get("status") == "PSM_OK" for r in rank.reports)
        bad = next((r for r in rank.reports if r.get("status") != "PSM_OK"), None)
        where = str(bad.get("stage")) if bad and rank.state == "failed" else rank.stage
        rows.append(
            [
                str(rank.rank),
                str(rank.pid),
                f"{right}/{cases}",
                rank.state,
                where,
                str(bad.get("status")) if bad else "",
            ]
        )
        if reason := f"case {bad.get('name')}: {bad.get('text')}" if bad else rank.text:
            reasons.append(f"rank {rank.rank}: {reason}")
    lines = fit(["rank", "pid", "right", "state", "stage", "error"], rows, page.width)
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    page.blank()
    for reason in reasons[:_REASONS]:
        page.wrap(reason, hang="    ")
    if (more := len(reasons) - _REASONS) > 0:
        page.wrap(f"... and {counted(more, 'more rank')} (--format json)")
    page.blank()
    for text in done.idle:
        page.wrap(f"never fired: {text}", hang="    ")
    for what, names in (
        ("left behind, shared memory", outcome.shared_memory),
        ("left behind, processes", outcome.processes),
        ("left in /dev/shm by dead ranks, now removed", [] if outcome.shared_memory else settings.get("reaped", [])),
        ("new and unused in /dev/shm, perhaps from this run", settings.get("unknown", [])),
        ("stacks", [path for rank in outcome.ranks for path in rank.stacks]),
    ):
        if names:
            others = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            page.wrap(f"{what}: {', '.join(names[:_NAMES])}{others}", hang="    ")
    if (ras := done.folder / "ras").is_dir():
        page.wrap(f"answer of NCCL's RAS: {ras}")
    page.wrap(f"analysis: {report.verdict.value}: {report.reason}" if report else f"analysis: none: {why}")
    if report:
        _findings(page, library, report)
    page.wrap(f"evidence: psmkit analyze {' '.join(map(str, done.evidence()))}")
    show_page(page)


def _findings(page: Page, library: Library, report: Report) -> None:
    """What is wrong, a few of each kind, and where CUDA was misused by the names that the library's own symbols have."""
    from psmkit.lab.nccl_symbols import Symbols

    symbols: Symbols | None = None
    counts: dict[str, int] = {}
    for finding in (f for f in report.findings if f.severity.weight):
        number = counts[finding.code] = counts.get(finding.code, 0) + 1
        if number > _NAMES:
            continue
        page.wrap(f"{finding.code} {finding.title}", hang="    ")
        if finding.code.startswith("PSM5") and number == 1 and library.path.name in finding.explanation:
            symbols = symbols or Symbols(library.path)
            page.wrap(f"    {symbols.named(finding.explanation)}", hang="    ")
    for code, number in counts.items():
        if number > _NAMES:
            page.wrap(f"{code}: {number - _NAMES} more")
