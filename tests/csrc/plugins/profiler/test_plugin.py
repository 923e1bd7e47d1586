"""The profiler plugin: what becomes of events of each version, of callers that break the contract, of processes that die, and of windows
that are taken, full or overwritten."""

from __future__ import annotations

import json
import resource
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psmkit.logparse.records import open_record
from psmkit.plugins.abi import spoken
from tests.csrc.base import compiled
from tests.csrc.plugins.profiler.built import Driver
from tests.csrc.plugins.profiler.rows import (
    CAPTURED,
    CHILD_LOST,
    COMPLETE,
    FOREIGN,
    SENDS,
    STOPPED,
    Row,
    by_handle,
    counters,
    read,
    windows,
)


def the_file(folder: Path) -> Path:
    (found,) = folder.glob("*.rec")
    return found


def lines_of(child: subprocess.Popen[str], until: str = '"bad"') -> tuple[dict[str, int], list[str]]:
    """What the driver answers up to its counters: all of its numbers, and the lines that are none."""
    found: dict[str, int] = {}
    others = []
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            found.update(json.loads(line))
            if until in line:
                break
        elif line.endswith(".rec\n"):
            others.append(line.strip())
    return found, others


@pytest.mark.parametrize("version", sorted(spoken("profiler")))
def test_a_tree_of_events_becomes_rows(driver: Driver, version: int) -> None:
    with driver.process("tree", str(version), PSM_PROFILER_EVENTS="all") as child:
        said, (path,) = lines_of(child)
        rows = read(Path(path))
        record = open_record(path)
    names = {n: by_handle(rows, h) for n, h in said.items() if h > 1 << 60}
    assert len(rows) == len(names) and {r.abi for r in rows} == {version}
    assert all(r.start_ns <= r.stop_ns for n, r in names.items() if n != "p2p") and names["p2p"].stop_ns == 0
    check_tree(names, said, version)
    if version >= 4:
        check_kernel_and_net(names)
    if version >= 5:
        check_api(names, said)
    if version >= 6:
        check_ce(names, said)
    tags = {n: r.get("Q", TAG)[0] for n, r in names.items() if r.kind in TAGGED}
    if version >= 7:
        # What the driver left alone in a descriptor is 0xee.
        others = int.from_bytes(b"\xee" * 8, "little")
        assert tags == {"coll": 5, "p2p": 1 << 63 | 9, "call": others, "ce": others}
        check_phases(names, said)
    else:
        assert not any(tags.values())
    # The reader of psmkit sees the same, and says whose it is.
    events = next(s for s in record.sections if s.name == "psm.prof.events")
    assert [(v["parent"], v["stop_ns"]) for v in map(events.values, range(len(events)))] == [
        (r.parent, r.stop_ns) for r in rows
    ]
    comm = next(s for s in record.sections if s.name == "psm.prof.comm").values(0)
    assert (comm["comm_hash"], comm["rank"], comm["abi"]) == (0xFEED, 1, version)
    assert comm["name"] == ("driver" if version >= 4 else "old")
    assert any(b"PROFILER/PSM : communicator feed, rank 1" in line for line in record.lines())


@pytest.mark.parametrize(("nccl", "tagged"), [("23102", True), ("22907", False)])
def test_a_tag_is_read_only_from_a_release_that_has_tags(driver: Driver, nccl: str, tagged: bool) -> None:
    """A fork of an older release has a v7 without userTag: its descriptor ends before the tag."""
    with driver.process("tree", "7", PSM_PROFILER_EVENTS="all", NCCL_IS=nccl) as child:
        said, (path,) = lines_of(child)
        rows = read(Path(path))
    coll, p2p = by_handle(rows, said["coll"]), by_handle(rows, said["p2p"])
    assert (coll.get("Q", TAG)[0], p2p.get("Q", TAG)[0]) == ((5, 1 << 63 | 9) if tagged else (0, 0))
    assert coll.get("QQ") == (7, 1000), "the rest of the descriptor is read either way"


TAG = 72
TAGGED = ("coll", "p2p", "coll_api", "p2p_api", "ce_coll")


def check_phases(names: dict[str, Row], said: dict[str, int]) -> None:
    phase, unknown = names["phase"], names["unknown"]
    assert {(r.kind, r.parent) for r in (phase, unknown)} == {("kernel_phase", said["kernel"])}
    # begin and end by the GPU's timer, channel, id, name
    assert phase.get("QQ3B") == (1500, 2500, 5, 2, 2)
    assert unknown.get("QQ3B") == (0, 0, 5, 7, 255)


def check_tree(names: dict[str, Row], said: dict[str, int], version: int) -> None:
    coll, p2p, op, step, foreign = (names[n] for n in ("coll", "p2p", "op", "step", "foreign"))
    # Up to v4 the group is the parent; from v5 on (without an API event here) it has its own place.
    assert coll.get("QQQ") == (7, 1000, said["group"] if version >= 5 else 0)
    assert coll.parent == p2p.parent == said["group"]
    # root, func AllReduce, float32, ring, simple, channels, warps, ops begun and ended
    assert coll.get("i6B2H", 32) == (2, 4, 7, 1, 2, 1, 16, 1, 1)
    assert coll.get("QQ", 56) == (0x5E2D, 0x4EC5) and p2p.get("Q", 56) == (0xB0FF,), "the buffers"
    assert coll.flags & COMPLETE and coll.get("Q", 24)[0] == op.stop_ns
    assert p2p.get("Q") == (77,) and p2p.get("i2B", 32) == (3, 6, 1), "NCCL has no name for uint8"
    assert op.parent == said["coll"] and op.get("4iB", 0)[1:] == (3, 4, 65536, 5)
    # NCCL said that it receives, as it does of other transports than its own; the states of its step say better.
    assert op.flags & SENDS and step.flags & SENDS and not foreign.flags & SENDS
    assert op.state == 19 and op.get("Q", 32)[0] >= op.start_ns
    assert step.parent == said["op"] and step.get("ii") == (2, 3)
    gpu, peer, net, flush = step.get("4Q", 16)
    assert step.start_ns <= gpu <= net <= step.stop_ns and flush == 0 and step.state == 9
    if version >= 4:
        assert gpu <= peer <= net and step.get("Q", 8) == (4096,)
    # steps ended, bytes; then the waits for GPU, peer and network
    assert op.get("I", 20) == (1,) and op.get("Q", 24) == ((4096 if version >= 4 else 0),)
    assert op.get("4Q", 40) == ((peer or net) - gpu, net - peer if peer else 0, step.stop_ns - net, 0)
    # PXN: the parent of another process is an id.
    assert foreign.flags & FOREIGN and foreign.parent == 0x7FFF12345678 and said["foreign_parents"] == 1
    assert names["ctrl"].get("i") == (3,) and names["ctrl"].get("Q", 24)[0] > 0


def check_kernel_and_net(names: dict[str, Row]) -> None:
    kernel, net, other = names["kernel"], names["net"], names["other"]
    assert kernel.get("QQB") == (1000, 3000, 5)
    assert net.get("qII") == (1 << 16 | 1, 40, 1)
    assert net.get("=B7xiIQiiQ".replace("=", ""), 16)[0:2] == (1, 1)
    assert net.get("Q", 16 + 32) == (556,), "the update's data"
    assert other.get("qII") == (0x7777 << 16 | 1, 0, 1) and not any(other.raw[16:]), "data of no known id is left alone"


def check_api(names: dict[str, Row], said: dict[str, int]) -> None:
    api, call, launch = names["api"], names["call"], names["launch"]
    assert api.flags & CAPTURED and api.get("ii", 32)[1] == 1
    first, second = api.get("QQ", 16)
    assert api.start_ns <= first <= second <= api.stop_ns
    assert call.parent == launch.parent == said["api"]
    # A func that has no number gets one of the communicator; no datatype was given.
    assert call.get("QQ") == (9, 0x51) and call.get("iiBB", 32) == (1, 0, 128, 255)
    assert launch.get("QQ") == (0, 0x52)


def check_ce(names: dict[str, Row], said: dict[str, int]) -> None:
    ce, sync, batch = names["ce"], names["sync"], names["batch"]
    assert ce.get("QQ") == (8, 12) and ce.get("iiBBBBI", 48) == (0, 0, 2, 9, 0, 0, 3)
    assert ce.start_ns <= ce.get("QQ", 32)[0] <= ce.get("QQ", 32)[1] <= ce.stop_ns
    assert sync.parent == batch.parent == said["ce"]
    assert sync.get("iiBBBB", 48) == (0, 4, 255, 255, 1, 0)
    assert batch.get("Q", 24) == (4444,) and batch.get("iiBBBB", 48) == (0, 6, 255, 255, 0, 1)


# ---- callers that break the contract ----


def test_bad_calls_are_counted_and_do_no_harm(driver: Driver) -> None:
    answers = driver.run("odd").splitlines()
    none, some, again = (json.loads(line) for line in answers if line.startswith("{"))
    assert "1 1 1 1 1" in answers, (
        "no event without context, handle, descriptor or one known kind; names may be missing"
    )
    assert not any(none[k] for k in ("bad", "stale", "twice", "after"))
    assert {k: some[k] for k in ("bad", "stale", "twice", "after")} == {"bad": 2, "stale": 1, "twice": 1, "after": 1}
    # A handle and a context of a communicator that is gone, though its number has been given again.
    assert (again["stale"], again["bad"]) == (1, 1)
    assert sum("PROFILER/PSM : communicator abcdef0123, rank 1 ended" in line for line in answers) == 2


def test_any_number_may_be_given_for_a_handle(driver: Driver) -> None:
    with driver.process("handles") as child:
        assert child.stdin is not None and child.stdout is not None
        real = next(int(line) for line in child.stdout if line.strip().isdigit())
        raw = child.stdin.buffer
        near = st.integers(0, 63).map(lambda bit: real ^ 1 << bit)
        tagged = st.integers(0, (1 << 56) - 1).map(lambda n: 0x5E << 56 | n)
        ours = st.integers(0, (1 << 44) - 1).map(lambda n: 0x5E << 56 | n)
        numbers = st.lists(st.one_of(st.integers(1, (1 << 64) - 1), near, tagged, ours), min_size=20, max_size=60)

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(numbers)
        def give(handles: list[int]) -> None:
            raw.write(b"".join(struct.pack("=Q", n) for n in (*(h for h in handles if h != real), 0)))
            raw.flush()
            assert child.stdout is not None and child.stdout.readline() == "\n", "it lives"

        give()
        raw.close()
        counts = next(json.loads(line) for line in child.stdout if line.startswith("{"))
    assert child.returncode == 0
    assert counts["bad"] > 500


# ---- windows ----


@pytest.mark.parametrize(("slots", "force"), [("500", "50"), ("2000", "5"), ("1000", "101")])
def test_what_is_begun_is_taken_dropped_or_overwritten(threads: Driver, slots: str, force: str) -> None:
    out = threads.run("stress", "3", "2000", slots, force, PSM_PROFILER_SLOTS=slots).splitlines()
    said = next(json.loads(line) for line in out if line.startswith("{"))
    assert said["asked"] == said["rows"] + said["dropped"] + said["overwritten"]
    assert said["strange"] == said["bad"] == 0
    if force == "101":  # nobody reads
        # What came late is overwritten like the rest. While a thread is stopped inside the oldest window, events are dropped.
        assert said["overwritten"] > said["dropped"] and said["late"] <= said["carried"]
    else:
        assert said["late"] == said["carried"] and said["late"] + said["late_lost"] >= said["open"]
        assert said["forced"] > 0 and said["windows"] > 4 and said["overwritten"] == 0
        ended = next(line for line in out if "ended" in line)
        assert f"ended: {said['asked']} events, {said['dropped']} dropped" in ended
        # The consumer lived: the file stays for what it has not taken yet.
        assert counters(the_file(threads.records))["begun"] == said["asked"]


def test_full_windows_drop_and_say_so_once(driver: Driver) -> None:
    out = driver.run("unread", "1000", PSM_PROFILER_SLOTS="64").splitlines()
    said = next(json.loads(line) for line in out if line.startswith("{"))
    assert sum("drops events: no window of 64 events is free" in line for line in out) == 1
    path = the_file(driver.records)
    rows, found = read(path), counters(path)
    assert said["full"] == found["dropped_full"] == 1000 - len(rows)
    # The half of each window that was closed is kept for the children of what is in it.
    assert len(rows) == 3 * 32 + 64
    assert found["begun"] == 1000 and found["end_ns"] > found["begin_ns"]
    assert open_record(str(path)).owner == "clean"
    assert [state for state, _ in windows(path)] == [2, 2, 2, 2], "all of them are there to be taken"


def test_an_operation_knows_that_a_child_of_it_found_no_slot(driver: Driver) -> None:
    """Otherwise it seems to have ended with those of its children that did."""
    out = driver.run("crowded", PSM_PROFILER_SLOTS="64").splitlines()
    said = {k: v for line in out if line.startswith("{") for k, v in json.loads(line).items()}
    rows = read(the_file(driver.records))
    first, second = (by_handle(rows, said[name]) for name in ("first", "second"))
    assert said["lost"] and said["full"] > 0
    assert second.flags & CHILD_LOST and not first.flags & CHILD_LOST, "a step is no part of which the end depends"


def test_without_a_reader_the_past_is_overwritten_and_the_file_goes(driver: Driver) -> None:
    with driver.process("events", "1000", PSM_PROFILER_SLOTS="64") as child:
        said, (path,) = lines_of(child)
        rows = read(Path(path))
        # The last events are there, in a row; of a batch that is in use the rest is not.
        assert said["full"] == said["memory"] == 0 and said["overwritten"] + len(rows) == 1000 and len(rows) > 64
    assert not Path(path).exists()


def test_the_cap_of_the_process_holds(driver: Driver) -> None:
    out = driver.run("unread", "30000", PSM_PROFILER_SLOTS="20000", PSM_PROFILER_MAX_BYTES="2200KiB").splitlines()
    said = next(json.loads(line) for line in out if line.startswith("{"))
    path = the_file(driver.records)
    assert sum("drops events: no memory left for them" in line for line in out) == 1
    assert said["memory"] == 30000 - len(read(path)) and len(read(path)) >= 10000
    assert path.stat().st_blocks * 512 < 2300 << 10
    out = driver.run("unread", "30000", PSM_PROFILER_MAX_BYTES="4096").splitlines()
    assert any("cannot create its file within the limit of 4096 bytes" in line for line in out)


def test_a_limit_of_file_sizes_costs_the_events_alone(driver: Driver) -> None:
    done = subprocess.run(
        [driver.program, "events", "10"],
        env=driver.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )
    assert done.returncode == 1 and "File too large" in done.stdout + done.stderr
    assert "cannot create its file" in done.stdout + done.stderr and not list(driver.records.iterdir())


def test_a_mask_that_another_process_wants_is_taken_over(driver: Driver) -> None:
    default = 0x7FFF & ~(1 << 5 | 1 << 6 | 1 << 7)
    answers = [a for a in driver.run("wanted", "16", str(default)).splitlines() if a and a[0].isdigit()]
    # A step is of no use without its operation and collective.
    assert answers == [str(default), f"{1 << 4 | 1 << 3 | 1 << 2 | 1 << 1} 1"]
    answers = [a for a in driver.run("wanted", "0", str(default)).splitlines() if a and a[0].isdigit()]
    assert answers == [str(default), "1 1"], "one kind stays on at NCCL, so that the mask can change again"


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("proxystep", 0x1E),
        ("-proxystep,-ce", None),
        ("all,-kernelch", 0x7FBF),
        ("0x3", 3),
        ("none", 0),
        ("sometimes", None),
    ],
)
def test_kinds_are_named_in_a_setting(driver: Driver, text: str, mask: int | None) -> None:
    with driver.process("events", "1", PSM_PROFILER_EVENTS=text) as child:
        assert child.stdout is not None and child.stderr is not None
        said, _ = lines_of(child)
        if mask is None:
            assert not said
        else:
            assert said["mask"] == (mask or 1)


def test_settings_that_cannot_be_read_are_named(driver: Driver) -> None:
    for name, value in (
        ("PSM_PROFILER_SLOTS", "3"),
        ("PSM_PROFILER_TRIGGER", "0"),
        ("PSM_PROFILER_INTERVAL_SEC", "-1"),
        ("NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC", "soon"),
        ("PSM_PROFILER_FORCE_MS", "1.5"),
        ("PSM_PROFILER_MAX_BYTES", "1 parsec"),
        ("PSM_PROFILER_CLOCK", "sun"),
    ):
        done = subprocess.run(
            [driver.program, "events", "1"],
            env=driver.environment(**{name: value}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1 and f'PROFILER/PSM : {name} is "{value}"' in done.stdout + done.stderr


@pytest.mark.parametrize("clock", ["tsc", "monotonic"])
def test_the_clock_stays_by_the_systems(driver: Driver, clock: str) -> None:
    kind, off = next(a for a in driver.run("clocks", PSM_PROFILER_CLOCK=clock).splitlines() if a[0].isdigit()).split()
    assert clock == "tsc" or kind == "0"
    # What is documented is 1 us; a guest whose clock is steered at this moment may see more.
    assert int(off) <= (5000 if kind == "1" else 0)


# ---- processes ----


def test_a_child_of_fork_has_events_of_its_own(driver: Driver) -> None:
    with driver.process("forked") as child:
        said, paths = lines_of(child)
        mine, its = read(Path(paths[0])), read(Path(paths[-1]))
    assert len(set(paths)) == 2 and said["bad"] == 0
    assert [r.stop_ns for r in mine] == [0], "the child's stop was of no event of its own"
    assert len(its) == 1 and its[0].stop_ns > 0 and its[0].tid != mine[0].tid
    assert child.returncode == 0


def test_threads_that_are_killed_leave_all_but_what_they_were_writing(driver: Driver) -> None:
    # 101: no consumer; without an end of its own.
    with driver.process("stress", "3", "1000000000", "1", "101", PSM_PROFILER_SLOTS="4000") as child:
        assert child.stdout is not None
        try:
            path = Path(next(line.strip() for line in child.stdout if line.endswith(".rec\n")))
            until = time.monotonic() + 60
            while len(read(path)) < 4000:
                assert child.poll() is None and time.monotonic() < until
        finally:
            child.kill()
            child.wait(timeout=60)
    rows = read(path)
    # Each thread has at most one event whose start or stop it was writing, and keeps few open otherwise.
    stopped = [r for r in rows if r.flags & STOPPED]
    assert sum(r.stop_ns == 0 for r in stopped) <= 3
    assert all(r.start_ns <= r.stop_ns for r in stopped if r.stop_ns) and {r.abi for r in rows} == {6}
    events = next(s for s in open_record(str(path)).sections if s.name == "psm.prof.events")
    used = sum(1 for state, _ in windows(path) if state)
    assert used >= 2 and events.torn <= 3 and len(rows) > 2000


def test_a_killed_process_leaves_its_events(driver: Driver) -> None:
    with driver.process("events", "90", "then die", PSM_PROFILER_SLOTS="64") as child:
        _, (path,) = lines_of(child)
    assert child.returncode == -signal.SIGKILL
    rows = read(Path(path))
    assert len(rows) == 90 and all(r.flags & STOPPED and r.stop_ns for r in rows)
    record = open_record(path)
    assert record.owner == "dead" and not record.notes
    assert compiled.run(driver.program, "none", env=driver.environment()).returncode == 2
