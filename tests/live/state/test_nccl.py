"""NCCL's objects, in a process whose types have NCCL's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.state.conftest import Seen, look, moving, values, walked


@pytest.mark.parametrize("mode", ["listed", "heap"])
def test_a_communicator_is_found_by_the_list_of_ras_or_by_its_magic(start, mode: str) -> None:  # type: ignore[no-untyped-def]
    seen = look(start(mode).pid)
    comm = seen.only("communicator")
    assert (comm.rank, comm.name) == (1, "communicator 0xabcdef, rank 1 of 4")
    held = values(comm)
    assert (held["nRanks"], held["collOpCount"], held["p2pOpCount"], held["seqNumber.AllReduce"]) == (4, 17, 5, 17)
    assert (held["abortFlag"], held["initState"]) == (0, "ncclInProgress")
    assert seen.said == ""
    assert not any(moving(one) for one in seen.objects)


def test_an_operation_has_its_steps_and_the_words_of_its_connection(start) -> None:  # type: ignore[no-untyped-def]
    seen = look(start("listed").pid)
    op, sub = seen.only("proxy op"), seen.only("sub")
    assert (op.rank, op.peer, op.channel, values(op)["pattern"], values(op)["function"]) == (
        1,
        2,
        1,
        "Send",
        "AllReduce",
    )
    held = values(sub)
    assert (held["posted"], held["received"], held["transmitted"], held["done"], held["nsteps"]) == (5, 4, 4, 3, 8)
    assert (held["head"], held["tail"], held["connection"]) == (7, 11, "connConnected")


def test_calls_connections_plans_and_the_work_fifo_are_shown(start) -> None:  # type: ignore[no-untyped-def]
    seen = look(start("listed").pid)
    assert values(seen.only("pending call"))["opId"] == "0x7f0011223344"
    assert [str(values(plan)["stands"]).split()[0] for plan in seen.all("plan")] == ["waits", "not"]
    assert values(seen.only("work fifo")) == {"produced": 960, "consumed": 64, "size": 1024}
    end = seen.only("connection")
    assert (end.peer, end.channel) == (2, 1)
    held = values(end)
    assert (held["role"], held["connected"], held["transport"], held["proxy_state"]) == (
        "send",
        1,
        "net",
        "connConnected",
    )
    assert (held["step"], held["head"], held["tail"]) == (42, 40, 44)


def test_members_of_older_releases_are_found_by_their_names(start, old_program: Path) -> None:  # type: ignore[no-untyped-def]
    seen = look(start("", file=old_program).pid)
    assert values(seen.only("communicator"))["collOpCount"] == 17
    assert values(seen.only("work fifo")) == {"produced": 960, "consumed": 64, "size": 1024}
    assert [str(values(plan)["stands"]).split()[0] for plan in seen.all("plan")] == ["waits", "not"]
    assert len(seen.all("sub")) == 1


def test_sends_and_receives_of_a_plan_come_from_the_fifo_of_releases_that_keep_no_tasks(
    start, old_program: Path
) -> None:  # type: ignore[no-untyped-def]
    launched, planned = look(start("", file=old_program).pid).all("plan")
    found = [(task.peer, values(task)["function"], values(task)["bytes"]) for task in launched.parts]
    assert found == [(2, "Send", (1 << 32) + 5), (0, "Recv", 7)]
    assert planned.parts == ()


def test_words_that_change_between_the_samples_are_marked(start) -> None:  # type: ignore[no-untyped-def]
    seen = look(start("moving").pid, gap=0.2)
    assert moving(seen.only("sub")) == {"posted"}
    (posted,) = [value for value in seen.only("sub").values if value.moving]
    assert isinstance(posted.before, int) and isinstance(posted.value, int) and posted.before < posted.value


@pytest.mark.parametrize("mode", ["circle", "wild"])
def test_memory_that_makes_no_sense_is_a_note(start, mode: str) -> None:  # type: ignore[no-untyped-def]
    process = start(mode)
    seen = look(process.pid)
    assert len(seen.all("communicator")) == 1
    assert len(seen.all("pending call")) == 1
    assert 1 <= len(seen.all("proxy op")) <= 2
    assert ("in a circle" if mode == "circle" else "leads to no memory") in seen.said
    assert process.poll() is None


def test_what_was_read_before_a_limit_is_kept(start, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    memory = pytest.importorskip("psmkit.live.state.memory")
    reader = pytest.importorskip("psmkit.live.state.reader")
    process = start("listed")
    counts = []
    for most in (1, 8, 12, 20, 100):
        monkeypatch.setattr(memory, "_OBJECTS", most)
        seen = Seen(*reader.inspect(process.pid, 60.0, 0.0))
        counts.append(len(list(walked(seen.objects))))
        assert ("not complete" in seen.said) == (most < 100)
    assert counts[0] == 0 and counts[1] > 0
    assert counts == sorted(counts)
