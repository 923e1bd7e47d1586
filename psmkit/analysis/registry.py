"""The registry of rules: every module of :mod:`psmkit.analysis.rules` is imported and registers one function.

    @rule(order=150)
    def find(job: Job) -> list[Finding]:

There is no list of rules. A module in that package that registers nothing is an error.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from psmkit.analysis import rules
from psmkit.analysis.facts.job import Job
from psmkit.model import Finding
from psmkit.model.late import dataclass

__all__ = ["Find", "Rule", "registered", "rule"]

Find = Callable[[Job], list[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, named after its module. Among findings of equal severity and confidence, a lower ``order`` comes first."""

    name: str
    order: int
    find: Find


_RULES: dict[str, Rule] = {}


def rule(order: int) -> Callable[[Find], Find]:
    """Register the function of a rule module.

    Raises:
        ValueError: the module already has a rule, or another rule has this order.
    """

    def register(find: Find) -> Find:
        name = find.__module__.rpartition(".")[2]
        for known in _RULES.values():
            if name == known.name or order == known.order:
                raise ValueError(f"rule {name} (order {order}) clashes with rule {known.name} (order {known.order})")
        _RULES[name] = Rule(name, order, find)
        return find

    return register


@cache
def registered() -> tuple[Rule, ...]:
    """All rules, by ``order``.

    Raises:
        TypeError: a module of the package registers no rule.
    """
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
        if module.name not in _RULES:
            raise TypeError(
                f"{rules.__name__}.{module.name} registers no rule: put @rule(order=...) above its find(job)"
            )
    return tuple(sorted(_RULES.values(), key=lambda known: known.order))
