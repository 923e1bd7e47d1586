"""The scan of :mod:`psmkit.logparse` with its work on the workers of a dask scheduler."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from psmkit import logparse
from psmkit.catalogue import Catalogue
from psmkit.cluster import tasks
from psmkit.logparse.arrange import Arrangement, Head, Peek, arranged
from psmkit.logparse.joined import TooMuchError, joined, related
from psmkit.logparse.parts import Part, Share, check_unchanged, read_part, unpacked
from psmkit.logparse.result import ScanResult
from psmkit.logparse.scanner import Paths, Sources, read
from psmkit.logparse.shares import by_host, shares, units
from psmkit.logparse.streams import Input
from psmkit.model.errors import PsmkitError

__all__ = ["Engine", "connected"]

_CONNECT = 30.0  # seconds for the answer of a scheduler
_PATIENCE = 120.0  # seconds without a worker: one that died starts again
_TICK = 1.0
_PER_WORKER = 4  # shares: a worker that is lost loses one, and the last ones to end are small
_LEAST = 4 << 20  # bytes of a share
_HEADS_AT_ONCE = 256
_RETRIES = 3
_ROUNDS = 8  # of shares that turned out to belong together

Progress = Callable[[int, int], None]


@contextmanager
def connected(scheduler: str | None = None, workers: int | None = None) -> Iterator[Engine]:
    """An engine on the workers of a scheduler, such as ``tcp://head:8786`` or ``tls://head:8786``; without one, on processes of this machine.

    Args:
        scheduler: its address. The settings of dask say with which certificates ``tls://`` is used.
        workers: processes to start without a scheduler; one for each processor if it is None.

    Raises:
        PsmkitError: dask.distributed is missing, or no scheduler answers.
    """
    distributed = _distributed()
    with ExitStack() as stack:
        if scheduler is None:
            folder = tempfile.mkdtemp(prefix="psmkit-dask-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # the scheduler has a folder, too, and no argument for it
            stack.enter_context(import_module("dask").config.set({"temporary-directory": folder}))
            address: Any = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers or len(os.sched_getaffinity(0)),
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    local_directory=folder,
                    silence_logs=logging.CRITICAL,
                )
            )
        else:
            address = scheduler
        try:
            client = stack.enter_context(distributed.Client(address, set_as_default=False, timeout=_CONNECT))
        except (OSError, ValueError, TimeoutError, RuntimeError) as error:
            raise PsmkitError(
                f"no dask scheduler answers at {scheduler} ({type(error).__name__}: {error}): "
                "start one with `dask scheduler`, and workers with `dask worker ADDRESS`"
            ) from None
        yield Engine(client)


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        raise PsmkitError("--engine dask needs the package distributed: pip install 'psmkit[dask]'") from None


class Engine:
    """Scans on the workers of a ``distributed.Client``."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def workers(self) -> int:
        """How many threads the workers have at the moment."""
        return sum(of["nthreads"] for of in self._client.scheduler_info(n_workers=-1)["workers"].values())

    def scan(
        self,
        paths: Paths,
        *,
        catalogue: Catalogue | Sequence[str | os.PathLike[str]] | None = None,
        keep_calls: bool = False,
        progress: Progress | None = None,
    ) -> ScanResult:
        """Read logs once; arguments, result and errors are those of :func:`psmkit.logparse.scan`.

        Workers read the paths as they are named here: their machines see the same files, or the paths are URLs. What only this process can read,
        such as standard input, it reads itself. So it does with everything where the whole of a job exceeds the bounds of one scan, with
        ``keep_calls``, and with a catalogue that is no list of files.

        Raises:
            PsmkitError: there is no worker, a worker runs another psmkit, or the workers die while they read.
        """
        if keep_calls or isinstance(catalogue, Catalogue):
            return logparse.scan(paths, catalogue=catalogue, keep_calls=keep_calls, progress=progress)
        self._wait_for_workers()
        sources = Sources.find(paths, catalogue)
        if not sources.logs:
            return read(sources)
        job = _Job(sources.logs, sources.catalogue, progress)
        heads = self._heads(job)
        arrangement = arranged(job.inputs, heads)
        try:
            parts = self._parts(job, arrangement, heads)
            return joined(parts, job.catalogue, job.inputs, arrangement.stream_of, sources.foreign, sources.notes)
        except TooMuchError:
            return read(sources, progress=progress)  # not by the paths: standard input was read

    def _wait_for_workers(self) -> None:
        end = time.monotonic() + _PATIENCE
        while not self.workers:
            if time.monotonic() > end:
                raise PsmkitError(
                    f"the dask scheduler at {self._client.scheduler.address} has no worker: start some with `dask worker ADDRESS`"
                )
            time.sleep(_TICK / 4)

    def _heads(self, job: _Job) -> list[Head]:
        """What the first lines of each input name, read by the workers where there are many."""
        movable = {number: item for number, item in enumerate(job.inputs) if tasks.movable(item)}
        here = [
            number for number in range(len(job.inputs)) if number not in movable or len(job.inputs) <= _HEADS_AT_ONCE
        ]
        peek = Peek(job.catalogue)
        found = {number: peek.head(job.inputs[number]) for number in here}
        if len(found) < len(job.inputs):
            rest = [number for number in movable if number not in found]
            asked = []
            for at in range(0, len(rest), _HEADS_AT_ONCE):
                some = {number: movable[number] for number in rest[at : at + _HEADS_AT_ONCE]}
                asked.append(tasks.request(job.catalogue, some))
            for _, answer in self._answers(tasks.heads, asked):
                found |= tasks.heads_of(answer)
        return [found[number] for number in range(len(job.inputs))]

    def _parts(self, job: _Job, arrangement: Arrangement, heads: Sequence[Head]) -> list[tuple[Share, Part]]:
        """Parts of all streams, none of which depends on a line of another."""
        most = max(_PER_WORKER * self.workers, 1)
        most = max(min(most, job.size // _LEAST), min(2, len(arrangement.streams)), 1)
        hosts = by_host(arrangement, heads)
        together: list[set[int]] = hosts if len(units(arrangement, hosts)) >= most // 2 else []
        left = set(range(len(arrangement.streams)))
        parts: list[tuple[Share, Part]] = []
        for _ in range(_ROUNDS):
            groups = [group for group in units(arrangement, together) if left.issuperset(group)]
            parts += self._read(job, shares(job.inputs, arrangement, groups, most))
            found = related(parts)
            if not found:
                return parts
            together += found
            concerned = set().union(*found)
            again = [share for share, _ in parts if concerned.intersection(share.streams)]
            left = {stream for share in again for stream in share.streams}
            parts = [(share, part) for share, part in parts if left.isdisjoint(share.streams)]
        raise TooMuchError("rounds")

    def _read(self, job: _Job, wanted: Sequence[Share]) -> list[tuple[Share, Part]]:
        out = []
        away = [share for share in wanted if all(tasks.movable(item) for item in share.inputs.values())]
        asked = [tasks.request(job.catalogue, share.inputs, share) for share in away]
        for at, answer in self._answers(tasks.part, asked):
            out.append(job.took(away[at], answer, "a worker"))
        for share in wanted:
            if share not in away:
                out.append(job.took(share, read_part(share, job.catalogue), "this process"))
        return sorted(out, key=lambda part: min(part[0].streams))

    def _answers(self, task: Callable[[bytes], bytes], asked: Sequence[bytes]) -> Iterator[tuple[int, memoryview]]:
        """The answers to requests, with their numbers, as they come. A worker that is lost is one whose work others do again."""
        distributed = _distributed()
        waiting = {
            self._client.submit(task, one, pure=False, retries=_RETRIES): number for number, one in enumerate(asked)
        }
        alone = 0.0
        try:
            while waiting:
                try:
                    with self._client.as_current():
                        done = distributed.wait(list(waiting), timeout=_TICK, return_when="FIRST_COMPLETED").done
                except TimeoutError:
                    alone = 0.0 if self._has_workers() else alone + _TICK
                    if alone >= _PATIENCE:
                        raise PsmkitError(f"all dask workers are lost, for {_PATIENCE:.0f} seconds") from None
                    continue
                alone = 0.0
                for future in done:
                    number = waiting.pop(future)
                    yield number, self._answer(future)
        finally:
            for future in waiting:
                future.cancel()

    def _has_workers(self) -> bool:
        if self._client.status not in ("running", "connecting"):
            raise PsmkitError("the connection to the dask scheduler is lost")
        return self.workers > 0

    def _answer(self, future: Any) -> memoryview:
        distributed = _distributed()
        try:
            return tasks.said(future.result(), "dask")
        except distributed.KilledWorker:
            raise PsmkitError("each dask worker that read a part of the logs died: have they enough memory?") from None
        except (PsmkitError, KeyboardInterrupt):
            raise
        except ModuleNotFoundError as error:
            raise PsmkitError(f"a dask worker lacks the package {error.name}: install psmkit on all machines") from None
        except Exception as error:  # whatever a worker raised
            raise PsmkitError(f"a dask worker failed: {type(error).__name__}: {error}") from None


class _Job:
    """What is read, and how much of it was."""

    def __init__(self, inputs: Sequence[Input], catalogue: Catalogue, progress: Progress | None) -> None:
        self.inputs, self.catalogue = inputs, catalogue
        self.size = sum(item.size for item in inputs)
        self._progress, self._done = progress, 0

    def took(self, share: Share, answer: bytes | memoryview, where: str) -> tuple[Share, Part]:
        """The part of a share."""
        part = unpacked(answer, self.catalogue, where)
        for number, size in zip(share.numbers, part.read, strict=True):
            check_unchanged(self.inputs[number], size)
        if self._progress is not None:
            self._done = min(self._done + share.size, self.size)
            self._progress(self._done, self.size)
        return share, part
