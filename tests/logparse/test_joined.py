"""A result that is made of parts is that of one scan, whatever the parts are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psmkit.analysis.facts.job import make_job
from psmkit.analysis.inputs import check
from psmkit.analysis.pipeline import analyse_job
from psmkit.catalogue import load
from psmkit.logparse import joined as whole
from psmkit.logparse.arrange import Peek, arranged
from psmkit.logparse.joined import TooMuchError, joined, related
from psmkit.logparse.parts import Part, Share, check_unchanged, read_part, unpacked
from psmkit.logparse.result import ScanResult
from psmkit.logparse.scanner import Sources, scan
from psmkit.logparse.shares import by_host, shares, units
from psmkit.model.errors import InputError, PsmkitError
from psmkit.report import render
from tests.analysis import frozen
from tests.loggen import generate
from tests.loggen.crowd import write_files

_EACH = 19  # of the inputs of tests.analysis.frozen


def parts_of(path: Path, most: int) -> tuple[Sources, list[tuple[Share, Part]], Sequence[int]]:
    """The parts of an input, each read for itself, until none depends on another."""
    sources = Sources.find([str(path)], None)
    peek = Peek(sources.catalogue)
    heads = [peek.head(item) for item in sources.logs]
    arrangement = arranged(sources.logs, heads)
    together: list[set[int]] = []
    while True:
        wanted = shares(sources.logs, arrangement, units(arrangement, together), most)
        parts = [(share, unpacked(read_part(share, sources.catalogue), sources.catalogue, "here")) for share in wanted]
        found = related(parts)
        if not found:
            return sources, parts, arrangement.stream_of
        together += found


def scan_in_parts(path: Path, most: int = 5) -> ScanResult:
    sources, parts, stream_of = parts_of(path, most)
    return joined(parts, sources.catalogue, sources.logs, stream_of, sources.foreign, sources.notes)


def said(path: Path, found: ScanResult) -> str:
    try:
        check(found, any_log=True)
        with found:
            return render(analyse_job(make_job(found)), "json")
    except PsmkitError as error:
        return str(error)


def rows(table: Any) -> Any:
    """A table of a result, as values that can be compared."""
    return list(table) if isinstance(table, Sequence) or hasattr(table, "__iter__") else table


def assert_same(one: ScanResult, other: ScanResult) -> None:
    for name in (field.name for field in fields(one) if not field.name.startswith("_")):
        if name not in ("inputs", "catalogue", "foreign"):
            assert rows(getattr(one, name)) == rows(getattr(other, name)), name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("frozen")
    return list(itertools.islice(frozen.inputs(folder), 0, None, _EACH))


@pytest.mark.parametrize("eighth", range(8))
def test_the_report_of_parts_is_that_of_one_scan(made: list[tuple[str, Path]], eighth: int) -> None:
    assert len(made) >= 40
    for name, path in made[eighth::8]:
        assert said(path, scan_in_parts(path)) == said(path, scan([str(path)])), name


@pytest.mark.parametrize("seed", range(6))
def test_each_table_of_parts_is_that_of_one_scan(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    names = ("healthy_registrations", "fd_answer_lost", "other_count", "segfault_at_work", "stop_in_init")
    for text in generate(names[seed % len(names)], "2.27", seed=seed).files().items():
        (tmp_path / text[0]).write_text(text[1])
    assert_same(scan_in_parts(tmp_path, rng.randint(2, 9)), scan([str(tmp_path)]))


def test_a_job_on_many_hosts_has_the_same_tables(tmp_path: Path) -> None:
    write_files(tmp_path, "abort", 256, 4 << 20)
    sources, parts, _ = parts_of(tmp_path, 7)
    assert len(parts) == 7 and len(sources.logs) == 257  # and what the launcher printed
    assert_same(scan_in_parts(tmp_path, 7), scan([str(tmp_path)]))


def test_rounds_of_large_files_keep_their_order(tmp_path: Path) -> None:
    """Streams of more than a chunk take turns: what two of them print alternates in the tables."""
    for rank, (host, lines) in enumerate([("a", 9_000), ("b", 25_000), ("c", 17_000)]):
        with (tmp_path / f"rank{rank}.log").open("w") as file:
            for n in range(lines):
                file.write(
                    f"{host}:{100 + rank}:{200 + n % 3} [0] NCCL INFO comm 0x{rank}{n % 7} AllReduce: filler {n} is long "
                    + "x" * 60
                    + "\n"
                )
                file.write(f"oom_reaper: reaped process {n} (python{rank})\n")
                file.write(
                    f"{host}:{100 + rank}:{200 + n % 3} [0] NCCL INFO Channel {n % 50:02d}/0 : {n % 8}[0] -> {n % 5}[1] via P2P/IPC\n"
                )
    assert_same(scan_in_parts(tmp_path, 3), scan([str(tmp_path)]))


def test_bounds_drop_the_same_lines_in_parts(tmp_path: Path) -> None:
    """A message of no process is kept 2,048 times in all, so the parts keep more than the whole."""
    for rank in range(3):
        lines = [f"oom_reaper: reaped process {rank * 10_000 + n // 2} (python)\n" for n in range(1_800)]
        (tmp_path / f"rank{rank}.log").write_text(
            f"h{rank}:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.{rank}<0>\n" + "".join(lines)
        )
    found = scan_in_parts(tmp_path, 3)
    assert any("counted and not kept" in note for note in found.notes)
    assert_same(found, scan([str(tmp_path)]))


def test_streams_of_a_host_whose_calls_cross_are_read_together(tmp_path: Path) -> None:
    """The service of a proxy call may be another process of the host: its answer has no call in a part without that one."""
    (tmp_path / "a.log").write_text(
        "h:1:1 [0] NCCL INFO ncclPollProxyResponse Received new opId=0x7f0000000010\n"
        "h:1:1 [0] NCCL INFO resp.opId=0x7f0000000010 matches expected opId=0x7f0000000010\n"
    )
    (tmp_path / "b.log").write_text(
        "h:2:3 [1] NCCL INFO proxyProgressAsync opId=0x7f0000000010 op.type=3 op.reqBuff=0x7f0000000900 op.respSize=8 done\n"
        "h:2:3 [1] NCCL INFO Received and initiated operation=Setup res=0\n"
    )
    (tmp_path / "c.log").write_text("other:9:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.9<0>\n")
    _, parts, _ = parts_of(tmp_path, 3)
    assert sorted(len(share.streams) for share, _ in parts) == [1, 2]
    assert scan([str(tmp_path)]).totals.calls_matched == 1
    assert_same(scan_in_parts(tmp_path, 3), scan([str(tmp_path)]))


def test_a_host_that_text_is_glued_to_is_looked_for_in_all_parts(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("alpha:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n" * 3)
    (tmp_path / "b.log").write_text(
        "beta:2:2 [0] NCCL INFO NET/Socket : Using [0]eth0beta:2:2 [0] NCCL INFO Bootstrap : Using eth0\n"
        "beta:2:2 [0] NCCL INFO Using network9alpha:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    )
    assert_same(scan_in_parts(tmp_path, 2), scan([str(tmp_path)]))


def test_shares_keep_groups_whole_and_are_about_equal(tmp_path: Path) -> None:
    write_files(tmp_path, "abort", 64, 4 << 20)
    (tmp_path / "job.out").unlink()  # what the launcher printed is of no host
    sources = Sources.find([str(tmp_path)], None)
    peek = Peek(sources.catalogue)
    heads = [peek.head(item) for item in sources.logs]
    arrangement = arranged(sources.logs, heads)
    groups = units(arrangement, by_host(arrangement, heads))
    assert len(groups) == 8
    made = shares(sources.logs, arrangement, groups, 4)
    assert sorted(itertools.chain.from_iterable(share.streams for share in made)) == list(range(64))
    assert [len(share.streams) for share in made] == [16] * 4
    homes = {stream: at for at, share in enumerate(made) for stream in share.streams}
    assert all(len({homes[stream] for stream in group}) == 1 for group in groups)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Share, bytes]]:
    for file, text in generate("healthy_two_ranks", "2.27").files().items():
        (tmp_path / file).write_text(text)
    sources = Sources.find([str(tmp_path)], None)
    arrangement = arranged(sources.logs, [Peek(sources.catalogue).head(item) for item in sources.logs])
    (share,) = shares(sources.logs, arrangement, units(arrangement), 1)
    yield share, read_part(share, sources.catalogue)


def test_a_job_beyond_the_bounds_of_one_scan_is_refused(
    small: tuple[Share, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    share, data = small
    part = unpacked(data, load(), "here")
    assert related([(share, part)]) == []
    monkeypatch.setattr(whole, "_MOST_PROCS", 2)
    with pytest.raises(TooMuchError):
        related([(share, part)])


@pytest.mark.parametrize("cut", [0, 5, 60, 900, -1, -200])
def test_a_damaged_part_is_an_error(small: tuple[Share, bytes], cut: int) -> None:
    share, data = small
    item = next(iter(share.inputs.values()))
    with pytest.raises(PsmkitError, match=r"part|another psmkit"):
        joined([(share, unpacked(data[:cut], load(), "worker"))], load(), [item] * 2, [0, 1], [], [])


def test_records_that_do_not_fit_are_an_error(small: tuple[Share, bytes]) -> None:
    share, data = small
    rng = np.random.default_rng(1)
    inputs = [share.inputs[number] for number in share.numbers]
    for _ in range(30):
        part = unpacked(data, load(), "worker")
        later = np.array(part.arrays["later"])
        later[rng.integers(0, len(later), 40)] = rng.integers(0, 256, 40)
        part.arrays = {**part.arrays, "later": later}
        try:
            joined([(share, part)], load(), inputs, [0, 1], [], [])
        except PsmkitError as error:
            assert "damaged" in str(error)


def test_a_part_of_another_version_is_refused(small: tuple[Share, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psmkit.logparse.parts.__version__", "0.0.0")
    with pytest.raises(PsmkitError, match=r"worker9 runs another psmkit than 0\.0\.0"):
        unpacked(small[1], load(), "worker9")


def test_a_file_that_a_worker_reads_otherwise_is_an_error(small: tuple[Share, bytes]) -> None:
    item = next(iter(small[0].inputs.values()))
    check_unchanged(item, item.size)
    with pytest.raises(InputError, match="another file system"):
        check_unchanged(item, item.size - 1)
