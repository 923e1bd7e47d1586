"""libpsm's objects in ranks of the lab that run or hang."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from psmkit.live import procfs
from tests.live.state.conftest import DEADLINE, lab, logged, look, moving, until, values

LOST = ("--fault", "proxy.response:drop,rank=1,op=Setup", "--timeout", "100", "--deadline", "100")


def test_a_call_whose_answer_is_lost_is_pending_with_its_opid_and_peer(tmp_path: Path) -> None:
    with lab(tmp_path / "out", *LOST) as (_, ranks):
        seen = until(ranks[1].pid, lambda seen: bool(seen.all("pending call")))
        call = seen.only("pending call")
        assert values(call)["type"] == "Setup"
        assert (call.rank, call.peer) == (1, 1)
        assert values(call)["answered"] == 0
        assert int(values(call)["age_ms"]) >= 0
        assert "age_ms" not in moving(call)
        opid = int(str(values(call)["opId"]), 16)
        assert any(int(m[1], 16) == opid for m in logged(tmp_path / "out", 1, r"opId=0x([0-9a-f]+)"))
        assert [library.symbols for library in seen.libraries if "libpsm" in library.path] == ["debug"]
        assert seen.said == ""


def test_a_connection_has_its_stage_and_the_words_of_its_fifo(tmp_path: Path) -> None:
    words = ("--differ", "rank=1,skip=recv", "--size", "64K", "--deadline", "100")
    with lab(tmp_path / "out", *words) as (_, ranks):
        seen = until(ranks[0].pid, lambda seen: bool(seen.all("proxy op")))
        (waits,) = [one for one in seen.all("psm connection") if values(one)["role"] == "send"]
        assert (waits.rank, waits.peer, waits.channel) == (0, 1, 0)
        (fetch,) = [one for one in seen.all("psm connection") if values(one)["role"] == "fetch"]
        assert (fetch.rank, fetch.peer, values(fetch)["state"]) == (0, 1, "initialised")
        held = values(waits)
        assert (held["state"], held["stage"], held["sendHead"]) == ("connected", "offer", held["base"])
        assert (held["posted"], held["transmitted"], held["done"]) == (0, 0, 0)
        assert int(held["nsteps"]) > 0
        assert not moving(waits)
        (op,) = seen.all("proxy op")
        assert (op.peer, values(op)["state"]) == (1, "in progress")
        assert [sub.peer for sub in seen.all("sub")] == [1]


@pytest.mark.slow
def test_a_run_that_is_read_ten_times_is_never_stopped_and_ends_well(tmp_path: Path) -> None:
    words = ("--pattern", "alltoall", "--size", "4M", "--iters", "500", "--deadline", "100")
    states, moved, over = set[str](), set[str](), threading.Event()

    def watch(pids: list[int]) -> None:
        while not over.is_set():
            for task in [task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*")]:
                with contextlib.suppress(OSError, IndexError):  # it has ended
                    states.add((task / "stat").read_text().rpartition(")")[2].split()[0])

    with lab(tmp_path / "out", *words) as (process, ranks):
        watcher = threading.Thread(target=watch, args=([rank.pid for rank in ranks],))
        watcher.start()
        try:
            with ThreadPoolExecutor(5) as pool:
                for seen in pool.map(look, [rank.pid for rank in ranks] * 5):
                    for one in seen.all("psm connection"):
                        moved |= moving(one)
            assert process.poll() is None, "the run ended before it was read ten times"
        finally:
            over.set()
            watcher.join()
        assert process.wait(DEADLINE) == 0
    assert {"sendHead", "recvTail", "seq"} <= moved
    assert not states & procfs.STOPPED, states


def test_a_library_without_debug_information_is_named_with_what_a_debug_build_would_add(tmp_path: Path, start) -> None:  # type: ignore[no-untyped-def]
    from psmkit.cli.config import tree

    library = tmp_path / "libpsm.so"
    subprocess.run(["strip", "-o", library, tree() / "lib" / "libpsm.so"], check=True)
    seen = look(start("", library).pid)
    assert [one.symbols for one in seen.libraries if one.path == str(library)] == ["none"]
    assert f"{library} has no debug information" in seen.said
    assert "pending calls with their opIds" in seen.said
    assert seen.all("communicator"), "the rest is read"


def test_a_request_that_waits_for_a_peer_is_shown_as_unanswered(tmp_path: Path) -> None:
    words = ("--nodes", "2", "--timeout", "100", "--fault", "net.proxy.connect:hang,rank=1", "--deadline", "100")
    with lab(tmp_path / "out", *words) as (_, ranks):
        seen = until(ranks[0].pid, lambda seen: bool(seen.all("unanswered request")))
        request = seen.only("unanswered request")
        assert (request.rank, request.peer, values(request)["type"]) == (0, 0, "Connect")
        assert str(values(request)["opId"]).startswith("0x")
