"""The ``psmkit`` command: finds the commands, and is the only place that turns errors into exit codes."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from psmkit.cli.command import LazyGroup

__all__ = ["EXIT_CLEAN", "EXIT_ERROR", "EXIT_FINDINGS", "main"]

EXIT_CLEAN = 0
EXIT_FINDINGS = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE

_HEAD = re.compile(r'"""``psmkit (\w+)``: (.+?)(?:""")?\n')


def _commands() -> dict[str, str]:
    # psmkit/cli/NAME.py is the command NAME when its docstring begins with "``psmkit NAME``: ", and the rest of that line is its
    # summary. The line is read, not imported: the module is imported when the command runs, so `--help` stays fast.
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        with path.open(encoding="utf-8") as file:
            head = _HEAD.match(file.readline())
        if head and head[1] == path.stem:
            found[head[1]] = head[2]
    return found


#: Command -> what it does.
COMMANDS = _commands()

# The package that a command needs and its extra: the first part of the module's name -> (package, extra).
_EXTRAS = {
    "clang": ("libclang", "audit"),
    "drgn": ("drgn", "audit"),
    "elftools": ("pyelftools", "lab"),
    "isal": ("isal", "isal"),
    "mcp": ("mcp", "mcp"),
    "numpy": ("numpy", "numpy"),
    "opentelemetry": ("opentelemetry", "telemetry"),
    "perfetto": ("perfetto", "perfetto"),
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
    _open_standard_streams()
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


def _open_standard_streams() -> None:
    """Open /dev/null in place of a standard stream that is closed: else the next file gets its number, and with it the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            sink = os.open(os.devnull, os.O_RDWR)
            if sink != number:
                os.dup2(sink, number)
                os.close(sink)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 (it stays open)


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
        return _complain(error.format_message() + _format_hint(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        name = error.filename or _written_by(error)
        return _complain(f"{name}: {error.strerror}" if name else str(error))
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


def _format_hint(error: click.ClickException) -> str:
    """``; use --format json`` for an unknown option that is called like a format of the command."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    name = error.option_name.lstrip("-")
    for option in error.ctx.command.params:
        if "--format" in option.opts and isinstance(option.type, click.Choice) and name in option.type.choices:
            return f" Use --format {name}."
    return ""


def _written_by(error: OSError) -> str | None:
    """The file of a failed write: write(2) does not say which it is, the innermost open file that the error came past does."""
    name: str | None = None
    step = error.__traceback__
    while step is not None:
        for value in step.tb_frame.f_locals.values():
            if isinstance(value, io.IOBase) and isinstance(path := getattr(value, "name", None), str | os.PathLike):
                name = os.fsdecode(path)
        step = step.tb_next
    return name or ("standard output" if error.errno in (errno.ENOSPC, errno.EBADF) else None)


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
