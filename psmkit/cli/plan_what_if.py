"""``psmkit plan what-if``: what a small run costs in a job of many more ranks."""

from __future__ import annotations

import sys

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, show, show_page, width
from psmkit.model.errors import PsmkitError

__all__ = ["command"]


class _MissingError(PsmkitError):
    pass


@click.command(
    "what-if",
    cls=Command,
    examples=(
        "psmkit plan what-if small/ --ranks 10240",
        "psmkit plan what-if small/ --ranks 1024 --ranks-per-node 4 --processors 64 --format json",
        "psmkit plan what-if logs/ traces/ --ranks 512",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="RUN|RECORD|LOG...")
@click.option("--ranks", type=click.IntRange(1, 1 << 20), required=True, help="Ranks of the larger job.")
@click.option("--ranks-per-node", type=click.IntRange(1, 1024), default=8, help="Ranks of one of its nodes.  [8]")
@click.option(
    "--processors",
    type=click.IntRange(1, 4096),
    help="Processors of a node, which its ranks share.  [enough: no rank waits for one]",
)
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of the resampling behind the bounds.  [1]")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@click.option("--output", metavar="FILE", help="Write the result to FILE.  [standard output]")
def command(
    paths: tuple[str, ...],
    ranks: int,
    ranks_per_node: int,
    processors: int | None,
    seed: int,
    form: str,
    output: str | None,
) -> int:
    """Replay a small run at another size: plans, memory, descriptors, set-up time.

    RUN is a folder of `psmkit lab run`; RECORD and LOG are record files with plans (docs/plan_trace.md) and logs of their ranks with
    NCCL_DEBUG=INFO. The plans of the larger job are cut by libpsm's scheduler; what a connection costs was measured in the small run. The
    output says which rank is the worst and why, what was measured, what was guessed, and what the model does not have.

    Exit status: 0 done; 1 the recorded plans do not come back at the recorded size; 2 bad input.
    """
    check_output(output, "what-if")
    try:
        import psmkit.plan  # noqa: F401
    except ImportError as error:
        raise _MissingError(
            f"no libpsm for this Python: build it with `make setup`, or install a psmkit wheel for this system ({error})"
        ) from None
    from psmkit.cli.plan_what_if_inputs import read
    from psmkit.plan import what_if_page
    from psmkit.plan.what_if import what_if

    done = what_if(read(paths), ranks, ranks_per_node, processors=processors, seed=seed)
    if form == "json":
        show(what_if_page.render(done), output)
    elif output is None:
        show_page(what_if_page.layout(done, width(sys.stdout)))
    else:
        show(what_if_page.layout(done, width(sys.stdout)).text(), output)
    return 0 if done.replay is None or done.replay.same == done.replay.recorded else 1
