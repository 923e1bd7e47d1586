"""``psmkit plan``: Simulate and check kernel plans: from task to reclaim."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli import plan_lint, plan_model, plan_what_if
from psmkit.cli.command import Group
from psmkit.cli.output import check_output, show, show_page, width
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.model import Finding
    from psmkit.plan import Config, Scheduler, Simulation, Step

__all__ = ["command"]

_WHOLE = 1000
_OPEN = 16
_SCHEDULERS = ("legacy", "planner")
_TABLE = click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]"
)


class _NotBuiltError(PsmkitError):
    pass


@click.group("plan", cls=Group, examples=("psmkit plan simulate --seed 1 --ranks 4", "psmkit plan check records/"))
def command() -> None:
    """Simulate and check kernel plans: how tasks become plans, when plans are launched and reclaimed, and which rules apply.

    The scheduler is the C code of libpsm. docs/plan.md explains it.
    """


command.add_command(plan_model.command)
command.add_command(plan_lint.command)
command.add_command(plan_what_if.command)


@command.command(
    "simulate",
    examples=(
        "psmkit plan simulate --seed 1 --ranks 4",
        "psmkit plan simulate --tasks tasks.txt --scheduler planner -v",
        "psmkit plan simulate --seed 3 --variant reclaim-early --format html --output plan.html",
    ),
)
@click.option("--ranks", type=click.IntRange(1, 1024), default=8, help="Number of ranks.  [8]")
@click.option(
    "--tasks", "tasks", metavar="FILE", help="Read the tasks of the ranks, one on each line; - is standard input."
)
@click.option("--seed", type=click.IntRange(0), help="Generate a mix of tasks from this seed instead.")
@click.option("--groups", type=click.IntRange(1, 1000), help="With --seed: number of groups.  [3]")
@click.option("--group-tasks", type=click.IntRange(1, 10_000), help="With --seed: number of tasks of a group.  [8]")
@click.option(
    "--variant",
    default="coll-first",
    metavar="PLAN_VARIANT",
    help="Variant of the scheduler, see `psmkit plan variants`.  [coll-first]",
)
@click.option(
    "--scheduler",
    default="legacy",
    metavar="SCHEDULER",
    help="Scheduler: legacy, planner, or planner-VERSION for what changed with a release, such as planner-2.29.7.  [legacy]",
)
@click.option(
    "--order-seed", type=click.IntRange(0), default=0, help="Seed for the order in which threads and streams run.  [0]"
)
@click.option(
    "--graph",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Capture the tasks into a graph, and launch it N times.",
)
@click.option("--nodes", type=click.IntRange(1), default=1, help="Number of nodes.  [1]")
@click.option("--channels", type=int, default=4, help="Channels of collectives.  [4]")
@click.option("--p2p-channels", type=int, default=4, help="Channels of sends and recvs, a power of two.  [4]")
@click.option("--p2p-channels-per-peer", type=int, default=1, help="Channels of a peer, a power of two.  [1]")
@click.option("--pass-sm/--kernels", default=True, help="Send and receive by the proxy, or by kernels.  [--pass-sm]")
@click.option("--launch-blocking", is_flag=True, help="Launch as with CUDA_LAUNCH_BLOCKING=1.")
@click.option("--fifo-depth", type=click.IntRange(0), default=0, help="legacy: slots of the work FIFO.  [65536]")
@click.option("--fifo-bytes", type=click.IntRange(0), default=0, help="planner: bytes of the work FIFO.  [1 MiB]")
@click.option("--args-bytes", type=click.IntRange(0), default=0, help="planner: bytes of the kernel arguments.  [4096]")
@click.option("--chunk-bytes", type=click.IntRange(0), default=0, help="Bytes of a chunk of a send or recv.  [128 KiB]")
@click.option(
    "--comp-cap", type=click.IntRange(0, 999), default=90, help="Compute capability of the GPUs, 90 for 9.0.  [90]"
)
@click.option("--cluster", type=click.IntRange(0, 8), default=4, help="Blocks of a kernel's cluster, from 9.0 on.  [4]")
@click.option("--rank", type=click.IntRange(0), help="Show the plans of this rank.  [the first with a problem]")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "html", "svg", "timeline")),
    default="text",
    help="Output format; svg is the picture alone, timeline an HTML page with all events of all ranks, to zoom and search.  [text]",
)
@click.option("--output", metavar="FILE", help="Write the result to FILE.  [standard output]")
@click.option("-v", "--verbose", is_flag=True, help="Show everything, with the trace.")
def simulate_(
    ranks: int,
    tasks: str | None,
    seed: int | None,
    groups: int | None,
    group_tasks: int | None,
    variant: str,
    scheduler: str,
    order_seed: int,
    graph: int | None,
    nodes: int,
    channels: int,
    p2p_channels: int,
    p2p_channels_per_peer: int,
    pass_sm: bool,
    launch_blocking: bool,
    fifo_depth: int,
    fifo_bytes: int,
    args_bytes: int,
    chunk_bytes: int,
    comp_cap: int,
    cluster: int,
    rank: int | None,
    form: str,
    output: str | None,
    verbose: bool,
) -> int:
    """Simulate ranks, their streams and their proxies, and check every step against the rules.

    The command shows the plans of all ranks side by side and their first difference; when each plan is launched, done and reclaimed; which
    rank is stuck, and on what; and which rule breaks. The same arguments give the same run.

    Exit status: 0 no rule breaks; 1 a rule breaks, or the ranks are deadlocked; 2 bad input.
    """
    check_output(output, "simulation")
    _libpsm()
    from psmkit.plan import Config, simulate

    _check_tasks(tasks, seed, groups, group_tasks)
    if rank is not None and rank >= ranks:
        raise click.BadParameter(f"rank {rank}, but the simulation has ranks 0 to {ranks - 1}", param_hint="--rank")
    kind, release = _scheduler(scheduler)
    config = Config(
        ranks=ranks,
        nodes=nodes,
        scheduler=kind,
        release=release,
        variant=variant,
        channels=channels,
        p2p_channels=p2p_channels,
        p2p_channels_per_peer=p2p_channels_per_peer,
        pass_sm=pass_sm,
        launch_blocking=launch_blocking,
        work_fifo_depth=fifo_depth,
        work_fifo_bytes=fifo_bytes,
        work_args_bytes=args_bytes,
        p2p_chunk_bytes=chunk_bytes,
        comp_cap=comp_cap,
        cluster=cluster,
    )
    _known(config)
    steps = _steps(tasks, seed, ranks, groups or 3, group_tasks or 8, graph)
    with _interruptible():
        done = simulate(config, steps, order_seed)
    _write(done, form, output, rank, verbose)
    return 1 if done.breaches or done.stuck else 0


@command.command("rules", examples=("psmkit plan rules", "psmkit plan rules --format json"))
@_TABLE
def rules_(form: str) -> None:
    """List the rules for traces of plans, and the schedulers that they apply to."""
    _libpsm()
    from psmkit.plan import rules

    found = rules()
    if form == "json":
        rows = [{"name": r.name, "text": r.text, "schedulers": _names(r.schedulers)} for r in found]
        show(json.dumps(rows, indent=2) + "\n")
        return
    _table(["rule", "schedulers", "text"], [[r.name, _both(r.schedulers), r.text] for r in found])


@command.command("variants", examples=("psmkit plan variants", "psmkit plan variants --format json"))
@_TABLE
def variants_(form: str) -> None:
    """List the variants of the scheduler: the correct one, and broken ones with the rule that each breaks."""
    _libpsm()
    from psmkit.plan import variants

    found = list(variants().values())
    if form == "json":
        rows = [
            {
                "name": v.name,
                "wrong": v.wrong,
                "summary": v.summary,
                "breaks": v.outcome or None,
                "schedulers": _names(v.schedulers),
            }
            for v in found
        ]
        show(json.dumps(rows, indent=2) + "\n")
        return
    _table(
        ["variant", "", "breaks", "schedulers", "what it does"],
        [[v.name, "wrong" if v.wrong else "right", v.outcome or "-", _both(v.schedulers), v.summary] for v in found],
    )


@command.command("check", examples=("psmkit plan check records/", "psmkit plan check logs/ records/ --format json"))
@click.argument("paths", nargs=-1, required=True, metavar="RECORD|DIR...")
@_TABLE
def check_(paths: tuple[str, ...], form: str) -> int:
    """Check recorded plans against the rules, and compare the ranks.

    Record files contain the trace in the ring psm.plan: libpsm's, and those of an NCCL with the macros of docs/plan_trace.md. Logs are read, too: libpsm logs the plans that it makes and the rules that break.

    Exit status: 0 no rule breaks; 1 a rule breaks; 2 the input has no trace of plans.
    """
    from psmkit.analysis.facts.job import make_job
    from psmkit.analysis.inference.plan_traces import traces
    from psmkit.analysis.rules import plan_trace
    from psmkit.logparse import scan
    from psmkit.model.errors import NothingToAnalyse

    with scan(paths) as result:
        job = make_job(result)
        found_traces = traces(job)
        if not found_traces and not job.events("libpsm.plan."):
            raise NothingToAnalyse(
                f"no trace of plans in {', '.join(paths[:3])}: give the record files of a program that runs plans over libpsm "
                "(in PSM_RECORD_DIR, with PSM_RECORD_KEEP=1), its log with NCCL_DEBUG=INFO, or the folder of PSM_PLAN_TRACE (docs/plan_trace.md)"
            )
        findings = job.quotes.filled(plan_trace.find(job))
        open_plans = [f"rank {trace.rank}: {plan}" for trace in found_traces for plan in trace.open()]
        rows = [
            {
                "rank": trace.rank,
                "process": job.process(trace.proc).name,
                "plans": sum(1 for _ in trace.plans()),
                "events": len(trace.events),
                "first_event": trace.events[0].order,
                "destroyed": trace.ended,
                "open": [asdict(plan) for plan in trace.open()],
            }
            for trace in sorted(found_traces, key=lambda t: (t.rank, t.proc))
        ]
    if form == "json":
        from psmkit.report.data import finding_dict

        found = [finding_dict(f) for f in findings]
        show(json.dumps({"schema": "psmkit.plan-check/1", "traces": rows, "findings": found}, indent=2) + "\n")
    else:
        _checked(rows, findings, sorted(open_plans))
    return 1 if findings else 0


def _checked(rows: list[dict[str, Any]], findings: list[Finding], open_plans: list[str]) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout))
    what = f"{counted(len(rows), 'trace')} of plans" if rows else "lines of plans"
    if findings:
        page.wrap(findings[0].title, "heading", hang="  ", lead=Span("broken: ", "failed"))
    else:
        page.add(Span("right: ", "healthy"), Span(f"no rule is broken in {what}", "heading"))
    if rows:
        page.blank()
        heads = ["rank", "process", "plans", "events", "begins at", "communicator"]
        names = ("rank", "process", "plans", "events", "first_event", "destroyed")
        cells = [
            [str(row[name]) for name in names[:-1]] + ["destroyed" if row["destroyed"] else "open"] for row in rows
        ]
        for number, line in enumerate(fit(heads, cells, page.width)):
            page.add(Span(line, "" if number else "dim"))
        if any(row["first_event"] for row in rows):
            page.wrap(
                "A trace that does not begin at 0 lacks earlier events: it is judged from there, and not compared with other ranks."
            )
    if open_plans:
        page.blank()
        page.add(Span("Open at the end of the trace", "heading"))
        for line in open_plans[:_OPEN]:
            page.wrap(line, indent="  ", hang="      ")
        if len(open_plans) > _OPEN:
            page.add(Span(f"  … {counted(len(open_plans) - _OPEN, 'more plan')}", "dim"))
    for finding in findings:
        page.blank()
        page.wrap(finding.title, "heading", hang="    ", lead=Span(f"{finding.code} ", finding.severity.value))
        for item in finding.evidence:
            page.add("    ", Span(str(item), "place"))
            page.cut(item.text.partition("NCCL ")[2] or item.text, indent="      | ")
        page.wrap(finding.next_step, indent="    ", hang="      ", lead=Span("next: ", "code"))
    show_page(page)


@contextmanager
def _interruptible() -> Iterator[None]:
    """A simulation is one call of C, and Python's handler would wait for its end: let an interrupt end the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _libpsm() -> None:
    try:
        import psmkit.plan  # noqa: F401
    except ImportError as error:
        raise _NotBuiltError(
            f"no libpsm for this Python: build it with `make setup`, or install a psmkit wheel for this system ({error})"
        ) from None


def _check_tasks(tasks: str | None, seed: int | None, groups: int | None, group_tasks: int | None) -> None:
    if (tasks is None) == (seed is None):
        raise click.UsageError("no tasks for the ranks: give either --tasks FILE or --seed N")
    if seed is None and (groups is not None or group_tasks is not None):
        raise click.UsageError("--groups and --group-tasks need --seed")


def _steps(
    tasks: str | None, seed: int | None, ranks: int, groups: int, group_tasks: int, graph: int | None
) -> tuple[Step, ...]:
    from psmkit import plan

    if seed is not None:
        steps = plan.generate(seed, ranks, groups, group_tasks)
    elif tasks == "-":
        steps = plan.parse(sys.stdin.read(plan.MAX_BYTES), ranks, "standard input")
    else:
        assert tasks is not None
        steps = plan.read(tasks, ranks)
    if graph is None:
        return steps
    try:
        return plan.graph(steps, graph)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--graph") from None


def _scheduler(name: str) -> tuple[Scheduler, int]:
    from psmkit.plan.releases import named

    try:
        return named(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--scheduler") from None


def _known(config: Config) -> None:
    from psmkit.plan import variants

    known = variants()
    if config.variant not in known:
        raise click.BadParameter(f"{config.variant!r}; expected one of {', '.join(known)}", param_hint="--variant")
    if not known[config.variant].schedulers & config.scheduler.bit:
        raise click.BadParameter(
            f"{config.variant} exists only for the scheduler {_both(known[config.variant].schedulers)}",
            param_hint="--variant",
        )


def _write(done: Simulation, form: str, output: str | None, rank: int | None, verbose: bool) -> None:
    from psmkit.plan import rules

    table = {rule.name: rule for rule in rules()}
    if form == "text":
        from psmkit.plan.text import layout

        page = layout(done, table, width(sys.stdout), rank=rank, verbose=verbose)
        if output is None:
            show_page(page)
        else:
            show(page.text(), output)
    elif form == "json":
        from psmkit.plan import data

        show(data.render(done), output)
    elif form == "html":
        from psmkit.plan import html

        show(html.render(done, table, rank=rank), output)
    elif form == "timeline":
        from psmkit.plan import picture

        show(picture.page(done), output)
    else:
        from psmkit.plan import picture, view

        show(picture.draw(done, view.focus(done) if rank is None else rank), output)


def _names(schedulers: int) -> list[str]:
    return [name for bit, name in enumerate(_SCHEDULERS) if schedulers >> bit & 1]


def _both(schedulers: int) -> str:
    names = _names(schedulers)
    return "both" if len(names) == len(_SCHEDULERS) else ", ".join(names)


def _table(head: list[str], rows: list[list[str]]) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout) if sys.stdout.isatty() else _WHOLE)
    lines = fit(head, rows, page.width)
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    show_page(page)
