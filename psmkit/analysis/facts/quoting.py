"""The text of lines, read on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import Ref
from psmkit.model import Evidence, Finding
from psmkit.model.wording import as_shown

__all__ = ["Quotes"]


class Quotes:
    """Lines by reference; each is read once."""

    def __init__(self, scan: ScanData, fetch: Callable[[Ref], Evidence] | None = None) -> None:
        self._files = scan.files
        self._fetch = fetch if fetch is not None else getattr(scan, "evidence", None)
        self._cache: dict[Ref, Evidence] = {}
        # Each step back in a compressed input starts from the beginning, so its lines are quoted at the end in one pass.
        self._late = any(source.kind != "log" or source.encoding is not None for source in getattr(scan, "inputs", ()))
        self._cited: dict[tuple[str, int], Ref] = {}

    def ref(self, evidence: Evidence) -> Ref | None:
        """The reference to a line that was cited."""
        return self._cited.get((evidence.file, evidence.line))

    def of(self, *refs: Ref | None) -> tuple[Evidence, ...]:
        """The lines behind references, without None and duplicates."""
        out: list[Evidence] = []
        seen: set[tuple[int, int]] = set()
        for ref in refs:
            if ref is None or (ref.file, ref.line) in seen:
                continue
            seen.add((ref.file, ref.line))
            if ref not in self._cache:
                if self._fetch is not None:
                    found = self._fetch(ref)
                    self._cache[ref] = replace(found, text=as_shown(found.text)) if "\r" in found.text else found
                else:
                    self._cache[ref] = Evidence(self._files[ref.file].path, ref.line, "")
            out.append(self._cache[ref])
        return tuple(out)

    def cite(self, *refs: Ref | None) -> tuple[Evidence, ...]:
        """Evidence for a finding. If reading is slow, its text stays empty until :meth:`filled`."""
        places = {(self._files[ref.file].path, ref.line): ref for ref in refs if ref is not None}
        self._cited.update(places)
        if not self._late:
            return self.of(*refs)
        return tuple(Evidence(path, line, "") for path, line in places)

    def filled(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings with the text of their evidence."""
        if not self._late:
            return list(findings)
        texts = {(e.file, e.line): e for ref in sorted(set(self._cited.values())) for e in self.of(ref)}
        return [replace(f, evidence=tuple(texts.get((e.file, e.line), e) for e in f.evidence)) for f in findings]
