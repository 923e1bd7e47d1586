"""What a shell completes: values of options and arguments, found by what their metavar names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

import click
from click.shell_completion import CompletionItem

__all__ = ["Suggested", "suggest", "words_of"]

#: From a context and what is typed so far to the values: pairs of a value and its meaning, which zsh and fish show.
Suggest = Callable[[click.Context, str], Iterable[tuple[str, str]]]


class Suggested(click.types.StringParamType):
    """A text of which a shell completes the known values. It takes any text: the command itself says what is wrong with one."""

    def __init__(self, values: Suggest | None = None, paths: str = "") -> None:
        """``values`` are those known, ``paths`` is ``file`` or ``dir`` if a path may stand here."""
        self.values, self.paths = values, paths

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(incomplete, type=self.paths)] if self.paths else []
        if self.values is not None:
            known = self.values(ctx, incomplete)
            found += [
                CompletionItem(name, help=" ".join(text.split())) for name, text in known if _fits(name, incomplete)
            ]
        return found


def suggest(command: click.Command) -> None:
    """Let a shell complete the parameters of ``command`` that take any text, each by its metavar."""
    for param in command.params:
        if param.type is not click.STRING or getattr(param, "is_flag", False):
            continue
        names = (param.metavar or "").replace("[", "").replace("]", "").removesuffix("...").split("|")
        values = next((_VALUES[name] for name in names if name in _VALUES), None)
        paths = "file" if _FILES.intersection(names) else "dir" if "DIR" in names else ""
        if values is not None or paths:
            param.type = Suggested(values, paths)


def words_of(name: str, modules: Sequence[str]) -> Suggested:
    """A list of words with commas between them, from the tuple ``name`` of the first of ``modules`` that has it."""

    def values(_ctx: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
        allowed = next(getattr(m, name) for m in map(import_module, modules) if hasattr(m, name))
        before, comma, _ = incomplete.rpartition(",")
        return [(before + comma + word, "") for word in allowed if word not in before.split(",")]

    return Suggested(values)


def _fits(name: str, incomplete: str) -> bool:
    return name.lower().startswith(incomplete.lower())


def _codes(_ctx: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.catalogue import load
    from psmkit.model import CODES

    codes = ((code.code, code.title) for code in CODES.values())
    if "PSM".startswith(incomplete.upper()) or incomplete.upper().startswith("PSM"):
        return codes
    return ((message.name, message.meaning) for message in load().by_name.values())


def _variants(_ctx: click.Context, _incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.transport import net_variants, variants

    yield from ((name, one.summary) for name, one in variants().items())
    yield from ((f"net/{name}", one.summary) for name, one in net_variants().items())


def _plan_variants(_ctx: click.Context, _incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.plan import variants

    return ((name, one.summary) for name, one in variants().items())


def _model_variants(_ctx: click.Context, _incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.plan.model import model_variants

    return ((name, f"breaks {one.rule}" if one.rule else "") for name, one in model_variants().items())


def _schedulers(_ctx: click.Context, _incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.plan.releases import releases

    return [("legacy", ""), ("planner", ""), *((one.name, "") for one in releases())]


def _faults(_ctx: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.lab import faults

    for site in faults.sites():
        if incomplete.startswith(f"{site.name}:"):
            yield from ((f"{site.name}:{action}", site.description) for action in site.actions)
        elif ":" not in incomplete:
            yield site.name, site.description


def _settings(_ctx: click.Context, incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.live.machine.environment import variables

    known = variables()
    return ((f"{name}=", "") for name in sorted({*known["psm"], *known["nccl"]}))


def _tables(_ctx: click.Context, _incomplete: str) -> Iterable[tuple[str, str]]:
    from psmkit.query.schema import TABLES

    return ((name, table.row) for name, table in TABLES.items())


#: By a word of the metavar.
_VALUES: dict[str, Suggest] = {
    "CODE": _codes,
    "FAULT": _faults,
    "MODEL_VARIANT": _model_variants,
    "NAME=VALUE": _settings,
    "PLAN_VARIANT": _plan_variants,
    "SCHEDULER": _schedulers,
    "TABLE": _tables,
    "VARIANT": _variants,
    "WORDS": _codes,
}
_FILES = frozenset({"BAD", "DUMP", "FILE", "GOOD", "IN", "LIB", "LOG", "MY.toml", "OUT", "PATH", "RECORD", "TASKS"})
