"""The command line as a whole: interrupts, internal errors, missing extras, and the examples of its help."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from psmkit.cli import codes
from psmkit.cli.app import cli

from .conftest import Result

Cli = Callable[..., Result]
COMMANDS: dict[str, click.Command] = {}


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, (*path, name))


COMMANDS.update(walk(cli, ("psmkit",)))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_of_each_command_has_examples(psmkit_cli: Cli, path: str) -> None:
    done = psmkit_cli(*path.split()[1:], "--help")
    assert done.status == 0 and done.err == ""
    usage, _, examples = done.out.partition("\nExamples:\n")
    assert usage.startswith("Usage: psmkit") and examples.strip()
    assert all(line.startswith(f"  {path}") for line in examples.splitlines() if line)


# Examples of commands that read only psmkit's own data.
NEED_NO_FILE = (
    "catalogue",
    "codes",
    "config",
    "explain",
    "variants",
    "plan rules",
    "plan variants",
    "plugin drive --list",
)
ALONE = [
    example
    for command in COMMANDS.values()
    for example in getattr(command, "examples", ())
    if example.removeprefix("psmkit ").startswith(NEED_NO_FILE) and not set(example) & set("|<>")
]


@pytest.mark.parametrize("example", ALONE)
def test_an_example_that_needs_no_file_shows_something(psmkit_cli: Cli, example: str) -> None:
    done = psmkit_cli(*shlex.split(example, comments=True)[1:])
    assert (done.status, done.err) == (0, "") and done.out.strip()


@pytest.mark.parametrize(
    ("words", "near"), [(("analyz",), "analyze"), (("plugin", "chek"), "check"), (("lab", "rn"), "run")]
)
def test_a_misspelt_command_is_answered_with_the_nearest(psmkit_cli: Cli, words: tuple[str, ...], near: str) -> None:
    done = psmkit_cli(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err == f"psmkit: No such command '{words[-1]}'; did you mean {near}?\n"


def test_a_command_that_resembles_none_is_refused_without_a_guess(psmkit_cli: Cli) -> None:
    done = psmkit_cli("zebra")
    assert done.status == 2 and "No such command 'zebra'" in done.err and "did you mean" not in done.err


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_parse(path: str) -> None:
    found = getattr(COMMANDS[path], "examples", ())
    assert found
    for example in found:
        words = shlex.split(example, comments=True)
        # What comes behind a pipe or goes into a file is the shell's.
        words = words[: next((i for i, word in enumerate(words) if word in ("|", ">", "<")), len(words))]
        command, context = cli, click.Context(cli, info_name="psmkit", resilient_parsing=True)
        assert words.pop(0) == "psmkit"
        while isinstance(command, click.Group) and words and (inner := command.get_command(context, words[0])):
            context = click.Context(inner, context, words.pop(0), resilient_parsing=True)
            command = inner
        # Values are checked as in a run; only the files of an example do not exist.
        parsed = command.make_parser(context).parse_args(list(words))
        assert not parsed[1], f"{example}: {parsed[1]} is left over"
        for param in command.get_params(context):
            value = parsed[0].get(param.name or "")
            if param.required:
                assert value, f"{example}: {param.name} is missing"
            if isinstance(value, str | tuple) and isinstance(
                param.type, click.Choice | click.IntRange | click.FloatRange
            ):
                param.type_cast_value(context, value)


def test_console_script_starts_where_interrupts_are_caught() -> None:
    (script,) = entry_points(group="console_scripts", name="psmkit")
    assert script.value == "psmkit.cli:main"


def test_interrupt_during_imports_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "psmkit", "analyze", "x"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def broken(*_arguments: object, **_options: object) -> None:
    raise RuntimeError("a bug of ours")


def test_internal_error_names_the_option_that_shows_its_traceback(
    psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes.command, "callback", broken)
    done = psmkit_cli("codes")
    assert done.status == 2 and done.out == ""
    assert done.err == (
        "psmkit: internal error, please report it: RuntimeError: a bug of ours; `psmkit -v COMMAND ...` shows the traceback\n"
    )
    for option in ("-v", "--verbose"):
        done = psmkit_cli(option, "codes")
        assert done.status == 2
        assert "Traceback" in done.err and "raise RuntimeError" in done.err and "shows the traceback" not in done.err


@pytest.mark.parametrize("command", ["check", "drive"])
def test_missing_extra_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "elftools.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'elftools'\", name='elftools')\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "psmkit", "plugin", command, "/usr/lib/libnothing.so"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "psmkit: reading ELF files needs pyelftools: pip install 'psmkit[lab]'\n"


def test_missing_module_of_any_extra_is_named(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_arguments: object, **_options: object) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow.parquet'", name="pyarrow.parquet")

    monkeypatch.setattr(codes.command, "callback", lacks)
    assert psmkit_cli("codes").err == "psmkit: this command needs pyarrow: pip install 'psmkit[telemetry]'\n"


_ALL = (0, 1, 2)


@pytest.mark.parametrize(
    ("words", "closed", "status"),
    [
        (["analyze"], (0,), 0),
        (["analyze"], (1,), 0),
        (["analyze"], _ALL, 0),
        (["codes"], _ALL, 0),
        (["records", "list"], (1,), 0),
        (["unknown"], (2,), 2),
    ],
)
def test_closed_standard_streams_give_no_traceback(
    tmp_path: Path, words: list[str], closed: tuple[int, ...], status: int
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("node0:17:17 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n")
    # A child cannot be started with closed streams, but it can close them and become another program.
    code = f"import os, sys; [os.close(n) for n in {closed}]; os.execv(sys.executable, [sys.executable, '-m', 'psmkit', *sys.argv[1:]])"
    given = [*words, str(log)] if words == ["analyze"] else words
    done = subprocess.run(
        [sys.executable, "-c", code, *given],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PSM_RECORD_DIR": str(tmp_path)},
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status
    assert log.read_text().count("\n") == 1  # nothing was written to the wrong file
