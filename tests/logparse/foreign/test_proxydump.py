"""Operations of a proxy dump, in each dialect."""

from __future__ import annotations

import pytest

from psmkit.logparse.foreign import ProxySub, parse_op


def test_upstream() -> None:
    op = parse_op(0, 3, 12, "Recv 1R/0 1I/1 2D/2]")
    assert op is not None
    assert (op.kind, op.name) == ("Recv", None)
    assert op.subs == (ProxySub(1, 0, "R"), ProxySub(1, 1, "I"), ProxySub(2, 2, "D"))
    assert [s.channel for s in op.waiting] == [0, 1]


def test_an_operation_that_has_not_begun_waits_for_nothing() -> None:
    op = parse_op(0, 3, 12, "Send 1/0]")
    assert op is not None
    assert op.subs == (ProxySub(1, 0, None),)
    assert op.waiting == ()


def test_collectives_have_no_state_upstream() -> None:
    op = parse_op(0, 3, 12, "Coll 4 /0]")
    assert op is not None
    assert op.subs == (ProxySub(4, 0, None),)


@pytest.mark.parametrize(
    ("body", "kind", "sub"),
    [
        ("Coll->Send 0G/2]", "Send", ProxySub(0, 2, "G")),
        ("Coll->Recv (1048576)[R] peer:0 channel:5(retries:6)]", "Recv", ProxySub(0, 5, "R", (("retries", 6),))),
        ("Coll->Recv (1048576)     [R] peer:3 channel:1]", "Recv", ProxySub(3, 1, "R")),
        (
            "Reduce | recv channel NET/00: 0 <- 2 / status R (nsteps 6144, posted 677)]",
            "Recv",
            ProxySub(2, 0, "R", (("nsteps", 6144), ("posted", 677))),
        ),
        ("AllGather | recv channel NET/00]", "Recv", ProxySub(None, 0, None)),
    ],
)
def test_dialects_of_forks(body: str, kind: str, sub: ProxySub) -> None:
    op = parse_op(0, 0, 1, body)
    assert op is not None
    assert op.kind == kind
    assert op.subs == (sub,)


def test_other_brackets_are_no_operation() -> None:
    assert parse_op(0, 0, 1, "12%| loss 0.3]") is None
