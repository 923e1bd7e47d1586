"""Runs N processes as the ranks of one job: one socket each, barriers, one deadline, their output, and stacks when the deadline passes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from psmkit.lab import leftovers
from psmkit.lab.bootstrap import Bootstrap, ProtocolError
from psmkit.lab.cuda import LabError
from psmkit.lab.moved import amount
from psmkit.live import debugger, procfs
from psmkit.model.wording import counted

__all__ = ["Job", "Outcome", "RankOutcome", "State", "run"]

State = Literal["good", "failed", "died", "hung", "slow", "waiting"]
_PIECE = 1 << 18
_LAST = 1.0  # seconds before the deadline, in which what moves is counted
_TICK = 0.05  # seconds between looks at processes where the system has no pidfd


@dataclass(frozen=True, slots=True)
class Job:
    """A job to run.

    Args:
        ranks: number of processes.
        command: program and arguments of a rank.
        environment: of a rank; the runner adds PSM_LAB_SOCKET, PSM_RANK and PSM_RANKS.
        folder: where output and stacks of the ranks go; created if it is missing.
        deadline: seconds for the run, from the moment when all ranks have said hello: the time to start them on a busy machine does not count.
        startup: if not all ranks say hello, the deadline counts from this many seconds after the start.
        grace: seconds between the request to end and the kill.
        input: file for the standard input of a rank, None for none.
        stack_signal: a signal at which a rank writes its own stacks to the file that PSM_LAB_STACKS names.
        stacks: collect the stacks of the ranks that have not ended when the deadline passes.
        shared_memory: the folder for named shared memory of the ranks. Leftovers are exact only in a folder that no other run uses.
        reports: number of reports of a complete rank; None: any number.
        look: called with the pids of the ranks that have not ended when the run is stopped, before their stacks are collected.
        moved: the bytes that each rank has moved since the last call; called a second before the deadline and at the deadline.
    """

    ranks: int
    command: Callable[[int], Sequence[str]]
    environment: Callable[[int], Mapping[str, str]]
    folder: Path
    deadline: float = 60.0
    startup: float = 30.0
    grace: float = 2.0
    input: Callable[[int], Path | None] = lambda _rank: None
    stack_signal: int | None = None
    stacks: bool = True
    shared_memory: Path = Path("/dev/shm")
    reports: int | None = None
    look: Callable[[list[int]], None] | None = None
    moved: Callable[[], Mapping[int, int]] | None = None


@dataclass(slots=True)
class RankOutcome:
    """The outcome of a rank.

    ``state``: ``good``; ``failed``: it said so, or ended with another status than 0, or too early; ``died``: by a signal that was not the
    runner's; ``hung``: it was still at work when the deadline passed; ``slow``: the same, but bytes moved in the last second; ``waiting``: it waited for others then. Times are seconds since the
    start of the run. ``signal`` is the one that ended it, ``text`` says what is known of the reason, ``trouble`` is the first failure that the
    rank reported, ``failure`` its fields, as those of a report, and ``trouble_at`` when. Of ranks that were there when the run was ended: ``process_state`` is what /proc says (``T``:
    stopped), ``in_stage`` the seconds that the last stage had lasted, ``moved`` the bytes that it moved in the last second.
    """

    rank: int
    pid: int
    state: State = "good"
    text: str = ""
    exit_status: int | None = None
    signal: int | None = None
    stage: str = ""
    waits: str | None = None
    ended: float = 0.0
    trouble: str = ""
    trouble_at: float | None = None
    failure: dict[str, Any] | None = None
    process_state: str = ""
    in_stage: float | None = None
    moved: int | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""
    stacks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """The outcome of a run. ``shared_memory`` and ``processes`` are the leftovers of the ranks; the processes were ended.

    ``deadline`` is that of the run; ``complaint`` says why it stopped earlier.
    """

    ranks: list[RankOutcome]
    seconds: float
    expired: bool
    shared_memory: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    deadline: float = 0.0
    complaint: str | None = None

    @property
    def good(self) -> bool:
        """All ranks are good and nothing is left behind."""
        return all(r.state == "good" for r in self.ranks) and not self.shared_memory and not self.processes


class _Rank:
    """A process and its socket."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.number, self.process, self.socket = number, process, connection
        self.pidfd: int | None = None
        self.entered = time.monotonic()  # its last stage
        self.open = True
        self.out = bytearray()
        self.outcome = RankOutcome(number, process.pid)
        with contextlib.suppress(OSError):  # a system without it
            self.pidfd = os.pidfd_open(process.pid)

    def ended(self) -> bool:
        return self.process.returncode is not None


def run(job: Job, watch: Callable[[int, str], None] | None = None) -> Outcome:
    """Run a job to its end, or to its deadline.

    Args:
        job: what to run.
        watch: called with the rank and the stage that it enters, or ``ended``.

    Raises:
        LabError: a rank could not be started. The ranks that had started are ended.
    """
    return _Runner(job, watch).run()


class _Runner:
    def __init__(self, job: Job, watch: Callable[[int, str], None] | None) -> None:
        self.job, self.watch = job, watch
        self.bootstrap = Bootstrap(job.ranks)
        self.selector = selectors.DefaultSelector()
        self.ranks: list[_Rank] = []
        self.begun = 0.0
        self.complaint: str | None = None  # why the run cannot continue
        self.moved: Mapping[
            int, int
        ] = {}  # by rank, bytes in the last seconds before the deadline, and how many seconds these were
        self.counted = _LAST

    def run(self) -> Outcome:
        self.job.folder.mkdir(parents=True, exist_ok=True)
        memory = leftovers.Memory(self.job.shared_memory)
        self.begun = time.monotonic()
        expired = False
        try:
            for number in range(self.job.ranks):
                self._start(number)
            self._serve()
            expired = not all(r.ended() for r in self.ranks) and self.complaint is None
            if not all(r.ended() for r in self.ranks):
                self._judge_the_living()
        finally:
            self._end_all()
        left = leftovers.end_sessions(r.process.pid for r in self.ranks)
        owners = {r.process.pid: r.number for r in self.ranks}
        return Outcome(
            [self._settle(r) for r in self.ranks],
            round(time.monotonic() - self.begun, 6),
            expired,
            memory.left(),
            [f"{pid} ({name}) of rank {rank}" for rank, pid, name in sorted((owners[s], p, n) for p, s, n in left)],
            self.job.deadline,
            self.complaint,
        )

    # ---- start ----

    def _start(self, number: int) -> None:
        job = self.job
        mine, theirs = socket.socketpair()
        output = job.folder / "output" / f"rank-{number}.txt"
        output.parent.mkdir(exist_ok=True)
        environment = dict(job.environment(number)) | {
            "PSM_LAB_SOCKET": str(theirs.fileno()),
            "PSM_LAB_STACKS": str(self._stack_file(number, "own")),
            "PSM_RANK": str(number),
            "PSM_RANKS": str(job.ranks),
        }
        source = job.input(number)
        try:
            with open(source or os.devnull, "rb") as stdin, open(output, "wb") as out:
                process = subprocess.Popen(
                    list(job.command(number)),
                    stdin=stdin,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            mine.close()
            raise LabError(f"rank {number} cannot be started: {error}") from None
        finally:
            theirs.close()
        mine.setblocking(False)
        rank = _Rank(number, process, mine)
        rank.outcome.output = str(output)
        self.ranks.append(rank)
        self.selector.register(mine, selectors.EVENT_READ, rank)
        if rank.pidfd is not None:
            self.selector.register(rank.pidfd, selectors.EVENT_READ, rank)

    def _stack_file(self, number: int, kind: str) -> Path:
        folder = self.job.folder / "stacks"
        return folder / f"rank-{number}.{kind}.txt"

    # ---- while it runs ----

    def _serve(self) -> None:
        started: float | None = None
        tick = None if all(r.pidfd is not None for r in self.ranks) else _TICK
        counted_at: float | None = None
        while not all(r.ended() for r in self.ranks) and self.complaint is None:
            if started is None and all(s.pid is not None or s.gone for s in self.bootstrap.ranks):
                started = time.monotonic()
            begin = self.begun + self.job.startup if started is None else started
            left = begin + self.job.deadline - time.monotonic()
            if left <= 0:
                if self.job.moved is not None and counted_at is not None:
                    self.moved = self.job.moved()
                    self.counted = time.monotonic() - counted_at
                return
            if left <= _LAST and counted_at is None and self.job.moved is not None:
                self.job.moved()
                counted_at = time.monotonic()
            until = left if left <= _LAST or self.job.moved is None else left - _LAST
            for key, events in self.selector.select(until if tick is None else min(until, tick)):
                rank: _Rank = key.data
                if key.fileobj == rank.pidfd:
                    self._reap(rank)
                elif rank.open:
                    if events & selectors.EVENT_WRITE:
                        self._flush(rank)
                    if events & selectors.EVENT_READ:
                        self._receive(rank)
            for rank in self.ranks:
                if rank.pidfd is None and not rank.ended():
                    self._reap(rank)
            self.complaint = self.bootstrap.disagreement()

    def _receive(self, rank: _Rank) -> bool:
        """Receive what has arrived. False: there is no more now, or the socket is closed."""
        try:
            data = rank.socket.recv(_PIECE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._leave(rank)
            return False
        state = self.bootstrap.ranks[rank.number]
        stage, reports = state.stage, len(state.reports)
        try:
            answers = self.bootstrap.feed(rank.number, data)
        except ProtocolError as error:
            rank.outcome.text = f"turned away by the runner: {error}"
            self._leave(rank)
            return False
        finally:
            now = round(time.monotonic() - self.begun, 6)
            for report in state.reports[reports:]:
                report["at"] = now
            if state.trouble and rank.outcome.trouble_at is None:
                rank.outcome.trouble, rank.outcome.trouble_at = state.trouble, now
                rank.outcome.failure = state.failure
        if state.stage != stage:
            rank.entered = time.monotonic()
            if self.watch is not None:
                self.watch(rank.number, state.stage)
        self._answer(answers)
        return True

    def _answer(self, answers: list[tuple[int, bytes]]) -> None:
        for number, data in answers:
            rank = self.ranks[number]
            if rank.open:
                rank.out += data
                self._flush(rank)

    def _flush(self, rank: _Rank) -> None:
        try:
            while rank.out:
                del rank.out[: rank.socket.send(rank.out[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError:  # its end is on the way
            rank.out.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if rank.out else 0)
        if self.selector.get_key(rank.socket).events != wanted:
            self.selector.modify(rank.socket, wanted, rank)

    def _leave(self, rank: _Rank) -> None:
        """Close the socket; the process may continue."""
        if rank.open:
            rank.open = False
            self.selector.unregister(rank.socket)
            rank.socket.close()
            self._answer(self.bootstrap.leave(rank.number))

    def _reap(self, rank: _Rank) -> None:
        if rank.ended() or rank.process.poll() is None:
            return
        rank.outcome.ended = round(time.monotonic() - self.begun, 6)
        if rank.pidfd is not None:
            self.selector.unregister(rank.pidfd)
        while rank.open and self._receive(rank):  # what it said last
            pass
        self._leave(rank)
        if self.watch is not None:
            self.watch(rank.number, "ended")

    # ---- the end ----

    def _judge_the_living(self) -> None:
        if self.job.look is not None:
            self.job.look([rank.process.pid for rank in self.ranks if not rank.ended()])
        for rank in self.ranks:
            if rank.ended():
                continue
            waits = self.bootstrap.ranks[rank.number].waits
            rank.outcome.state = "waiting" if waits else "hung"
            if not waits and (moved := self.moved.get(rank.number, 0)) > 0:
                rank.outcome.state, rank.outcome.moved = "slow", round(moved / max(self.counted, _TICK))
            why = f"after {self.job.deadline:g} s" if self.complaint is None else f"at an impasse: {self.complaint}"
            doing = f"in {waits} {why}" if waits else f"at work {why}"
            if rank.outcome.moved is not None:
                doing = f"slow: {amount(rank.outcome.moved)} moved in the last second; {doing}"
            if trouble := self.bootstrap.ranks[rank.number].trouble:
                doing += f"; it had said: {trouble}"
            rank.outcome.text = rank.outcome.text or doing
            rank.outcome.process_state = procfs.state_of(rank.process.pid)
            rank.outcome.in_stage = round(time.monotonic() - rank.entered, 6)
            if rank.outcome.process_state in procfs.STOPPED:
                rank.outcome.text = f"stopped, process state {rank.outcome.process_state}; {rank.outcome.text}"
        for rank in self.ranks:
            # After a look at all of them: a debugger stops a process for a while, and takes time.
            # Where a rank that moves data stands at one moment says nothing.
            if self.job.stacks and not rank.ended() and rank.outcome.state != "slow":
                self._take_stacks(rank)

    def _take_stacks(self, rank: _Rank) -> None:
        outcome, pid = rank.outcome, rank.process.pid
        stage = self.bootstrap.ranks[rank.number].stage
        path = self._stack_file(rank.number, "gdb")
        title = f"rank {rank.number}, process {pid}, stage {stage or 'unknown'}: {outcome.text}"
        debugger.write(pid, path, title=title)
        outcome.stacks.append(str(path))
        if self.job.stack_signal is None:
            return
        own = self._stack_file(rank.number, "own")
        rank.process.send_signal(self.job.stack_signal)
        end = time.monotonic() + 2.0
        while time.monotonic() < end and not (own.exists() and own.stat().st_size) and rank.process.poll() is None:
            time.sleep(0.01)
        if own.exists() and own.stat().st_size:
            outcome.stacks.append(str(own))

    def _end_all(self) -> None:
        """Terminate, wait, kill, wait; close everything of the run."""
        living = [r for r in self.ranks if not r.ended() and r.process.poll() is None]
        # All are stopped before the first ends: none says in its log that a peer died, which is the lab's doing. A stopped process takes the
        # request when it goes on.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            for rank in living:
                rank.process.send_signal(number)
        end = time.monotonic() + self.job.grace
        for rank in living:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, end - time.monotonic()))
        for rank in living:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.wait()
            rank.outcome.ended = round(time.monotonic() - self.begun, 6)
        for rank in self.ranks:
            if rank.open:
                rank.open = False
                self.selector.unregister(rank.socket)
                rank.socket.close()
            if rank.pidfd is not None:
                os.close(rank.pidfd)
        self.selector.close()

    def _settle(self, rank: _Rank) -> RankOutcome:
        outcome, state, code = rank.outcome, self.bootstrap.ranks[rank.number], rank.process.returncode
        outcome.stage, outcome.waits, outcome.reports = state.stage, state.waits, state.reports
        own = self._stack_file(rank.number, "own")
        if own.exists() and not own.stat().st_size:  # it was ready to write its stacks, and nobody asked
            own.unlink()
        outcome.exit_status = code if code is not None and code >= 0 else None
        outcome.signal = -code if code is not None and code < 0 else None
        if outcome.state in ("hung", "slow", "waiting"):
            return outcome
        bad = [r for r in state.reports if r.get("status", "PSM_OK") != "PSM_OK"]
        if outcome.signal is not None:
            outcome.state = "died"
            outcome.text = outcome.text or f"killed by {_signal_name(outcome.signal)} in stage {state.stage or 'start'}"
        elif outcome.text or bad or code:
            outcome.state = "failed"
            said = str(bad[0].get("text") or bad[0]["status"]) if bad else f"exit status {code}: {_last_line(outcome)}"
            outcome.text = outcome.text or said
        elif self.job.reports is not None and len(state.reports) < self.job.reports:
            outcome.state = "failed"
            outcome.text = f"ended after {len(state.reports)} of {counted(self.job.reports, 'case')}"
        return outcome


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _last_line(outcome: RankOutcome) -> str:
    try:
        with open(outcome.output, "rb") as file:
            file.seek(max(0, os.path.getsize(outcome.output) - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return "no output"
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
