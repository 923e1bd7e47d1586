"""The ``psmkit`` command: registers the commands, and is the only place that turns errors into exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

__all__ = ["EXIT_CLEAN", "EXIT_ERROR", "EXIT_FINDINGS", "main"]

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell would say
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE

# Command -> what it does. The module psmkit.cli.<command> has the same name and is imported when the command runs: `--help` stays fast.
COMMANDS = {
    "analyze": "Say what became of a job: verdict, ranks, findings with the lines that prove them.",
    "ops": "Every matched proxy call and fd exchange as a table.",
    "diff": "The first protocol step that differs between a good and a bad log, per rank.",
    "explain": "Explain a finding code, a catalogue message or a pasted log line.",
    "codes": "The finding codes.",
    "catalogue": "Search the messages that psmkit understands.",
    "config": "How to compile and link against libpsm.",
    "records": "What processes wrote down about themselves: list, show, prune.",
    "segments": "Shared memory and records that dead processes have left: list, remove.",
    "run": "Run a program with its CUDA handles checked.",
    "variants": "The variants of the transport, right and wrong.",
    "plan": "How tasks become plans and what becomes of those: simulate, check.",
    "plugin": "What a plugin of NCCL holds, and which releases load it.",
    "telemetry": "What the profiler plugin saw, to OpenTelemetry, Prometheus, or a file.",
    "tune": "Rules for NCCL's tuner: why one decides, and rules made from measurements.",
    "top": "What the ranks of this host do now: rates, links, what is stuck.",
    "lab": "Run ranks on pretended GPUs, and break them on purpose.",
}

#: Other names that a user may think of.
_ALSO = {"recorder": "records"}


class _Commands(click.Group):
    """Imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = _ALSO.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"psmkit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from psmkit import __version__

        click.echo(f"psmkit {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """A debugging toolkit for custom NCCL transports.

    Start with `psmkit analyze PATH`: the logs of a job that hung or failed.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 clean, 1 findings, 2 cannot analyse."""
    arguments = list(sys.argv[1:] if args is None else args)
    if "_PSMKIT_COMPLETE" in os.environ:
        cli.main(args=arguments, prog_name="psmkit")
    if not arguments:
        arguments = ["--help"]
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_CLOSED_PIPE


def _run(arguments: list[str]) -> int:
    try:
        with cli.make_context("psmkit", arguments) as ctx:
            status = cli.invoke(ctx)
        return status if isinstance(status, int) else EXIT_CLEAN
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _complain(error.format_message())
    except BrokenPipeError:
        raise
    except OSError as error:
        name = error.filename or _written_by(error)
        return _complain(f"{name}: {error.strerror}" if name else str(error))
    except Exception as error:
        from psmkit.model.errors import PsmkitError  # late: --help needs no model

        if isinstance(error, PsmkitError):
            return _complain(str(error))
        # A bug must not look like findings (1): scripts would take it for a verdict.
        if "-v" in arguments or "--verbose" in arguments:
            import traceback

            traceback.print_exc()
        return _complain(f"internal error, please report it: {type(error).__name__}: {error} (-v shows where)")


def _written_by(error: OSError) -> str | None:
    """The file of a failed write: write(2) does not say which it is, the innermost open file that the error came past does."""
    name: str | None = None
    step = error.__traceback__
    while step is not None:
        for value in step.tb_frame.f_locals.values():
            if isinstance(value, io.IOBase) and isinstance(path := getattr(value, "name", None), str | os.PathLike):
                name = os.fsdecode(path)
        step = step.tb_next
    return name or ("standard output" if error.errno == errno.ENOSPC else None)


def _complain(message: str) -> int:
    from psmkit.report.escape import visible

    line = visible(" ".join(message.split()))
    print(f"psmkit: {line}", file=sys.stderr)
    return EXIT_ERROR


def _drop_output() -> None:
    # Otherwise the interpreter complains when it flushes standard output at its end.
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
    except (OSError, ValueError):
        pass
