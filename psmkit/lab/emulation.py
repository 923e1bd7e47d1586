"""A child process on emulated CUDA: what it sees, what goes wrong in it on purpose, and what it leaves for the reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from psmkit.lab.cuda import environment as library_path
from psmkit.logparse.records import RecordFile, open_record
from psmkit.logparse.sanitizer import Report, reports

__all__ = ["Calls", "Emulation", "Report"]

_LIBRARIES = ("libcudart", "libcuda", "libnvidia-ml")


@dataclass(frozen=True, slots=True)
class Calls:
    """How often a process called a CUDA function. ``provided`` is False where hostcuda answered "not supported"."""

    pid: int
    rank: int
    library: str
    function: str
    calls: int
    provided: bool


@dataclass(frozen=True, slots=True)
class Emulation:
    """How child processes see CUDA. Their records stay in ``folder`` after they ended, however they ended.

    Args:
        folder: where the processes write their record files; made if need be, for this user only.
        topology: a file as ``psmkit lab topology`` writes it; None: one node of 8 GPUs behind an NVSwitch.
        node: which node's GPUs the process has.
        strict: device memory cannot be touched by the host, as on a GPU.
        inline: short work on an idle stream runs in the calling thread.
        host_functions: how many host functions may run at a time; CUDA allows both.
        sanitize: what is done about wrong handles and addresses: nothing, a report, a report and an error.
        leaks: report what is left at the end of a process.
        faults: faults on purpose, as PSM_FAULTS takes them (docs/faults.md).
        stall_report: seconds after which a stream that does not move is reported; 0: never.
    """

    folder: Path
    topology: Path | None = None
    node: int = 0
    strict: bool = True
    inline: bool = True
    host_functions: Literal["concurrent", "serial"] = "concurrent"
    sanitize: Literal["off", "warn", "error"] = "warn"
    leaks: bool = False
    faults: str = ""
    stall_report: float = 10.0

    def environment(self, rank: int | None = None, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a child, from ``base`` (this process's).

        Raises:
            LabError: the emulated libraries were not built.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        env = library_path(os.environ if base is None else base) | {
            "PSM_RECORD_DIR": str(self.folder),
            "PSM_RECORD_KEEP": "1",
            "PSM_NODE": str(self.node),
            "PSM_HOSTCUDA_STRICT": str(int(self.strict)),
            "PSM_HOSTCUDA_INLINE": str(int(self.inline)),
            "PSM_HOSTCUDA_HOST_FUNCTIONS": self.host_functions,
            "PSM_HOSTCUDA_SANITIZE": self.sanitize,
            "PSM_STALL_REPORT": f"{self.stall_report:g}",
        }
        optional = {
            "PSM_TOPOLOGY": str(self.topology) if self.topology else None,
            "PSM_SANITIZE_LEAKS": "1" if self.leaks else None,
            "PSM_FAULTS": self.faults or None,
            "PSM_RANK": None if rank is None else str(rank),
        }
        for name, value in optional.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def records(self) -> Iterator[RecordFile]:
        """The record files of the processes so far."""
        for path in sorted(self.folder.glob("*.rec")):
            yield open_record(str(path))

    def calls(self) -> list[Calls]:
        """Which CUDA functions the processes called, by process and name; also of processes that were killed."""
        found = [
            Calls(
                file.pid,
                file.rank,
                _LIBRARIES[int(record.fields["library"])],
                str(record.fields["function"]),
                int(record.fields["calls"]),
                bool(record.fields["provided"]),
            )
            for file in self.records()
            for record in file.records()
            if record.section == "cuda.calls"
        ]
        return sorted(found, key=lambda c: (c.pid, c.function))

    def reports(self) -> list[Report]:
        """What the handle sanitizer reported, in order of time for each process."""
        return reports(self.folder)
