"""``psmkit plan lint``: says whether a group of sends and recvs is too large for a release, its channels and its work FIFO."""

from __future__ import annotations

import sys

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, show, show_page, width
from psmkit.model.errors import PsmkitError

__all__ = ["command"]

_LEAST_FIFO, _MOST_FIFO = 1 << 10, 1 << 30
#: Numbers of p2p channels, and of those of a peer, that jobs have: an answer has to be the same with each if nobody gave them.
_CHANNELS = ((2, 2), (8, 1), (16, 4), (32, 4), (32, 32), (64, 16))
_OPTIONS = {
    "release": "--nccl",
    "ranks": "--ranks",
    "nodes": "--nodes",
    "p2p_channels": "--p2p-channels",
    "p2p_channels_per_peer": "--p2p-channels-per-peer",
    "work_fifo_bytes": "--fifo-bytes",
    "p2p_chunk_bytes": "--chunk-bytes",
}


class _MissingError(PsmkitError):
    pass


class _NothingError(PsmkitError):
    pass


@click.command(
    "lint",
    cls=Command,
    examples=(
        "psmkit plan lint batch.tasks --ranks 8 --nccl 2.27.5",
        "psmkit plan lint batch.tasks logs/",
        "psmkit plan lint nccl_trace_rank_* --nccl 2.30.7 --p2p-channels 32 --p2p-channels-per-peer 4",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="TASKS|DUMP|LOG...")
@click.option("--ranks", type=click.IntRange(1, 1024), help="Number of ranks.  [from the log or the dumps]")
@click.option("--nccl", "nccl", metavar="VERSION", help="Release of NCCL, such as 2.29.7.  [from the log]")
@click.option("--nodes", type=click.IntRange(1), help="Number of nodes.  [from the log, else 1]")
@click.option(
    "--p2p-channels", type=click.IntRange(1, 64), help="Channels of sends and recvs.  [from the log, else 32]"
)
@click.option("--p2p-channels-per-peer", type=click.IntRange(1, 64), help="Channels of a peer.  [from the log, else 2]")
@click.option(
    "--fifo-bytes",
    type=click.IntRange(_LEAST_FIFO, _MOST_FIFO),
    help="NCCL_WORK_FIFO_BYTES, a power of two.  [from the log, else 1 MiB]",
)
@click.option(
    "--chunk-bytes",
    type=click.IntRange(8, 1 << 30),
    help="Chunk size of sends and recvs.  [from the log, else 128 KiB]",
)
@click.option("--mix-epochs", is_flag=True, help="As with NCCL_P2P_EPOCH_ENABLE=0.")
@click.option("--group", metavar="NAME", help="Of dumps: the process group.  [the only one]")
@click.option("--no-search", is_flag=True, help="Do not look for the largest safe group and for changes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "svg")),
    default="text",
    help="Output format; svg is a picture of the ranks that wait.  [text]",
)
@click.option("--output", metavar="FILE", help="Write the result to FILE.  [standard output]")
@click.option("-v", "--verbose", is_flag=True, help="Show all that waits.")
def command(
    paths: tuple[str, ...],
    ranks: int | None,
    nccl: str | None,
    nodes: int | None,
    p2p_channels: int | None,
    p2p_channels_per_peer: int | None,
    fifo_bytes: int | None,
    chunk_bytes: int | None,
    mix_epochs: bool,
    group: str | None,
    no_search: bool,
    form: str,
    output: str | None,
    verbose: bool,
) -> int:
    """Say whether a group of sends and recvs ends on this release, with these channels and this work FIFO, and what makes it safe.

    TASKS is a file of `psmkit plan simulate`; DUMP is a dump of torch's flight recorder of each rank. A LOG with NCCL_DEBUG=INFO gives the
    release and the settings. "safe" and "hangs" rest on a run of all plans or on arithmetic; what the model does not cover is "not
    decided". docs/plan_lint.md explains the two bugs.

    Exit status: 0 safe; 1 it hangs or overwrites; 2 bad input; 3 not decided.
    """
    check_output(output, "lint")
    try:
        import psmkit.plan  # noqa: F401
    except ImportError as error:
        raise _MissingError(
            f"no libpsm for this Python: build it with `make setup`, or install a psmkit wheel for this system ({error})"
        ) from None
    from psmkit.cli.plan_lint_inputs import read
    from psmkit.plan import Config, Scheduler, lint_page, lint_picture
    from psmkit.plan.lint import Answer, lint
    from psmkit.plan.releases import release_of, version

    found = read(paths, ranks, group)
    options = {
        "ranks": ranks,
        "nodes": nodes,
        "p2p_channels": p2p_channels,
        "p2p_channels_per_peer": p2p_channels_per_peer,
        "work_fifo_bytes": fifo_bytes,
        "p2p_chunk_bytes": chunk_bytes,
    }
    if nccl is not None:
        options["release"] = _release(nccl)
    given = found.told | {name: value for name, value in options.items() if value is not None}
    for name, text in found.several.items():
        if name not in given:
            raise click.UsageError(f"{text}: give {_OPTIONS[name]} of the group's communicator")
    if "release" not in given:
        raise click.UsageError("which release? give --nccl VERSION, such as 2.29.7, or a log that shows one")
    if release_of(given["release"]) is None:
        old = version(given["release"])
        raise click.BadParameter(f"{old}: plans of NCCL 2.22.3 and later can be checked", param_hint="--nccl")
    if found.steps is None:
        raise click.UsageError("no groups in the input: a log gives the settings only; add a task file or dumps")
    if "ranks" not in given:
        raise click.UsageError("how many ranks? give --ranks N, or a log of the job")
    defaults = {
        "nodes": 1,
        "p2p_channels": 32,
        "p2p_channels_per_peer": min(2, given.get("p2p_channels", 2)),
        "work_fifo_bytes": 1 << 20,
        "p2p_chunk_bytes": 0,
    }
    assumed = [name for name in defaults if name not in given and name != "nodes"]
    values = defaults | given
    config = Config(
        scheduler=Scheduler.PLANNER,
        release=values["release"],
        ranks=values["ranks"],
        nodes=values["nodes"],
        channels=values["p2p_channels"],
        p2p_channels=values["p2p_channels"],
        p2p_channels_per_peer=values["p2p_channels_per_peer"],
        work_fifo_bytes=values["work_fifo_bytes"],
        p2p_chunk_bytes=values["p2p_chunk_bytes"],
        pass_sm=False,
        mix_epochs=mix_epochs,
        ll_threshold=16 << 10,
    )
    others = _CHANNELS if {"p2p_channels", "p2p_channels_per_peer"} & set(assumed) else ()
    done = lint(config, found.steps, search=not no_search, notes=found.notes, channels=others)
    if form == "json":
        show(lint_page.render(done, assumed=assumed), output)
    elif form == "svg":
        picture = lint_picture.draw(done)
        if picture is None:
            raise _NothingError(f"{done.answer.value}: no rank waits, so there is no picture: {done.why}")
        show(picture, output)
    else:
        page = lint_page.layout(done, width(sys.stdout), assumed=assumed, verbose=verbose)
        if output is None:
            show_page(page)
        else:
            show(page.text(), output)
    return {Answer.SAFE: 0, Answer.UNDECIDED: 3}.get(done.answer, 1)


def _release(text: str) -> int:
    from psmkit.plan.releases import number

    found = number(text)
    if found is None:
        raise click.BadParameter(f"{text!r}, expected a release such as 2.29.7", param_hint="--nccl")
    return found
