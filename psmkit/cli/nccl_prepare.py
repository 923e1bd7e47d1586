"""``psmkit nccl prepare``: an NCCL tree with the transport."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command

if TYPE_CHECKING:
    from psmkit.nccl.prepare import Plan, Prepared

__all__ = ["command"]


@click.command(
    "prepare",
    cls=Command,
    examples=(
        "psmkit nccl prepare ~/nccl --out with-psm",
        "psmkit nccl prepare ~/nccl   # only show what would change",
        "psmkit nccl prepare ~/fork --plan-trace --out traced",
    ),
)
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", "folder", type=click.Path(path_type=Path), help="A new folder for the copy and what is built.")
@click.option("--plan-trace", is_flag=True, help="Record kernel plans: the macros of docs/plan_trace.md, too.")
def command(source: Path, folder: Path | None, plan_trace: bool) -> int:
    """Copy the NCCL tree SOURCE, put the transport into the copy, and compile psmkit's part against it.

    A plain tree gets the edits of docs/linking.md. In a fork with PassSM hooks psmkit's transport replaces the fork's own. A tree with a place
    that psmkit does not recognise is refused, with the file and what was looked for. SOURCE stays as it is. The command prints the build of
    the copy; the flags are for your own build, too.
    """
    from psmkit.nccl import prepare as work

    plan = work.look(source, plan_trace=plan_trace)
    _show(plan)
    if folder is None:
        click.echo("Nothing was changed. Give --out DIR to make a copy with these changes.")
        return 0
    _next(work.prepare(plan, folder))
    return 0


def _show(plan: Plan) -> None:
    kind = "a fork with PassSM hooks" if plan.hooked else "a plain tree, without PassSM hooks"
    click.echo(f"{plan.tree}: NCCL {plan.release}, {kind}")
    if plan.hooked:
        click.echo("  src/transport/psm_p2p.cc: leave it out, psmkit's transport replaces it")
    for change in plan.changes:
        click.echo(f"  {change.file}:{change.line}: {change.what}")


def _next(done: Prepared) -> None:
    folder = done.folder
    click.echo(f"""
made:
  {folder}/nccl   the copy with these changes
  {folder}/psm    libpsm_nccl.a, compiled against the copy
  {folder}/cuda   a CUDA_HOME for emulated CUDA: bin/nvcc is psm-nvcc

build it for emulated CUDA (the host side only):
  LDFLAGS={shlex.quote(" ".join(done.link))} \\
    {shlex.join(done.command)}

for GPUs: the same with your own CUDA_HOME. In another build add to the link of libnccl.so, behind NCCL's objects:
  {" ".join(done.link)}

then:
  psmkit nccl verify {folder}/build/lib/libnccl.so.2""")
