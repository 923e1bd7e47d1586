"""The check of what was scrubbed: pseudonyms are no findings, whatever stands around them, and a secret is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.catalogue import load
from psmkit.scrub import check, find, scrub

GITHUB = "ghp_" + "a1B2" * 9
LINES = (
    "gpu-node17:20403:20453 [3] NCCL INFO Bootstrap : Using eth0:10.12.13.14<0>",
    f"cloning https://{GITHUB}@github.com/zebra/wombat.git",
    "postgres://dave:hunter22@10.12.13.14:5432/db and git@github.com:zebra/wombat.git",
    "docker login -u dave -p Passw0rd99; mysql -psuperSecret1 --token abcdef0123456789abcdef",
    f"AccountName=zebra;AccountKey={'Zm9v' * 12}Zg==;EndpointSuffix=zebra.windows.net",
    r"File C:\Users\erin\train.py, f (timeout=timeout@entry=0x7ffd, arg=arg@entry=0x55)",
    "user=dave account=zebra partition=wombat cluster=emu4",
)
PLANTED = (
    "https://token3:hunter22@github.com/x",
    "postgres://dave@198.18.0.1/db",
    "docker login -u user1 -p Passw0rd99",
    "mysql -psuperSecret1",
    "--api-key token3x",
    r"C:\Users\erin\x",
    "git@github.com:zebra/name1.git",
    "user=user1 partition=wombat",
    "mail erin@entries.example",
)


def left(path: Path) -> list[str]:
    return [f"{one.line}: {one.kind}" for one in check(find(str(path))[0], load()).left]


def test_what_was_scrubbed_is_clean(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("\n".join(LINES) + "\n")
    result = scrub(str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    assert not result.checked.counts
    assert left(tmp_path / "b.log") == []
    text = (tmp_path / "b.log").read_text()
    for secret in (
        "dave",
        "erin",
        "wombat",
        "zebra",
        "emu4",
        "Passw0rd99",
        "superSecret1",
        "abcdef01",
        "Zm9v",
        GITHUB,
        "hunter22",
    ):
        assert secret not in text
    assert "(timeout=timeout@entry=0x7ffd, arg=arg@entry=0x55)" in text


@pytest.mark.parametrize(
    "text", ["https://token3@github.com/name1", "token3@github.com", "postgres://token4@198.18.0.1", "user2@host1"]
)
def test_a_pseudonym_is_no_finding(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.log").write_text(text)
    assert left(tmp_path / "a.log") == []


@pytest.mark.parametrize("text", PLANTED)
def test_a_secret_that_is_planted_in_what_was_scrubbed_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.log").write_text("\n".join(LINES) + "\n")
    scrub(str(tmp_path / "a.log"), str(tmp_path / "b.log"))
    with (tmp_path / "b.log").open("a") as file:
        file.write(text + "\n")
    found = left(tmp_path / "b.log")
    assert found
    assert all(one.startswith(f"{len(LINES) + 1}: ") for one in found)
