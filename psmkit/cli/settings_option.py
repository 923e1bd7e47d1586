"""``--env NAME=VALUE``: the option of commands that set environment variables elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

__all__ = ["settings_option"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def settings_option(text: str, *, only: Sequence[str] = ()) -> Callable[[_Command], _Command]:
    """``--env``, repeatable; the command gets a dictionary called ``settings``.

    Args:
        text: the help.
        only: the names that it takes; empty: all.
    """
    wanted = f"expected NAME=VALUE with a NAME of {', '.join(only)}" if only else "expected NAME=VALUE"

    def read(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        pairs = [value.partition("=") for value in values]
        for (name, equal, _), value in zip(pairs, values, strict=True):
            if not name or not equal or (only and name not in only):
                raise click.BadParameter(f"{value!r}: {wanted}")
        return {name: text for name, _, text in pairs}

    return click.option(
        "--env", "settings", metavar="NAME=VALUE", multiple=True, callback=read, help=f"{text} Repeatable."
    )
