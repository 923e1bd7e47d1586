"""The works that NCCL gave its kernels, as the interpreter recorded them (PSM_KERNELS_WORKS); docs/kernels.md describes the record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.lab.cuda import LabError
from psmkit.logparse.recordfiles import record_names
from psmkit.logparse.records import Section, open_record
from psmkit.model.wording import counted

__all__ = ["SECTION", "STORAGES", "Launch", "Message", "Work", "read"]

#: The section of a record file that has them.
SECTION = "nccl.works"
#: Where works are stored, by NCCL's numbers.
STORAGES = ("arguments", "fifo", "persistent")
_FIRST = 2  # sequence of a ring's first record


@dataclass(frozen=True, slots=True)
class Message:
    """What a work sends or receives on its channel.

    Attributes:
        peer: the other rank.
        nbytes: bytes on this channel.
        whole: bytes of the whole message.
        parts: channels that share the message.
        ll: whether its protocol is LL.
    """

    peer: int
    nbytes: int
    whole: int
    parts: int
    ll: bool


@dataclass(frozen=True, slots=True)
class Work:
    """A work on a channel.

    Attributes:
        channel: the channel.
        batch: its batch among those of the channel in the launch, from 0.
        extends: the batch runs together with the one before.
        offset: byte of its work struct in the storage of the launch.
        function: name of the device function.
        round_to, round_from: the ranks that its round joins this one with; -1: a collective.
        part: which part of its messages this channel has, from 0.
        send, recv: its messages on this channel.
    """

    channel: int
    batch: int
    extends: bool
    offset: int
    function: str
    round_to: int
    round_from: int
    part: int
    send: Message | None
    recv: Message | None


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch, which runs one plan.

    Attributes:
        comm: address of its communicator on the device.
        rank: the rank.
        plan: number of the launch in the communicator, from 1.
        storage: one of ``STORAGES``.
        works: channel by channel, in the order in which the kernel runs them.
    """

    comm: int
    rank: int
    plan: int
    storage: str
    works: tuple[Work, ...]


def read(folder: str | Path) -> tuple[Launch, ...]:
    """The launches of all processes whose records are in a folder: process by process, in their order.

    Raises:
        LabError: there are none, or a record has lost some.
    """
    found: list[Launch] = []
    for path in record_names(str(folder)):
        for section in open_record(path, only=[SECTION]).sections:
            if section.name == SECTION:
                found += _launches(path, section)
    if not found:
        raise LabError(f"{folder}: no record of works: set PSM_KERNELS_WORKS and PSM_RECORD_KEEP=1 for the ranks")
    return tuple(found)


def _launches(path: str, section: Section) -> Iterator[Launch]:
    overwritten = len(section) > 0 and int(section.rows["sequence"][0]) != _FIRST
    if overwritten or section.lost or section.torn:
        raise LabError(f"{path}: it has only the last {counted(len(section), 'work')}: raise PSM_KERNELS_WORKS")
    launches: dict[tuple[int, int], list[dict[str, Any]]] = {}  # in the order of their first works
    for row in map(section.values, range(len(section))):
        launches.setdefault((row["comm"], row["plan"]), []).append(row)  # type: ignore[arg-type]
    for (comm, plan), mine in launches.items():
        number: int = mine[0]["storage"]
        yield Launch(
            comm=comm,
            rank=mine[0]["rank"],
            plan=plan,
            storage=STORAGES[number] if number < len(STORAGES) else str(number),
            works=tuple(_work(row) for row in sorted(mine, key=lambda row: row["channel"])),
        )


def _work(row: dict[str, Any]) -> Work:
    return Work(
        channel=row["channel"],
        batch=row["batch"],
        extends=bool(row["extends"]),
        offset=row["offset"],
        function=row["function"],
        round_to=row["send_peer"],
        round_from=row["recv_peer"],
        part=row["part"],
        send=_message(row, "send"),
        recv=_message(row, "recv"),
    )


def _message(row: dict[str, Any], side: str) -> Message | None:
    if row["part"] >= row[f"{side}_parts"]:
        return None
    return Message(
        peer=row[f"{side}_peer"],
        nbytes=row[f"{side}_bytes"],
        whole=row[f"{side}_all"],
        parts=row[f"{side}_parts"],
        ll=bool(row[f"{side}_ll"]),
    )
