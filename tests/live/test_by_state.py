"""What the memory of NCCL says of the data path and of connections, as the step and the rank for which a process waits."""

from __future__ import annotations

import pytest

from psmkit.live import by_state
from psmkit.model.inspection import Standing, StateObject, Value


def comm(*parts: StateObject) -> StateObject:
    return StateObject("communicator", "communicator 0x1, rank 0 of 3", 16, 0, parts=parts)


def op(*subs: StateObject) -> StateObject:
    return StateObject("proxy", "proxy of rank 0", 32, 0, parts=(StateObject("proxy op", "op 3", 48, 0, parts=subs),))


def sub(role: str, peer: int | None = 2, moving: str = "", **steps: int) -> StateObject:
    values = {"posted": 8, "received": 0, "flushed": 0, "transmitted": 0, "done": 0, "nsteps": 32} | steps
    words = tuple(Value(name, value, moving=name == moving) for name, value in values.items())
    return StateObject("sub", f"sub 0: peer {peer}, channel 1", 48, 0, peer, 1, (*words, Value("role", role)))


@pytest.mark.parametrize(
    ("one", "peer", "says"),
    [
        (sub("recv", received=3), 2, "waits in data for rank 2, which has to send step 3"),
        (sub("send", transmitted=5, done=4), 2, "waits in data for rank 2, which has to receive step 4"),
        (sub("send", transmitted=4, done=4), None, "waits in data for its own kernel, which has to fill step 4, in a send to rank 2"),
        (sub("recv", received=8, transmitted=8, done=1), None, "waits in data for its own kernel, which has to take step 1, in a receive from rank 2"),
    ],
)  # fmt: skip
def test_steps_of_an_operation_say_who_has_to_act(one: StateObject, peer: int | None, says: str) -> None:
    (found,) = by_state.standings([comm(op(one))])
    assert (found.stage, found.peer, found.rank, found.text) == ("data", peer, 0, f"rank 0 {says}")
    assert found.proof is not None and "sub 0: peer 2, channel 1" in found.proof


@pytest.mark.parametrize(
    "one",
    [
        sub("recv", moving="received"),
        sub("recv", peer=None),
        sub("", received=3),
        sub("send", transmitted=32, done=32),
    ],
)
def test_operation_that_moves_or_ends_or_is_of_an_unknown_kind_stands_nowhere(one: StateObject) -> None:
    assert by_state.standings([comm(op(one))]) == []


def test_same_peer_on_several_channels_is_named_once() -> None:
    found = by_state.standings([comm(op(sub("recv"), sub("recv", received=1), sub("recv", peer=1)))])
    assert [one.peer for one in found] == [2, 1]


def connection(peer: int, **words: int | str) -> StateObject:
    values = tuple(Value(name, value) for name, value in words.items())
    return StateObject("connection", f"from rank {peer}, channel 0/0", 64, 0, peer, 0, values)


def test_connection_that_was_set_up_and_not_connected_names_the_peer() -> None:
    made = connection(1, role="recv", connected=1, proxy_state="connConnected")
    waits = connection(2, role="recv", connected=0, proxy_state="connSetupDone")
    (found,) = by_state.standings([comm(made, waits)])
    assert (found.stage, found.peer) == ("Connect", 2)
    assert found.text == "rank 0 waits in Connect for rank 2: its proxy has no connection from that rank yet"


def test_other_objects_say_nothing() -> None:
    assert by_state.standings([StateObject("psm connection", "x", 1, 0, 1), comm()]) == []


def plan(*peers: int, stands: str = "launched, its group goes on") -> StateObject:
    tasks = tuple(StateObject("task", f"Send, rank {peer}", 80, peer=peer) for peer in peers)
    return StateObject("plan", "plan", 96, values=(Value("stands", stands),), parts=tasks)


@pytest.mark.parametrize(
    ("plans", "peer", "says"),
    [
        ([plan(0, 2), plan(2)], 2, "waits in data for rank 2, in a kernel"),
        ([plan(0, 1, 2)], None, "waits in data for a kernel, which exchanges data with 2 ranks: 1, 2"),
        ([plan(1), plan(2, stands="not launched")], 1, "waits in data for rank 1, in a kernel"),
    ],
)
def test_tasks_of_launched_plans_name_the_peers_of_a_kernel(
    plans: list[StateObject], peer: int | None, says: str
) -> None:
    (found,) = by_state.standings([comm(*plans)], kernel=True)
    assert (found.stage, found.peer, found.text) == ("data", peer, f"rank 0 {says}")


def test_plan_that_nobody_has_reclaimed_is_no_proof_of_a_kernel_that_runs() -> None:
    assert by_state.standings([comm(plan(2))]) == []
    assert by_state.standings([comm(plan(), plan(0))], kernel=True) == []


def exchange(*exchanged: tuple[str, int]) -> StateObject:
    tasks = tuple(
        StateObject("task", f"{what}, rank {peer}", 80, peer=peer, values=(Value("function", what),))
        for what, peer in exchanged
    )
    return StateObject("plan", "plan", 96, values=(Value("stands", "waits for its reclaim"),), parts=tasks)


BOTH = exchange(("Send", 1), ("Recv", 1), ("Send", 2), ("Recv", 2))


def end(peer: int, role: str, head: int, tail: int, moving: bool = False) -> StateObject:
    words = (Value("head", head), Value("tail", tail, moving=moving))
    return StateObject(
        "connection", f"{role} {peer}", 64, 0, peer, 0, (Value("role", role), Value("connected", 1), *words)
    )


@pytest.mark.parametrize(
    ("ends", "peers", "says"),
    [
        ([end(1, "send", 4, 8), end(2, "send", 8, 16)], [2], "which has to receive step 8"),
        ([end(1, "recv", 0, 0), end(2, "recv", 3, 3)], [1], "which has sent nothing yet"),
        ([end(1, "recv", 0, 0), end(1, "recv", 2, 2), end(2, "recv", 3, 3)], [None], "exchanges data with 2 ranks"),
        ([end(1, "recv", 0, 0, moving=True)], [None], "exchanges data with 2 ranks"),
        ([end(1, "recv", 0, 0), end(2, "recv", 0, 0)], [1, 2], "which has sent nothing yet"),
        ([end(3, "recv", 0, 0), end(3, "send", 0, 8)], [None], "exchanges data with 2 ranks"),
    ],
)
def test_head_and_tail_in_memory_of_the_host_name_the_peer_of_a_kernel_only_where_they_prove_it(
    ends: list[StateObject], peers: list[int | None], says: str
) -> None:
    found = by_state.standings([comm(BOTH, *ends)], kernel=True)
    assert [one.peer for one in found] == peers
    assert all(one.stage == "data" and says in one.text for one in found)


def test_end_of_a_communicator_waits_for_the_rank_of_the_operation_that_its_proxy_has_left() -> None:
    ends = Standing("destroy", None, "rank 0 is in the destruction of a communicator", "frame #1", 0)
    first, second = by_state.combined([ends], [], [comm(op(sub("send", transmitted=5, done=4)))])
    assert (first.stage, first.peer, second.stage) == ("destroy", 2, "data")
    assert first.text.endswith("communicator: an operation of its proxy is left, with rank 2")
    two = comm(op(sub("send", transmitted=5, done=4), sub("recv", peer=1)))
    assert by_state.combined([ends], [], [two])[0] == ends
    assert by_state.combined([ends], [], [comm()]) == [ends]
