"""A user's own TOML: what it may say, and how mistakes in it are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.catalogue import Catalogue, load, loader
from psmkit.catalogue.built import _KEPT, built
from psmkit.logparse import scan
from psmkit.model.errors import CatalogueError

ROOT = Path(__file__).parents[2]


def test_a_users_file_adds_messages(tmp_path: Path, catalogue: Catalogue) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[[message]]\nname = "my.copy"\npattern = "MYPSM copy {n:int} of {total:int}"\nkeep = "all"\n')
    log = tmp_path / "a.log"
    log.write_text("n:1:2 [0] NCCL INFO MYPSM copy 3 of 4\n")
    result = scan(log, catalogue=[mine])
    assert [(e.name, e.fields) for e in result.events] == [("my.copy", {"n": 3, "total": 4})]
    assert result.catalogue is not None
    assert set(result.catalogue.by_name) == {*catalogue.by_name, "my.copy"}


@pytest.mark.parametrize(
    ("text", "entry", "reason"),
    [
        ("[[message]\n", None, "not TOML"),
        ("colour = 1\n", None, "unknown key 'colour'"),
        ('[[message]]\npattern = "a"\n', "a", "without a name"),
        ('[[message]]\nname = "x"\n', "x", "either pattern or patterns"),
        ('[[message]]\nname = "x"\npattern = "a {b:int"\n', "x", "column 3 of"),
        ('[[message]]\nname = "x"\npattern = "a"\nlevel = "LOUD"\n', "x", "expected one of"),
        ('[[message]]\nname = "x"\npattern = "a"\nrole = "rpc.lost"\n', "x", "no such role"),
        ('[[message]]\nname = "x"\npattern = "a"\nrole = "rpc.served"\n', "x", "needs a field 'op'"),
        ('[[message]]\nname = "x"\npattern = "a"\ndistinct = ["b"]\n', "x", "distinct names 'b'"),
        ('[[message]]\nname = "x"\npattern = "a {b:int}"\nrole = "ledger.open"\n', "x", "needs ledger"),
        ('[[message]]\nname = "x"\npattern = "a"\nfinding = "PSM999"\n', "x", "no such finding"),
        ('[[message]]\nname = "x"\npattern = "a"\ncolour = "red"\n', "x", "unknown key 'colour'"),
        ('[[message]]\nname = "x"\npattern = "a"\nrepairs = ["y"]\n', "x", "repairs names 'y'"),
        ('[[message]]\nname = "x"\npattern = "a {b:int}"\nrole = "data.progress"\n', "x", "needs a field 'step'"),
        (
            '[[message]]\nname = "x"\npattern = "step=={step:unit} canSend={c:word}"\nrole = "data.progress"\n',
            "x",
            "column 13 of",
        ),
        (
            '[[message]]\nname = "x"\npattern = "a {step:int}"\nrole = "data.progress"\nset = {role = "both"}\n',
            "x",
            "bad role 'both' in set, expected send or recv",
        ),
        (
            '[[message]]\nname = "x"\npattern = "a {step:int}"\nrole = "data.progress"\nkeep = "count"\n',
            "x",
            'keep = "latest" or "all"',
        ),
        ('[[message]]\nname = "x"\npattern = "a {b:int}"\nset = {b = 1}\n', "x", "set names 'b'"),
        ('[[message]]\nname = "x"\npattern = "a"\nset = {b = true}\n', "x", "set takes a number or a text"),
        ('[[message]]\nname = "x"\npattern = "a {b:int}"\ntitle = "{who}: {b}"\n', "x", "a title needs a finding"),
        ('[[message]]\nname = "x"\npattern = "a"\nfinding = "PSM402"\ntitle = "{b}"\n', "x", "title names 'b'"),
        ('[[message]]\nname = "x"\npattern = "a"\nfinding = "PSM402"\ntitle = "{b"\n', "x", "bad title"),
        (
            '[[message]]\nname = "x"\npattern = "a {b:int}"\nfinding = "PSM402"\ntitle = "{b:rank}"\n',
            "x",
            "'rank' is no form",
        ),
        (
            '[[message]]\nname = "x"\npattern = "a {b:int}"\nfinding = "PSM402"\ntitle = "{b}[ {c}]"\n',
            "x",
            "title names 'c'",
        ),
        (
            '[[message]]\nname = "x"\npattern = "a {b:int}"\nfinding = "PSM402"\ntitle = "{b}"\norder = 3\n',
            "x",
            "order and confidence belong together",
        ),
        (
            '[[message]]\nname = "x"\npattern = "a {b:int}"\nfinding = "PSM402"\norder = 3\nconfidence = 0.5\n',
            "x",
            "an order needs a title",
        ),
        ('[[message]]\nname = "x"\npattern = "a1"\n[[message]]\nname = "x"\npattern = "a2"\n', "x", "second entry"),
    ],
)
def test_mistakes_name_file_entry_and_reason(tmp_path: Path, text: str, entry: str | None, reason: str) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    with pytest.raises(CatalogueError) as caught:
        load([mine])
    message = str(caught.value)
    assert message.startswith(f"{mine}: ")
    assert reason in message
    assert caught.value.entry == entry
    assert "\n" not in message


LATEST = """
[[message]]
name = "my.state"
pattern = "MYPSM end {peer:int} step {step:int} is {what:word}"
role = "data.progress"
set = {role = "send"}
"""


def test_latest_state_counts_the_lines_since_it_changed(tmp_path: Path) -> None:
    """One event for each end, however many states it passes; each field is that of the last line."""
    mine, log = tmp_path / "mine.toml", tmp_path / "a.log"
    mine.write_text(LATEST)
    lines = [f"MYPSM end {step % 3} step {step} is {'copying' * (step % 20)}-{step}" for step in range(3000)]
    lines += ["MYPSM end 1 step 7 is idle"] * 5 + ["MYPSM end 2 step 8 is a-name-of-a-state-" + "x" * 100]
    log.write_text(
        "".join(f"[2025-11-21 10:00:{at % 60:02d}] n:1:2 [0] NCCL INFO {text}\n" for at, text in enumerate(lines))
    )
    events = {e.fields["peer"]: e for e in scan(log, catalogue=[mine]).events}
    assert len(events) == 3 and all(e.fields["role"] == "send" for e in events.values())
    idle = events[1]
    assert (idle.fields["step"], idle.fields["what"], idle.count) == (7, "idle", 5)
    assert (idle.ref.line, idle.last and idle.last.line) == (3001, 3005)
    assert (idle.time or "").endswith("10:00:00") and (idle.until or "").endswith("10:00:04")
    assert events[2].fields["what"] == ("a-name-of-a-state-" + "x" * 100)[:64] and events[2].count == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"nothing\.toml"):
        load([tmp_path / "nothing.toml"])


def test_the_cache_of_parsed_files_is_never_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = sorted(Path(loader.__file__).parent.glob("uds*.toml"))
    fresh = built(paths)
    (kept,) = (tmp_path / "cache" / "psmkit").iterdir()
    assert built(paths) == fresh
    kept.write_text("{damaged")
    assert built(paths) == fresh
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert built(paths) == fresh


def test_every_entry_comes_out_of_the_cache_as_it_went_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(Path(loader.__file__).parent.glob("**/*.toml"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    messages, phrases = built(paths)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        kept, said = built(paths)
        assert kept == messages and said == phrases
        assert [tuple(m.samples) for m in kept] == [m.samples for m in messages]
    assert len(messages) > 1000 and phrases


def test_what_a_wheel_holds_is_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build writes it before there is a scanner, and then no file is parsed."""
    code = "import runpy, sys; sys.modules['psmkit._native'] = None; sys.argv[0] = ''; runpy.run_module('psmkit.catalogue.built', run_name='__main__')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "built")], check=True, cwd=ROOT, timeout=60)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    sets = [sorted((ROOT / "psmkit" / "catalogue").glob(names)) for names in ("*.toml", "v01/*.toml")]
    fresh = [built(paths) for paths in sets]
    monkeypatch.setattr("psmkit.catalogue.built._SHIPPED", tmp_path / "built")
    monkeypatch.setattr("psmkit.catalogue.built._parse", None)
    assert [built(paths) for paths in sets] == fresh
    assert len(list((tmp_path / "built").iterdir())) == 2


def test_the_sets_of_files_that_one_run_parses_are_all_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(loader.__file__).parent
    sets = [sorted(folder.glob(names)) for names in ("uds*.toml", "v01/*.toml", "psm*.toml")]
    fresh = [built(paths) for paths in sets]

    def parsed(file: str, data: bytes) -> dict[str, object]:
        raise AssertionError(f"{file} was parsed again")

    monkeypatch.setattr("psmkit.catalogue.built._parse", parsed)
    assert [built(paths) for paths in sets] == fresh


def test_the_cache_of_parsed_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = sorted(Path(loader.__file__).parent.glob("uds*.toml"))[:1]
    for number in range(3 * _KEPT):
        monkeypatch.setattr("psmkit.catalogue.built._FORMAT", str(number).encode())
        built(paths)
    assert len(list((tmp_path / "psmkit").iterdir())) == _KEPT
