"""Logs as a source of tables: the analysis once, and the lines as often as they are asked for, in batches. Load it late: pyarrow is an extra."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from psmkit.analysis.facts.job import Job, make_job
from psmkit.analysis.inputs import readable_twice, scanned, uncollected
from psmkit.analysis.pipeline import analyse_job
from psmkit.logparse.batches import EventBatch, events
from psmkit.model import Report
from psmkit.query import arrow
from psmkit.query.convert import Converter
from psmkit.query.rows import ROWS
from psmkit.query.schema import TABLES

__all__ = ["LINES", "Progress", "Source"]

Progress = Callable[[int, int], None]
#: The tables that grow with the logs. They are made in batches; the others are small.
LINES = ("events", "matches")
#: Lines of a batch: enough that columns pay, and few enough that a batch needs no more than some ten MiB.
_LEAST = 1 << 16


class Source:
    """The tables of some logs. Arguments and errors are those of :func:`psmkit.analyze`; the logs are read twice. ``least`` lines make a batch."""

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        catalogue: Sequence[str | os.PathLike[str]] | None = None,
        progress: Progress | None = None,
        least: int = _LEAST,
    ) -> None:
        self._paths = readable_twice(paths, "a table of lines")
        self._progress = progress
        self._least = least
        with uncollected(), scanned(self._paths, catalogue=catalogue, any_log=True, progress=progress) as scan:
            self.job: Job = make_job(scan)
            self._scan = scan
            assert scan.catalogue is not None
            self._catalogue = scan.catalogue

    @cached_property
    def report(self) -> Report:
        """The analysis."""
        with uncollected(), self._scan:
            return analyse_job(self.job)

    def table(self, name: str) -> pa.Table:
        """A whole table."""
        if name in LINES:
            return pa.Table.from_batches([batch for _, batch in self.batches([name])], arrow.schema(TABLES[name]))
        return arrow.table(TABLES[name], ROWS[name](self.job, self.report))

    @cached_property
    def _converter(self) -> Converter:
        return Converter(self.job, self._catalogue)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The batches of these tables of :data:`LINES`, from one pass over the logs."""
        make: Mapping[str, Callable[[EventBatch], Any]] = {
            "events": self._converter.events,
            "matches": self._converter.matches,
        }
        calls, messages = "matches" in names, "events" in names
        for batch in events(
            self._paths,
            again=self._scan,
            least=self._least,
            calls=calls,
            messages=messages,
            progress=self._progress,
        ):
            for name in names:
                made = make[name](batch)
                if made.num_rows:
                    yield name, made
