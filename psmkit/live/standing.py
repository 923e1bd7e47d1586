"""The step of the protocol in which a process stands, and the rank for which it waits: by its stacks, and by libpsm's record. ``standing.toml`` says
what frames mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from psmkit.live.debugger import Question, Questions
from psmkit.live.kernel import Task
from psmkit.model.inspection import InspectedThread, Standing

__all__ = ["Seen", "of_stacks", "questions"]

#: The order in which standings are of interest: who waits for others, who serves, who waits for the GPU.
_LATE = {"data": 1, "enqueue": 2, "init": 1}
_JOIN = re.compile(r"pthread_(?:clock|timed)?join|thread::join")
_SERVICE = "proxy service thread"  # the role, of psmkit/logparse/foreign/places.toml
#: Steps of a transport, which consist of calls to proxies and of exchanges.
_TRANSPORT = ("Setup", "Connect", "Register")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the variables of a frame say, as far as debug information names them. ``type`` is the type of a call to a proxy, ``job`` the magic
    number of a communicator in bootstrap."""

    rank: int | None = None
    peer: int | None = None
    type: int | None = None
    job: int | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    pattern: re.Pattern[str]
    calls: re.Pattern[str] | None
    called_by: re.Pattern[str] | None
    stage: str | None
    does: str
    serves: bool
    outer: bool
    weak: bool
    only_peer: bool
    ask: Questions


@cache
def _knowledge() -> tuple[tuple[_Step, ...], Mapping[int, str]]:
    data = tomllib.loads(files("psmkit.live").joinpath("standing.toml").read_text())
    steps = tuple(
        _Step(
            re.compile(entry["pattern"]),
            re.compile(entry["calls"]) if "calls" in entry else None,
            re.compile(entry["called_by"]) if "called_by" in entry else None,
            entry.get("stage"),
            entry.get("does", ""),
            entry.get("serves", False),
            entry.get("outer", False),
            entry.get("weak", False),
            entry.get("only_peer", False),
            {key: entry[key] for key in ("rank", "peer", "type", "job") if key in entry},
        )
        for entry in data["step"]
    )
    return steps, {int(number): name for number, name in data["types"].items()}


def questions() -> list[Question]:
    """What to ask gdb about frames."""
    return [
        Question(
            step.pattern.pattern,
            step.calls.pattern if step.calls else "",
            step.called_by.pattern if step.called_by else "",
            step.ask,
        )
        for step in _knowledge()[0]
    ]


def _name(function: str) -> str:
    """C++ names with arguments or templates: the name alone."""
    return re.sub(r"\(.*|<.*|@@?.*|\.(?:isra|part|constprop|cold)\b.*", "", function).rpartition("::")[2] or function


def _step_of(names: Sequence[str], level: int) -> _Step | None:
    inner = names[level - 1] if level else ""
    outer = names[level + 1] if level + 1 < len(names) else ""
    return next(
        (
            step
            for step in _knowledge()[0]
            if step.pattern.fullmatch(names[level])
            and (step.calls is None or step.calls.fullmatch(inner))
            and (step.called_by is None or step.called_by.fullmatch(outer))
        ),
        None,
    )


def of_stacks(
    threads: Sequence[InspectedThread],
    tasks: Mapping[int, Task],
    seen: Mapping[tuple[int, int], Seen],
    rank: int | None,
    rank_of: Callable[[int], int | None],
    pid: int,
) -> list[Standing]:
    """The steps that the stacks show, those that wait for others first.

    Args:
        threads: with their frames.
        tasks: the same threads as the kernel sees them, by id.
        seen: what variables say, by thread and level of the frame.
        rank: of the process, if known.
        rank_of: the rank of another process, None if unknown.
        pid: the process.
    """
    found: list[tuple[tuple[bool, int, bool], Standing]] = []
    for thread in threads:
        standing = _of_thread(thread, tasks.get(thread.tid), seen, rank, rank_of, pid)
        if standing is not None and standing.stage in ("destroy", "abort") and standing.peer is None:
            standing = _joining(standing, thread, threads, tasks, rank_of, pid)
        if standing is not None:
            late = _LATE.get(standing.stage, 0)
            found.append(((" waits " not in standing.text, late, thread.tid != pid), standing))
    return [standing for _, standing in sorted(found, key=lambda item: item[0])]


def _of_thread(
    thread: InspectedThread,
    task: Task | None,
    seen: Mapping[tuple[int, int], Seen],
    rank: int | None,
    rank_of: Callable[[int], int | None],
    pid: int,
) -> Standing | None:
    if thread.kind == "idle":
        return None
    names = [_name(frame.function) for frame in thread.frames]
    frames = [(level, step) for level in range(len(names)) if (step := _step_of(names, level))]
    if any(not step.weak for _, step in frames):
        frames = [(level, step) for level, step in frames if not step.weak]
    call = Seen()
    chosen: tuple[_Step, str] | None = None
    for level, step in frames:
        call = _both(call, seen.get((thread.tid, level), Seen()))
        if chosen is None and (stage := _stage(step, call.type)) is not None:
            chosen = step, stage  # frames further out may know the peer
    if chosen is None:
        return None
    step, stage = chosen
    if stage == "destroy":  # an abort destroys, too
        step, stage = next(((s, s.stage) for _, s in frames if s.stage == "abort"), chosen)
    mine = call.rank if call.rank is not None else rank
    peer, because = call.peer, ""
    if peer is None and task is not None and not step.serves:
        peer, because = _by_socket(task, rank_of, pid)
    if peer is None and step.only_peer:
        return None
    own = " of its own rank" if step.serves else " for its own proxy"
    towards = "" if peer is None else own if peer == mine else f" {'of' if step.serves else 'for'} rank {peer}"
    does = step.does or f"{'answers' if step.serves else 'waits in'} {stage}{{peer}}"
    around = next((s.stage for _, s in frames if s.stage not in (None, stage) and not s.weak), None)
    within = f", within {around}" if around in _TRANSPORT and not step.serves else ""
    level = frames[0][0]
    proof = f"frame #{level} {thread.frames[level].function} of thread {thread.tid} ({thread.name}){because}"
    who = f"rank {mine}" if mine is not None else f"process {pid}"
    job = f"{call.job:#x}" if call.job else ""
    return Standing(stage, peer, f"{who} {does.format(peer=towards)}{within}", proof, mine, job)


def _joining(
    standing: Standing,
    thread: InspectedThread,
    threads: Sequence[InspectedThread],
    tasks: Mapping[int, Task],
    rank_of: Callable[[int], int | None],
    pid: int,
) -> Standing:
    """A communicator ends when its proxy's service does, and that serves until no rank is connected to it."""
    if not any(_JOIN.search(frame.function) for frame in thread.frames):
        return standing
    for other in threads:
        if other.role == _SERVICE and other.tid in tasks:
            peer, because = _by_socket(tasks[other.tid], rank_of, pid)
            if peer is not None:
                text = f"{standing.text}: it waits for rank {peer}, which is connected to its proxy"
                proof = f"{standing.proof}; thread {other.tid}{because.removeprefix('; it')}"
                return replace(standing, peer=peer, text=text, proof=proof)
    return standing


def _stage(step: _Step, call: int | None) -> str | None:
    """The stage of a frame: of an outer one by the type of its call, if that is known."""
    return _knowledge()[1].get(call) if step.outer and call is not None else step.stage


def _both(inner: Seen, outer: Seen) -> Seen:
    return Seen(
        outer.rank if inner.rank is None else inner.rank,
        outer.peer if inner.peer is None else inner.peer,
        outer.type if inner.type is None else inner.type,
        outer.job if inner.job is None else inner.job,
    )


def _by_socket(task: Task, rank_of: Callable[[int], int | None], pid: int) -> tuple[int | None, str]:
    """The rank at the other end of the only socket that a thread waits on."""
    others = [other for other in task.peers if other != pid]
    ranks = {rank for other in others if (rank := rank_of(other)) is not None}
    if len(ranks) != 1:
        return None, ""
    return ranks.pop(), f"; it {task.does}"
