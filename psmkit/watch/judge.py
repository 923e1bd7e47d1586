"""The analysis of what a follower has read so far. It ends the scan, so a fork of this process makes it, and the scan goes on here."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NoReturn

from psmkit.analysis.facts.job import make_job
from psmkit.analysis.inputs import check, uncollected
from psmkit.analysis.pipeline import analyse_job
from psmkit.analysis.registry import registered
from psmkit.logparse import ScanResult
from psmkit.logparse.inputs import ForeignInput
from psmkit.logparse.types import Ref
from psmkit.model import Report
from psmkit.model.errors import NothingToAnalyse, PsmkitError
from psmkit.model.late import dataclass
from psmkit.watch.files import Part
from psmkit.watch.follow import Follower, Snapshot

__all__ = ["Answer", "Judge", "answer"]

_MOST_QUOTED = 20_000
#: Messages that repeat while something is stuck: they are no sign of life.
_WAITING = frozenset(
    {
        "horovod.stalled",
        "hostcuda.stall",
        "hostcuda.stall_host_function",
        "hostcuda.stall_thread",
        "ib.stall",
        "libpsm.net.stalled",
        "libpsm.p2p.stalled",
        "watched.still",
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an analysis found, or why it found nothing.

    ``nothing``: no line can be judged yet. ``error``: the analysis failed. ``last`` is the last line of each process by host and pid that is
    no mere sign of waiting, as the number of its file and line; ``files`` are the names of the files by number. ``quoted`` are lines of files, by number and offset. ``taken`` is when the bytes
    were read.
    """

    taken: float
    report: Report | None = None
    nothing: str = ""
    error: str = ""
    files: Sequence[str] = ()
    last: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    quoted: Mapping[tuple[int, int], str] = field(default_factory=dict)


def answer(snapshot: Snapshot, taken: float, more: Sequence[ForeignInput] = ()) -> Answer:
    """Analyse a snapshot; ``more`` are further inputs, such as inspections. The scan of the snapshot ends with it."""
    files = [item.path for item in snapshot.inputs]
    if not snapshot.inputs and not snapshot.foreign:
        return Answer(taken, nothing="no log yet")
    try:
        with uncollected():
            result = snapshot.scan.finished(snapshot.inputs, [*snapshot.foreign, *more], snapshot.notes, snapshot.texts)
            with result:
                check(result, any_log=True)
                report = analyse_job(make_job(result))
                last = _last_words(result)
                quoted = dict(list(result.quoted.items())[:_MOST_QUOTED])
    except NothingToAnalyse as error:
        return Answer(taken, nothing=str(error), files=files)
    except PsmkitError as error:
        return Answer(taken, error=str(error), files=files)
    return Answer(taken, report, files=files, last=last, quoted=quoted)


def _last_words(result: ScanResult) -> dict[tuple[str, int], tuple[int, int]]:
    """The last line of each process in its log, without threads whose last words were that they wait."""
    found: dict[tuple[str, int], Ref] = {}
    for thread in result.threads:
        if thread.last_name in _WAITING or result.inputs[thread.last.file].kind == "record":
            continue
        process = result.processes[thread.proc]
        name = process.host, process.pid
        if name not in found or found[name].seq < thread.last.seq or found[name].file != thread.last.file:
            found[name] = thread.last
    return {name: (ref.file, ref.line) for name, ref in found.items()}


class Judge:
    """One judgement after the other, each in a process of its own. ``cost`` is the processor time of the last one."""

    def __init__(self) -> None:
        registered()  # here, else each process would import the rules
        self.cost = 0.0
        self.count = 0
        self._pid = 0
        self._pipe = -1
        self._data = bytearray()
        self._parts: Sequence[Part] = ()
        self.parts: Sequence[Part] = ()

    @property
    def busy(self) -> bool:
        """Whether a judgement is under way."""
        return self._pid > 0

    @property
    def pipe(self) -> int:
        """A descriptor that becomes readable with the answer."""
        return self._pipe

    def begin(self, follower: Follower, more: Sequence[ForeignInput] = ()) -> None:
        """Judge what the follower has now.

        Raises:
            OSError: there is no room for another process.
        """
        snapshot, taken = follower.snapshot(), time.time()
        read, write = os.pipe2(os.O_CLOEXEC)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Threads of libraries are idle, and the child starts none.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                pid = os.fork()
            except OSError:
                os.close(read)
                os.close(write)
                raise
        if not pid:
            os.close(read)
            _child(snapshot, taken, more, write)
        os.close(write)
        os.set_blocking(read, False)
        self._pid, self._pipe, self._parts = pid, read, snapshot.parts
        self._data.clear()

    def ask(self) -> Answer | None:
        """The answer, None: it is not complete yet."""
        if not self._pid:
            return None
        while True:
            try:
                piece = os.read(self._pipe, 1 << 20)
            except BlockingIOError:
                return None
            if not piece:
                break
            self._data += piece
        status = self._end()
        if status or not self._data:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            return Answer(time.time(), error=f"the analysis ended {how}")
        found = pickle.loads(self._data)
        assert isinstance(found, Answer)
        self.parts = self._parts
        return found

    def wait(self) -> Answer | None:
        """The answer, waited for."""
        if not self._pid:
            return None
        os.set_blocking(self._pipe, True)
        return self.ask()

    def close(self) -> None:
        """Give up the judgement that is under way."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._end()

    def _end(self) -> int:
        os.close(self._pipe)
        _, status, used = os.wait4(self._pid, 0)
        self._pid, self._pipe = 0, -1
        self.cost = used.ru_utime + used.ru_stime
        self.count += 1
        return os.waitstatus_to_exitcode(status)


def _child(snapshot: Snapshot, taken: float, more: Sequence[ForeignInput], write: int) -> NoReturn:
    """The process that judges. Nothing of its parent's may run in it: it ends without cleaning up."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        try:
            found = answer(snapshot, taken, more)
        except Exception as error:
            found = Answer(taken, error=f"internal error, please report it: {type(error).__name__}: {error}")
        with open(write, "wb") as pipe:
            pickle.dump(found, pipe, protocol=pickle.HIGHEST_PROTOCOL)
        status = 0
    finally:
        os._exit(status)
