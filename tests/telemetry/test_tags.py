"""What v7 of the profiler adds, from the plugin's calls to what a user sees: the application's tags, and the phases of kernels."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.resources import Resource

from psmkit.plugins.drive_profiler import drive_profiler
from psmkit.telemetry.layout import API, COLL, KERNEL_PHASE, ROW, TAGGED, member
from psmkit.telemetry.online import Watch
from psmkit.telemetry.picture import draw
from psmkit.telemetry.reader import Reader
from psmkit.telemetry.recording import operations
from psmkit.telemetry.spans import build
from psmkit.telemetry.take import Take
from psmkit.telemetry.totals import Totals
from tests.csrc.base import compiled
from tests.telemetry import made
from tests.telemetry.takes import CLOCK, collective, row
from tests.telemetry.takes import made as take_made

LIBRARY = compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-profiler-psm.so"
DRIVEN = 29793  # the tag that the driver passes with each call
PHASES = ["initial_sync", "compute", "final_sync"]


def driven(folder: Path, version: int, check: str = "collective") -> Take:
    """What the plugin wrote while the driver called a table of it."""
    folder.chmod(0o700)
    environment = {"PSM_RECORD_DIR": str(folder), "PSM_RECORD_KEEP": "1", "PSM_PROFILER_EVENTS": "all"}
    done = drive_profiler(LIBRARY, versions=(version,), only=(check,), environment=environment, timeout=60)
    assert [r.text for r in done.results if r.outcome == "failed"] == []
    with Reader(folder) as reader:
        reader.set(spans=64, rows=100_000)
        reader.poll(final=True)
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return Take(
            wall_ns=time.time_ns(),
            clock_ns=now,
            comms=reader.comms(),
            ops=reader.take_ops(),
            times=reader.take_times(),
            spans=reader.take_spans(),
            rows=reader.take_rows()[0],
        )


def tags(take: Take, kind: int) -> set[int]:
    rows = take.rows[take.rows["event"]["type"] == kind]
    assert len(rows)
    return set(member(rows, TAGGED)["user_tag"].tolist())


def test_tags_and_phases_that_nccl_passes_reach_records_and_spans(tmp_path: Path) -> None:
    take = driven(tmp_path, 7)
    assert set(take.comms["abi"].tolist()) == {7} and np.all(take.comms["mask"] & 0x8000)
    assert tags(take, made.COLL_T) == tags(take, made.COLL_API_T) == {DRIVEN}
    phases = take.rows[take.rows["event"]["type"] == made.PHASE_T]
    kernels = set(take.rows["handle"][take.rows["event"]["type"] == made.KERNEL_T].tolist())
    assert len(phases) == 3 * len(kernels) > 0 and set(phases["event"]["parent"].tolist()) == kernels
    u = member(phases, KERNEL_PHASE)
    assert set(zip(u["phase"].tolist(), u["name"].tolist(), strict=True)) == {(0, 0), (1, 1), (2, 2)}
    assert set((u["gpu_end_ns"] - u["gpu_begin_ns"]).tolist()) == {300}

    spans = build(take, Resource({}), 10_000).spans
    tagged = {str(s.attributes["nccl.event"]) for s in spans if s.attributes.get("nccl.user_tag") == DRIVEN}
    assert tagged == {"coll", "coll_api", "ce_coll"}
    named = {s.name: s for s in spans if s.attributes["nccl.event"] == "kernel_phase"}
    assert sorted(named) == ["kernel compute", "kernel final sync", "kernel initial sync"]
    assert named["kernel compute"].attributes["nccl.kernel.phase"] == "compute"
    assert named["kernel compute"].attributes["nccl.kernel.gpu_time"] == pytest.approx(300e-9)
    assert {f["user_tag"] for f in operations(take)} == {DRIVEN}

    totals = Totals()
    totals.add(take)
    counted = [p for p in totals.points() if p.metric.name == "nccl.kernel.phase.duration"]
    assert {p.attributes["nccl.kernel.phase"] for p in counted} == set(PHASES)
    assert sum(p.value.count for p in counted) == len(phases)


def test_a_table_before_v7_leaves_neither_tags_nor_phases(tmp_path: Path) -> None:
    take = driven(tmp_path, 6)
    assert tags(take, made.COLL_T) == {0} and not np.any(take.comms["mask"] & 0x8000)
    assert made.PHASE_T not in take.rows["event"]["type"]
    assert not any("nccl.user_tag" in (s.attributes or {}) for s in build(take, Resource({}), 10_000).spans)


def tagged(rows: list[np.ndarray], tag: int) -> list[np.ndarray]:
    """The rows of an operation whose call had a tag."""
    out = [r.copy() for r in rows]
    for r in out:
        if int(r["event"]["type"][0]) == made.COLL_T:
            r["event"]["u"][0].view(TAGGED)["user_tag"] = tag
    return out


def test_nccls_bit_of_a_tag_is_not_part_of_the_number() -> None:
    take = take_made(spans=tagged(collective(0, 7), 1 << 63 | 9))
    (found,) = [s for s in build(take, Resource({}), 100).spans if "nccl.user_tag" in s.attributes]
    assert (found.attributes["nccl.user_tag"], found.attributes["nccl.user_tag.reserved_bit"]) == (9, True)
    (plain,) = [s for s in build(take_made(spans=tagged(collective(0, 7), 9)), Resource({}), 100).spans if "nccl.user_tag" in s.attributes]  # fmt: skip
    assert "nccl.user_tag.reserved_bit" not in plain.attributes


def with_phases() -> list[np.ndarray]:
    rows = tagged(collective(0, 7), 42)
    kernel = int(rows[-1]["handle"][0])
    # The kernel ran from 5000 to 605000 of the GPU's timer; NCCL reports its phases after its end.
    for number, (begin, end) in enumerate(((5000, 105_000), (105_000, 605_000), (605_000, 2_000_000))):
        rows.append(row(0, 0, kernel + 10 + number, kernel, made.PHASE_T, CLOCK, CLOCK + 5, KERNEL_PHASE, channel=3, gpu_begin_ns=begin,
                        gpu_end_ns=end, phase=number if number < 2 else 5, name=number if number < 2 else 255))  # fmt: skip
    return rows


def test_phases_lie_within_the_span_of_their_kernel(tmp_path: Path) -> None:
    """NCCL reports them after the kernel's end: the GPU's timer says where they lie."""
    comm, offset, start = made.Comm(), 7 * 10**9, 5 * 10**6
    gpu = {"gpu_begin_ns": start + offset, "gpu_end_ns": start + offset + 600_000}
    coll = comm.add(
        made.COLL_T,
        start,
        start + 1000,
        func=4,
        count=1,
        channels=1,
        kernels_begun=1,
        kernels_ended=1,
        done_ns=start + 10**6,
    )
    kernel = comm.add(made.KERNEL_T, start, start + 10**6, parent=coll, **gpu)
    for number, (begin, end) in enumerate(((0, 100_000), (100_000, 600_000))):
        comm.add(made.PHASE_T, start + 2 * 10**6, start + 2 * 10**6 + 5, parent=kernel, gpu_begin_ns=start + offset + begin,
                 gpu_end_ns=start + offset + end, phase=number, name=number)  # fmt: skip
    tmp_path.chmod(0o700)
    comm.write(tmp_path)
    with Reader(tmp_path) as reader:
        reader.set(spans=8)
        assert reader.poll(final=True) == 1
        taken = Take(10**18, 10**9, comms=reader.comms(), spans=reader.take_spans())
    spans = {s.name: s for s in build(taken, Resource({}), 100).spans}
    kernel_span = spans["kernel ch"]
    first, second = (spans[f"kernel {n}"] for n in ("initial sync", "compute"))
    assert first.start_time == kernel_span.start_time and first.end_time - first.start_time == 100_000
    assert (second.start_time, second.end_time - second.start_time) == (first.end_time, 500_000)
    assert second.end_time == kernel_span.end_time == spans["AllReduce"].end_time
    assert {s.parent.span_id for s in (first, second)} == {kernel_span.context.span_id}


def test_the_picture_names_tags_and_phases() -> None:
    drawn = draw([take_made(spans=with_phases() + collective(1, 7, first=9))])
    assert "rank 0: AllReduce 7, tag 42, " in drawn and "rank 1: AllReduce 7, 880 us" in drawn
    assert "ch 3 kernel: initial_sync 100 us, compute 500 us, phase 5 1.395 ms, " in drawn


def test_an_operation_that_is_stuck_is_named_with_its_tag() -> None:
    stuck = []
    for rank in range(2):
        found = row(rank, 0, 1 + rank, 0, made.COLL_T, 10**9, 0, COLL, seq=7, func=4, channels=1)
        stuck += tagged([found], 42 if rank == 0 else 0)
    comms = take_made().comms
    findings = Watch().update(comms, np.zeros(0), np.zeros(0), np.concatenate(stuck).astype(ROW), 100 * 10**9)
    (finding,) = [f for f in findings if f.code == "PSM931"]
    text = finding.title + finding.explanation + "\n".join(e.text for e in finding.evidence)
    assert "AllReduce 7 (the application's tag 42)" in text, text
    assert text.count("tag") == text.count("tag 42")


def test_other_kinds_have_no_tag_in_their_last_word() -> None:
    take = take_made(spans=[row(0, 0, 1, 0, made.GROUP_API_T, CLOCK, CLOCK + 9, API, depth=1)])
    take.spans["event"]["u"][0].view(TAGGED)["user_tag"] = 5
    assert all("nccl.user_tag" not in s.attributes for s in build(take, Resource({}), 100).spans)
