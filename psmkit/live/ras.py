"""The status of a job from NCCL's RAS threads: the text that ncclras prints, over the same socket."""

from __future__ import annotations

import socket
import time

__all__ = ["ask", "free_port"]

_PROTOCOL = 2
_PIECE = 1 << 16


def free_port() -> int:
    """A free TCP port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def ask(port: int, *, patience: float = 8.0, collective: int = 3) -> str | None:
    """The verbose status of the job whose RAS threads listen at ``port`` of the loopback (NCCL_RAS_ADDR).

    Args:
        port: where.
        patience: seconds for all of it.
        collective: seconds that RAS waits for the other processes.

    Returns:
        The text; None: nobody answers, for NCCL has RAS from 2.24 on, and a stopped process accepts and says nothing.
    """
    end = time.monotonic() + patience
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
            for question, answer in (
                (f"CLIENT PROTOCOL {_PROTOCOL}", b"SERVER PROTOCOL "),
                (f"TIMEOUT {collective}", b"OK"),
            ):
                connection.sendall(question.encode() + b"\n")
                if not _line(connection, end).upper().startswith(answer):
                    return None
            connection.sendall(b"VERBOSE STATUS\n")
            text = bytearray()
            while data := _receive(connection, end):
                text += data
    except OSError:
        return None
    return text.decode(errors="replace") or None


def _receive(connection: socket.socket, end: float) -> bytes:
    connection.settimeout(max(0.01, end - time.monotonic()))
    return connection.recv(_PIECE)


def _line(connection: socket.socket, end: float) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = _receive(connection, end)
        if not data:
            return line
        line += data
    return line
