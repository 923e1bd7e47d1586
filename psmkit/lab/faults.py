"""Faults of a run: parsed and checked before a rank starts, and found in the logs afterwards."""

from __future__ import annotations

import difflib
import errno
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit import logparse
from psmkit.lab import elf, programs
from psmkit.lab.cuda import LabError, folder, functions
from psmkit.lab.elf import Site
from psmkit.model.errors import PsmkitError
from psmkit.model.results import RESULTS
from psmkit.model.statuses import STATUSES

__all__ = ["Fault", "FaultError", "check", "fired", "idle", "parse", "sites"]

_NEAREST = 5
_CUDA = "a CUDA or NVML function"
# Sites of libpsm's net transport; the others that begin with "net." are those of the net plugin, which knows NCCL's results.
_TRANSPORT = ("net.proxy.", "net.send.", "net.recv.", "net.copy", "net.open")
_CALL = 0b111110  # PSM_FAULT_CAN_CALL of csrc/base/fault.h
_FIRED, _UNUSABLE = "fault.fired", "fault.unusable"


class FaultError(LabError):
    """A text of faults is wrong.

    Attributes:
        text: all of it.
        position: the character that is wrong, from 0.
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        super().__init__(f"bad fault at character {position + 1}: {reason}")
        self.text, self.position = text, position

    @property
    def detail(self) -> tuple[str, ...]:
        """The text, and a line that points at the character."""
        return (f"  {self.text}", f"  {' ' * self.position}^")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as the C parser reads it.

    Attributes:
        text: its normal form.
        position: where it begins in the text of all faults, in bytes.
        site: without the star.
        prefix: the site ended in a star.
        action: what it does.
        rank: the only rank; None: any.
        peer: the only peer; None: any.
        nth: the first call, from 1; 0: each call.
        every: the distance of calls; 0: only the nth.
    """

    text: str
    position: int
    site: str
    prefix: bool
    action: str
    rank: int | None
    peer: int | None
    nth: int
    every: int

    def names(self, site: str) -> bool:
        """Whether the fault is for this site."""
        return site.startswith(self.site) if self.prefix else site == self.site

    def made(self, line: Mapping[str, Any]) -> bool:
        """Whether a line ``fault.fired`` with these fields can come from this fault."""
        rank, call = line.get("rank"), int(line.get("nth", 0))
        if line.get("action") != self.action or not self.names(str(line.get("site"))):
            return False
        if self.rank is not None and rank is not None and int(rank) != self.rank:
            return False
        if self.nth == 0:
            return True
        return call >= self.nth and (call - self.nth) % self.every == 0 if self.every else call == self.nth


def parse(text: str) -> list[Fault]:
    """The faults of a text as PSM_FAULTS takes it (docs/faults.md).

    Raises:
        FaultError: the text is wrong.
        LabError: the parser was not built, or cannot run.
    """
    command = [str(programs.find("psm_rank")), "faults", text]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode == 1:
            # The program writes bytes beyond ASCII as one character each.
            reason = str(rows[0]["wrong"]).encode("latin-1").decode("utf-8", "replace")
            raise FaultError(reason, text, _character(text, rows[0]["position"]))
        done.check_returncode()
        return [_fault(row) for row in rows]
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
        raise LabError(f"cannot parse the faults with {command[0]}: {error}") from None


def _fault(row: Mapping[str, Any]) -> Fault:
    rank, peer = (None if row[key] < 0 else int(row[key]) for key in ("rank", "peer"))
    return Fault(
        row["text"],
        row["position"],
        row["site"],
        bool(row["prefix"]),
        row["action"],
        rank,
        peer,
        row["nth"],
        row["every"],
    )


def _character(text: str, position: int) -> int:
    return len(text.encode()[:position].decode("utf-8", "replace"))


def sites(*binaries: Path) -> list[Site]:
    """The sites of a run: those of psmkit's programs and libraries, of ``binaries``, and the functions of emulated CUDA."""
    ours = [programs.find(name) for name in ("psm_rank", "psm_nccl_rank")]
    places = [*programs.libraries(), *ours, folder() / "libpsm_hostcuda.so"]
    found: dict[str, Site] = {}  # binaries share some
    for path in (*places, *binaries):
        if path.is_file():
            for site in elf.sites(path):
                found.setdefault(site.name, site)
    can = elf.actions(_CALL)
    for name in sorted({f.name for f in functions()}):
        found.setdefault(name, Site(name, can, _CUDA))
    return list(found.values())


def check(text: str, known: Sequence[Site], ranks: int) -> list[Fault]:
    """Parse the faults of a run, and resolve their sites and ranks.

    Args:
        text: as PSM_FAULTS takes it.
        known: the sites of the run's binaries.
        ranks: how many ranks run.

    Raises:
        FaultError: the text is wrong; a site does not exist, or cannot do the action; a rank does not exist.
    """
    try:
        found = parse(text)
    except FaultError as error:
        _check_site(text, error.position, known)
        raise
    for fault in found:
        at = _character(text, fault.position)
        named = [site for site in known if fault.names(site.name)]
        shown = f"{fault.site}*" if fault.prefix else fault.site
        if not named:
            raise FaultError(f"no site {shown!r}{_nearest(fault.site, known)}", text, at)
        if not any(fault.action in site.actions for site in named):
            can = sorted({action for site in named for action in site.actions})
            raise FaultError(f"{shown} cannot {fault.action}; it can {', '.join(can)}", text, at)
        _check_error(fault, named, text, at)
        for key, number in (("rank", fault.rank), ("peer", fault.peer)):
            if number is not None and number >= ranks:
                raise FaultError(f"{key}={number}, but the run has ranks 0 to {ranks - 1}", text, at)
    return found


def _check_site(text: str, position: int, known: Sequence[Site]) -> None:
    """Check the site of the fault with the wrong character ``position``: without the site, the rest of the fault says nothing.

    Raises:
        FaultError: there is no such site.
    """
    begin = text.rfind(";", 0, position) + 1
    word = text[begin:].partition(";")[0].partition(":")[0]
    site = word.strip().removesuffix("*")
    at = begin + len(word) - len(word.lstrip())
    if site and at + len(site) <= position and not any(one.name.startswith(site) for one in known):
        raise FaultError(f"no site {word.strip()!r}{_nearest(site, known)}", text, at)


def _check_error(fault: Fault, named: Sequence[Site], text: str, at: int) -> None:
    """Check the name of an error where psmkit's libraries define the names; CUDA functions know their own.

    Raises:
        FaultError: no site of the fault knows the name.
    """
    name = fault.text.partition(":error=")[2].partition(":")[0].partition(",")[0]
    if fault.action != "error" or not name[:1].isalpha() or any(site.description == _CUDA for site in named):
        return
    if name.startswith(("cuda", "CUDA", "nvml", "NVML")):
        return
    plugin = {site.name.startswith("net.") and not site.name.startswith(_TRANSPORT) for site in named}
    names = [*(STATUSES if False in plugin else ()), *(RESULTS[1:] if True in plugin else ())]
    system = False in plugin
    if name.removeprefix("PSM_ERR_") not in names and not (system and hasattr(errno, name)):
        more = " and those of errno, such as ENOSPC" if system else ""
        shown = f"{fault.site}*" if fault.prefix else fault.site
        raise FaultError(f"{shown} knows no error {name}; it knows {', '.join(names)}{more}", text, at)


def _nearest(site: str, known: Sequence[Site]) -> str:
    names = [s.name for s in known]
    near = difflib.get_close_matches(site, names, _NEAREST, 0.5)
    near += [name for name in names if site and name.startswith(site) and name not in near]
    listed = f"; the nearest are {', '.join(near[:_NEAREST])}" if near else ""
    return f"{listed}; `psmkit lab faults` lists all"


def fired(folder: Path) -> bool:
    """Whether any fault fired in the run that left ``folder``."""
    return any(name == _FIRED for name, _ in _lines(folder))


def _lines(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    # A rank whose library opens no log writes to its output.
    files = [file for name in ("logs", "output") for file in sorted((folder / name).glob("*"))]
    paths = [str(file) for file in files if file.is_file() and file.stat().st_size]
    if not paths:
        return []
    try:
        batches = list(logparse.events(paths, names={_FIRED, _UNUSABLE}))
    except PsmkitError:  # nothing that is a log
        return []
    return [(event.name, dict(event.fields)) for batch in batches for event in batch]


def idle(faults: Iterable[Fault], folder: Path) -> list[str]:
    """The faults that never fired in the run that left ``folder``, and why: one text each."""
    found = list(faults)
    if not found:
        return []
    lines = _lines(folder)
    texts = []
    for fault in found:
        if any(name == _FIRED and fault.made(fields) for name, fields in lines):
            continue
        # `error=NAME`: each library knows its own names.
        unknown = Counter(
            str(fields["error"])
            for name, fields in lines
            if name == _UNUSABLE and "error" in fields and fault.names(str(fields.get("site")))
        )
        why = f"{fault.site} knows no error {unknown.most_common(1)[0][0]}" if unknown else "no call matched it"
        texts.append(f"{fault.text}: {why}")
    return texts
