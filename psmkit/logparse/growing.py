"""A scan of files that grow: what was read stays read, and a look at it costs no second reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.inputs import ForeignInput, Input, Reader
from psmkit.logparse.result import ScanResult, collect

__all__ = ["GrowingScan"]

_PIECE = 1 << 18


class GrowingScan:
    """Streams and files that are added as they appear, and fed as they grow.

    :meth:`finished` ends the scan, as the native one ends for good: call it in a fork, whose parent goes on.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.stream_of: list[int] = []
        self._native = ffi.gc(lib.ls_scan_new(catalogue.native, 0), lib.ls_scan_free)

    def stream(self) -> int:
        """Add a stream; returns its number."""
        return int(lib.ls_scan_stream(self._native))

    def file(self, stream: int, *, record: bool = False) -> int:
        """Add a file at the end of a stream; returns its number. ``record``: it is a record file, not a log."""
        number = int(lib.ls_scan_file(self._native, stream))
        if record:
            lib.ls_scan_record(self._native, number)
        self.stream_of.append(stream)
        return number

    def home(self, stream: int, host: str, pid: int, home: int) -> None:
        """Lines of a process in this stream belong to the process of the same name in another one."""
        name = host.encode("utf-8", "surrogateescape")
        lib.ls_scan_home(self._native, stream, name, len(name), pid, home)

    def feed(self, file: int, data: memoryview) -> None:
        """The next bytes of a file."""
        lib.ls_feed(self._native, file, ffi.from_buffer(data), len(data))

    def end_round(self) -> None:
        """Each file was fed what it has so far: ranks that advance together are at about the same point."""
        lib.ls_end_round(self._native)

    def lines(self, file: int) -> int:
        """The lines of a file that have ended so far."""
        return int(lib.ls_file_lines(self._native, file))

    def finished(
        self,
        inputs: Sequence[Input],
        foreign: Sequence[ForeignInput],
        notes: Sequence[str],
        texts: Mapping[tuple[int, int], str],
    ) -> ScanResult:
        """The result of the scan, as if all files ended here.

        Args:
            inputs: one for each file, in the order of their numbers. One that is no plain log is read now, as a whole.
            foreign: inputs that are not logs.
            notes: about the inputs.
            texts: lines that can no longer be read, by file and offset.
        """
        notes = [*notes]
        buffer = memoryview(bytearray(_PIECE))
        for number, item in enumerate(inputs):
            if item.kind != "log" or item.encoding is not None:
                reader = Reader(item)
                while n := reader.readinto(buffer):
                    self.feed(number, buffer[:n])
                if reader.note is not None:
                    notes.append(reader.note)
                reader.close()
            lib.ls_end_file(self._native, number)
        lib.ls_end_round(self._native)
        lib.ls_finish(self._native)
        result = collect(self._native, self.catalogue, inputs, self.stream_of, foreign, notes)
        result.remember(texts)
        return result
