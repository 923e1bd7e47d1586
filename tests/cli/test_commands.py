"""A module of psmkit.cli is a command by what it says of itself."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import click
import pytest

import psmkit.cli
from psmkit.cli.app import COMMANDS


def commands_in(group: click.Group) -> list[click.Command]:
    context = click.Context(group)
    found = [group.get_command(context, name) for name in group.list_commands(context)]
    return [command for command in found if command is not None]


def test_every_module_with_a_command_can_be_called_from_the_command_line() -> None:
    reachable: list[click.Command] = []
    for name in COMMANDS:
        command = import_module(f"psmkit.cli.{name}").command
        assert command.name == name
        reachable += [command, *(commands_in(command) if isinstance(command, click.Group) else [])]
    modules = [import_module(f"psmkit.cli.{module.name}") for module in pkgutil.iter_modules(psmkit.cli.__path__)]
    lost = [m.__name__ for m in modules if hasattr(m, "command") and m.command not in reachable]
    assert lost == [], "begin the docstring of each with ``psmkit NAME``: and a summary, or add it to its group"


@pytest.mark.parametrize(("name", "summary"), COMMANDS.items())
def test_the_summary_of_a_command_fits_on_a_line_of_the_help(name: str, summary: str) -> None:
    assert summary[0].isupper() and summary.endswith(".") and len(summary) <= 80
