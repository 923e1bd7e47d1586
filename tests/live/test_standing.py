"""The step of the protocol and the peer follow from frames, their variables, sockets and records."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from psmkit.live import record, standing
from psmkit.live.kernel import Task
from psmkit.model.inspection import InspectedFrame, InspectedThread, Standing

PID = 100


def thread(*functions: str, tid: int = PID, kind: str = "elsewhere") -> InspectedThread:
    return InspectedThread(tid, "a", "thread", kind, "", "S", frames=tuple(InspectedFrame(f) for f in functions))


def stands(
    *threads: InspectedThread,
    seen: dict[tuple[int, int], standing.Seen] | None = None,
    peers: tuple[int, ...] = (),
    rank: int | None = 1,
) -> list[Standing]:
    tasks = {t.tid: Task(t.tid, "a", "S", "polls fd 3", fds=(3,), peers=peers) for t in threads}
    return standing.of_stacks(threads, tasks, seen or {}, rank, {200: 0, 300: 2}.get, PID)


def test_each_entry_says_what_it_means() -> None:
    data = tomllib.loads(files("psmkit.live").joinpath("standing.toml").read_text())
    for entry in data["step"]:
        re.compile(entry["pattern"])
        assert entry.get("outer") or (entry["stage"] and entry["does"]), entry
        assert "{" not in entry.get("does", "").format(peer=" for rank 0")
    assert data["types"]["4"] == "Connect"


@pytest.mark.parametrize(
    ("functions", "stage"),
    [
        (["poll", "ncclSocketProgress", "ncclPollProxyResponse", "ncclProxyCallBlocking", "p2pSendSetup"], "Setup"),
        (["recv", "ncclProxyCallBlocking", "p2pSendConnect(ncclComm*, int)", "ncclTransportP2pSetup"], "Connect"),
        (["recv", "ncclProxyClientGetFdBlocking", "ncclP2pImportShareableBuffer", "p2pSendConnect"], "GetFd"),
        (["recv", "ncclProxyCallBlocking", "ipcRegisterBuffer", "ncclRegisterP2pIpcBuffer"], "Register"),
        (["recv", "ncclSocketRecv", "bootstrapAllGather", "initTransportsRank", "ncclCommInitRankFunc"], "bootstrap"),
        (["cuStreamSynchronize", "cudaStreamSynchronize", "initTransportsRank"], "init"),
        (["cudaStreamSynchronize", "main"], "data"),
        (["sched_yield", "waitWorkFifoAvailable", "ncclLaunchPrepare", "groupLaunch"], "work FIFO"),
        (["ncclAllReduce", "main"], "enqueue"),
        (["cudaFree", "commFree", "commReclaim", "ncclCommAbort"], "abort"),
        (["cudaFree", "commFree", "commReclaim", "ncclCommDestroy"], "destroy"),
        (["run_job", "hc_queue_run", "worker"], "data"),
        (["nanosleep", "ncclCommAbort", "main"], "abort"),
        (
            ["ppoll", "psm_client_sleep", "wait_response", "call_blocking", "connect_end", "psmP2pSendConnect"],
            "Connect",
        ),
        (["syscall", "group_wait", "lab_run"], "data"),
        (["read", "proxyConnInit", "p2pSendProxySetup", "proxyProgressAsync", "ncclProxyService"], "Setup"),
        (["f", "ncclProxyCallBlocking.constprop.0", "p2pRecvConnect.isra.3"], "Connect"),
    ],
)
def test_step_follows_from_the_frames(functions: list[str], stage: str) -> None:
    (found,) = stands(thread(*functions))
    assert found.stage == stage and found.rank == 1 and found.text.startswith("rank 1 ")


def test_variables_name_peer_and_type_of_a_call() -> None:
    stack = thread("recv", "ncclPollProxyResponse", "ncclProxyCallBlocking", "initTransportsRank")
    (found,) = stands(stack, seen={(PID, 2): standing.Seen(1, 3, 2)})
    assert (found.stage, found.peer) == ("SharedInit", 3)
    assert found.text == "rank 1 waits in SharedInit for rank 3"
    assert found.proof == f"frame #1 ncclPollProxyResponse of thread {PID} (a)"


def test_own_proxy_is_called_so() -> None:
    (found,) = stands(thread("recv", "ncclProxyCallBlocking", "p2pSendSetup"), seen={(PID, 1): standing.Seen(1, 1, 3)})
    assert found.text == "rank 1 waits in Setup for its own proxy" and found.peer == 1


def test_rank_of_variables_beats_that_of_the_launcher() -> None:
    (found,) = stands(thread("ncclProxyCallBlocking"), seen={(PID, 0): standing.Seen(7, 0, 4)}, rank=None)
    assert (found.rank, found.text) == (7, "rank 7 waits in Connect for rank 0")


def test_socket_names_the_peer_where_variables_do_not() -> None:
    (found,) = stands(thread("poll", "ncclProxyCallBlocking", "p2pSendConnect"), peers=(200,))
    assert found.peer == 0 and found.proof.endswith("; it polls fd 3")
    (found,) = stands(thread("poll", "ncclProxyCallBlocking", "p2pSendConnect"), peers=(200, 300))
    assert found.peer is None, "two are no answer"


def test_thread_that_serves_does_not_wait_for_who_is_connected() -> None:
    (found,) = stands(thread("ppoll", "p2pSendProxyConnect", "ncclProxyService", tid=PID + 1), peers=(200,))
    assert (found.peer, found.text) == (None, "rank 1 answers Connect")


def test_who_waits_comes_before_who_serves() -> None:
    waits, serves = thread("bootstrapAllGather"), thread("p2pSendProxySetup", tid=PID - 1)
    assert [s.stage for s in stands(serves, waits)] == ["bootstrap", "Setup"]


@pytest.mark.parametrize(("join", "peer"), [("__pthread_clockjoin_ex", 0), ("cudaFree", None)])
def test_end_of_a_communicator_waits_for_who_is_connected_to_its_proxy(join: str, peer: int | None) -> None:
    service = replace(thread("poll", "ncclProxyService", tid=PID + 1, kind="idle"), role="proxy service thread")
    ends = thread(join, "commFree", "commReclaim", "ncclCommDestroy")
    tasks = {PID: Task(PID, "a", "S", "waits"), PID + 1: Task(PID + 1, "a", "S", "polls fd 3", peers=(200,))}
    (found,) = standing.of_stacks([ends, service], tasks, {}, 1, {200: 0}.get, PID)
    assert (found.stage, found.peer) == ("destroy", peer)
    waits = "" if peer is None else ": it waits for rank 0, which is connected to its proxy"
    assert found.text == f"rank 1 is in the destruction of a communicator{waits}"


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        (["accept", "ncclSocketAccept", "bootstrapInit", "ncclCommInitRankFunc"], "waits in bootstrap for rank 2, to join the ring"),
        (["accept", "socketRingConnect", "bootstrapInit", "ncclCommInitRankFunc"], "waits in bootstrap for rank 2, to join the ring"),
        (["socketConnect", "sendToRoot", "bootstrapInit", "ncclCommInitRankFunc"], "waits in bootstrap for rank 2"),
    ],
)  # fmt: skip
def test_frames_around_one_tell_what_it_waits_for(functions: list[str], says: str) -> None:
    (found,) = stands(thread(*functions), seen={(PID, 2): standing.Seen(1, 2)})
    assert found.text == f"rank 1 {says}"


def test_gdb_is_asked_in_the_order_of_the_entries_and_reads_them_as_python() -> None:
    asked = standing.questions()
    assert all(isinstance(text, str) for *patterns, _ in asked for text in patterns)
    about = [q.calls for q in asked if re.fullmatch(q.function, "bootstrapInit")]
    assert len(about) > 1 and about[0] and not about[-1]


def test_idle_threads_and_plain_programs_stand_nowhere() -> None:
    assert stands(thread("progressOps", kind="idle"), thread("poll", "main", tid=PID + 1)) == []


def operation(**values: Any) -> record.Operation:
    row = {
        "stage": "fifo",
        "what": "published",
        "seq": 1,
        "nsteps": 16,
        "base": 0,
        "transmitted": 4,
        "done": 4,
    } | values
    return record.Operation("r.rec", 1, 0, 2, bool(values.get("sends")), 3.0, row)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"sends": True, "recv_tail": 4}, "waits in data for rank 0, which has to free a slot for step 4"),
        ({"sends": True, "recv_tail": 5}, "has a free slot and does not fill it, in a send to rank 0"),
        ({"send_head": 4}, "waits in data for rank 0, which has to send step 4"),
        ({"send_head": 5}, "has step 4 and does not take it, in a receive from rank 0"),
        ({"done": 3}, "waits for copies on its own stream, in a receive from rank 0"),
        ({"stage": "offer"}, "waits in data for rank 0"),
    ],
)
def test_record_says_which_end_has_to_act(values: dict[str, Any], says: str) -> None:
    (found,) = record.standings([operation(**values)])
    assert found.text == f"rank 1 {says}, for 3.0 s" and (found.stage, found.peer, found.rank) == ("data", 0, 1)


def test_operation_in_which_this_process_has_to_act_comes_first() -> None:
    waits, acts = operation(sends=True, recv_tail=4), operation(send_head=5)
    assert [s.text.partition(",")[0] for s in record.standings([waits, acts])] == [
        "rank 1 has step 4 and does not take it",
        "rank 1 waits in data for rank 0",
    ]


def test_root_of_bootstrap_stands_only_where_its_table_names_a_rank() -> None:
    stack = thread("accept", "ncclSocketAccept", "bootstrapRoot", "start_thread")
    assert stands(stack) == []
    (found,) = stands(stack, seen={(PID, 2): standing.Seen(None, 2, None, 0x77)})
    assert (found.stage, found.peer, found.job) == ("bootstrap", 2, "0x77")
    assert found.text == "rank 1 has the root of bootstrap, which waits for the address of rank 2"
