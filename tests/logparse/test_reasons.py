"""Reasons of failures as version 0.1 worded them give the cause and the rank that later versions print as fields."""

from __future__ import annotations

import pytest

from psmkit.catalogue.reasons import cause_of
from psmkit.proxy import Cause

DIED = "rank 2, the receiver, died or closed its connections in operation 1, stage offer"


@pytest.mark.parametrize(
    ("reason", "cause", "named"),
    [
        (DIED, "peer-died", 2),
        ("rank 1 ended the operation: no room", "peer-failed", 1),
        (f"rank 1 ended the operation: {DIED}", "peer-failed", 1),
        ("the proxy of rank 12 ended the operation: no room", "peer-failed", 12),
        ("rank 0, the sender, ended operation 3 with PSM_ERR_CUDA (CUDA 400): see its log", "peer-failed", 0),
        (f"Setup to the proxy of rank 0: {DIED}", "peer-died", 2),
        ("Setup to the proxy of rank 0: GetFd to the proxy of rank 1: the operation was aborted", "other", None),
        (
            "the proxy of rank 3 (process 4242) closed the socket without a word: the process has died; look at the end of its log",
            "peer-died",
            3,
        ),
        ("the proxy of rank 3 (process 4242) closed the socket before its hello", "peer-died", 3),
        ("the proxy of rank 3 (process 4242) has stopped: it was closed there", "peer-closed", 3),
        (
            "cannot connect to the proxy of rank 1 (process 42) at @psm-1; it runs no more, or in another network namespace",
            "peer-died",
            1,
        ),
        (
            "nobody listens at @psm-1-uds, where rank 1 (process 42) gives out descriptors: the process has died or stopped",
            "peer-died",
            1,
        ),
        (
            "irecv in operation 2, stage fifo, with rank 1 over network PSM (v12) returned ncclRemoteError (6): the peer died",
            "peer-died",
            1,
        ),
        ("connect with rank 1 over network My Net (v8) returned ncclRemoteError (6): the peer", "peer-died", 1),
        ("connect with rank 1 over network PSM (v12) returned ncclSystemError (2): its log says why", "other", None),
        ("rank 0 got no answer to Setup to the proxy of rank 1 (process 42) in 1000 ms: look what", "deadline", 1),
        ("rank 0 got no answer to GetFd from rank 1 (process 42) in 1500 ms, asked 8 times: look", "deadline", 1),
        ("rank 0 could not send Connect to the proxy of rank 1 (process 42) in 1500 ms: look", "deadline", 1),
        ("rank 1 published recvTail 9 in operation 2; 0 to 8 are possible: the control", "damaged-recvTail", 1),
        ("rank 1 published sendHead 9 in operation 2; 0 to 8 are possible: the control", "damaged-sendHead", 1),
        ("4 wrong byte(s); the first is from rank 1: byte 7 of iteration 0 is 0x10, 0x11 is meant", "wrong-data", 1),
        ("rank 1 published 64 bytes, 120 are meant", "other", None),
        (
            "operation 1: this rank sends 100 bytes, rank 1 expects 200; both ends have to name the same size",
            "other",
            None,
        ),
        ("no room", "other", None),
        ("", "other", None),
    ],
)
def test_reason_gives_its_cause_and_the_rank_that_it_names(reason: str, cause: str, named: int | None) -> None:
    assert cause_of(reason) == (cause, named)
    assert cause in {one.c_name for one in Cause}
