"""NCCL's files in /dev/shm: which of them a run made, and which its dead processes left there.

NCCL removes the name of a segment when the peer has attached. A process that dies before leaves it for ever. Names are random, so a
file is taken for the run's only where a log of it names the file, or one of its processes was seen to use it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from psmkit.live import procfs

__all__ = ["NcclMemory"]

_SHM = Path("/dev/shm")
_NAME = re.compile(r"nccl-[A-Za-z0-9]{4,64}\Z")
_MENTION = re.compile(rb"/dev/shm/(nccl-[A-Za-z0-9]{4,64})")


class NcclMemory:
    """NCCL's files as they are now, before the run; what comes later may be the run's.

    Args:
        folder: where NCCL keeps them.
    """

    def __init__(self, folder: Path = _SHM) -> None:
        self.folder = folder
        self._before = self._names()
        self._seen: set[str] = set()

    def _names(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self.folder) if _NAME.match(entry.name)}
        except OSError:
            return set()

    def look(self, pids: Iterable[int]) -> None:
        """Take note of what living processes of the run use."""
        for pid in pids:
            self._seen |= {name for name in procfs.used_by(pid, str(self.folder)) if _NAME.match(name)}

    def reap(self, logs: Iterable[Path]) -> tuple[list[str], list[str]]:
        """Remove what dead processes of the run left.

        Args:
            logs: the run's; they name what was made.

        Returns:
            Names that were removed, and names of new files that nobody uses and that nothing shows to be the run's: they stay.
        """
        ours = set(self._seen)
        for log in logs:
            with contextlib.suppress(OSError):
                ours |= {name.decode() for name in _MENTION.findall(log.read_bytes())}
        new = sorted(self._names() - self._before)
        used = procfs.in_use(str(self.folder)) if new else set()
        removed, unknown = [], []
        for name in new:
            path = self.folder / name
            with contextlib.suppress(OSError):
                info = path.lstat()
                if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or name in used:
                    continue
                if name in ours:
                    path.unlink()
                    removed.append(name)
                else:
                    unknown.append(name)
        return removed, unknown
