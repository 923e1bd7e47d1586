"""At every point of a log that grows, the verdict of a watch is that of an analysis of the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit import analyze
from tests.loggen import generate
from tests.watch.conftest import Hand

REAL = Path(__file__).parents[1] / "data" / "logs"
_CUTS = 4
LOGS = (
    ("healthy_both", "2.27"),
    ("healthy_two_hosts", "2.30"),
    ("healthy_split", "2.21"),
    ("no_teardown", "2.27"),
    ("registration_kept", "2.30"),
    ("kill_at_work_mpirun", "2.27"),
    ("segfault_at_work", "2.18"),
    ("stop_in_setup", "passsm"),
    ("stop_at_work", "2.30"),
    ("lag_at_work", "2.27"),
    ("lag_without_watchdog", "2.18"),
    ("rank_never_started", "2.27"),
    ("other_operation", "2.21"),
    ("recv_forgotten", "2.27"),
    ("fd_answer_lost", "passsm"),
    ("answer_lost", "2.27"),
    ("import_fails", "2.30"),
    ("shm_full", "2.18"),
)
RECORDED = (
    "passsm-8gpu.log",
    "ok_n4_psm_64K",
    "fault_a2_n4_sigstop_rank1_in_setup",
    "fault_e1_n4_rank1_cumem_import_oom",
)


def grow(logs: Path, files: dict[str, bytes], hand: Hand, seed: int) -> None:
    """Write the files in pieces, at the ends of lines and within lines, and compare after each."""
    rng = random.Random(seed)
    done = dict.fromkeys(files, 0)
    for cut in range(1, _CUTS + 1):
        for name, data in files.items():
            end = len(data) if cut == _CUTS else int(len(data) * cut / _CUTS * rng.uniform(0.7, 1.2))
            if cut % 2:
                end = data.rfind(b"\n", 0, end) + 1
            end = max(min(end, len(data)), done[name])
            if end > done[name]:
                with (logs / name).open("ab") as file:
                    file.write(data[done[name] : end])
            done[name] = end
        hand.agrees(logs)
    assert hand.follower.bytes == sum(map(len, files.values())) or hand.follower.readings > 1


@pytest.mark.parametrize(("scenario", "dialect"), LOGS, ids=[name for name, _ in LOGS])
def test_generated_logs(watch: Callable[..., Hand], logs: Path, scenario: str, dialect: str) -> None:
    log = generate(scenario, dialect, seed=7)
    grow(logs, {name: text.encode() for name, text in log.files().items()}, watch(logs), 7)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_logs(watch: Callable[..., Hand], logs: Path, name: str) -> None:
    source = REAL / name
    files = [source] if source.is_file() else sorted(source.iterdir())
    grow(logs, {path.name: path.read_bytes() for path in files}, watch(logs), 3)


def test_logs_of_all_ranks_in_one_file(watch: Callable[..., Hand], logs: Path) -> None:
    grow(logs, {"all.log": generate("stop_at_work", "2.27", seed=2).merged().encode()}, watch(logs), 2)


def test_console_that_repeats_the_logs_of_the_ranks_counts_once(watch: Callable[..., Hand], logs: Path) -> None:
    log = generate("recv_forgotten", "2.27", seed=2)
    files = {name: text.encode() for name, text in log.files().items() if name != "job.out"}
    console = "".join(line.text + "\n" for line in log.lines if line.nccl).encode()
    hand = watch(logs)
    for part in (1, 2):
        for name, data in (*files.items(), ("console.log", console)):
            (logs / name).write_bytes(data[: len(data) * part // 2])
        # half a console has other lines than half of the other files, so all of them count: twice the same processes, whose order decides who is who
        assert part == 2 or hand.report().verdict == analyze([str(logs)]).verdict
    hand.agrees(logs)
    assert any("console.log only has the lines of" in note for note in hand.report().coverage.notes)


def test_inputs_that_are_no_logs_and_logs_in_other_encodings(watch: Callable[..., Hand], logs: Path) -> None:
    log = generate("lag_at_work", "2.27", seed=2)
    hand = watch(logs)
    for name, text in log.files().items():
        (logs / name).write_bytes(text.encode("utf-16" if name.endswith("1.log") else "utf-8"))
    hand.agrees(logs)
    (logs / "dump.json").write_text('{"version": "2.5", "pg_config": {}, "entries": []}')
    hand.agrees(logs)
    (logs / "stack.txt").write_text(
        "Thread 2 (Thread 0x7f (LWP 12)):\n#0  0x00007f in poll () from /lib64/libc.so.6\n#1  0x00007e in ncclProxyService (_args=0x1) at proxy.cc:1\n"
    )
    hand.agrees(logs)
