"""Looks at several processes name the rank that one look does not show."""

from __future__ import annotations

from dataclasses import replace

from psmkit.live import by_state, together
from psmkit.model.inspection import InspectedThread, Inspection, Standing, StateObject, Value

KERNEL = "waits for work on its GPU"


def comm(rank: int, *exchanged: tuple[str, int], name: str = "0xabc", launches: int = 2) -> StateObject:
    tasks = tuple(
        StateObject("task", f"{what}, rank {peer}", 80, peer=peer, values=(Value("function", what),))
        for what, peer in exchanged
    )
    plan = StateObject("plan", "plan", 96, values=(Value("stands", "launched"),), parts=tasks)
    words = (Value("commHash", name), Value("opCount", launches))
    return StateObject("communicator", f"communicator {name}", 16, rank, values=words, parts=(plan,))


def look(rank: int, *comms: StateObject, stage: str = "data", does: str = KERNEL) -> Inspection:
    """A look at a rank; its state says more of a kernel, as in psmkit.live.inspect."""
    stack = Standing(stage, None, f"rank {rank} {does}", "frame #0", rank)
    by_memory = by_state.standings(comms, kernel=True) if stage == "data" else []
    threads = (InspectedThread(rank + 100, "a", "main thread", "elsewhere", "sleeps", "S"),)
    return Inspection(rank + 100, "vm", ("a",), 1.0, standing=tuple(by_memory or [stack]), threads=threads, state=comms)


def all_to_all(rank: int) -> list[tuple[str, int]]:
    return [(what, peer) for peer in range(3) if peer != rank for what in ("Send", "Recv")]


def said(found: list[Inspection]) -> list[list[tuple[int | None, str]]]:
    return [[(one.peer, one.text) for one in look.standing] for look in found]


def test_rank_that_is_in_no_kernel_is_the_one_that_the_others_wait_for() -> None:
    looks = [look(rank, comm(rank, *all_to_all(rank))) for rank in (0, 2)]
    behind = comm(1, *all_to_all(1), launches=1)
    away = look(1, behind, stage="bootstrap", does="waits in bootstrap for the other ranks of the lab")
    zero, one, two = together.named([looks[0], away, looks[1]])
    assert said([zero, two]) == [
        [(1, f"rank {rank} waits in data for rank 1, in a kernel: rank 1 is in no kernel")] for rank in (0, 2)
    ]
    assert one == away
    assert zero.standing[0].proof == (
        "its kernel exchanges data with rank 1, 2; process 101: rank 1 waits in bootstrap for the other ranks of the lab"
    )


def test_rank_that_has_launched_its_side_and_is_done_is_not_named() -> None:
    looks = [look(rank, comm(rank, *all_to_all(rank))) for rank in (0, 2)]
    done = look(1, comm(1, *all_to_all(1)), stage="bootstrap", does="waits in bootstrap for the other ranks of the lab")
    found = together.named([looks[0], done, looks[1]])
    assert found == [looks[0], done, looks[1]]
    lacks = comm(1, *(one for one in all_to_all(1) if one != ("Send", 0)))
    left = look(1, lacks, stage="bootstrap", does="waits in bootstrap for the other ranks of the lab")
    zero, _, two = together.named([looks[0], left, looks[1]])
    assert zero.standing[0].peer == 1 and two == looks[1]


def test_rank_that_a_signal_has_stopped_is_named() -> None:
    stopped = look(1, comm(1), stage="stopped", does="is stopped by a signal: kill -CONT 101")
    zero, *_ = together.named([look(0, comm(0, *all_to_all(0))), stopped, look(2, comm(2, *all_to_all(2)))])
    assert said([zero]) == [[(1, "rank 0 waits in data for rank 1, in a kernel: rank 1 is stopped by a signal")]]


def test_kernel_without_the_other_side_of_an_exchange_is_named() -> None:
    lacks = [one for one in all_to_all(1) if one != ("Send", 0)]
    found = together.named(
        [
            look(0, comm(0, *all_to_all(0))),
            look(1, comm(1, *lacks)),
            look(2, comm(2, *all_to_all(2))),
        ]
    )
    assert said(found[:1]) == [
        [(1, "rank 0 waits in data for rank 1, in a kernel: the kernel of rank 1 does not send to rank 0")]
    ]
    assert found[2].standing[0].peer is None  # both of its peers take part


def test_nobody_is_named_while_the_process_of_a_peer_was_not_looked_at() -> None:
    looks = [look(0, comm(0, *all_to_all(0))), look(1, comm(1), stage="init", does="is in the initialisation")]
    assert together.named(looks) == looks
    other_job = look(2, comm(2, *all_to_all(2), name="0xdef"))
    assert together.named([*looks, other_job]) == [*looks, other_job]


def test_nobody_is_named_where_several_communicators_have_kernels() -> None:
    looks = [
        look(0, comm(0, *all_to_all(0)), comm(0, *all_to_all(0), name="0xdef")),
        look(1, comm(1), comm(1, name="0xdef"), stage="init", does="is in the initialisation"),
        look(2, comm(2, *all_to_all(2)), comm(2, *all_to_all(2), name="0xdef")),
    ]
    assert together.named(looks) == looks


def joining(rank: int, job: str = "0x77") -> Inspection:
    one = look(rank, stage="bootstrap", does="waits in bootstrap, to join the ring")
    return replace(one, standing=(replace(one.standing[0], job=job),))


def root(peer: int, job: str = "0x77") -> Standing:
    text = f"rank 0 has the root of bootstrap, which waits for the address of rank {peer}"
    return Standing("bootstrap", peer, text, "frame #4 bootstrapRoot of thread 9 (a)", 0, job)


def test_root_of_bootstrap_names_the_rank_that_all_others_wait_for() -> None:
    zero = joining(0)
    zero = replace(zero, standing=(*zero.standing, root(1)))
    found = together.named([zero, joining(2), joining(1), joining(2, job="0x78")])
    assert [one.standing[0].peer for one in found] == [1, 1, None, None]
    assert found[1].standing[0].text == (
        "rank 2 waits in bootstrap, to join the ring: its root waits for the address of rank 1"
    )
    assert found[0].standing[1] == root(1)
