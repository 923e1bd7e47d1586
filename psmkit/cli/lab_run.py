"""``psmkit lab run`` and ``psmkit lab report``: ranks on emulated CUDA that exchange data through libpsm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli import lab_options as shared
from psmkit.cli.command import Command
from psmkit.cli.lab_page import as_json, begin, judge, show_ranks
from psmkit.cli.lab_progress import Progress
from psmkit.cli.output import show, show_page

if TYPE_CHECKING:
    from psmkit import Report
    from psmkit.lab.transfer import Case, LabRun

__all__ = ["report", "run"]

_LISTS: shared.Lists = {
    "pattern": ("pair", "PATTERNS", "Who sends to whom: pair, ring, alltoall, random."),
    "share": ("auto", "SHARES", "How ranks share memory: auto, cumem, cuda-ipc, memfd, posix, same-process."),
    "zero_copy": ("never", "ZERO_COPIES", "never: copy through the FIFO; registered, always: one copy."),
    "app_stream": ("nonblocking", "STREAMS", "The application's stream: legacy, blocking, nonblocking."),
}


@click.command(
    "run",
    cls=Command,
    examples=(
        "psmkit lab run --out run1",
        "psmkit lab run --ranks 4 --pattern alltoall,ring --size 1,64K,4M --out run2",
        "psmkit lab run --fault 'p2p.setup:error=ENOSPC,rank=0' --out run3",
        "psmkit lab run --size 8M --differ rank=1,skip=recv --deadline 5 --out run4   # a hang",
        "psmkit lab run --tasks examples/plans/right.tasks --ranks 4 --out run5",
    ),
)
@shared.ranks_option
@shared.nodes_option
@click.option(
    "--tasks",
    metavar="FILE",
    help="Play this task file (docs/tasks.md) in place of a pattern, collectives among its tasks, by groups as NCCL plans them.",
)
@shared.lists(_LISTS, "psmkit.lab.transfer")
@click.option("--size", default="64K", metavar="BYTES[,...]", help="Bytes per peer, with K, M or G.  [64K]")
@click.option("--iters", type=click.IntRange(1), default=2, help="Groups of sends and recvs of a case.  [2]")
@click.option("--channels", type=click.IntRange(1, 64), default=1, help="Connections of a pair of ranks.  [1]")
@click.option("--steps", type=click.IntRange(1, 64), help="Slots of a FIFO.  [the default of libpsm]")
@click.option("--buffer-size", metavar="BYTES", help="Bytes of a FIFO, with K, M or G.  [the default of libpsm]")
@click.option(
    "--variant",
    default="split",
    metavar="VARIANT",
    help="Variant of the transport: a name of `psmkit variants`; your own as FILE.py:NAME or libNAME.so; net/NAME between nodes.  [split]",
)
@shared.seed_option
@shared.fault_option
@shared.differ_option("steps=4, shorter=100, skip=recv")
@click.option(
    "--cuda",
    type=click.Choice(("emulated", "real")),
    default="emulated",
    help="real: the GPUs of this machine, which the ranks use in turn.  [emulated]",
)
@click.option(
    "--gpus", type=click.IntRange(1, 64), default=8, help="Emulated GPUs of a node; ranks use them in turn.  [8]"
)
@shared.link_option
@shared.deadline_option()
@click.option(
    "--timeout",
    type=click.FloatRange(0.001),
    help="Seconds that a wait of the control plane may take.  [a third of --deadline]",
)
@shared.debug_option
@shared.out_option
@shared.format_option
def run(ranks: int, nodes: int, size: str, folder: Path, form: str, tasks: str | None, **given: Any) -> int:
    """Run ranks that exchange data through libpsm, and check every byte.

    Each rank is a process on emulated CUDA, or with --cuda real on the GPUs of this machine. A list such as --size 1,64K,4M makes a case of each entry; the same processes run the cases in
    order. The folder of --out keeps logs, records, output, the stacks of ranks that did not end, and result.json. `psmkit lab report DIR`
    shows the result again.

    Exit status: 0 all data is correct, nothing is left behind, and the analysis says healthy; 1 a rank failed or hung; 2 the run could not
    start; 3 all data is correct, but the analysis finds a leak or misuse of CUDA, it is inconclusive, or a fault never fired.
    """
    from psmkit.lab import real, strangers, transfer
    from psmkit.lab.emulation import Emulation
    from psmkit.lab.topology import LINKS, Machine

    if tasks is not None:
        return _play(tasks, ranks, folder, form, given)
    machine = None
    if given["gpus"] != 8 or given["link"] != "nvswitch":
        machine = Machine(given["gpus"], link=next(k for k in LINKS if k == given["link"]))
    deadline: float = given["deadline"]
    stall = min(10.0, deadline / 4)
    faults: str = given["faults"]
    cuda: Emulation | real.RealCuda
    if given["cuda"] == "real":
        if machine:
            raise click.UsageError("--gpus and --link describe emulated GPUs: leave them out with --cuda real")
        cuda = real.find(folder, transfer.program(), leaks=True, faults=faults, stall_report=stall)
    else:
        cuda = Emulation(folder, faults=faults, stall_report=stall, leaks=True)
    stranger = None
    if strangers.is_stranger(given["variant"]):
        stranger = strangers.find(given["variant"])
        given["variant"] = stranger.variant.name
    with Progress(deadline, folder) as progress:
        done = transfer.start(
            _cases(size, stall, given),
            ranks,
            folder,
            deadline=deadline,
            differs=transfer.differ(given["differs"]),
            emulation=cuda,
            machine=machine,
            nodes=nodes,
            stranger=stranger,
            debug=given["debug"],
            watch=progress.watch,
        )
    return _show(done, form)


#: What a task file says itself, or what its ranks do not have.
_OF_PATTERNS = (
    "nodes", "pattern", "share", "zero_copy", "app_stream", "size", "iters", "steps", "buffer_size", "differs", "cuda", "timeout",
)  # fmt: skip


def _play(path: str, ranks: int, folder: Path, form: str, given: dict[str, Any]) -> int:
    """The run of a task file."""
    from psmkit.lab import strangers, tasks
    from psmkit.lab.emulation import Emulation
    from psmkit.lab.topology import LINKS, Machine
    from psmkit.plan import Config, Scheduler
    from psmkit.plan.programs import parse_program
    from psmkit.plan.tasks import text_of

    ctx = click.get_current_context()

    def chosen(name: str) -> bool:
        return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT

    if odd := next((name for name in _OF_PATTERNS if chosen(name)), None):
        flag = {"differs": "--differ"}.get(odd, f"--{odd.replace('_', '-')}")
        raise click.UsageError(f"{flag} is about patterns: leave it out with --tasks")
    channels: int = given["channels"]
    if channels & (channels - 1):
        raise click.BadParameter(f"{channels}: a power of two with --tasks", param_hint="--channels")
    text = text_of(path)
    program = parse_program(text, ranks if chosen("ranks") or "comm " not in text else None, path)
    if program.ranks > _MOST_RANKS:
        raise click.UsageError(f"{path} has {program.ranks} ranks: the lab runs at most {_MOST_RANKS}")
    machine = None
    if given["gpus"] != 8 or given["link"] != "nvswitch":
        machine = Machine(given["gpus"], link=next(k for k in LINKS if k == given["link"]))
    deadline: float = given["deadline"]
    config = Config(
        ranks=program.ranks,
        scheduler=Scheduler.PLANNER,
        channels=channels,
        p2p_channels=channels,
        p2p_channels_per_peer=1,
        pass_sm=True,
    )
    cuda = Emulation(folder, faults=given["faults"], stall_report=min(10.0, deadline / 4), leaks=True)
    with Progress(deadline, folder) as progress:
        done = tasks.start(
            text,
            program,
            config,
            folder,
            deadline=deadline,
            emulation=cuda,
            machine=machine,
            variant=given["variant"],
            stranger=strangers.find(given["variant"]) if strangers.is_stranger(given["variant"]) else None,
            seed=given["seed"],
            debug=given["debug"],
            watch=progress.watch,
        )
    return _show(done, form)


_MOST_RANKS = 64


def _cases(size: str, stall: float, given: dict[str, Any]) -> list[Case]:
    from psmkit.lab import transfer

    timeout = given["timeout"] or given["deadline"] / 3
    cases: list[Case] = []
    for number, each, words in shared.combinations(_LISTS, given, size, transfer):
        pattern, share, zero_copy, stream = words
        case = transfer.Case(
            name=str(number),
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


@click.command("report", cls=Command, examples=("psmkit lab report run1", "psmkit lab report run1 --format json"))
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@shared.format_option
def report(folder: Path, form: str) -> int:
    """Show the result of `psmkit lab run` or `psmkit lab nccl` again, from its folder. The exit status is the same."""
    from psmkit.lab import transfer

    return _show(transfer.read(folder), form)


def _show(done: LabRun, form: str) -> int:
    from psmkit import analyze

    evidence = done.evidence()
    found = analyze([str(path) for path in evidence]) if evidence else None
    status, doubt = judge(done, found)
    if form == "json":
        show(as_json(done, found, status))
        return status
    _page(done, status, doubt, found)
    return status


def _as_declared(done: LabRun, verdict: str, codes: list[str]) -> str:
    """Whether a variant that is broken on purpose shows what it declares; empty if nothing is declared of the run."""
    from psmkit.lab import declared
    from psmkit.lab.cuda import LabError

    try:
        known = declared.of_run(done)
    except LabError:  # a result of another release, or no build here to ask
        return ""
    if known is None:
        return ""
    name, expected = known
    missing = expected.missing(declared.found(verdict, codes, ()), done.outcome)
    if missing:
        return f"variant {name}: not as declared for these cases ({expected.text()}): {missing}"
    return f"variant {name}: as declared for these cases: {expected.text()}"


def _page(done: LabRun, status: int, doubt: str, found: Report | None) -> None:
    outcome = done.outcome
    page = begin(done, status, doubt)
    show_ranks(page, done, stage_of_failure=True)
    for what, left in (("shared memory", outcome.shared_memory), ("processes", outcome.processes)):
        if left:
            page.wrap(f"left behind, {what}: {', '.join(left)}")
    if reaped := done.settings.get("reaped"):
        page.wrap(f"left by killed ranks, removed by the reaper: {', '.join(reaped)}")
    stacks = [path for rank in outcome.ranks for path in rank.stacks]
    if stacks:
        page.wrap(f"stacks: {', '.join(stacks)}")
    page.wrap(f"analysis: {found.verdict.value}: {found.reason}" if found else "analysis: the run left nothing to read")
    # The cause: for a hang, the state of both ends.
    first = next((f for f in found.findings if f.title == found.reason), None) if found else None
    if first is not None:
        page.wrap(first.explanation, indent="    ", hang="    ")
    weighty = [f.code for f in found.findings if f.severity.weight] if found else []
    if found and (said := _as_declared(done, found.verdict.value, weighty)):
        page.wrap(said, hang="    ")
    if weighty:
        page.wrap(f"findings: {', '.join(dict.fromkeys(weighty))}", hang="    ")
    page.wrap(f"evidence: psmkit analyze {' '.join(map(str, done.evidence()))}")
    show_page(page)
