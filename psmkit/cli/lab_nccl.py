"""``psmkit lab nccl``: a real NCCL library on emulated CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli import lab_options as shared
from psmkit.cli.command import Command
from psmkit.cli.lab_page import as_json, begin, judge, show_ranks
from psmkit.cli.lab_progress import Progress
from psmkit.cli.output import show, show_page
from psmkit.cli.settings_option import settings_option

if TYPE_CHECKING:
    from psmkit.lab.nccl import NcclCase
    from psmkit.lab.nccl_library import Library
    from psmkit.lab.transfer import LabRun
    from psmkit.model import Report
    from psmkit.plan.programs import Program
    from psmkit.report.layout import Page

__all__ = ["LISTS", "nccl"]

_NAMES = 4
LISTS: shared.Lists = {
    "pattern": (
        "alltoall",
        "PATTERNS",
        "pair, ring, alltoall, random (sends and recvs); allreduce, allgather, reducescatter, broadcast, reduce, alltoall-coll, gather, scatter; put-signal.",
    ),
    "type": ("uint8", "TYPES", "Type of the elements: int8, uint8, ... float16, bfloat16, float32, float64."),
    "op": ("sum", "OPS", "Operation of a reduction: sum, prod, max, min, avg."),
    "app_stream": ("nonblocking", "STREAMS", "The application's stream: legacy, blocking, nonblocking."),
    "memory": ("cuda", "MEMORIES", "Allocator of the buffers: cuda (cudaMalloc), nccl (ncclMemAlloc)."),
}


@click.command(
    "nccl",
    cls=Command,
    examples=(
        "psmkit lab nccl --lib ~/nccl/build --ranks 4 --pattern alltoall --out run1",
        "psmkit lab nccl --lib build/lib/libnccl.so.2 --env NCCL_P2P_USE_CUDA_MEMCPY=1 --out run2",
        "psmkit lab nccl --lib ~/nccl/build --differ rank=1,skip=recv --deadline 10 --out run3   # a hang",
        "psmkit lab nccl --lib ~/nccl/build --pattern allgather,put-signal --windows --cta-policy zero --out run4   # copy engines",
        "psmkit lab nccl --lib ~/nccl/build --ranks 4 --nodes 2 --rma --pattern allgather --windows --cta-policy zero --out run5",
    ),
)
@click.option(
    "--lib",
    "place",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="A libnccl.so, or its folder: NCCL or a fork, linked to the shared CUDA runtime.",
)
@shared.ranks_option
@click.option("--gpus", type=click.IntRange(1, 64), help="Emulated GPUs of a node.  [one for each rank]")
@shared.nodes_option
@shared.link_option
@shared.lists(LISTS, "psmkit.lab.nccl", "psmkit.lab.transfer")
@click.option(
    "--size", default="64K", metavar="BYTES[,...]", help="Bytes per peer, or of a rank's part of a collective.  [64K]"
)
@click.option(
    "--iters",
    type=click.IntRange(0),
    default=2,
    help="Groups or collectives of a case; 0: only create and destroy the communicator.  [2]",
)
@click.option("--root", type=click.IntRange(0), default=0, help="Root of broadcast, reduce, gather and scatter.  [0]")
@click.option(
    "--tasks",
    metavar="FILE",
    help="Play this task file (docs/tasks.md) in place of a pattern: its communicators, collectives, sends and recvs.",
)
@click.option("--register", is_flag=True, help="Register the buffers with the communicator.")
@click.option("--windows", is_flag=True, help="Make the buffers symmetric windows; they are from ncclMemAlloc.")
@click.option(
    "--cta-policy",
    type=click.Choice(("default", "efficiency", "zero")),
    default="default",
    help="CTA policy of the communicators; zero asks for copy engines.  [default]",
)
@click.option(
    "--graph",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Capture each iteration in a CUDA graph, and launch it N times.  [0: do not capture]",
)
@click.option(
    "--rma",
    is_flag=True,
    help="Let the nodes put into each other's windows, by psmkit's RMA plugin (NCCL 2.30.3 and newer).",
)
@click.option("--nonblocking-comm", is_flag=True, help="Create communicators that do not block.")
@shared.seed_option
@settings_option("Set an environment variable of the ranks.")
@shared.fault_option
@shared.differ_option("skip=recv, shorter=4K, NCCL_BUFFSIZE=65536")
@click.option(
    "--kernels",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A library that runs NCCL's kernels on the host (PSM_HOSTCUDA_KERNELS).",
)
@click.option("--no-strict", is_flag=True, help="Allow the host to access device memory; by default that is a crash.")
@shared.deadline_option("--timeout")
@shared.debug_option
@shared.out_option
@shared.format_option
def nccl(place: Path, ranks: int, size: str, folder: Path, form: str, **given: Any) -> int:
    """Run a real NCCL library in processes on emulated CUDA, and check every byte.

    Each rank is a process that loads the library, joins a communicator, and sends or reduces data. The folder of --out keeps logs, records,
    output, the stacks of ranks that did not end, the answer of NCCL's RAS, and result.json. `psmkit lab report DIR` shows the result again.
    The ranks inherit the NCCL_* variables of this shell.

    Exit status: 0 all data is correct, nothing is left behind, and the analysis says healthy; 1 a rank failed or hung; 2 the run could not
    start; 3 all data is correct, but the analysis finds a leak or misuse of CUDA, it is inconclusive, a fault never fired, or calls that asked
    for copy engines (--windows --cta-policy zero) went another way.
    """
    from psmkit.lab import nccl as lab
    from psmkit.lab import nccl_library
    from psmkit.lab.emulation import Emulation
    from psmkit.lab.topology import LINKS, Machine

    program = _program(given, ranks)
    ranks = program.ranks if program is not None else ranks
    library = nccl_library.find(place)
    kind = next(k for k in LINKS if k == given["link"])
    machine = Machine(given["gpus"] or -(-ranks // given["nodes"]), given["nodes"], kind, rdma=given["rma"])
    deadline: float = given["deadline"]
    environment: dict[str, str] = given["settings"]
    if given["rma"]:
        environment = lab.rma_environment(library, given["nodes"]) | environment
    if given["kernels"]:
        environment = {"PSM_HOSTCUDA_KERNELS": given["kernels"]} | environment
    with Progress(deadline, folder) as progress:
        done = lab.start(
            library,
            _cases(size, given, tasks=program is not None),
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
            program=program,
            debug=given["debug"],
            watch=progress.watch,
        )
    return _show(done, library, form)


def _program(given: dict[str, Any], ranks: int) -> Program | None:
    """What a task file says."""
    from click.core import ParameterSource

    from psmkit.lab.nccl_tasks import further, streams
    from psmkit.plan.programs import parse_program
    from psmkit.plan.tasks import text_of

    path = given["tasks"]
    if path is None:
        return None
    context = click.get_current_context()

    def chosen(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    for name in ("pattern", "size", "type", "op", "iters", "root"):
        if chosen(name):
            raise click.UsageError(f"--tasks says what is called: --{name} cannot be given with it")
    text = text_of(path)
    program = parse_program(text, ranks if chosen("ranks") or "comm " not in text else None, path)
    if len(further(program)) and given["nonblocking_comm"]:
        raise click.UsageError("--nonblocking-comm takes a task file of one communicator of all ranks")
    if given["graph"] and any(streams(program).values()):
        raise click.UsageError("--graph captures one stream: the task file has several")
    return program


def _cases(size: str, given: dict[str, Any], *, tasks: bool) -> list[NcclCase]:
    from psmkit.lab import nccl as lab
    from psmkit.lab import transfer

    _check(given)
    cases: list[NcclCase] = []
    for number, each, words in shared.combinations(LISTS, given, size, lab, transfer):
        pattern, kind, op, stream, memory = words
        case = lab.NcclCase(
            name=str(number),
            pattern=lab.TASKS if tasks else pattern,
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
            windows=int(given["windows"]),
            cta_policy=given["cta_policy"],
            graph=given["graph"],
        )
        cases.append(case)
    return cases


def _check(given: dict[str, Any]) -> None:
    """Whether the options fit together; buffers that are windows come from NCCL unless the command line says otherwise."""
    from click.core import ParameterSource

    context = click.get_current_context()
    patterns, streams = given["pattern"].split(","), given["app_stream"].split(",")
    if given["windows"] and context.get_parameter_source("memory") is ParameterSource.DEFAULT:
        given["memory"] = "nccl"
    if given["windows"] and "cuda" in given["memory"].split(","):
        raise click.UsageError(
            "--windows needs --memory nccl: NCCL makes symmetric windows of ncclMemAlloc buffers only"
        )
    if "put-signal" in patterns and not given["windows"]:
        raise click.UsageError("--pattern put-signal needs --windows: a put writes into a window of its peer")
    if given["graph"] and "random" in patterns:
        raise click.UsageError("--graph: the pattern random has other sizes in each iteration, and a graph has one")
    if given["graph"] and "legacy" in streams:
        raise click.UsageError("--graph: CUDA does not capture the legacy stream")


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
        culprits = sorted({c.global_rank for c in report.culprits if c.global_rank is not None}) if report else []
        show(as_json(done, report, status, {"culprits": culprits}))
    else:
        _page(done, library, (status, doubt), report, why)
    return status


def _page(done: LabRun, library: Library, judged: tuple[int, str], report: Report | None, why: str) -> None:
    outcome, settings = done.outcome, done.settings
    page = begin(done, *judged)
    page.wrap(f"{library.path}: NCCL {library.version or '?'}, CUDA runtime {library.cudart}")
    if library.missing:
        page.wrap(f"not provided by emulated CUDA: {', '.join(library.missing)}")
    show_ranks(page, done, stage_of_failure=False)
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
