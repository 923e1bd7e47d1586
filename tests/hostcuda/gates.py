"""Gates hold a stream until the test lets go, so that order is proven and not timed: host functions, and over a real CUDA waits for a value."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from psmkit.lab.cuda import Face
from tests.hostcuda.held import Held

DEADLINE = 30.0  # seconds until a test gives up
NOT_READY = 600
LEGACY, PER_THREAD = 1, 2


class Lab:
    """Streams, events, gates and probes of one test, given back at the end of its `with`."""

    def __init__(self, rt: Face) -> None:
        self.rt = rt
        self.ffi = rt.ffi
        self.log: list[str] = []  # what ran, in order
        self._gates: list[Gate] = []
        self._streams: list[Any] = []
        self._events: list[Any] = []
        self._kept: list[Any] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self._gates:
            gate.open()
        self.rt.cudaStreamSynchronize(self.legacy)
        for stream in self._streams:
            self.rt.cudaStreamSynchronize(stream)
            self.rt.cudaStreamDestroy(stream)
        for event in self._events:
            self.rt.cudaEventDestroy(event)
        for gate in self._gates:
            gate.left.wait(DEADLINE)
            gate.free()

    @property
    def legacy(self) -> Any:
        return self.ffi.cast("cudaStream_t", LEGACY)

    @property
    def per_thread(self) -> Any:
        return self.ffi.cast("cudaStream_t", PER_THREAD)

    @property
    def null(self) -> Any:
        return self.ffi.cast("cudaStream_t", 0)

    def stream(self, flags: int = 0) -> Any:
        """A new stream: 0 blocking, 1 non-blocking."""
        out = self.rt.new("cudaStream_t *")
        self.rt.ok.cudaStreamCreateWithFlags(out, flags)
        self._streams.append(out[0])
        return out[0]

    def event(self, flags: int = 2) -> Any:
        """A new event, without timing unless told otherwise."""
        out = self.rt.new("cudaEvent_t *")
        self.rt.ok.cudaEventCreateWithFlags(out, flags)
        self._events.append(out[0])
        return out[0]

    def call(self, stream: Any, function: Callable[[], object]) -> None:
        """Queues a Python function into a stream."""

        @self.ffi.callback("void(void *)")
        def run(_data: Any) -> None:
            function()

        self._kept.append(run)
        self.rt.ok.cudaLaunchHostFunc(stream, run, self.ffi.NULL)

    def gate(self, stream: Any, name: str = "gate") -> Gate:
        """Queues a gate; what is behind it in the stream waits until it is opened."""
        gate = Gate(self, name)
        self._gates.append(gate)
        if os.environ.get("PSM_TEST_CUDART") and not self._is_captured(stream):
            self.call(stream, gate.entered.set)
            gate.held = Held(self.rt, stream)
            self.call(stream, gate.leave)
        else:
            self.call(stream, gate.hold)
        return gate

    def _is_captured(self, stream: Any) -> bool:
        status = self.rt.new("enum cudaStreamCaptureStatus *")
        self.rt.ok.cudaStreamIsCapturing(stream, status)
        return bool(status[0])

    def probe(self, stream: Any, name: str) -> threading.Event:
        """Queues a function that puts its name into the log; the answer is set when it has run."""
        ran = threading.Event()

        def run() -> None:
            self.log.append(name)
            ran.set()

        self.call(stream, run)
        return ran

    def round_trip(self) -> None:
        """Something else gets through meanwhile: what is free to run has had its turn."""
        free = self.stream(1)
        for _ in range(3):
            assert self.probe(free, "free").wait(DEADLINE)
        self.log = [name for name in self.log if name != "free"]

    def expect_held(self, gate: Gate, stream: Any, log: list[str]) -> None:
        """Nothing runs before the gate opens; then the stream runs what `log` names, in that order."""
        self.round_trip()
        assert self.log == []
        gate.open()
        self.rt.ok.cudaStreamSynchronize(stream)
        assert self.log == log

    def expect_behind(self, gate: Gate, ran: threading.Event) -> None:
        """What a probe stands for runs after the gate opens, and not before."""
        self.round_trip()
        assert not ran.is_set()
        gate.open()
        assert ran.wait(DEADLINE)

    def expect_blocked(self, gate: Gate, call: Callable[[], object]) -> None:
        """A call that waits returns after the gate opens, and not before; it then stands in the log as "synchronized"."""
        returned = threading.Event()

        def wait() -> None:
            call()
            self.log.append("synchronized")
            returned.set()

        thread = threading.Thread(target=wait)
        thread.start()
        self.round_trip()
        assert not returned.is_set()
        gate.open()
        thread.join(DEADLINE)


class Gate:
    """Holds a stream. `entered` and `left` say where its function is."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self._name = name
        self._open = threading.Event()
        self.entered = threading.Event()
        self.left = threading.Event()
        self.held: Held | None = None

    def hold(self) -> None:
        self.entered.set()
        self._open.wait(DEADLINE)
        self.leave()

    def leave(self) -> None:
        self._lab.log.append(self._name)
        self.left.set()

    def open(self) -> None:
        self._open.set()
        if self.held:
            self.held.open()

    def free(self) -> None:
        if self.held:
            self.held.free()
