"""Files that are rotated, truncated, removed, late, many: what was read counts once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.watch import follow
from tests.loggen import generate
from tests.watch.conftest import Hand, conclusion

Watch = Callable[..., Hand]
HUNG = {name: text.encode() for name, text in generate("stop_at_work", "2.27", seed=2).files().items()}
FINE = {name: text.encode() for name, text in generate("healthy_both", "2.27", seed=9).files().items()}
RANK = "nccl.rank1.log"


def write(folder: Path, files: dict[str, bytes], part: float = 1.0) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data[: int(len(data) * part)])


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def halves(data: bytes) -> tuple[bytes, bytes]:
    middle = data.index(b"\n", len(data) // 2) + 1
    return data[:middle], data[middle:]


@pytest.fixture
def whole(tmp_path: Path) -> object:
    """What an analysis of the complete logs says."""
    folder = tmp_path / "whole"
    folder.mkdir()
    write(folder, HUNG)
    return conclusion(analyze([str(folder)]))


def test_bytes_are_read_once(watch: Watch, logs: Path) -> None:
    hand = watch(logs)
    for part in (0.3, 0.6, 1.0):
        for name, data in HUNG.items():
            path = logs / name
            append(path, data[path.stat().st_size if path.exists() else 0 : int(len(data) * part)])
        hand.report()
    assert hand.follower.bytes == sum(map(len, HUNG.values())) and hand.follower.readings == 1
    assert not hand.follower.poll()


@pytest.mark.parametrize("both", [True, False], ids=["both-followed", "new-followed"])
def test_rotation_by_renaming(watch: Watch, logs: Path, whole: object, both: bool) -> None:
    write(logs, {name: data for name, data in HUNG.items() if name != RANK})
    first, second = halves(HUNG[RANK])
    path = logs / RANK
    path.write_bytes(first[:-40])
    hand = watch(logs) if both else watch(*(logs / name for name in HUNG))
    hand.report()
    path.rename(logs / f"{RANK}.1")
    append(logs / f"{RANK}.1", first[-40:])  # its writer still has it open
    path.write_bytes(second)
    found = hand.answer()
    assert conclusion(found.report) == whole and hand.follower.readings == 1
    assert str(logs / f"{RANK}.1") in found.files and str(path) in found.files
    assert f"{path} is another file now" in hand.news()


def test_several_rotations_keep_their_order(watch: Watch, logs: Path, whole: object) -> None:
    write(logs, {name: data for name, data in HUNG.items() if name != RANK})
    lines = HUNG[RANK].splitlines(keepends=True)
    hand, path = watch(logs), logs / RANK
    for part in range(4):
        for number in (3, 2, 1):
            old = logs / (f"{RANK}.{number - 1}" if number > 1 else RANK)
            if old.exists():
                old.rename(logs / f"{RANK}.{number}")
        path.write_bytes(b"".join(lines[part * len(lines) // 4 : (part + 1) * len(lines) // 4]))
        hand.report()
    assert conclusion(hand.report()) == whole
    assert hand.follower.bytes == sum(map(len, HUNG.values()))


def test_copy_and_truncate_with_the_copy_in_the_folder(watch: Watch, logs: Path, whole: object) -> None:
    write(logs, {name: data for name, data in HUNG.items() if name != RANK})
    first, second = halves(HUNG[RANK])
    path = logs / RANK
    path.write_bytes(first)
    hand = watch(logs)
    hand.report()
    (logs / f"{RANK}-20260101").write_bytes(first)
    path.write_bytes(b"")
    hand.report()
    append(path, second)
    found = hand.answer()
    assert conclusion(found.report) == whole
    assert str(logs / f"{RANK}-20260101") in found.files
    assert "was truncated" in hand.news()


def test_copy_that_was_seen_before_the_truncation(watch: Watch, logs: Path, whole: object) -> None:
    write(logs, {name: data for name, data in HUNG.items() if name != RANK})
    first, second = halves(HUNG[RANK])
    path = logs / RANK
    path.write_bytes(first)
    hand = watch(logs)
    before = conclusion(hand.report())
    (logs / f"{RANK}.1").write_bytes(first)
    assert conclusion(hand.report()) == before
    path.write_bytes(second)
    assert conclusion(hand.report()) == whole


def test_truncated_log_goes_on_and_what_was_quoted_stays(watch: Watch, logs: Path, whole: object) -> None:
    write(logs, HUNG)
    hand = watch(*(logs / name for name in HUNG))
    before = hand.report()
    path = logs / "nccl.rank2.log"
    path.write_bytes(b"")
    assert conclusion(hand.report()) == whole
    lines = {item.text for f in before.findings for item in f.evidence if item.file == str(path)}
    after = {
        item.text for f in hand.report().findings for item in f.evidence if item.file.startswith(f"{path} (until ")
    }
    assert lines and after == lines
    assert any("can no longer be read" in note for note in hand.report().coverage.notes)


def test_truncated_file_that_has_grown_again_between_two_looks(watch: Watch, logs: Path) -> None:
    path = logs / "all.log"
    path.write_bytes(HUNG["nccl.rank0.log"])
    hand = watch(path)
    hand.report()
    path.write_bytes(b"".join(FINE[name] for name in sorted(FINE)))
    hand.agrees(path)
    assert "was truncated" in hand.news()


@pytest.mark.parametrize("how", ["truncated", "removed"])
def test_another_job_that_writes_to_the_same_files(watch: Watch, logs: Path, how: str) -> None:
    write(logs, HUNG)
    hand = watch(logs)
    assert hand.report().verdict == "hung"
    for name in HUNG:
        if how == "removed":
            (logs / name).unlink()
        else:
            (logs / name).write_bytes(b"")
    assert hand.report().verdict == "hung"
    write(logs, FINE, 0.5)
    hand.agrees(logs)
    write(logs, FINE)
    hand.agrees(logs)
    assert "another job writes to" in hand.news()


def test_removed_file_still_counts_and_may_grow(watch: Watch, logs: Path, whole: object) -> None:
    write(logs, {name: data for name, data in HUNG.items() if name != RANK})
    first, second = halves(HUNG[RANK])
    path = logs / RANK
    with path.open("wb", buffering=0) as file:
        file.write(first)
        hand = watch(logs)
        hand.report()
        path.unlink()
        file.write(second)
        assert conclusion(hand.report()) == whole
    assert f"{path} was removed: what it said still counts" in hand.news()


def test_files_that_appear_late(watch: Watch, tmp_path: Path) -> None:
    folder, other = tmp_path / "late", tmp_path / "other"
    other.mkdir()
    hand = watch(folder, str(other / "*.out"), other / "one.txt")
    assert hand.answer().nothing and hand.follower.paths.waiting == [
        str(folder),
        str(other / "*.out"),
        str(other / "one.txt"),
    ]
    folder.mkdir()
    for name, data in {"job.out": b"the job begins\n" * 4, **HUNG}.items():
        place = {"job.out": other, "nccl.rank0.log": other}.get(name, folder)
        target = place / ("one.txt" if name == "nccl.rank0.log" else name)
        target.write_bytes(data)
        hand.agrees(*(path for path in (folder, *sorted(other.iterdir())) if path.is_file() or any(path.iterdir())))
    assert hand.follower.paths.waiting == [] and "nccl.rank3.log appeared" in hand.news()


def test_descriptors_are_shared_when_there_are_few(
    watch: Watch, logs: Path, whole: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "open_files", lambda _: 2)
    hand = watch(logs)
    write(logs, HUNG, 0.5)
    hand.report()
    for name, data in HUNG.items():
        append(logs / name, data[int(len(data) * 0.5) :])
    assert conclusion(hand.report()) == whole
    assert sum(log.last.fd >= 0 for log in hand.follower.logs) <= 2


def test_many_files(watch: Watch, logs: Path) -> None:
    text = (
        b"n%d:%d:%d [0] NCCL INFO cudaDriverVersion 12040\nn%d:%d:%d [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    )
    for number in range(1000):
        at = (number // 8, 100 + number, 100 + number)
        (logs / f"rank{number}.log").write_bytes(text % (*at, *at))
    hand = watch(logs)
    assert hand.report().coverage.files == 1000
    for number in range(0, 1000, 7):
        append(
            logs / f"rank{number}.log",
            b"n%d:%d:%d [0] NCCL INFO Using network Socket\n" % (number // 8, 100 + number, 100 + number),
        )
    hand.agrees(logs)
    assert hand.follower.readings == 1


def test_compressed_files_are_refused_by_name(watch: Watch, logs: Path) -> None:
    write(logs, HUNG)
    (logs / "old.log.gz").write_bytes(gzip.compress(HUNG[RANK]))
    hand = watch(logs)
    assert hand.report().verdict == "hung"
    path = str(logs / "old.log.gz")
    assert list(hand.follower.refused) == [path] and "compressed" in hand.follower.refused[path]
    assert any(note.startswith(f"{path}: it is compressed") for note in hand.report().coverage.notes)


def test_file_that_turns_out_to_be_no_log(watch: Watch, logs: Path) -> None:
    write(logs, HUNG)
    path = logs / "other.txt"
    path.write_bytes(b"Thread 2 ")
    hand = watch(logs)
    hand.agrees(logs)
    append(path, b"(Thread 0x7f (LWP 12)):\n#0  0x00007f in poll () from /lib64/libc.so.6\n")
    hand.agrees(logs)
    path.write_bytes(b"\x7fELF" + bytes(100))
    hand.agrees(logs)


def test_two_names_of_a_file_are_one_log(watch: Watch, logs: Path) -> None:
    write(logs, HUNG)
    os.link(logs / RANK, logs / "zz.log")
    (logs / "link.log").symlink_to(logs / RANK)
    hand = watch(logs)
    hand.agrees(logs)
    assert hand.follower.bytes == sum(map(len, HUNG.values()))


def test_messages_of_a_file_that_is_put_beside_the_logs(watch: Watch, logs: Path) -> None:
    write(logs, HUNG)
    hand = watch(logs)
    hand.agrees(logs)
    (logs / "psmkit.toml").write_text(
        '[[message]]\nname = "my.beat"\nwhere = "any"\npatterns = ["my beat {n:int}"]\nmeaning = "It lives."\nkeep = "all"\n'
    )
    append(logs / "job.out", b"my beat 4\n")
    hand.agrees(logs)
