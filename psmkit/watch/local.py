"""Look into processes of this host that are to blame: what `psmkit inspect` says of them is evidence beside the logs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from psmkit.live import mapped
from psmkit.live.hosts import Target
from psmkit.logparse.inputs import ForeignInput, look
from psmkit.model.errors import InputError

__all__ = ["Inspector"]

_MOST = 4  # processes that are looked into
_DEADLINE = 30.0
_AGAIN = 300.0  # seconds after which the same process is looked into again

_Process = tuple[str, int]


class Inspector:
    """Runs `psmkit inspect`, one look at a time. ``inputs`` are its inspections, as long as their processes print nothing new."""

    def __init__(self, folder: str | None = None) -> None:
        """``folder``: keep the inspections there."""
        self.inputs: list[ForeignInput] = []
        self.said = ""
        self._folder = folder
        self._temporary: str | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._heard: Mapping[_Process, float] = {}
        self._asked: dict[_Process, float] = {}
        self._known: set[str] = set(self._found()) if folder is not None else set()

    @property
    def busy(self) -> bool:
        """Whether a look is under way."""
        return self._running is not None

    def ask(self, processes: Iterable[_Process], heard: Mapping[_Process, float]) -> bool:
        """Look into those of the processes that run here and use NCCL, unless that was done. ``heard`` is when each of them last printed something.

        Returns whether a look began.
        """
        now = time.monotonic()
        here = [
            one
            for one in processes
            if now - self._asked.get(one, -_AGAIN) >= _AGAIN and Target(*one).here and mapped.uses_nccl(one[1])
        ][:_MOST]
        if not here or self.busy:
            return False
        self._asked.update(dict.fromkeys(here, now))
        self._heard = {one: heard[one] for one in here if one in heard}
        command = [sys.executable, "-m", "psmkit", "inspect", *(str(pid) for _, pid in here)]
        self._running = subprocess.Popen(
            [*command, "--deadline", f"{_DEADLINE:.0f}", "-o", self._place()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it: it would leave a process stopped
        )
        return True

    def poll(self) -> bool:
        """Take the inspections of a look that has ended; returns whether there are new ones."""
        if self._running is None or self._running.poll() is None:
            return False
        self._running = None
        new = False
        for path in self._found():
            if path in self._known:
                continue
            self._known.add(path)
            try:
                item = look(path)
            except InputError:
                continue
            if item.foreign is not None:
                self.inputs.append(ForeignInput(path, item.foreign, item))
                new = True
        return new

    def check(self, heard: Mapping[_Process, float]) -> bool:
        """Forget inspections of processes that printed something since; returns whether there were some."""
        if not self.inputs or all(heard.get(one, when) <= when for one, when in self._heard.items()):
            return False
        self.inputs = []
        self._asked = {}
        return True

    @property
    def asked(self) -> list[_Process]:
        """The processes of the newest look."""
        return list(self._heard)

    def close(self) -> None:
        """Wait for the look that is under way: a process that it stopped has to go on."""
        if self._running is not None:
            try:
                self._running.wait(_DEADLINE)
            except subprocess.TimeoutExpired:
                self._running.terminate()
                self._running.wait()
            self._running = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _found(self) -> list[str]:
        return sorted(map(str, Path(self._place()).glob("*.inspect.json")))

    def _place(self) -> str:
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)
            return self._folder
        if self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="psmkit-watch-")
        return self._temporary
