"""Calls, descriptors and ends of proxies, in one process and between two."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit._native.psm import lib
from psmkit.proxy import (
    LATER,
    AbortedError,
    Address,
    Cause,
    InvalidError,
    MessageType,
    NotFoundError,
    PeerClosedError,
    Proxy,
    PsmError,
    Settings,
    ShareKind,
    Status,
    WaitTimeoutError,
    ZeroCopy,
)
from psmkit.proxy.errors import record_of
from psmkit.testing import Ranks
from tests.proxy import calls
from tests.proxy.test_handlers import NUMBER, served

ROOT = Path(__file__).parents[2]


def test_byte_crosses_through_a_handler_in_python() -> None:
    """Kept here as the first thing to look at when something is wrong; the same between processes follows."""
    with served(setup=lambda c, r, n: r) as c:
        assert c.same_process
        assert c.call_blocking(MessageType.SETUP, b"!", 1) == b"!"


# ---- waiting ----


def _never_answered() -> tuple[threading.Event, Callable[..., object]]:
    """A Setup handler that leaves its call open, and what it sets when it is asked."""
    asked = threading.Event()

    def setup(*_: object) -> object:
        asked.set()
        return LATER

    return asked, setup


def test_deadline_of_a_call_says_who_was_asked_what() -> None:
    go = threading.Event()
    with served(setup=lambda c, r, n: bytes(n) if go.is_set() else LATER) as c:
        call = c.call_async(MessageType.SETUP, b"", 8)
        with pytest.raises(WaitTimeoutError) as caught:
            call.wait(0.02)
        error = caught.value
        assert "rank 0 got no answer to Setup from the proxy of rank 0 in 20 ms" in error.text
        assert (error.rank, error.peer, error.op_id, error.stage) == (0, 0, call.op_id, "setup")
        # It was given up: the answer that comes now is dropped.
        go.set()
        with pytest.raises(NotFoundError):
            call.poll()
        assert c.call_blocking(MessageType.SETUP, b"", 8) == bytes(8)


def test_settings_give_the_deadline() -> None:
    with (
        served(Settings.read(timeout_ms=30), setup=lambda c, r, n: LATER) as c,
        pytest.raises(TimeoutError, match="30 ms"),
    ):
        c.call_blocking(MessageType.SETUP)


def test_interrupt_ends_a_wait() -> None:
    asked, setup = _never_answered()

    def interrupt() -> None:
        assert asked.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with served(setup=setup, register=lambda c, r, n: r) as c:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            c.call_blocking(MessageType.SETUP)
        thread.join()
        assert c.call_blocking(MessageType.REGISTER, b"on", 2) == b"on"


def test_answers_are_fetched_in_any_order() -> None:
    with served(register=lambda c, r, n: r) as c:
        made = [c.call_async(MessageType.REGISTER, bytes([i]), 1) for i in range(100)]
        assert len({call.op_id for call in made}) == 100
        assert [call.wait() for call in reversed(made)] == [bytes([i]) for i in reversed(range(100))]


def test_abort_by_another_thread_ends_a_wait_with_its_reason() -> None:
    asked, setup = _never_answered()
    with served(setup=setup) as c:

        def abort() -> None:
            assert asked.wait(60)
            c.proxy.abort("enough")

        thread = threading.Thread(target=abort)
        thread.start()
        # The own service may be the first to tell that it has ended.
        with pytest.raises((AbortedError, PeerClosedError)):
            c.call_blocking(MessageType.SETUP)
        thread.join()
        assert c.proxy.aborted and isinstance(c.proxy.async_error, AbortedError)
        assert c.proxy.async_error.text == "enough"


def test_abort_with_the_text_of_the_last_failure_keeps_its_cause() -> None:
    for said, cause, names in (("seen", Cause.PEER_SENT, 3), ("something else", Cause.OTHER, None)):
        with served() as c:
            lib.psm_set_last_error(record_of(PsmError("seen", Status.PROTOCOL, peer=3, cause=Cause.PEER_SENT, names=3)))
            c.proxy.abort(said)
            error = c.proxy.async_error
            assert isinstance(error, AbortedError) and (error.cause, error.names) == (cause, names)


def test_proxy_that_is_closed_beside_a_waiting_thread_ends_its_wait() -> None:
    asked, setup = _never_answered()
    ends: list[BaseException] = []
    with served(setup=setup) as c:

        def wait() -> None:
            try:
                c.call_blocking(MessageType.SETUP)
            except Exception as error:
                ends.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert asked.wait(60)
        c.proxy.close()
        thread.join()
    assert len(ends) == 1 and isinstance(ends[0], (PsmError, ValueError))


# ---- what is wrong ----


@pytest.mark.parametrize("message", [MessageType.INIT, MessageType.GET_FD, MessageType.STOP])
def test_types_that_have_no_handler_are_no_calls(message: MessageType) -> None:
    with (
        served() as c,
        pytest.raises(InvalidError, match="expected SharedInit, Setup, Connect, Register or Deregister"),
    ):
        c.call_async(message)


def test_closed_proxy_is_told() -> None:
    with served() as c:
        proxy = c.proxy
    assert proxy.closed and "closed" in repr(proxy)
    proxy.close()
    c.close()
    for use in (proxy.create, proxy.counters, lambda: proxy.connect(proxy.address, NUMBER, send=True)):
        with pytest.raises(ValueError, match="the proxy of rank 0 is closed"):
            use()


def test_addresses_are_bytes_of_one_size() -> None:
    with Proxy(0, 1) as proxy:
        address = proxy.address
    assert len(address.pack()) == 64 and Address(address.pack()) == address
    assert (address.rank, address.pid) == (0, os.getpid()) and address.service.startswith("psm-")
    with pytest.raises(ValueError, match="63 bytes for a struct psmProxyAddress, expected 64"):
        Address(address.pack()[1:])


def test_settings_are_read_and_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSM_TIMEOUT", "7")
    settings = Settings.read(steps=4, share=ShareKind.MEMFD)
    assert (settings.timeout_ms, settings.steps, settings.share) == (7000, 4, ShareKind.MEMFD)
    assert isinstance(settings.zero_copy, ZeroCopy)
    with Proxy(0, 1, settings=settings) as proxy:
        assert proxy.settings == settings
    with pytest.raises(TypeError, match="unknown setting 'colour'"):
        Settings.read(colour=1)
    monkeypatch.setenv("PSM_STEPS", "many")
    with pytest.raises(PsmError, match="PSM_STEPS"):
        Settings.read()


# ---- ends ----


def test_descriptors_do_not_grow() -> None:
    def once() -> None:
        with served(setup=lambda c, r, n: r) as c:
            c.call_blocking(MessageType.SETUP, b"x", 1)
            read, write = os.pipe()
            c.proxy.offer_fd(9, read)
            os.close(c.get_fd(9))
            os.close(c.proxy.take_fd(c.query_fd(write)))
            os.close(read)
            os.close(write)

    once()
    before, threads = calls.descriptors(), threading.active_count()
    for _ in range(10):
        once()
    gc.collect()
    assert calls.descriptors() == before and threading.active_count() == threads


def test_interpreter_ends_well_with_a_proxy_at_work() -> None:
    code = (
        "from psmkit.proxy import *\n"
        "table = Handlers(setup=lambda c, r, n: LATER)\n"
        "proxy = Proxy(0, 1, transports={6: Transport(send=table)}).create()\n"
        "call = proxy.connect(proxy.address, 6, send=True).call_async(MessageType.SETUP)\n"
        "while proxy.counters().retried < 3: pass\n"
        "print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_proxy_does_not_go_into_a_forked_process() -> None:
    code = (
        "import os\n"
        "from psmkit.proxy import *\n"
        "proxy = Proxy(0, 1).create()\n"
        "if (child := os.fork()) == 0:\n"
        "    try:\n"
        "        proxy.counters()\n"
        "    except ValueError as error:\n"
        "        print(error, flush=True)\n"
        "    raise SystemExit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(proxy.counters().peers, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the proxy of rank 0 is closed, or another process's\n0\n"


# ---- two processes ----


@pytest.mark.ranks(2, deadline=60)
def test_byte_crosses_between_processes_and_nothing_is_left_open(ranks: Ranks) -> None:
    (_, asked, _), (answer, _, _) = got = ranks.run(calls.byte_across)
    assert answer == b"!"
    assert asked >= 2  # it was not done at first
    assert [left for _, _, left in got] == [[], []]


@pytest.mark.ranks(2, deadline=60)
def test_exception_of_a_handler_comes_over_the_socket(ranks: Ranks) -> None:
    _, said = ranks.run(calls.exception_across)
    kind, text, rank, peer, stage, op_id, after = said
    assert kind == "RefusedError" and stage == "setup" and (rank, peer) == (1, 0) and op_id
    assert text.startswith("the Python handler of Setup raised KeyError: 'no such key' (calls.py:")
    assert after == b"still here"


@pytest.mark.ranks(2)
def test_cause_of_a_handlers_failure_comes_with_its_answer(ranks: Ranks) -> None:
    """The rank that it names is neither end of the call."""
    assert ranks.run(calls.cause_across) == [None, (Cause.PEER_DIED, 7, 0)]


@pytest.mark.ranks(2, deadline=60)
def test_handler_fetches_a_descriptor_without_waiting(ranks: Ranks) -> None:
    assert ranks.run(calls.descriptor_by_a_handler) == [b"from rank 1", None]


@pytest.mark.ranks(2, deadline=60)
def test_proxy_that_was_closed_is_told_to_who_asks_it(ranks: Ranks) -> None:
    assert ranks.run(calls.closed_beside) == [
        None,
        ("PeerClosedError", "setup", 0, Cause.PEER_CLOSED, 0),
    ]


@pytest.mark.ranks(2, deadline=60)
def test_proxy_that_cannot_take_a_connection_is_named_as_the_one_that_failed(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSM_FAULTS", "proxy.accept:error=ENOMEM,rank=0,nth=1")
    assert ranks.run(calls.refused) == [None, ("NO_MEMORY", Cause.PEER_FAILED, 0)]
