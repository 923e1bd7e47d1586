"""Options that the commands of the lab share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

from psmkit.cli.complete import words_of

__all__ = [
    "Lists",
    "combinations",
    "deadline_option",
    "debug_option",
    "differ_option",
    "fault_option",
    "format_option",
    "link_option",
    "lists",
    "nodes_option",
    "out_option",
    "ranks_option",
    "seed_option",
]

_Command = TypeVar("_Command", bound=Callable[..., int])
#: By its option: the default, the name of the tuple of allowed words, the help.
Lists = dict[str, tuple[str, str, str]]


def _faults(ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> str:
    # The lab sets the variable for its ranks: one of the shell would have no effect, and a run without a fault would pass for one with it.
    if os.environ.get("PSM_FAULTS", "").strip():
        raise click.UsageError(f"PSM_FAULTS is set; {ctx.command_path} takes --fault: unset PSM_FAULTS")
    if any(not value.replace(";", "").strip() for value in values):
        raise click.BadParameter("empty fault, expected SITE:ACTION[,rank=N,...]")
    return ";".join(values)


#: ``--fault``, repeatable: one text as PSM_FAULTS takes it.
fault_option = click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="FAULT",
    callback=_faults,
    help="Inject a fault: SITE:ACTION[,rank=N,...], see docs/faults.md and `psmkit lab faults`. Repeatable.",
)

format_option = click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]"
)


def lists(table: Lists, *modules: str) -> Callable[[_Command], _Command]:
    """Options whose values are lists of words: each combination is a case. ``modules``: names of those of :func:`combinations`."""

    def add(function: _Command) -> _Command:
        for name, (default, allowed, text) in reversed(table.items()):
            words = words_of(allowed, modules)
            text = f"{text}  [{default}]"
            function = click.option(_flag(name), name, type=words, default=default, metavar="NAME[,...]", help=text)(
                function
            )
        return function

    return add


def combinations(
    table: Lists, given: Mapping[str, Any], size: str, *modules: ModuleType
) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Number, size and words of each case.

    Args:
        modules: the first one that has a tuple of allowed words counts.
    """
    from psmkit.lab import transfer

    words = [_words(name, given[name], table[name][1], modules) for name in table]
    sizes = [transfer.size(text) for text in size.split(",")]
    for number, (chosen, each) in enumerate(itertools.product(itertools.product(*words), sizes)):
        yield number, each, chosen


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _words(name: str, text: str, allowed_name: str, modules: tuple[ModuleType, ...]) -> list[str]:
    allowed: tuple[str, ...] = next(getattr(m, allowed_name) for m in modules if hasattr(m, allowed_name))
    words = text.split(",")
    for word in words:
        if word not in allowed:
            raise click.BadParameter(f"{word!r}; expected one of {', '.join(allowed)}", param_hint=_flag(name))
    return words


ranks_option = click.option(
    "--ranks", type=click.IntRange(1, 64), default=2, help="Number of ranks, each a process.  [2]"
)
nodes_option = click.option("--nodes", type=click.IntRange(1, 64), default=1, help="Number of emulated nodes.  [1]")
link_option = click.option(
    "--link",
    type=click.Choice(("nvswitch", "nvlink", "pcie")),
    default="nvswitch",
    help="Link between the GPUs.  [nvswitch]",
)
seed_option = click.option("--seed", type=int, default=1, help="Seed of the data and of the pattern random.  [1]")
debug_option = click.option(
    "--debug", type=click.Choice(("WARN", "INFO", "TRACE")), default="INFO", help="Log level.  [INFO]"
)
out_option = click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Write the evidence to this new folder.",
)


def deadline_option(*names: str) -> Callable[[_Command], _Command]:
    """``--deadline``, also under other names."""
    return click.option(
        "--deadline",
        *names,
        type=click.FloatRange(0.1),
        default=60.0,
        help="Seconds until a run that has not ended is stopped.  [60]",
    )


def differ_option(examples: str) -> Callable[[_Command], _Command]:
    """``--differ``, repeatable."""
    return click.option(
        "--differ",
        "differs",
        multiple=True,
        metavar="rank=N,KEY=VALUE",
        help=f"Give one rank other settings: {examples}, ... Repeatable.",
    )
