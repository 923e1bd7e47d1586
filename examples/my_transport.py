"""A variant of the p2p transport of your own, in Python, and one with a mistake that it declares.

    psmkit conformance my_transport.py:mine
    psmkit conformance my_transport.py:careless
    psmkit mutate my_transport.py:mine -- pytest test_my_transport.py

Whatever a table of handlers leaves out is that of psmkit's own variant, in C.
"""

from __future__ import annotations

from psmkit import Verdict, transport
from psmkit.proxy import LATER, Connection, Handlers, Later, Running
from psmkit.transport import Leaves, Symptoms

split = transport.variant()  # psmkit's own


def setup(connection: Connection, request: bytes, response_size: int) -> bytes | Later:
    """Answer in the second turn: a handler that is not done says so, and others are served meanwhile."""
    if connection.resources is None:
        connection.resources = "asked before"
        return LATER
    return connection.base.setup(request, response_size)


def progress(running: Running) -> bool:
    """Move data; whether something moved."""
    return running.base()


def forget(connection: Connection) -> None:
    """The mistake: Free releases nothing."""
    connection.resources = None


transport.register_variant(
    "mine",
    "answers Setup the second time that it is asked",
    send=Handlers(setup=setup, progress=progress, base=split.send),
    recv=Handlers(setup=setup, progress=progress, base=split.recv),
)

transport.register_variant(
    "careless",
    "Free releases nothing",
    wrong=True,
    outcome="PSM505: the data is right; stream, events and memory are leaked",
    symptoms=Symptoms(Verdict.LEAKING, ("PSM505",), leaves=Leaves.STREAM | Leaves.EVENTS | Leaves.MEMORY),
    send=Handlers(free=forget, base=split.send),
    recv=Handlers(free=forget, base=split.recv),
)
