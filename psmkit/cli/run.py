"""``psmkit run``: Run a program and check its CUDA calls."""

from __future__ import annotations

import os

import click

from psmkit.cli.command import Command

__all__ = ["command"]


@click.command(
    "run",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=(
        "psmkit run --sanitize handles -- ./all_reduce_perf -g 2",
        "psmkit run --sanitize handles --mode error --leaks -- python train.py",
    ),
)
@click.option(
    "--sanitize",
    type=click.Choice(("handles",)),
    required=True,
    help="handles: track every CUDA stream, event, memory handle and pointer, and report misuse at the offending call.",
)
@click.option(
    "--mode",
    type=click.Choice(("warn", "error")),
    default="warn",
    help="warn: report, then make the call; error: report, then let the call fail.  [warn]",
)
@click.option("--leaks", is_flag=True, help="Also report what is not released at the end of the process.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def command(sanitize: str, mode: str, leaks: bool, program: tuple[str, ...]) -> None:
    """Run CMD with its CUDA calls checked.

    Reports are lines in NCCL's log format. They go to NCCL_DEBUG_FILE, or to standard output; `psmkit analyze` reads them. The record
    file of the process keeps them, too (`psmkit records show`). The check works with CUDA 12 and 13, emulated or real. If the program
    links the CUDA runtime statically, only its calls of the driver are checked.

    The exit status is that of CMD.
    """
    from psmkit.lab.sanitizer import environment

    env = environment(mode, leaks=leaks)
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        raise click.ClickException(f"cannot run {program[0]}: {error.strerror}") from None
