"""What the kernel says of threads, in words: calls, descriptors, their other ends."""

from __future__ import annotations

import os
import socket
import sys

from psmkit.live import kernel, mapped
from psmkit.live.descriptors import Descriptors
from tests.live.processes import process


def only(pid: int) -> kernel.Task:
    (task,) = kernel.tasks(pid)
    return task


def test_reader_of_a_pipe_names_who_writes() -> None:
    with process("import sys; print('up', flush=True); sys.stdin.readline()") as child:
        task = only(child.pid)
        assert (task.tid, task.state, task.fds) == (child.pid, "S", (0,))
        assert task.does == f"reads from fd 0 (pipe, process {os.getpid()} at the other end)"
        assert task.peers == (os.getpid(),)


def test_poll_names_its_descriptors() -> None:
    code = "import select, sys; p = select.poll(); p.register(0); p.register(p2 := __import__('os').eventfd(0)); print('up', flush=True); p.poll()"
    with process(
        code.replace("p.register(0)", "p.register(0, select.POLLIN)").replace(
            "eventfd(0))", "eventfd(0), select.POLLIN)"
        )
    ) as child:
        task = only(child.pid)
        assert task.does.startswith("polls fd 0 (pipe") and "(eventfd)" in task.does
        assert len(task.fds) == 2


def test_tcp_socket_names_the_process_at_its_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); print('up', flush=True); s.recv(1)"
        with process(code) as child:
            connection, _ = server.accept()
            with connection:
                task = only(child.pid)
                assert f"TCP socket to 127.0.0.1:{port}, process {os.getpid()} at the other end" in task.does
                assert task.peers == (os.getpid(),)


def test_unix_socket_names_the_process_at_its_other_end() -> None:
    name = f"\0psmkit-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = (
            f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({name!r}); print('up', flush=True); s.recv(1)"
        )
        with process(code) as child:
            connection, _ = server.accept()
            with connection:
                task = only(child.pid)
                assert f"Unix socket, process {os.getpid()} at the other end" in task.does, task
                assert task.peers == (os.getpid(),)


def test_file_and_closed_descriptor_are_named(tmp_path: object) -> None:
    with open(__file__) as file:
        known = Descriptors(os.getpid())
        assert known.opened(file.fileno()).text == f"fd {file.fileno()} ({__file__})"
    assert known.opened(1_000_000).text == "fd 1000000"


def test_sleep_and_lock_need_no_descriptor() -> None:
    with process("import time; print('up', flush=True); time.sleep(600)") as child:
        assert only(child.pid).does == "sleeps"
    code = "import threading; l = threading.Lock(); l.acquire(); print('up', flush=True); l.acquire()"
    with process(code) as child:
        assert only(child.pid).does == "waits for a lock or a condition"


def test_process_that_is_gone_has_no_threads() -> None:
    with process("input(print('up', flush=True) or '')") as child:
        pass
    assert kernel.tasks(child.pid) == [] and mapped.mapped(child.pid) == [] and not mapped.uses_nccl(child.pid)


def test_mapped_files_have_their_place_and_their_symbols() -> None:
    with process("input(print('up', flush=True) or '')") as child:
        files = mapped.mapped(child.pid)
        exe = os.path.realpath(sys.executable)
        program = next(file for file in files if file.path == exe)
        elf = mapped.read_elf(program.file)
        assert elf is not None and elf.bits == 64 and elf.symbols in ("none", "table", "debug")
        assert any(file.name.startswith("libc.so") for file in files)
        assert mapped.libraries(files) == []


def test_text_file_is_no_elf() -> None:
    from pathlib import Path

    assert mapped.read_elf(Path(__file__)) is None
    assert mapped.read_elf(Path("/nonexistent")) is None
