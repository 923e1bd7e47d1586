"""The ``psmkit`` command: registers the commands, and is the only place that turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from psmkit.cli.command import LazyGroup

__all__ = ["EXIT_CLEAN", "EXIT_ERROR", "EXIT_FINDINGS", "main"]

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE

# Command -> what it does. The module psmkit.cli.<command> has the same name and is imported when the command runs: `--help` stays fast.
COMMANDS = {
    "analyze": "Find out why a job hung or failed: verdict, ranks, and the lines that prove it.",
    "ops": "List every proxy call and fd exchange in a log.",
    "diff": "Compare a good and a bad log: the first protocol step that differs, per rank.",
    "explain": "Explain a finding code, a message or a log line.",
    "codes": "List the finding codes.",
    "catalogue": "Search the log messages that psmkit understands.",
    "config": "Print the options to compile and link against libpsm.",
    "records": "List, show and remove the record files of processes.",
    "segments": "List and remove shared memory and records of dead processes.",
    "run": "Run a program and check its CUDA calls.",
    "variants": "List the variants of the transports, correct and broken.",
    "plan": "Simulate and check kernel plans: from task to reclaim.",
    "plugin": "Check NCCL plugins, and run them without NCCL.",
    "telemetry": "Export what the profiler plugin measures: OpenTelemetry, Prometheus, files.",
    "tune": "Explain, compare and generate rules for NCCL's tuner.",
    "top": "Show what the ranks of this host are doing: rates, links, stalls.",
    "lab": "Run ranks on emulated GPUs, and inject faults.",
}

# The package that a command needs and its extra: the first part of the module's name -> (package, extra).
_EXTRAS = {
    "elftools": ("pyelftools", "lab"),
    "isal": ("isal", "isal"),
    "opentelemetry": ("opentelemetry", "telemetry"),
    "prometheus_client": ("prometheus-client", "telemetry"),
    "pyarrow": ("pyarrow", "telemetry"),
    "rich": ("rich", "terminal"),
    "scipy": ("scipy", "tune"),
    "zstandard": ("zstandard", "zstd"),
}


class _Commands(LazyGroup):
    prefix = "psmkit.cli."
    summaries = COMMANDS
    #: Other names that a user may think of.
    aliases = {"recorder": "records"}  # noqa: RUF012 - a ClassVar of the base


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from psmkit import __version__

        click.echo(f"psmkit {__version__}")
        ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples=(
        "psmkit analyze logs/             # why did this job hang?",
        "psmkit explain PSM102            # what does this finding mean?",
        "psmkit lab run --out run1        # two ranks on emulated GPUs",
    ),
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an internal error.")
def cli(verbose: bool) -> None:
    """A debugging toolkit for custom NCCL transports.

    Start with `psmkit analyze PATH`, where PATH has the logs of a job that hung or failed.
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
    # Some commands have a -v of their own: it does both.
    verbose = "-v" in arguments or "--verbose" in arguments
    try:
        with cli.make_context("psmkit", arguments.copy()) as ctx:
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
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        from psmkit.model.errors import PsmkitError  # late: --help needs no model

        if isinstance(error, PsmkitError):
            return _complain(str(error), getattr(error, "detail", ()))
        if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").partition(".")[0])):
            return _complain(f"this command needs {extra[0]}: pip install 'psmkit[{extra[1]}]'")
        # A bug must not look like findings (1): scripts would take it for a verdict.
        if verbose:
            import traceback

            traceback.print_exc()
        where = "" if verbose else "; `psmkit -v COMMAND ...` shows the traceback"
        return _complain(f"internal error, please report it: {type(error).__name__}: {error}{where}")


def _complain(message: str, detail: Sequence[str] = ()) -> int:
    from psmkit.report.escape import visible

    line = visible(" ".join(message.split()))
    print("\n".join([f"psmkit: {line}", *map(visible, detail)]), file=sys.stderr)
    return EXIT_ERROR


def _drop_output() -> None:
    # Otherwise the interpreter complains when it flushes standard output at its end.
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)
    except (OSError, ValueError):
        pass
