"""``catalogue``, ``codes``, ``variants`` and ``lab faults`` keep to the width of the terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psmkit import catalogue
from psmkit.catalogue import load
from psmkit.lab import faults
from psmkit.model import CODES
from psmkit.transport import variants
from tests.cli.conftest import Result

Cli = Callable[..., Result]


@pytest.fixture(params=(80, 100))
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def _words(psmkit_cli: Cli, width: int, *arguments: str) -> str:
    """What a listing says, with its line ends and runs of blanks as one blank each."""
    done = psmkit_cli(*arguments)
    assert done.status == 0 and max(map(len, done.out.splitlines())) <= width
    return " ".join(done.out.split())


def test_codes_keep_to_the_width_and_lose_no_meaning(psmkit_cli: Cli, width: int) -> None:
    text = _words(psmkit_cli, width, "codes")
    assert all(code.meaning in text for code in CODES.values())


def test_variants_keep_to_the_width_and_lose_no_symptom(psmkit_cli: Cli, width: int) -> None:
    text = _words(psmkit_cli, width, "variants")
    assert all(" ".join(one.summary.split()) in text for one in variants().values())
    assert all(one.outcome.removeprefix(f"{one.code}:").strip() in text for one in variants().values())


def test_faults_keep_to_the_width_and_lose_no_description(psmkit_cli: Cli, width: int) -> None:
    text = _words(psmkit_cli, width, "lab", "faults")
    assert all(site.name in text and site.description in text for site in faults.sites())


def test_the_catalogue_keeps_to_the_width_and_its_rows_are_whole_elsewhere(
    psmkit_cli: Cli, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _words(psmkit_cli, width, "catalogue", "torch")
    assert "torch.watchdog." in found
    _words(psmkit_cli, width, "catalogue")
    monkeypatch.delenv("COLUMNS")
    whole = psmkit_cli("catalogue", "torch").out
    assert catalogue.load().by_name["torch.store.gone"].meaning in whole


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_a_narrow_list_of_messages_shows_whole_names_and_codes(
    psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = psmkit_cli("catalogue", "proxy", "error").out.splitlines()
    known = load().by_name
    assert len(lines) > 6
    assert all(line.split()[0] in known for line in lines[1:-1])
    assert not [line for line in lines[1:-1] if "PSM…" in line]
    assert all(len(line) <= int(columns) for line in lines[:-1])
