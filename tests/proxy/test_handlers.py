"""Handlers in Python: they answer, answer late, fail, and carry out operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from psmkit.proxy import (
    LATER,
    Connection,
    Connector,
    Handlers,
    InternalError,
    InvalidError,
    Later,
    MessageType,
    MismatchError,
    Operation,
    ProtocolError,
    Proxy,
    PsmError,
    RefusedError,
    Running,
    Settings,
    Transport,
    UnsupportedError,
)

NUMBER = 6


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again until it holds: the deadline decides."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def served(settings: Settings | None = None, **functions: Any) -> Iterator[Connector]:
    """A connection of rank 0 to its own proxy, which has these handlers."""
    table = Handlers(**functions)
    with Proxy(0, 1, settings=settings, transports={NUMBER: Transport(send=table)}) as proxy:
        proxy.set_addresses([proxy.address])
        with proxy.connect(proxy.address, NUMBER, send=True) as connector:
            yield connector


def test_each_type_of_request_comes_to_its_handler() -> None:
    seen: list[object] = []

    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        seen.append(("setup", connection.rank, connection.send, connection.state, connection.same_process, request))
        connection.resources = "mine"
        return b"s" * size

    def connect(connection: Connection, request: bytes, size: int) -> bytes:
        seen.append(("connect", connection.resources, connection.state))
        return b""

    def register(connection: Connection, request: bytes, size: int) -> bytes:
        return request[::-1]

    def deregister(connection: Connection, request: bytes) -> None:
        seen.append(("deregister", request))

    def free(connection: Connection) -> None:
        seen.append(("free", connection.resources, connection.state))

    with served(
        shared_init=lambda c, n: seen.append(("shared", n)),
        setup=setup,
        connect=connect,
        register=register,
        deregister=deregister,
        free=free,
    ) as c:
        assert c.call_blocking(MessageType.SHARED_INIT, (3).to_bytes(4, "little")) == b""
        assert c.call_blocking(MessageType.SETUP, b"please", 4096) == b"s" * 4096
        assert c.call_blocking(MessageType.CONNECT) == b""
        assert c.call_blocking(MessageType.REGISTER, b"abc", 3) == b"cba"
        assert c.call_blocking(MessageType.DEREGISTER, b"abc") == b""
    assert seen == [
        ("shared", 3),
        ("setup", 0, True, 2, True, b"please"),
        ("connect", "mine", 3),
        ("deregister", b"abc"),
        ("free", "mine", 4),
    ]


def test_type_without_a_handler_is_refused() -> None:
    with served(setup=lambda c, r, n: bytes(n)) as c, pytest.raises(UnsupportedError, match="no handler for Connect"):
        c.call_blocking(MessageType.CONNECT)


def test_handler_that_is_not_done_does_not_hold_up_others() -> None:
    go = threading.Event()

    def connect(connection: Connection, request: bytes, size: int) -> bytes | Later:
        return b"late" if go.is_set() else LATER

    with served(connect=connect, register=lambda c, r, n: r) as c:
        late = c.call_async(MessageType.CONNECT, b"", 4)
        for word in (b"one", b"two"):
            assert c.call_blocking(MessageType.REGISTER, word, 3) == word
        assert late.poll() is None
        wait_until(lambda: c.proxy.counters().retried > 2)
        go.set()
        assert late.wait() == b"late"
        assert late.poll() == b"late"  # it was fetched, and is kept


def test_blocking_call_lets_other_threads_run() -> None:
    """The handler is not done until another thread of Python, which begins in the call, says so."""
    asked, go = threading.Event(), threading.Event()

    def connect(connection: Connection, request: bytes, size: int) -> bytes | Later:
        asked.set()
        return b"" if go.is_set() else LATER

    def other() -> None:
        assert asked.wait(60)
        go.set()

    with served(connect=connect) as c:
        thread = threading.Thread(target=other)
        thread.start()
        c.call_blocking(MessageType.CONNECT)
        thread.join()


def test_exception_of_a_handler_is_the_answer_and_the_proxy_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        raise ValueError(f"no such thing as {request.decode()}")

    with served(setup=setup, register=lambda c, r, n: r) as c:
        for word in ("this", "that"):
            with pytest.raises(RefusedError) as caught:
                c.call_blocking(MessageType.SETUP, word.encode(), 8)
            error = caught.value
            assert error.text.startswith(
                f"the Python handler of Setup raised ValueError: no such thing as {word} (test_handlers.py:"
            )
            assert (error.rank, error.peer, error.stage) == (0, 0, "setup")
            assert error.op_id > 0xFFFFFFFF
        assert c.call_blocking(MessageType.REGISTER, b"well", 4) == b"well"
        assert c.proxy.async_error is None
    record = caplog.records[0]
    assert record.name == "psmkit.proxy" and record.exc_info is not None


@pytest.mark.parametrize("raised", [SystemExit("out"), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_no_exception_ends_the_thread_of_the_proxy(raised: BaseException) -> None:
    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        raise raised

    with served(setup=setup, register=lambda c, r, n: r) as c:
        with pytest.raises(RefusedError, match=type(raised).__name__):
            c.call_blocking(MessageType.SETUP)
        assert c.call_blocking(MessageType.REGISTER, b"well", 4) == b"well"


def test_handler_chooses_the_status() -> None:
    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        raise MismatchError("steps are 8 here and 4 there", rank=7, stage="steps")

    with served(setup=setup) as c, pytest.raises(MismatchError) as caught:
        c.call_blocking(MessageType.SETUP)
    assert caught.value.text == "steps are 8 here and 4 there" and caught.value.stage == "steps"


@pytest.mark.parametrize(
    ("answer", "words"), [(b"ab", "answered 2 bytes, expected 3 bytes or LATER"), (None, "answered None"), ("abc", "3")]
)
def test_answer_of_a_wrong_size_or_type_is_told(answer: Any, words: str) -> None:
    with served(setup=lambda c, r, n: answer) as c, pytest.raises(ProtocolError, match=words):
        c.call_blocking(MessageType.SETUP, b"", 3)


def test_handler_that_would_wait_is_told_so_at_once() -> None:
    table: dict[str, Connector] = {}

    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        return table["own"].call_blocking(MessageType.CONNECT)

    with served(setup=setup, connect=lambda c, r, n: b"") as c:
        table["own"] = c
        with pytest.raises(InvalidError, match="a handler on the service thread must not wait: answer LATER"):
            c.call_blocking(MessageType.SETUP)


def test_failure_of_free_is_logged_and_raised_and_the_connection_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    def free(connection: Connection) -> None:
        raise OSError("will not")

    table = Handlers(setup=lambda c, r, n: b"", free=free)
    with Proxy(0, 1, transports={NUMBER: Transport(send=table)}) as proxy:
        connector = proxy.connect(proxy.address, NUMBER, send=True)
        with pytest.raises(PsmError, match="the Python handler of Free raised OSError: will not") as raised:
            connector.close()
        assert raised.value.stage == "free"
        connector.close()
        assert proxy.counters().connections == 0
    assert "the Python handler of Free raised OSError: will not" in capfd.readouterr().out
    assert table.connections == {}


def test_connections_are_forgotten_with_their_proxy() -> None:
    table = Handlers(setup=lambda c, r, n: b"")
    with Proxy(0, 1, transports={NUMBER: Transport(send=table)}) as proxy:
        for _ in range(3):
            proxy.connect(proxy.address, NUMBER, send=True).call_blocking(MessageType.SETUP)
        assert len(table.connections) == 3
    assert table.connections == {}


def test_handlers_over_handlers_in_python_are_refused() -> None:
    with pytest.raises(TypeError, match="bad base, it is in Python"):
        Handlers(base=Handlers())


def test_connection_that_was_freed_is_told_to_who_kept_it() -> None:
    kept: list[Connection] = []

    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        kept.append(connection)
        return b""

    with served(setup=setup) as c:
        c.call_blocking(MessageType.SETUP)
        assert kept[0].id == c.connection
    with pytest.raises(RuntimeError, match="the connection was freed"):
        kept[0].id  # noqa: B018
    with pytest.raises(RuntimeError, match="the connection was freed"):
        kept[0].proxy  # noqa: B018


# ---- operations ----


def test_progress_function_carries_out_operations_in_order() -> None:
    out, into = bytearray(b"data to move"), bytearray(12)
    import ctypes

    addresses = [ctypes.addressof((ctypes.c_char * 12).from_buffer(b)) for b in (out, into)]
    turns: list[tuple[int, int]] = []
    kept: list[Running] = []
    done = threading.Event()

    def progress(running: Running) -> bool:
        (part,) = running.parts
        kept.append(running)
        if not running.began:
            running.begin()
            turns.append((running.count, 0))
            return True
        ctypes.memmove(part.recv_buffer, part.send_buffer, part.size)
        turns.append((running.count, part.size))
        running.finish()
        if running.count == 2:
            done.set()
        return True

    with served(setup=lambda c, r, n: b"", progress=progress) as c:
        c.call_blocking(MessageType.SETUP)
        for count, size in ((1, 4), (2, 12)):
            c.proxy.save_op(
                Operation(
                    connection=c.connection, count=count, size=size, send_buffer=addresses[0], recv_buffer=addresses[1]
                )
            )
        assert turns == []  # nothing is posted yet
        c.proxy.start()
        assert done.wait(60)
        wait_until(lambda: c.proxy.counters().ops == 0)
    assert turns == [(1, 0), (1, 4), (2, 0), (2, 12)]
    assert into == out
    for use in (kept[0].finish, lambda: kept[0].parts[0].size):
        with pytest.raises(RuntimeError, match="earlier call"):
            use()


def test_sends_and_recvs_are_not_given_to_one_function() -> None:
    """Both have the same address in C: they are told apart by their table."""
    seen: dict[str, list[set[bool]]] = {"send": [], "recv": []}

    def of(name: str) -> Handlers:
        def progress(running: Running) -> bool:
            seen[name].append({part.connection.send for part in running.parts})
            running.finish()
            return True

        return Handlers(progress=progress)

    with Proxy(0, 1, transports={NUMBER: Transport(of("send"), of("recv"))}) as proxy, ExitStack() as stack:
        ends = [stack.enter_context(proxy.connect(proxy.address, NUMBER, send=send)) for send in (True, False, True)]
        for end in ends:
            proxy.save_op(Operation(connection=end.connection, count=1))
        proxy.start()
        wait_until(lambda: len(seen["recv"]) == 1 and len(seen["send"]) >= 1 and proxy.counters().ops == 0)
    assert seen["recv"] == [{False}] and all(ways == {True} for ways in seen["send"])


def test_exception_of_a_progress_function_ends_the_operation_with_its_reason() -> None:
    def progress(running: Running) -> bool:
        raise RuntimeError("the wire broke")

    with served(progress=progress) as c:
        c.proxy.save_op(Operation(connection=c.connection))
        c.proxy.start()
        wait_until(lambda: c.proxy.aborted)
        error = c.proxy.async_error
        assert isinstance(error, InternalError)
        assert error.text.startswith(
            "the Python progress function raised RuntimeError: the wire broke (test_handlers.py:"
        )
        assert error.rank == 0 and error.stage == "progress"
