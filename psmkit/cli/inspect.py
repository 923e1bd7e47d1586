"""``psmkit inspect``: Look into a process that hangs: where it waits, and for which rank."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, progress_line, show, show_page, width
from psmkit.model.errors import InputError, PsmkitError
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.live.hosts import Target
    from psmkit.model.inspection import Inspection

__all__ = ["command"]


@click.command(
    "inspect",
    cls=Command,
    examples=(
        "psmkit inspect 4711",
        "psmkit inspect --all -o stacks        # then: psmkit analyze logs stacks",
        "psmkit inspect --ranks hosts.txt --via 'ssh {host} psmkit inspect {pid} --format json'",
    ),
)
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(1))
@click.option("--all", "every", is_flag=True, help="All processes of this user here that use NCCL, RCCL or libpsm.")
@click.option("--ranks", "listed", metavar="FILE", help="The processes of a file: a line `host pid [rank]` for each.")
@click.option(
    "--via",
    metavar="COMMAND",
    help="With --ranks: a command that prints the JSON of {pid} on {host}, such as an ssh. It runs once for each line.",
)
@click.option(
    "--stacks",
    "tool",
    type=click.Choice(("gdb", "eu-stack", "none")),
    help="Tool for native stacks; none: do not stop the process.  [gdb, else eu-stack]",
)
@click.option("--no-python", is_flag=True, help="Do not ask py-spy for Python frames.")
@click.option("--no-state", is_flag=True, help="Do not read the state out of the memory of the process.")
@click.option("--frames", type=click.IntRange(1, 1000), default=40, help="The most frames of a thread.  [40]")
@click.option("--deadline", type=click.FloatRange(0.1), default=60.0, help="Seconds for all processes.  [60]")
@click.option("--parallel", type=click.IntRange(1, 256), help="Processes at a time.  [CPUs here; 32 with --via]")
@click.option("--full", is_flag=True, help="Show all frames of all threads, also of idle ones.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@click.option(
    "-o",
    "output",
    metavar="PATH",
    help="Write JSON there: a folder with a file for each process and look, or for one process a file. The text is shown, too.",
)
def command(
    pids: tuple[int, ...],
    every: bool,
    listed: str | None,
    via: str | None,
    tool: str | None,
    no_python: bool,
    no_state: bool,
    frames: int,
    deadline: float,
    parallel: int | None,
    full: bool,
    form: str,
    output: str | None,
) -> int:
    """Look into a process that runs or hangs, without a restart: its threads and their stacks, what each waits for, the step of the protocol in
    which it stands, and the rank for which it waits.

    gdb (or elfutils' eu-stack) reads native stacks and stops the process for that, typically for less than a second; the time is printed. py-spy
    reads Python frames (pip install 'psmkit[live]'). Both are optional. The process goes on unharmed. The JSON is for `psmkit analyze`.

    Exit status: 0 each process was inspected; 1 something could not be read, and a note says what and why; 2 nothing could be inspected.
    """
    from psmkit.cli import inspect_page
    from psmkit.live import hosts
    from psmkit.live.inspect import Options, inspect

    if sum((bool(pids), every, listed is not None)) != 1:
        raise click.UsageError("Name processes, or give --all, or --ranks FILE.")
    if via is not None:
        if listed is None:
            raise click.UsageError("--via needs --ranks FILE.")
        hosts.check_template(via)
    options = Options(tool, not no_python, not no_state, deadline, frames)
    file = output if len(pids) == 1 and output is not None and not _is_folder(output) else None
    if file is not None:
        _check_file(file)
    if len(pids) == 1:
        if file is None:
            _check_folder(output)
        found = [inspect(pids[0], options)]
    else:
        targets = _targets(pids, every, listed)
        _check_folder(output)
        with progress_line() as line:
            found = hosts.inspect_all(
                targets,
                options,
                via=via,
                deadline=deadline,
                parallel=parallel or inspect_page.default_parallel(via is not None),
                progress=(lambda done, of: line(f"{done} of {of} processes")) if line is not None else None,
            )
    kept = ""
    if file is not None:
        _write(found[0], file)
    elif output is not None:
        kept = _keep(found, output)
    if form == "json":
        from psmkit.model.inspection import to_json

        documents = [to_json(one) for one in found]
        show(json.dumps(documents[0] if len(pids) == 1 else documents, indent=2) + "\n")
    else:
        show_page(inspect_page.page(found, width(sys.stdout), full=full, kept=kept))
    read = [one for one in found if one.threads]
    return 2 if not read else 0 if len(read) == len(found) and all(map(_whole, read)) else 1


def _targets(pids: tuple[int, ...], every: bool, listed: str | None) -> list[Target]:
    from psmkit.live import hosts

    if listed is not None:
        return hosts.read_targets(listed)
    if not every:
        return [hosts.Target("localhost", pid) for pid in dict.fromkeys(pids)]
    targets = hosts.own_processes()
    if not targets:
        raise PsmkitError(
            "no process of this user here has NCCL, RCCL or libpsm: name a pid, or run psmkit where the ranks are"
        )
    return targets


def _whole(one: Inspection) -> bool:
    """Whether the stacks could be read. Missing debug information is no failure."""
    return not any(
        note.what.startswith(("no native stacks", "no Python frames", "the process ended")) for note in one.notes
    )


def _is_folder(output: str) -> bool:
    return output.endswith("/") or Path(output).is_dir()


def _check_file(output: str) -> None:
    """Refuse a file that cannot be written, and one that holds something: two looks at a process tell more than one."""
    check_output(output, "inspection")
    path = Path(output)
    if path.is_file() and path.stat().st_size:
        raise InputError(output, "it exists: name another file, or a folder, which keeps all looks")


def _check_folder(output: str | None) -> None:
    if output is None:
        return
    folder = Path(output)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(output, f"cannot make the folder of the inspections: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(output, "cannot write the inspections: permission denied")


def _keep(found: list[Inspection], output: str) -> str:
    """Write each inspection to a file of its own that does not exist, and say where they are."""
    from psmkit.live.hosts import file_name

    read = [one for one in found if one.threads]
    look = 1
    while any(os.path.lexists(os.path.join(output, file_name(one, look))) for one in read):
        look += 1
    for one in read:
        _write(one, os.path.join(output, file_name(one, look)))
    if not read:
        return ""
    name = file_name(read[0], look) if len(read) == 1 else f"{counted(len(read), 'file')}"
    before = "" if look == 1 else f", look {look}; the earlier ones are kept"
    return f"wrote {name} to {output}{before}"


def _write(one: Inspection, path: str) -> None:
    from psmkit.model.inspection import to_json

    show(json.dumps(to_json(one)) + "\n", path)
