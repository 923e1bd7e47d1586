"""Commands with examples in their help, and groups that import a command when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import click

from psmkit.cli.complete import suggest

__all__ = ["Command", "Group", "LazyGroup"]

_WHOLE = 1000  # characters


class Command(click.Command):
    """A command with ``examples``: lines of a shell, each complete; a comment may follow after ``#``."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        suggest(self)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:  # whole: they are there to be copied
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


class Group(Command, click.Group):
    """A group whose commands are of :class:`Command`, and that has examples itself."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1) if args else []
            if not near or isinstance(error, click.BadOptionUsage | click.NoSuchOption):
                raise
            raise click.UsageError(f"No such command {args[0]!r}; did you mean {near[0]}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The whole first sentence of each command: click cuts it."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(_WHOLE)) for name, one in found if one and not one.hidden]
            )


class LazyGroup(Group):
    """A group that imports the module of a command, ``prefix`` and its name, when the command is used.

    ``summaries`` are its commands, ``aliases`` further names of some.
    """

    prefix: ClassVar[str]
    summaries: ClassVar[Mapping[str, str]]
    aliases: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.summaries:
            return None
        command = import_module(f"{self.prefix}{name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))
