"""Test cases for the data path: all combinations of some axes, or a few that cover every pair of values."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psmkit.lab.elf import Site
from psmkit.lab.transfer import Case

__all__ = ["AXES", "RANKS", "Strike", "all_cases", "pairwise", "strikes"]

K, M = 1 << 10, 1 << 20
RANKS = (2, 4, 8, 16)
AXES: dict[str, tuple[Any, ...]] = {
    "pattern": ("pair", "ring", "alltoall", "random"),
    "size": (1, 4 * K, 64 * K, M + 1, 4 * M, 64 * M),
    "share": ("cumem", "cuda-ipc", "posix", "memfd"),
    "zero_copy": ("never", "registered"),
}
_MOST = {16: 4 * M}  # bytes per peer, by ranks: memory is for 2 x ranks x ranks buffers


def all_cases(ranks: int, axes: Mapping[str, Sequence[Any]] = AXES, base: Case | None = None) -> list[Case]:
    """Every combination of the axes that fits into the memory of this number of ranks."""
    base = base or Case()
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    fit = [row for row in rows if row.get("size", 0) <= _MOST.get(ranks, 1 << 40)]
    return [replace(base, name=str(number), **row) for number, row in enumerate(fit)]


def pairwise(axes: Mapping[str, Sequence[Any]], seed: int) -> list[dict[str, Any]]:
    """Rows that cover every pair of values of two axes; the same for the same seed. Greedy: few rows, not the fewest."""
    chance, names = random.Random(seed), list(axes)
    open_pairs = {((a, va), (b, vb)) for a, b in itertools.combinations(names, 2) for va in axes[a] for vb in axes[b]}

    def covered(row: Mapping[str, Any]) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
        return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}

    rows = []
    while open_pairs:
        # One open pair is in the row for sure, so that this ends.
        (a, va), (b, vb) = min(open_pairs, key=repr)
        tries = [{n: chance.choice(list(axes[n])) for n in names} | {a: va, b: vb} for _ in range(50)]
        best = max(tries, key=lambda row: len(covered(row) & open_pairs))
        open_pairs -= covered(best)
        rows.append(best)
    return rows


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault in one rank, and the case that comes to its site."""

    site: str
    action: str
    rank: int
    case: Case
    nodes: int = 1

    @property
    def text(self) -> str:
        """The text for PSM_FAULTS. The next publish hides a lost one, so a fault of publish fires always."""
        always = self.site.endswith(".publish") and self.action in ("drop", "corrupt")
        return f"{self.site}:{self.action},rank={self.rank},nth={'1+' if always else '1'}"


_VALUES = {"error": "error=ENOMEM", "slow": "slow=50ms", "late": "late=50ms", "short": "short=7"}
_STOP = "kill=SIGSTOP"


def strikes(sites: Sequence[Site], ranks: int = 2) -> Iterator[Strike]:
    """Every action at every site in each rank, once; with zero-copy for the sites on that path."""
    for site in sites:
        registered = "register" in site.name
        case = Case(size=256 * K, zero_copy="registered" if registered else "never")
        if site.name.startswith(("shm.", "p2p.memory")):
            case = replace(case, share="posix" if site.name.startswith("shm.") else "cumem")
        if site.name.endswith(".publish"):  # more steps than slots
            case = replace(case, steps=4, buffer_size=64 * K)
        if site.name == "proxy.sharedinit":
            case = replace(case, shared_init=1)
        actions = [_VALUES.get(action, action) for action in site.actions]
        if site.name.startswith("lab."):  # it knows no names of errors
            actions = ["error=5" if action.startswith("error=") else action for action in actions]
        for action in [*actions, *([_STOP] if "kill" in actions else [])]:
            for rank in range(ranks):
                yield Strike(site.name, action, rank, case, 2 if site.name.startswith("net.") else 1)
