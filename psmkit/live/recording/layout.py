"""Where a recording keeps what. Every path exists from the start of the command on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from psmkit.model.errors import PsmkitError

__all__ = ["FACT", "SUFFIX", "Layout", "RecordError", "archive_name", "write"]

#: A recording NAME has the folder NAME.psmkit until it is packed as NAME.psmkit.tar.zst.
SUFFIX = ".psmkit"
#: The first line of each file that is a fact about a job and no log: readers of logs pass it by.
FACT = "psmkit-record/1"
_PARTS = ("logs", "copied", "records", "flight", "output", "stacks", "ras", "facts", "members")


class RecordError(PsmkitError):
    """A recording cannot be started or packed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of the folder of a recording."""

    root: Path

    @property
    def logs(self) -> Path:
        """Log files that NCCL and libpsm write."""
        return self.root / "logs"

    @property
    def copied(self) -> Path:
        """Copies of log files that the user's settings send elsewhere, and lines of the kernel."""
        return self.root / "copied"

    @property
    def records(self) -> Path:
        """Record files of libpsm (PSM_RECORD_DIR)."""
        return self.root / "records"

    @property
    def kept(self) -> Path:
        """Record files as they were when the job began to be ended. They take the place of the later ones."""
        return self.root / "records-kept"

    @property
    def flight(self) -> Path:
        """Dumps of PyTorch's flight recorder."""
        return self.root / "flight"

    @property
    def output(self) -> Path:
        """What the command printed."""
        return self.root / "output"

    @property
    def stacks(self) -> Path:
        """Inspections and stacks."""
        return self.root / "stacks"

    @property
    def ras(self) -> Path:
        """Answers of NCCL's RAS threads."""
        return self.root / "ras"

    @property
    def facts(self) -> Path:
        """What is no log: environment, versions, topology, /proc."""
        return self.root / "facts"

    @property
    def members(self) -> Path:
        """One file for each agent on this host."""
        return self.root / "members"

    @property
    def manifest(self) -> Path:
        """What was started, seen, collected and missed."""
        return self.root / "manifest.json"

    @property
    def taken(self) -> Path:
        """Exists when evidence of the first death was taken: agents of ranks that died wait for it, since the launcher ends all when one leaves."""
        return self.root / ".taken"

    @property
    def alive(self) -> Path:
        """Touched by the agent while it watches; its time is when a killed agent was last alive."""
        return self.root / ".alive"

    def make(self) -> None:
        """Create the folder and its parts.

        Raises:
            RecordError: the folder cannot be written.
        """
        try:
            for part in _PARTS:
                (self.root / part).mkdir(mode=0o700, parents=True, exist_ok=True)
            self.alive.touch()
        except OSError as error:
            raise RecordError(
                f"cannot record into {self.root}: {(error.strerror or str(error)).lower()}; choose another place with -o NAME"
            ) from None


def archive_name(root: Path, kind: str) -> Path:
    """The archive of a recording; ``kind`` is ``zst`` or ``gz``."""
    return root.with_name(f"{root.name}.tar.{kind}")


def write(path: Path, text: str) -> None:
    """Replace a file at once: a reader, or a killed agent, sees the old text or the new one.

    Raises:
        OSError: the disk is full or the folder is gone.
    """
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, errors="backslashreplace")
    os.replace(part, path)
