"""``psmkit lab matrix``: the same scenarios over several NCCL libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli import lab_options as shared
from psmkit.cli.command import Command
from psmkit.cli.lab_nccl import LISTS
from psmkit.cli.output import show, show_page
from psmkit.cli.settings_option import settings_option

if TYPE_CHECKING:
    from psmkit.cli.lab_matrix_page import Try
    from psmkit.lab.repeated import Candidate, Scenario

__all__ = ["matrix"]


def _ranks(_ctx: click.Context, _param: click.Parameter, text: str) -> list[int]:
    numbers = text.split(",")
    if not all(n.isdecimal() and 1 <= int(n) <= 64 for n in numbers):
        raise click.BadParameter(f"{text!r}: expected numbers of ranks from 1 to 64, such as 2,4")
    return [int(n) for n in numbers]


@click.command(
    "matrix",
    cls=Command,
    examples=(
        "psmkit lab matrix --nccl ~/nccl-2.28/build ~/nccl-2.30/build --env NCCL_PASS_SM=1 --out m1",
        "psmkit lab matrix --nccl good/lib bad/lib --pattern alltoall --ranks 4 --runs 20 --deadline 30 --out m2",
        "psmkit lab matrix --nccl build/lib,build/kernels/libpsm_nccl_kernels.so --pattern allreduce --out m3",
    ),
)
@click.option("--nccl", "first", metavar="LIB", required=True, help="The first library; others can follow. See below.")
@click.argument("others", nargs=-1, metavar="[LIB]...")
@click.option("--runs", type=click.IntRange(1, 1000), default=1, help="Runs of each scenario over each library.  [1]")
@click.option("--ranks", default="2", metavar="N[,...]", callback=_ranks, help="Numbers of ranks.  [2]")
@shared.nodes_option
@shared.link_option
@shared.lists(LISTS, "psmkit.lab.nccl", "psmkit.lab.transfer")
@click.option("--size", default="64K", metavar="BYTES[,...]", help="Bytes per peer, or of a rank's part.  [64K]")
@click.option("--iters", type=click.IntRange(0), default=2, help="Groups or collectives of a case.  [2]")
@shared.seed_option
@settings_option("Set an environment variable of the ranks.")
@shared.fault_option
@shared.deadline_option()
@shared.debug_option
@shared.out_option
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "markdown")),
    default="text",
    help="Output format; markdown: the table alone.  [text]",
)
def matrix(first: str, others: tuple[str, ...], runs: int, size: str, folder: Path, form: str, **given: Any) -> int:
    """Run scenarios over several NCCL libraries, and compare them: does it work, how often, how long, with which steps.

    LIB is a libnccl.so, its folder, or a built tree, as `psmkit lab nccl --lib` takes it; LIB,KERNELS adds the library that runs its kernels
    on the host. Each number of ranks and each pattern is a scenario; --type, --op, --size, --app-stream and --memory make its cases. The
    libraries take turns, --runs times. Each run has a folder below that of --out.

    Hangs may be intermittent: a rate is shown with the bounds that the number of runs allows (95 %), and, beside that of the first library,
    with the probability that the two are the same. Steps are compared with those of the library before, as by `psmkit diff`.

    Exit status: 0 all runs work; 1 one hung or failed; 2 a run could not start; 3 all data is correct, but a run is in doubt.
    """
    from psmkit.cli.lab_matrix_page import Table
    from psmkit.lab import repeated, transfer

    libraries = repeated.candidates((first, *others))
    scenarios = _scenarios(size, given)
    transfer.fresh(folder)
    tries: dict[tuple[str, str], list[Try]] = {(s.name, c.name): [] for s in scenarios for c in libraries}

    def go(candidate: Candidate, scenario: Scenario, number: int) -> None:
        place = folder / f"{candidate.name} {scenario.name}".replace(" ", "-").replace(",", "") / f"run-{number + 1}"
        done = _run(candidate, scenario, place, given)
        tries[scenario.name, candidate.name].append(done)
        said = f"{candidate.name}, {scenario.name}, run {number + 1} of {runs}: {done.outcome}, {done.seconds:.1f} s"
        click.echo(f"psmkit lab: {said}", err=True)

    repeated.play(libraries, scenarios, runs, go)
    table = Table(libraries, scenarios, tries, runs)
    if form == "json":
        show(table.json())
    elif form == "markdown":
        show(table.markdown())
    else:
        show_page(table.page())
    return table.status


def _scenarios(size: str, given: dict[str, Any]) -> list[Scenario]:
    from psmkit.lab import nccl as lab
    from psmkit.lab import repeated, transfer

    cases: dict[str, list[lab.NcclCase]] = {}
    for number, each, words in shared.combinations(LISTS, given, size, lab, transfer):
        pattern, kind, op, stream, memory = words
        cases.setdefault(pattern, []).append(
            lab.NcclCase(
                name=str(number),
                pattern=pattern,
                size=each,
                iters=given["iters"],
                type=kind,
                op=op,
                app_stream=stream,
                memory=memory,
                seed=given["seed"] % (1 << 64),
            )
        )
    return [
        repeated.Scenario(f"{pattern}, {ranks} ranks", ranks, tuple(each))
        for ranks in given["ranks"]
        for pattern, each in cases.items()
    ]


def _run(candidate: Candidate, scenario: Scenario, folder: Path, given: dict[str, Any]) -> Try:
    from psmkit import analyze
    from psmkit.cli.lab_matrix_page import Try
    from psmkit.cli.lab_page import judge
    from psmkit.lab import nccl as lab
    from psmkit.lab import repeated
    from psmkit.lab.emulation import Emulation
    from psmkit.lab.topology import LINKS, Machine
    from psmkit.model.errors import PsmkitError

    deadline: float = given["deadline"]
    nodes: int = given["nodes"]
    environment: dict[str, str] = given["settings"]
    if candidate.kernels:
        environment = {"PSM_HOSTCUDA_KERNELS": str(candidate.kernels)} | environment
    done = lab.start(
        candidate.library,
        scenario.cases,
        scenario.ranks,
        folder,
        nodes=nodes,
        machine=Machine(-(-scenario.ranks // nodes), nodes, next(k for k in LINKS if k == given["link"])),
        deadline=deadline,
        emulation=Emulation(folder, faults=given["faults"], stall_report=min(10.0, deadline / 4), leaks=True),
        environment=environment,
        debug=given["debug"],
    )
    report = None
    try:
        if evidence := done.evidence():
            report = analyze([str(path) for path in evidence])
    except PsmkitError as error:  # nothing was logged
        click.echo(f"psmkit lab: {folder}: {error}", err=True)
    status, doubt = judge(done, report)
    ranks = done.outcome.ranks
    outcome = repeated.outcome_of(status, (rank.state for rank in ranks), report.verdict.value if report else "")
    why = "" if outcome == "works" else doubt
    if outcome in ("hangs", "fails"):
        why = report.reason if report else next((rank.text for rank in ranks if rank.text), "")
    return Try(outcome, done.outcome.seconds, folder, why, report.coverage.shapes if report else ())
