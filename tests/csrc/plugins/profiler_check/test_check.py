"""libnccl-profiler-check.so: what it says of NCCL's breaches and of a profiler's, and what it leaves alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.plugins.abi import spoken
from tests.csrc.plugins.profiler_check.built import CHECK, Built

COMM = "communicator 9f3c11d2a0b47e65 rank 3"
API = " < CollApi AllReduce < GroupApi"
STEP = f"ProxyStep step 3 < ProxyOp send channel 2 peer 5 < Coll AllReduce seq 7{API} < {COMM}"
OP = f"ProxyOp send channel 2 peer 5 < Coll AllReduce seq 7{API}"
# The way in which caller.c is wrong, which is the rule -> the call, words, the event with its ancestry (v6).
CALLER = {
    "stop-twice": ("stopEvent", "was already stopped", f"Coll AllReduce seq 7{API} < {COMM}"),
    "state-after-stop": ("recordEventState", "gets state ProxyStepSendWait, but was already stopped", STEP),
    "unknown-handle": ("stopEvent", "was never returned", "no event"),
    "never-stopped": ("finalize", "1 events were not stopped before finalize", STEP),
    "unknown-parent": ("startEvent", "a handle that the profiler never returned", f"ProxyOp send channel 2 peer 5 of {COMM}"),
    "parent-kind": ("startEvent", "parentObj is of kind Group", f"Coll AllReduce seq 7 < Group < {COMM}"),
    "parent-context": ("startEvent", "an event of another communicator, 9f3c11d2a0b47e65 rank 3", f"{OP} < communicator 77 rank 0"),
    "state-kind": ("recordEventState", "v6 has no state ProxyCtrlIdle (13) for ProxyStep", STEP),
    "state-side": ("recordEventState", "state ProxyStepRecvWait belongs to the receiving side", STEP),
    "state-order": ("recordEventState", "state ProxyStepSendGPUWait arrives after a later one", STEP),
    "arguments": ("recordEventState", "state ProxyStepSendWait arrives without its arguments", STEP),
    "kind": ("startEvent", "v6 has no event type 0x100000", f"event of type 0x100000 < {COMM}"),
    "context": ("startEvent", "belongs to no initialised communicator", f"Coll AllReduce seq 7{API}"),
    "finalize": ("finalize", "was already finalized", "communicator 77 rank 0"),
}  # fmt: skip
# The way in which the wrapped profiler is wrong -> the rule, the call, and words.
PLUGIN = {
    "start-fails": ("result", "startEvent", "returned 3, which is ignored"),
    "stop-fails": ("result", "stopEvent", "returned 3"),
    "state-fails": ("result", "recordEventState", "returned 3"),
    "finalize-fails": ("result", "finalize", "returned 3"),
    "fails-with-handle": ("handle-on-error", "startEvent", "and handle 0x"),
    "same-handle": ("handle-twice", "startEvent", "is also that of an open event"),
    "reuses-handle": ("handle-again", "startEvent", "has since given this handle to an event of kind"),
    "writes-descriptor": ("descriptor", "startEvent", "wrote to the descriptor"),
}


def breaches(lines: list[str]) -> list[str]:
    return [line.partition("PROFILER/Check : ")[2] for line in lines if "broke the contract" in line]


def test_a_right_caller_and_a_right_profiler_hear_nothing(check: Built) -> None:
    for version in sorted(spoken("profiler")):
        alone = check.run("good", version)
        wrapped = check.run("good", version, PSM_PROFILER_WRAP=str(check.profiler))
        assert breaches(alone) == breaches(wrapped) == []
        assert "end" in alone and "end" in wrapped
        events = 6 if version >= 5 else 4
        for lines in (alone, wrapped):
            counted = f"PROFILER/Check : {events} events of v{version} so far, 0 open; 0 breaches: none"
            assert any(counted in line for line in lines), lines
    assert any(f"v{version}, from {check.profiler}" in line for line in wrapped)
    assert any("no profiler is wrapped" in line for line in alone)


@pytest.mark.parametrize("way", CALLER)
def test_a_breach_by_nccl_is_named_with_the_events_ancestry(check: Built, way: str) -> None:
    call, words, event = CALLER[way]
    (line, *more) = breaches(check.run(way))
    assert line.startswith(f"NCCL broke the contract in {call} of v6, rule {way}: ")
    assert words in line.partition("; event: ")[0]
    assert line.partition("; event: ")[2].replace(" of communicator", " < communicator") == event.replace(
        " of communicator", " < communicator"
    )
    # One that follows from the first may follow it.
    assert len(more) <= 1


@pytest.mark.parametrize("way", PLUGIN)
def test_a_breach_by_the_profiler_is_named(check: Built, way: str) -> None:
    rule, call, words = PLUGIN[way]
    lines = breaches(check.run("good", PSM_PROFILER_WRAP=str(check.profiler), BROKEN=way))
    assert lines[0].startswith(f"the profiler broke the contract in {call} of v6, rule {rule}: ")
    assert words in lines[0]
    assert not [line for line in lines if line.startswith("NCCL broke")]


def test_the_events_of_copy_engines_belong_to_their_collective(check: Built) -> None:
    for version in (6, 7):
        wrapped = {"PSM_PROFILER_WRAP": str(check.profiler)} if version == 6 else {}
        lines = check.run("copies", version, **wrapped)
        assert breaches(lines) == []
        assert any(
            f"PROFILER/Check : 10 events of v{version} so far, 0 open; 0 breaches: none" in line for line in lines
        )
        line, *_ = breaches(check.run("copies-astray", version, **wrapped))
        assert "rule parent-kind" in line and "parentObj is of kind CollApi" in line
        assert f"event: CeSync < CollApi AllReduce < GroupApi < {COMM}" in line.replace(
            " of communicator", " < communicator"
        )


def test_every_rule_is_broken_once() -> None:
    names = set(re.findall(r'\[RULE_\w+\] = \{"([a-z-]+)"', (CHECK / "contract.c").read_text()))
    tried = {*CALLER, *(rule for rule, _, _ in PLUGIN.values()), "not-asked", "null-handle", "mask", "no-context"}
    assert names == tried


def test_an_event_that_nobody_asked_for_is_told(check: Built) -> None:
    lines = breaches(check.run("good", PSM_PROFILER_WRAP=str(check.profiler), MASK="2"))
    # For Coll NCCL starts the group and the events of the API above it; not the proxy's.
    assert [line.partition("; event: ")[2].partition(" <")[0] for line in lines] == [
        "ProxyOp send channel 2 peer 5",
        "ProxyStep step 3",
    ]
    assert all("rule not-asked: the mask never enabled" in line for line in lines)


def test_what_is_allowed_and_odd_is_a_note(check: Built) -> None:
    for way, env, rule in (
        ("null-handle", {}, "stopEvent of v6, null-handle: the handle is NULL"),
        ("good", {"BROKEN": "mask-bits"}, "init of v6, mask: the mask 0xffffffff has bits"),
        (
            "good",
            {"BROKEN": "no-context", "ASAN_OPTIONS": "detect_leaks=0"},
            "init of v6, no-context: init returned no context",
        ),
    ):
        lines = check.run(way, PSM_PROFILER_WRAP=str(check.profiler), **env)
        assert breaches(lines) == []
        assert any(f"INFO PROFILER/Check : in {rule}" in line for line in lines), lines


def test_a_breach_is_told_once_and_counted_always(check: Built) -> None:
    lines = check.run("threads", PSM_PROFILER_WRAP=str(check.profiler), BROKEN="stop-fails")
    assert len(breaches(lines)) == 1
    counted = [line for line in lines if " 7200 events of v6 so far, 0 open; " in line][-1]
    assert "7200 breaches: result 7200" in counted


def test_pxn_operations_are_left_alone(check: Built) -> None:
    for version in (1, 4, 6):
        for way in ("pxn", "pxn-refused"):
            assert breaches(check.run(way, version, PSM_PROFILER_WRAP=str(check.profiler))) == []


def test_versions_that_the_wrapped_profiler_lacks_are_not_found(check: Built) -> None:
    """NCCL takes the newest that it finds, and no other when its init fails."""
    lines = check.run("stop-twice", 0, PSM_PROFILER_WRAP=str(check.profiler_v4))
    assert lines[0] == "newest 4"
    (breach,) = breaches(lines)
    assert "stopEvent of v4, rule stop-twice" in breach
    assert breach.endswith(f"event: Coll AllReduce seq 7 < Group < {COMM}")
    assert check.run("good", 6, PSM_PROFILER_WRAP=str(check.profiler_v4)) == ["no ncclProfiler_v6"]
    assert check.run("good", 0)[0] == f"newest {max(spoken('profiler'))}"


def test_a_profiler_is_found_by_nccls_names(check: Built) -> None:
    lines = check.run("good", PSM_PROFILER_WRAP="broken", LD_LIBRARY_PATH=str(check.profiler.parent))
    assert any("from libnccl-profiler-broken.so" in line for line in lines)


def test_a_library_that_cannot_be_wrapped_is_a_failed_init_with_the_reason(check: Built, tmp_path: Path) -> None:
    for name, why in (
        (str(tmp_path / "nothing.so"), "cannot be wrapped: "),
        (str(check.library), "it is this library itself"),
        ("libm.so.6", f"it has no table ncclProfiler_v1 to _v{max(spoken('profiler'))}"),
    ):
        lines = check.run("good", PSM_PROFILER_WRAP=name)
        assert any(line.startswith("WARN PROFILER/Check : ") and why in line for line in lines), lines
        assert lines[-1] == "init 5"


def test_a_stream_is_written_for_each_process_and_never_over_another(check: Built, tmp_path: Path) -> None:
    stream = tmp_path / "calls.txt"
    check.run("stop-twice", 4, PSM_PROFILER_STREAM=str(stream))
    first = stream.read_text()
    assert first.startswith(
        "psmkit-profiler-stream 1 v4\ninit 0 1 comm=9f3c11d2a0b47e65 nodes=1 ranks=8 rank=3 name=four\n"
    )
    assert "start 0 1 3 ProxyOp parent=2 rank=3 peer=5 channel=2 steps=4 send=1\n" in first
    assert first.count("stop 0 2\n") == 2
    lines = check.run("good", 4, PSM_PROFILER_STREAM=str(stream))
    told = f"WARN PROFILER/Check : cannot record a stream to {stream}: File exists; put %p, which becomes the process id, into the name"
    assert told in lines
    assert stream.read_text() == first


def test_before_v4_standard_error_is_told(check: Built) -> None:
    (line,) = breaches(check.run("state-side", 3))
    assert line.startswith("NCCL broke the contract in recordEventState of v3, rule state-side")


def test_many_threads_are_followed(check_threads: Built) -> None:
    for wrap in ("", str(check_threads.profiler)):
        lines = check_threads.run("threads", PSM_PROFILER_WRAP=wrap)
        assert breaches(lines) == []
        assert any(" 7200 events of v6 so far, 0 open; 0 breaches: none" in line for line in lines)


def test_analyze_sees_breaches_in_the_log_and_in_the_record(
    check: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank3.log"
    lines = check.run("stop-twice", 3, PSM_RECORD_DIR=str(tmp_path / "records"), PSM_RECORD_KEEP="1")
    log.write_text("\n".join(line for line in lines if "NCCL" in line) + "\n")
    for source in (log, *(tmp_path / "records").glob("*")):
        main(["analyze", str(source)])
        out = capsys.readouterr().out
        assert "PSM922" in out, (source, out)
