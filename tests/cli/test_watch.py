"""``psmkit watch``: a verdict that follows the logs, as a page, as lines, as JSON, and as a command that it runs."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from psmkit.cli.watch_page import SCHEMA
from tests.cli.conftest import Result
from tests.lab.hanging import DEADLINE, hanging_run
from tests.loggen import generate

Cli = Callable[..., Result]
HUNG = {name: text.encode() for name, text in generate("stop_at_work", "2.27", seed=2).files().items()}
FINE = {name: text.encode() for name, text in generate("healthy_both", "2.27", seed=9).files().items()}
#: What a terminal and a shell would act on.
EVIL = b"node0:6001:6001 [0] NCCL INFO cudaDriverVersion 12040\nnode0:6001:6001 [0] init.cc:7 NCCL WARN Cuda failure 2 'out of memory $(touch pwned) `touch pwned` \x1b]0;evil\x07'\n"
_NOW = ("--for", "0", "--no-inspect")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def write(folder: Path, files: dict[str, bytes], part: float = 1.0) -> None:
    for name, data in files.items():
        path = folder / name
        size = path.stat().st_size if path.exists() else 0
        with path.open("ab") as file:
            file.write(data[size : int(len(data) * part)])


class Running:
    """A watch in a process of its own, whose objects are read as they come."""

    def __init__(self, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "psmkit", "watch", "--jsonl", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._rest = b""

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        end = time.monotonic() + DEADLINE
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))
            assert ready, "nothing was said in time"
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, self.process.stderr.read() if self.process.stderr else "it ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        found = json.loads(line)
        assert isinstance(found, dict) and found["schema"] == SCHEMA
        return found

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not wanted(found := self.next()):
            pass
        return found

    def stop(self) -> tuple[dict[str, Any], int]:
        """Interrupt it: its last object and its status."""
        self.process.send_signal(signal.SIGINT)
        last = self.until(lambda found: found["event"] == "end")
        return last, self.process.wait(DEADLINE)


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(*args: object) -> Running:
        made.append(Running(*args))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.communicate()


def test_last_verdict_and_status_are_those_of_an_analysis(psmkit_cli: Cli, logs: Path) -> None:
    write(logs, HUNG)
    watched, analysed = psmkit_cli("watch", logs, *_NOW), psmkit_cli("analyze", logs)
    assert watched.status == analysed.status == 1
    lines = watched.out.splitlines()
    assert " watching 4 files, " in lines[0] and re.search(r"^[\d: -]+hung since ", lines[1])
    assert lines[2:5] == analysed.out.splitlines()[:3]


@pytest.mark.parametrize(("level", "status"), [("error", 0), ("inconclusive", 1), ("never", 0)])
def test_status_of_an_inconclusive_job(psmkit_cli: Cli, logs: Path, level: str, status: int) -> None:
    write(logs, FINE, 0.5)
    result = psmkit_cli("watch", logs, *_NOW, "--fail-on", level)
    assert result.status == status and "\ninconclusive: " in result.out
    assert psmkit_cli("analyze", logs, "--fail-on", level).status == status


def test_json_has_an_object_for_each_change(psmkit_cli: Cli, logs: Path) -> None:
    write(logs, HUNG)
    result = psmkit_cli("watch", logs, *_NOW, "--settle", "0", "--jsonl")
    verdict, end = map(json.loads, result.out.splitlines())
    assert (verdict["event"], end["event"]) == ("verdict", "end")
    assert end["verdict"] == "hung" and end["codes"][0].startswith("PSM") and end["culprits"][0]["rank"] == 2
    assert end["settled"] is True and end["proof"]["file"].startswith(str(logs)) and end["do_this"]
    assert end["files"] == 4 and end["bytes"] == sum(map(len, HUNG.values()))
    assert {"since", "time", "last_line"} == {
        k for k, v in end.items() if isinstance(v, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", v)
    }
    assert verdict["before"] is None and end["before"] == "hung"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-",), "standard input cannot be followed: `psmkit analyze -` reads it"),
        (("packed.log",), "packed.log: it is compressed or an archive, which does not grow: `psmkit analyze` reads it"),
        (("pipe",), "pipe: it is no file that grows, but a pipe or a device: `psmkit analyze` reads it"),
        (("missing", "--for", "0"), "missing: no log yet"),
        (("notes.txt", "--for", "0"), "notes.txt: "),
        ((".", "--exec", "no-such-command"), "there is no such command"),
        ((".", "--exec", "'"), "No closing quotation"),
    ],
)
def test_what_cannot_be_watched(
    psmkit_cli: Cli, logs: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str
) -> None:
    (logs / "packed.log").write_bytes(gzip.compress(HUNG["nccl.rank0.log"]))
    (logs / "notes.txt").write_bytes(b'{"rank": 1}\n')
    os.mkfifo(logs / "pipe")
    monkeypatch.chdir(logs)
    result = psmkit_cli("watch", *args)
    assert result.status == 2 and said in result.err and len(result.err.splitlines()) == 1


def test_verdict_follows_the_logs(running: Callable[..., Running], logs: Path) -> None:
    write(logs, HUNG, 0.3)
    watch = running(logs / "*.log", "--settle", "0.2", "--no-inspect")
    first = watch.next()
    assert first["verdict"] in ("inconclusive", "hung")
    write(logs, HUNG)
    hung = watch.until(
        lambda found: (
            found["verdict"] == "hung"
            and found["culprits"][0]["rank"] == 2
            and found["bytes"] == sum(map(len, HUNG.values()))
        )
    )
    assert hung["since"] <= hung["time"] and hung["settled"]
    for name in HUNG:
        (logs / name).unlink()
    write(logs, FINE)
    fine = watch.until(lambda found: found["verdict"] == "healthy")
    assert fine["before"] == "hung" and any("another job writes to" in news for news in fine["news"])
    last, status = watch.stop()
    assert last["verdict"] == "healthy" and status == 0


def test_command_gets_the_verdict_and_no_shell_sees_the_log(
    running: Callable[..., Running], logs: Path, tmp_path: Path
) -> None:
    (logs / "rank0.log").write_bytes(EVIL)
    script, told = tmp_path / "page me.sh", tmp_path / "told"
    script.write_text(f'#!/bin/sh\ncd "{tmp_path}"\nenv > new && mv new told\necho "hook: $PSMKIT_VERDICT"\nexit 3\n')
    script.chmod(0o755)
    watch = running(logs, "--no-inspect", "--exec", f"'{script}' $(touch pwned)")
    assert watch.until(lambda found: found["event"] == "verdict")["verdict"] == "failed"
    last, status = watch.stop()
    assert status == 1 and watch.process.stderr is not None and b"hook: failed" in watch.process.stderr.read()
    assert any(news.endswith("page me.sh' $(touch pwned) ended with status 3") for news in last["news"]), last["news"]
    values = dict(line.split("=", 1) for line in told.read_text().splitlines() if line.startswith("PSMKIT_"))
    assert (
        values["PSMKIT_VERDICT"] == "failed"
        and values["PSMKIT_BEFORE"] == ""
        and values["PSMKIT_CODE"].startswith("PSM")
    )
    assert values["PSMKIT_PROOF"].startswith(f"{logs}/rank0.log:2: ") and "$(touch pwned)" in values["PSMKIT_PROOF"]
    assert (
        values["PSMKIT_SENTENCE"].startswith("failed: ")
        and values["PSMKIT_DO_THIS"]
        and values["PSMKIT_SINCE"].endswith("Z")
    )
    assert "\x1b" not in "".join(values.values()) and r"\x1b]0;evil\x07" in values["PSMKIT_PROOF"]
    assert not any(Path(folder, "pwned").exists() for folder in (".", logs, tmp_path))


def test_more_files_than_select_can_wait_for(psmkit_cli: Cli, logs: Path) -> None:
    for number in range(1100):
        at = (number // 8, 100 + number, 100 + number)
        (logs / f"rank{number}.log").write_bytes(b"n%d:%d:%d [0] NCCL INFO cudaDriverVersion 12040\n" % at)
    result = psmkit_cli("watch", logs, "--for", "0.3", "--jsonl", "--no-inspect")
    assert result.status == 0, result.err
    assert json.loads(result.out.splitlines()[-1])["files"] == 1100


def test_fates_of_files_are_told(running: Callable[..., Running], logs: Path) -> None:
    write(logs, HUNG)
    watch = running(logs, "--settle", "0.1", "--no-inspect")
    watch.until(lambda found: found["verdict"] == "hung")
    (logs / "nccl.rank2.log").unlink()
    (logs / "nccl.rank1.log").rename(logs / "nccl.rank1.log.1")
    write(logs, {"new.log": b"hello\n"})
    last, status = watch.stop()
    assert status == 1 and last["verdict"] == "hung"
    assert {f"{logs}/nccl.rank2.log was removed: what it said still counts", f"{logs}/new.log appeared"} <= set(
        last["news"]
    )
    assert f"{logs}/nccl.rank1.log is {logs}/nccl.rank1.log.1 now" in last["news"]


def test_screen_shows_the_verdict_and_escapes_the_log(logs: Path) -> None:
    write(logs, HUNG)
    (logs / "\x1b]0;evil\x07.log").write_bytes(b"hello\n")
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    child = pexpect.spawn(
        sys.executable,
        ["-m", "psmkit", "watch", str(logs), "--settle", "0.1", "--no-inspect"],
        env=environment,
        dimensions=(40, 160),
        timeout=DEADLINE,
        encoding="utf-8",
    )
    for text in (
        "psmkit watch: 5 files",
        ": rank 2 did not make call",
        "who:",
        "proof:",
        "do this:",
        "hung since",
        "by the arrival of lines",
        "silent for longest",
    ):
        child.expect_exact(text)
    child.sendintr()
    child.expect_exact(": rank 2 did not make call")
    shown = child.before or ""
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
    assert "\x1b]0;evil" not in shown


def test_process_of_this_host_is_looked_into(
    running: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSM_STALL_REPORT", "1")
    kept = tmp_path / "evidence"
    with hanging_run(tmp_path / "run") as job:
        watch = running(tmp_path / "run", "--settle", "0.5", "--evidence", kept)
        found = watch.until(
            lambda found: any(str(kept) in (s["last"] or "") for s in found["suspects"]) or "PSM709" in found["codes"]
        )
        assert found["verdict"] in ("hung", "inconclusive")
        names = {path.name for path in kept.iterdir()}
        assert names & {f"{os.uname().nodename}-{rank.pid}.inspect.json" for rank in job.ranks}
        _, status = watch.stop()
        assert status in (0, 1)
        assert all(Path(f"/proc/{rank.pid}").exists() for rank in job.ranks)
