"""What a shell completes: commands, options, files and the values that psmkit knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from psmkit.cli.app import cli
from tests.cli.test_commands import commands_in


def complete(*words: str) -> dict[str, str]:
    """Value -> kind of what completes the last word."""
    *before, last = words
    found = ShellComplete(cli, {}, "psmkit", "_PSMKIT_COMPLETE").get_completions(before, last)
    return {item.value: item.type for item in found}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("anal",), "analyze"),
        (("lab", "run", "--fau"), "--fault"),
        (("explain", "PSM10"), "PSM103"),
        (("explain", "psm10"), "PSM103"),
        (("explain", "proxy.call."), "proxy.call.done"),
        (("catalogue", "PSM31"), "PSM318"),
        (("lab", "run", "--variant", "whole"), "whole-struct-zero"),
        (("lab", "run", "--variant", "net/no"), "net/no-free"),
        (("lab", "run", "--fault", "p2p.set"), "p2p.setup"),
        (("lab", "run", "--fault", "p2p.setup:err"), "p2p.setup:error"),
        (("lab", "run", "--pattern", "pair,al"), "pair,alltoall"),
        (("lab", "nccl", "--pattern", "put"), "put-signal"),
        (("lab", "nccl", "--env", "NCCL_CUMEM"), "NCCL_CUMEM_ENABLE="),
        (("plan", "simulate", "--variant", "reclaim"), "reclaim-early"),
        (("plan", "simulate", "--scheduler", "planner-2.29.7"), "planner-2.29.7"),
        (("plan", "model", "--variant", ""), "coll-first"),
        (("export", "--table", "ev"), "evidence"),
    ],
)
def test_a_value_is_completed(words: tuple[str, ...], value: str) -> None:
    assert value in complete(*words)


def test_a_word_of_a_list_is_offered_once() -> None:
    assert "pair,pair" not in complete("lab", "run", "--pattern", "pair,")


@pytest.mark.parametrize(
    "words",
    [("analyze", "lo"), ("diff", "a.log", "b"), ("lab", "nccl", "--lib", "bu"), ("explain", "--catalogue", "m")],
)
def test_a_path_is_left_to_the_shell(words: tuple[str, ...]) -> None:
    assert complete(*words) == {words[-1]: "file"}


def test_no_completion_imports_what_another_needs() -> None:
    # TAB runs psmkit: the names of commands and options must not cost the catalogue or libpsm.
    code = (
        "import sys; from tests.cli.test_complete import complete; complete('analyze', '--form');"
        "print([m for m in ('psmkit.catalogue', 'psmkit.transport', 'numpy') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root, timeout=60)
    assert run.stdout == "[]\n"


def each_command(group: click.Group) -> list[click.Command]:
    found: list[click.Command] = []
    for one in commands_in(group):
        found += [one, *(each_command(one) if isinstance(one, click.Group) else ())]
    return found


def test_every_command_has_an_example_and_the_help_of_groups_is_whole() -> None:
    for one in each_command(cli):
        assert getattr(one, "examples", ()), one.name
        if isinstance(one, click.Group):
            lines = one.get_help(click.Context(one, info_name=one.name)).split("Commands:")[1]
            assert "..." not in lines, one.name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    run = subprocess.run([psmkit(), "completion", shell], capture_output=True, text=True, check=True, timeout=60)
    assert f"_PSMKIT_COMPLETE={shell}_complete" in run.stdout
    named = subprocess.run(
        [psmkit(), "completion"],
        env={**os.environ, "SHELL": f"/usr/bin/{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert named.stdout == run.stdout


def test_a_shell_without_a_script_is_named() -> None:
    run = subprocess.run(
        [psmkit(), "completion"], env={**os.environ, "SHELL": "/bin/dash"}, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert run.stderr == "psmkit: no script for the shell dash; name one: bash, zsh, fish\n"


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes_by_the_script() -> None:
    script = (
        f'export PATH={psmkit().parent}:$PATH; eval "$(psmkit completion bash)";'
        "COMP_WORDS=(psmkit explain PSM103); COMP_CWORD=2; _psmkit_completion psmkit; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == ["PSM103"]


def psmkit() -> Path:
    return Path(sys.executable).with_name("psmkit")
