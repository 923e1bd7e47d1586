"""``psmkit scrub``: what it writes, says and refuses."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Result

Cli = Callable[..., Result]

LOG = "gpu17:31001:31002 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>\ngpu17:31001:31002 [0] NCCL INFO open /home/alice/x.log\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "a.log").write_text(LOG)
    return tmp_path / "a.log"


def test_it_writes_a_copy_and_the_names_for_the_owner_only(psmkit_cli: Cli, log: Path) -> None:
    out, names = log.with_name("b.log"), log.with_name("names.json")
    result = psmkit_cli("scrub", str(log), str(out), "--map", str(names))
    assert result.status == 0
    assert "check: nothing looks like a name or a secret" in result.out
    assert "gpu17" not in out.read_text() + result.out
    assert json.loads(names.read_text())["host"] == {"gpu17": "host1"}
    assert stat.S_IMODE(names.stat().st_mode) == 0o600


def test_the_check_finds_what_is_left(psmkit_cli: Cli, log: Path) -> None:
    result = psmkit_cli("scrub", "--check", str(log))
    assert result.status == 1
    assert f"{log}:1: address: 10... (8 characters)" in result.out
    out = log.with_name("b.log")
    psmkit_cli("scrub", str(log), str(out))
    assert psmkit_cli("scrub", "--check", str(out)).status == 0


def test_something_left_out_shows_in_the_exit_status(psmkit_cli: Cli, log: Path) -> None:
    (log.parent / "in").mkdir()
    log.rename(log.parent / "in" / "a.log")
    (log.parent / "in" / "core").write_bytes(b"\x7fELF" + bytes(12) + b"\x04\x00" + bytes(100))
    result = psmkit_cli("scrub", str(log.parent / "in"), str(log.parent / "out"))
    assert result.status == 1
    assert "left out:" in result.out
    assert "core: it is a core dump" in result.out


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("{log}",), "missing OUT"),
        (("--check", "{log}", "x"), "takes no OUT"),
        (("{log}", "{log}"), "apart"),
        (("{folder}/none", "{folder}/x"), "no such file"),
    ],
)
def test_wrong_arguments_are_refused(psmkit_cli: Cli, log: Path, args: tuple[str, ...], why: str) -> None:
    result = psmkit_cli("scrub", *(arg.format(log=log, folder=log.parent) for arg in args))
    assert result.status == 2
    assert why in result.out + result.err
