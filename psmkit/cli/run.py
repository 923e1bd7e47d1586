"""``psmkit run``: Run a program and check its CUDA calls."""

from __future__ import annotations

import os

import click

__all__ = ["command"]


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--sanitize",
    type=click.Choice(("handles",)),
    required=True,
    help="handles: watch every CUDA stream, event, memory handle and pointer, and report misuse at the call that does it.",
)
@click.option(
    "--mode",
    type=click.Choice(("warn", "error")),
    default="warn",
    help="warn: report and make the call; error: report and let the call fail.  [warn]",
)
@click.option("--leaks", is_flag=True, help="Report what is left at the end of the process, too.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def command(sanitize: str, mode: str, leaks: bool, program: tuple[str, ...]) -> None:
    """Run CMD with its CUDA calls checked.

    Reports are lines in NCCL's log format, where NCCL_DEBUG_FILE says or on standard output; `psmkit analyze` reads them. They are kept
    in the record file of the process, too (`psmkit records show`). Works over any CUDA 12 or 13, emulated or real; where the program has
    the CUDA runtime linked into itself, only its calls of the driver are seen. The exit status is CMD's.
    """
    from psmkit.lab.sanitizer import environment

    env = environment(mode, leaks=leaks)
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        raise click.ClickException(f"cannot run {program[0]}: {error.strerror}") from None
