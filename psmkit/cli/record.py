"""``psmkit record``: Run a command and pack all evidence of its job into one file."""

from __future__ import annotations

from pathlib import Path

import click

from psmkit.cli.command import Command

__all__ = ["command"]


@click.command(
    "record",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    examples=(
        "psmkit record -- ./all_reduce_perf -g 8",
        "psmkit record -o run1 --stall 120 -- torchrun --nproc-per-node 8 train.py",
        "psmkit record --salvage run1.psmkit     # pack what a killed agent left",
    ),
)
@click.option("-o", "--out", "name", metavar="NAME", help="Write NAME.psmkit.tar.zst.  [from host and time]")
@click.option(
    "--stall",
    metavar="SECONDS",
    default="300",
    show_default=True,
    help="Take evidence when no line, record or output came for so long; never: do not.",
)
@click.option(
    "--ignore-output", "deaf", is_flag=True, help="Output is no progress: the launcher prints while the ranks hang."
)
@click.option("--end", is_flag=True, help="End the job when it hangs for sure, after its evidence was taken.")
@click.option("--telemetry", is_flag=True, help="Load the profiler plugin, which records every operation.")
@click.option("--torch/--no-torch", default=True, help="Set up PyTorch's flight recorder.  [--torch]")
@click.option("-v", "--verbose", is_flag=True, help="Print the settings of the command.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing of its own.")
@click.option(
    "--salvage", metavar="FOLDER", type=click.Path(path_type=Path), help="Pack the folder that a killed agent left."
)
@click.option(
    "--wait", type=float, hidden=True, help="With --salvage: pack when the last agent is gone, within SECONDS."
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
def command(
    name: str | None,
    stall: str,
    deaf: bool,
    end: bool,
    telemetry: bool,
    torch: bool,
    verbose: bool,
    quiet: bool,
    salvage: Path | None,
    wait: float | None,
    program: tuple[str, ...],
) -> None:
    """Run CMD with settings for complete logs, watch its processes, and pack logs, records, stacks and facts into one archive.

    Output of CMD passes through. Your own settings stay. At a hang, at the death of a rank, at Ctrl-C and at the end the agent takes
    what there is; `psmkit analyze` and `psmkit report` read the archive.

    Below a launcher (mpirun -n 8 psmkit record -- ./prog) the agents of a host write one archive together.

    The first Ctrl-C takes evidence and then reaches CMD, the second ends CMD now. The exit status is that of CMD.
    """
    from psmkit.live.recording import agent, archive
    from psmkit.live.recording.layout import SUFFIX, RecordError

    if salvage is not None:
        if program:
            raise click.UsageError("--salvage packs a folder and runs no command")
        if wait is not None:
            archive.wait_and_pack(salvage, wait)
            return
        click.echo(f"psmkit record: wrote {archive.salvage(salvage)}", err=True)
        return
    if not program:
        raise click.UsageError("no command: psmkit record -- CMD [ARG]...")
    if name is not None:
        name = name.removesuffix(".tar.zst").removesuffix(".tar.gz").removesuffix(SUFFIX)
    options = agent.Options(
        name=name,
        stall=_seconds(stall),
        deaf=deaf,
        end=end,
        torch=torch,
        profiler=_profiler() if telemetry else None,
        verbose=verbose,
        quiet=quiet,
        version=_version(),
    )
    try:
        code = agent.record(program, options)
    except RecordError as error:
        if (status := getattr(error, "status", None)) is None:
            raise
        click.echo(f"psmkit: {error}", err=True)
        code = status
    agent.leave(code)


def _seconds(text: str) -> float | None:
    if text == "never":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < 1e9:
        raise click.BadParameter(f"{text!r} is no number of seconds from 1 on, and not 'never'", param_hint="--stall")
    return seconds


def _profiler() -> str:
    from psmkit.cli.config import tree

    return str(tree() / "lib" / "libnccl-profiler-psm.so")


def _version() -> str:
    from psmkit import __version__

    return __version__
