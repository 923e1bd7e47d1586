"""``psmkit reproduce``: Make a scenario that hangs as a job did, from its evidence."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import progress_line, show_page, width
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.reproduce.case import Case
    from psmkit.reproduce.runs import Returned
    from psmkit.reproduce.shrink import Shrunk

__all__ = ["command"]

_NO_SYMPTOM = 3


class _MissingError(PsmkitError):
    pass


@click.command(
    "reproduce",
    cls=Command,
    examples=(
        "psmkit reproduce logs/ -o case",
        "psmkit reproduce nccl_trace_rank_* -o case --no-lab",
        "psmkit reproduce logs/ -o case --shrink",
        "psmkit reproduce case -o case2 --nccl ~/nccl/build --kernels libpsm_nccl_kernels.so",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the case to this new folder.",
)
@click.option("--shrink", "smaller", is_flag=True, help="Look for the smallest case that still shows the symptom.")
@click.option("--seed", type=click.IntRange(0), default=1, help="With --shrink: the order of its trials.  [1]")
@click.option("--lab/--no-lab", default=True, help="Run the case on libpsm's lab, too.  [--lab]")
@click.option(
    "--nccl",
    "place",
    metavar="LIB",
    type=click.Path(exists=True, path_type=Path),
    help="Run the case on this NCCL over emulated CUDA, too: a libnccl.so or its folder, as for `psmkit lab nccl --lib`.",
)
@click.option(
    "--kernels",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="LIB",
    help="With --nccl: a library that runs NCCL's kernels on the host.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(0.1),
    default=20.0,
    help="Seconds until a run on the lab or on NCCL that has not ended is stopped.  [20]",
)
def command(
    paths: tuple[str, ...],
    out: Path,
    smaller: bool,
    seed: int,
    lab: bool,
    place: Path | None,
    kernels: str | None,
    deadline: float,
) -> int:
    """Take the operations of a job from its evidence, and say where they hang again.

    PATH is a log of NCCL with the calls (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL or ALL), a dump of torch's flight recorder, a record of
    psmkit, a recording of `psmkit telemetry`, an answer of NCCL's RAS, or a folder of them; or the folder of a case, to run it again. DIR gets case.tasks (docs/tasks.md), case.toml and README.md, which says what was taken from where and what is a guess. The case runs
    on libpsm's simulator of plans, on its lab, and with --nccl on a real NCCL; the symptom returns where the analysis of the run says the same verdict, kind of finding and culprits.
    docs/reproduce.md has the details.

    Exit status: 0 the symptom returns wherever the case ran; 1 it does not on one of them; 2 bad input; 3 the input shows
    no symptom that calls explain: it is healthy, or a rank died, say.
    """
    if not all(paths):
        raise click.UsageError("PATH is an empty name")
    try:
        import psmkit.plan  # noqa: F401
    except ImportError as error:
        raise _MissingError(
            f"no libpsm for this Python: build it with `make setup`, or install a psmkit wheel for this system ({error})"
        ) from None
    from psmkit.lab import nccl_library
    from psmkit.lab.leftovers import new_folder
    from psmkit.reproduce.case import extract
    from psmkit.reproduce.recent import recent
    from psmkit.reproduce.replay import folder_of, read
    from psmkit.reproduce.runs import TOO_MANY, on_lab, on_nccl, on_simulator
    from psmkit.reproduce.shrink import shrink
    from psmkit.reproduce.write import write

    if kernels is not None and place is None:
        raise click.UsageError("--kernels needs --nccl LIB")
    library = nccl_library.find(place) if place is not None else None
    with new_folder(out) as made, progress_line() as progress:
        tell = progress or (lambda _: None)
        tell("reading")
        played = folder_of(paths)
        case = read(played) if played is not None else extract(paths)
        tell("simulator")
        last = recent(case.operations, case.config.channels)
        runs = case if last is None else replace(case, operations=last)
        results = [TOO_MANY if last is None else on_simulator(runs)]
        if last is not None and len(last) < len(case.operations):
            note = f"the runs have the last {len(last):,} operations: before them all ranks are even"
            case, runs = (replace(one, taken=(*one.taken, note)) for one in (case, runs))
        shrunk = shrink(runs, seed, tell) if smaller and results[0].returns else None
        if shrunk is not None:
            case = runs = shrunk.case
            results = [on_simulator(case)]
        if lab:
            tell("lab")
            results.append(on_lab(runs, deadline, seed, None))
        if library is not None:
            tell("NCCL")
            results.append(on_nccl(runs, library, kernels, deadline, seed))
        tell("")
        notes = [result.text for result in results] + ([_smaller(shrunk)] if shrunk is not None else [])
        write(made, case, notes, deadline)
    _page(out, case, results, shrunk, asked=smaller)
    if not results[0].returns and (case.symptom is None or not case.symptom.kind):
        return _NO_SYMPTOM
    return int(any(result.returns is False for result in results))


def _smaller(shrunk: Shrunk) -> str:
    ranks = ", ".join(map(str, shrunk.ranks))
    return f"shrunk in {counted(shrunk.trials, 'run')} of the simulator; its ranks 0 to {len(shrunk.ranks) - 1} are ranks {ranks} of the job"


def _page(out: Path, case: Case, results: list[Returned], shrunk: Shrunk | None, *, asked: bool) -> None:
    from psmkit.plan.releases import version
    from psmkit.report.layout import Page, Span
    from psmkit.reproduce.symptom import NO_SYMPTOM

    page = Page(width(sys.stdout))
    operations = case.operations
    page.wrap(
        f"{counted(len(operations), 'operation')} of {counted(operations.ranks, 'rank')} in "
        f"{counted(len(operations.used()), 'communicator')}, NCCL {version(case.config.release)}",
        hang="  ",
        lead=Span(f"{out}: ", "heading"),
    )
    symptom = case.symptom
    if symptom is not None and symptom.code:
        page.wrap(
            f"{symptom.verdict}: {symptom.code}: {symptom.title}",
            indent="  ",
            hang="    ",
            lead=Span("symptom: ", "code"),
        )
    elif symptom is not None:
        none = NO_SYMPTOM if symptom.healthy else f"the analysis says {symptom.verdict}"
        page.wrap(f"none: {none}", indent="  ", hang="    ", lead=Span("symptom: ", "code"))
    page.blank()
    for result in results:
        style = {True: "good", False: "error", None: "dim"}[result.returns]
        head, _, rest = result.text.partition(": ")
        page.wrap(rest, indent="  ", hang="    ", lead=Span(f"{head}: ", style))
    if shrunk is not None:
        page.wrap(_smaller(shrunk), indent="  ", hang="    ")
    elif asked:
        page.wrap(
            "not shrunk: the symptom does not return on the simulator in one communicator", indent="  ", hang="    "
        )
    if case.guesses:
        page.blank()
        page.add(Span("Guesses", "heading"))
        for text in case.guesses:
            page.wrap(text, indent="  - ", hang="    ")
    show_page(page)
