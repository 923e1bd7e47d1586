"""Hosts whose names are damaged: text is glued before one, or it lost its beginning.

An analysis takes both for the host itself when they have its pid. So the name of one ends with the name of the other, and their pseudonyms do, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Set

__all__ = ["Joined", "is_of_message"]

_SHORTEST = (
    4  # letters of a host that is found behind a word without a pid of it, and of a word with other letters behind it
)
_SHORT = 2  # letters that say nothing
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def is_of_message(text: str, public: Collection[str]) -> bool:
    """Whether text before a host is a number or a word of messages, which may have another byte where the line break was."""
    for end in range(len(text), max(1, len(text) - _SHORT) - 1, -1):
        head = text[:end].lower()
        if head.isdecimal() or _ADDRESS.fullmatch(head) or (head in public and (end == len(text) or end >= _SHORTEST)):
            return True
    return False


class Joined:
    """Which host is another one that was damaged.

    Args:
        processes: the pids of each host that stands in a prefix.
        hosts: all hosts.
        seen: in how many prefixes each stands.
        public: words that are no names, in lower case.
    """

    def __init__(
        self,
        processes: Mapping[str, Set[str]],
        hosts: Collection[str],
        seen: Mapping[str, int],
        public: Collection[str],
    ) -> None:
        self._seen, self._public = seen, public
        #: For each name that is joined to another one, this other one.
        self.parents: dict[str, str] = {}
        by_pid: dict[str, list[str]] = {}
        for name, pids in processes.items():
            for pid in pids:
                by_pid.setdefault(pid, []).append(name)
        near: dict[str, set[str]] = {}
        for names in by_pid.values():
            known = set(names)
            for name in names:
                for at in range(1, len(name)):
                    if name[at:] in known:
                        near.setdefault(name, set()).add(name[at:])
                        near.setdefault(name[at:], set()).add(name)
        for name, others in near.items():
            fit = [other for other in others if self._is_damaged(name, other)]
            if fit:
                self._join(name, max(fit, key=lambda other: (seen.get(other, 0), len(other), other)))
        for name, parent in list(self.parents.items()):
            # The process of such a parent is that of the whole name.
            if parent in self.parents and not parent.endswith(self.parents[parent]):
                del self.parents[name]
        for name in hosts:
            if name not in self.parents and not any(len(pid) >= _SHORTEST for pid in processes.get(name, ())):
                whole = next((name[at:] for at in range(1, len(name)) if name[at:] in hosts), "")
                if len(whole) >= _SHORTEST and self._is_word(name.removesuffix(whole)):
                    self._join(name, whole)

    def _is_damaged(self, name: str, whole: str) -> bool:
        """Whether the one is the other with text before it, or without its beginning."""
        if name.endswith(whole):
            return not name[-len(whole) - 1].isalnum() or self._seen.get(name, 0) <= self._seen.get(whole, 0)
        # A name such as pod-worker-0 beside worker-0 is a host of its own.
        return whole[-len(name) - 1].isalnum() and self._seen.get(name, 0) < self._seen.get(whole, 0)

    def _join(self, name: str, parent: str) -> None:
        above: str | None = parent
        while above is not None:
            if above == name:
                return
            above = self.parents.get(above)
        self.parents[name] = parent

    def _is_word(self, text: str) -> bool:
        return text[-1].isalnum() and (text.isdecimal() or text.lower() in self._public)

    def in_order(self) -> Iterator[str]:
        """The names that are joined to others, each behind the one that it is joined to."""
        done: set[str] = set()
        for name in self.parents:
            chain = []
            while name in self.parents and name not in done:
                chain.append(name)
                done.add(name)
                name = self.parents[name]
            yield from reversed(chain)

    def pseudonym(self, name: str, host: Callable[[str], str], word: Callable[[str], str]) -> str:
        """The pseudonym of a joined name; ``host`` gives that of the name that it is joined to, ``word`` that of the text before it."""
        parent = self.parents[name]
        whole = host(parent)
        if name.endswith(parent):
            text = name.removesuffix(parent)
            return (text if is_of_message(text, self._public) else word(text)) + whole
        letters = len(whole) - len(whole.lstrip("abcdefghijklmnopqrstuvwxyz"))
        return whole[min(len(parent) - len(name), max(1, letters - 1)) :]
