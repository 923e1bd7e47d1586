"""Scanning of texts with the tests' own messages."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.catalogue import Catalogue, load
from psmkit.catalogue.entries import read_file
from psmkit.logparse import ScanResult, scan

Scan = Callable[..., ScanResult]
MESSAGES = Path(__file__).with_name("messages.toml")


@pytest.fixture(scope="session")
def messages() -> Catalogue:
    """The tests' own messages, without psmkit's."""
    return Catalogue(read_file(MESSAGES.name, tomllib.loads(MESSAGES.read_text(encoding="utf-8"))))


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """psmkit's catalogue."""
    return load()


@pytest.fixture
def scan_text(tmp_path: Path, messages: Catalogue) -> Scan:
    """scan_text(TEXT, ...): scans texts as files, in the order given."""

    def run(*texts: str | bytes, **options: object) -> ScanResult:
        paths = []
        for i, text in enumerate(texts):
            path = tmp_path / f"rank{i}.log"
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            paths.append(path)
        options.setdefault("catalogue", messages)
        return scan(paths, **options)  # type: ignore[arg-type]

    return run
