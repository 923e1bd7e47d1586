"""What is known of places: each entry is shown by its samples, and healthy stacks stand in no wrong place."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest

from psmkit.logparse.foreign.places import is_rank, main_thread, place_of, role_of, short_name
from psmkit.logparse.foreign.types import Frame, StackDump, StackThread

DATA = tomllib.loads(files("psmkit.logparse.foreign").joinpath("places.toml").read_text())


def thread(*frames: str, name: str | None = None, tid: int | None = None) -> StackThread:
    """A thread with these frames, ``FUNCTION @ FILE`` or ``thread NAME``."""
    names = [f.removeprefix("thread ") for f in frames if f.startswith("thread ")]
    made = [Frame(f.partition(" @ ")[0], f.partition(" @ ")[2] or None) for f in frames if not f.startswith("thread ")]
    return StackThread(next(iter(names), name), tid, None, tuple(made))


def samples(table: str) -> list[tuple[dict[str, Any], str]]:
    return [(entry, sample) for entry in DATA[table] for sample in entry["sample"]]


@pytest.mark.parametrize(("entry", "sample"), samples("role"), ids=lambda v: v if isinstance(v, str) else "")
def test_a_sample_shows_its_role(entry: dict[str, Any], sample: str) -> None:
    assert role_of(thread(sample)) == entry["name"]
    assert is_rank(StackDump("gdb", 1, None, (thread(sample),))) is not entry.get("outside", False)


@pytest.mark.parametrize(("entry", "sample"), samples("wait"), ids=lambda v: v if isinstance(v, str) else "")
def test_a_sample_shows_its_place(entry: dict[str, Any], sample: str) -> None:
    inner = [entry["inner_sample"]] if "inner" in entry else []
    place = place_of(thread("poll @ libc.so.6", *inner, sample, "main"))
    assert (place.kind, place.what, place.verb) == (entry["kind"], entry["what"], entry.get("verb", "waits for"))


def test_each_kind_is_explained() -> None:
    head = files("psmkit.logparse.foreign").joinpath("places.toml").read_text().partition("[[wait]]")[0]
    known = head.partition("`kind` is one of")[2].replace(",", " ").split()
    assert {entry["kind"] for entry in DATA["wait"]} <= set(known)


def test_the_innermost_frame_decides() -> None:
    inside = thread("poll", "ncclSocketRecv", "bootstrapAllGather", "initTransportsRank", "ncclCommInitRankFunc")
    assert place_of(inside).kind == "connect"
    assert place_of(thread("poll", "bootstrapBarrier", "ncclTransportP2pSetup")).kind == "bootstrap"


@pytest.mark.parametrize(
    "inside",
    [
        ("lll_mutex_lock_optimized", "___pthread_mutex_lock"),
        ("pselect64_syscall", "__pselect"),
        ("__GI___clock_nanosleep", "clock_nanosleep_time64", "__nanosleep"),
        ("futex_wait", "__futex_abstimed_wait_common64", "do_futex_wait.constprop.0", "sem_timedwait"),
        ("__GI___wait4", "do_wait", "waitpid"),
    ],
)
def test_the_own_frame_of_a_program_counts_not_those_of_libc(inside: tuple[str, ...]) -> None:
    assert place_of(thread(*inside, "reap_children", "main", "__libc_start_main")).text == "is in reap_children"
    assert place_of(thread(*inside, "main", "__libc_start_main")).text == "is in main"


@pytest.mark.parametrize("waits", ["waits for a lock", "is in train; waits for a lock", "polls fd 9", "sleeps"])
def test_the_phrase_of_an_inspection_without_stacks_stays_as_it_is(waits: str) -> None:
    assert place_of(StackThread("a", 1, "S", (), kind="elsewhere", waits=waits)).text == waits


def test_a_full_work_fifo_decides_wherever_its_frame_is() -> None:
    """From 2.22 on the wait looks at events while it waits."""
    place = place_of(
        thread("cudaEventSynchronize", "ncclCommPollEventCallbacks", "waitWorkFifoAvailable", "ncclGroupEnd")
    )
    assert place.kind == "fifo"
    assert place_of(thread("cudaEventSynchronize", "uploadWork", "ncclGroupEnd")).kind == "device"


def test_a_wait_for_room_that_a_compiler_put_into_its_caller_is_seen_by_what_it_calls() -> None:
    inside = ("ncclLaunchKernelBefore_NoUncapturedCuda @ enqueue.cc:1646", "doLaunches @ group.cc:285", "ncclGroupEnd")
    assert place_of(thread("__sched_yield", *inside)).kind == "fifo"
    assert place_of(thread("memcpy", *inside)).kind == "launch"
    assert place_of(thread("__sched_yield", *inside[1:])).kind == "launch"


@pytest.mark.parametrize(
    "frame",
    [
        "recv @ multiprocessing/connection.py:250",
        "send @ socket.py:12",
        "reduce @ functools.py:3",
        "gather @ asyncio/tasks.py:900",
        "wait @ threading.py:320",
        "synchronize @ mylib/sync.py:4",
        "exchange @ train.py:12",
    ],
)
def test_common_names_are_no_collectives(frame: str) -> None:
    assert place_of(thread(frame, "step @ train.py:9")).kind == "elsewhere"


def test_the_program_is_named_by_its_python_frames() -> None:
    place = place_of(
        thread("poll @ libc.so.6", "pysqlite_step @ _sqlite3.so", "execute @ db.py:4", "<module> @ train.py:1")
    )
    assert (place.kind, place.what, place.text) == ("elsewhere", "execute", "is in execute")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("ncclLaunchKernel(ncclComm*, ncclKernelPlan*)", "ncclLaunchKernel"),
        ("_ZL21waitWorkFifoAvailableP8ncclCommj", "waitWorkFifoAvailable"),
        ("_ZN4c10d16ProcessGroupNCCL9allreduceERSt6vector", "c10d::ProcessGroupNCCL::allreduce"),
        ("_Z12ncclGroupEndv", "ncclGroupEnd"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("sendProxyProgress.constprop.0", "sendProxyProgress"),
        ("c10d::(anonymous namespace)::f(std::vector<int>)", "c10d::f"),
        ("void at::native::f<float, int>(float*)", "at::native::f"),
        ("<module>", "<module>"),
        ("_Z999x", "_Z999x"),
        ("", ""),
    ],
)
def test_names_are_told_without_arguments(function: str, name: str) -> None:
    assert short_name(function) == name


def test_the_main_thread_of_each_tool() -> None:
    proxy = thread("poll", "ncclProxyService", tid=12)
    user = thread("load", "step")
    module = thread("load @ a.py:1", "<module> @ a.py:9")
    assert main_thread(StackDump("gdb", 10, None, (proxy, thread("f", tid=10)))) == thread("f", tid=10)
    assert main_thread(StackDump("faulthandler", None, None, (user, module))) is module
    assert main_thread(StackDump("gdb", None, None, (proxy, user))) is user
    assert main_thread(StackDump("gdb", None, None, (proxy,))) is None
