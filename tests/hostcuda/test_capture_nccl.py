"""The calls that NCCL 2.18 to 2.30 makes around a captured collective, in their order: what it builds on must hold.

Its "strong stream" brings a stream of its own into the application's capture without dependencies, orders graphs and live
work by one event (external waits and record nodes), and gives what it allocated for the graph to a user object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.hostcuda.conftest import differs
from tests.hostcuda.gates import DEADLINE
from tests.hostcuda.graphs import ACTIVE, EXTERNAL, HOST, NONE, RECORD, WAIT, Graphs

MOVE, NO_DESTRUCTOR_SYNC = 1, 1


class Strong:
    """A strong stream, as far as its CUDA calls go."""

    def __init__(self, lab: Graphs) -> None:
        self.lab = lab
        self.live = lab.stream(1)
        self.serial = lab.event()
        self.first = True
        self.captures: list[tuple[int, Any]] = []

    def acquire(self, origin: Any) -> Any:
        """The stream to work in, for the capture of `origin` or for live work."""
        lab, info = self.lab, self.lab.info(origin)
        if info.status != ACTIVE:
            if not self.first:
                lab.rt.ok.cudaStreamWaitEvent(self.live, self.serial, 0)
            return self.live
        for number, stream in self.captures:
            if number == info.id:
                return stream
            assert lab.status(stream) == NONE  # an earlier capture
        own = lab.stream(1)
        self.captures.append((info.id, own))
        scratch = lab.event()
        lab.rt.ok.cudaEventRecord(scratch, origin)
        lab.rt.ok.cudaStreamWaitEvent(own, scratch, 0)
        assert lab.set_dependencies(own, []) == 0
        if self.first:
            lab.rt.ok.cudaEventRecord(self.serial, self.live)
            self.first = False
        lab.rt.ok.cudaStreamWaitEvent(own, self.serial, EXTERNAL)
        return own

    def release(self, origin: Any, own: Any) -> None:
        lab, info = self.lab, self.lab.info(origin)
        if info.status != ACTIVE:
            if not self.first:
                lab.rt.ok.cudaEventRecord(self.serial, self.live)
            return
        graph = lab.ffi.cast("cudaGraph_t", info.graph)
        record = lab.add(lab.rt.cudaGraphAddEventRecordNode, graph, [], self.serial)
        for node in lab.info(own).dependencies:
            assert lab.order(graph, node, record) == 0
        assert lab.set_dependencies(own, [record]) == 0

    def advance(self, stream: Any, event: Any, capturing: bool) -> None:
        """`stream` goes on behind `event`, and behind nothing else."""
        lab = self.lab
        if not capturing:
            lab.rt.ok.cudaStreamWaitEvent(stream, event, 0)
            return
        out = lab.rt.new("cudaStream_t *")
        lab.rt.ok.cudaStreamCreateWithFlags(out, 1)
        lab.rt.ok.cudaStreamWaitEvent(out[0], event, 0)
        nodes = lab.info(out[0]).dependencies
        assert lab.set_dependencies(stream, nodes) == 0
        lab.rt.ok.cudaStreamDestroy(out[0])

    def collective(self, origin: Any, work: Callable[[], None]) -> None:
        """One launch: the application's stream waits for the strong one, works, and the strong one goes on behind it."""
        lab, scratch, finished = self.lab, self.lab.event(), self.lab.event()
        capturing = lab.info(origin).status == ACTIVE
        own = self.acquire(origin)
        lab.rt.ok.cudaEventRecord(scratch, own)
        lab.rt.ok.cudaStreamWaitEvent(origin, scratch, 0)
        lab.call(origin, work)
        lab.rt.ok.cudaEventRecord(finished, origin)
        self.advance(own, finished, capturing)
        self.release(origin, own)


def test_captured_collective_runs_at_the_launch(lab: Graphs) -> None:
    strong, stream = Strong(lab), lab.stream()
    lab.begin(stream)
    strong.collective(stream, lambda: lab.log.append("one"))
    strong.collective(stream, lambda: lab.log.append("two"))
    graph = lab.end(stream)
    assert lab.types_of(graph) == [WAIT, HOST, RECORD, HOST, RECORD]
    assert lab.run(graph) == ["one", "two"]


def test_second_capture_can_update_the_instance_of_the_first(lab: Graphs) -> None:
    strong, stream, ready = Strong(lab), lab.stream(), None
    for name in ("first", "second"):
        lab.begin(stream)
        strong.collective(stream, lambda name=name: lab.log.append(name))
        graph = lab.end(stream)
        if ready is None:
            ready = lab.ready(graph)
        else:
            lab.rt.ok.cudaGraphExecUpdate(ready, graph, lab.rt.new("cudaGraphExecUpdateResultInfo *"))
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["second"]


@differs("host functions of a context run one after the other: a gate inside a graph holds all of them")
def test_collectives_of_two_graphs_and_live_ones_follow_each_other(lab: Graphs) -> None:
    strong, streams = Strong(lab), [lab.stream(1) for _ in range(3)]
    door, ready = lab.door("graph 0"), []
    for i, work in enumerate((door.hold, lambda: lab.log.append("graph 1"))):
        lab.begin(streams[i])
        strong.collective(streams[i], work)
        ready.append(lab.ready(lab.end(streams[i])))
    lab.rt.ok.cudaGraphLaunch(ready[0], streams[0])
    lab.rt.ok.cudaGraphLaunch(ready[1], streams[1])
    strong.collective(streams[2], lambda: lab.log.append("live"))
    assert door.entered.wait(DEADLINE)
    lab.round_trip()
    assert lab.log == []
    door.open()
    for stream in streams:
        lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["graph 0", "graph 1", "live"]


def test_what_belongs_to_a_graph_goes_with_its_last_launch(lab: Graphs) -> None:
    strong, stream, gone, door = Strong(lab), lab.stream(), threading.Event(), lab.door()
    object_, graph, ready = (
        lab.rt.new("cudaUserObject_t *"),
        lab.rt.new("cudaGraph_t *"),
        lab.rt.new("cudaGraphExec_t *"),
    )
    lab.begin(stream)
    destroy = lab.function(gone.set)
    lab.rt.ok.cudaUserObjectCreate(object_, lab.ffi.NULL, destroy, 1, NO_DESTRUCTOR_SYNC)
    captured = lab.ffi.cast("cudaGraph_t", lab.info(stream).graph)
    lab.rt.ok.cudaGraphRetainUserObject(captured, object_[0], 1, MOVE)
    strong.collective(stream, door.hold)
    lab.rt.ok.cudaStreamEndCapture(stream, graph)
    lab.rt.ok.cudaGraphInstantiate(ready, graph[0], 0)
    lab.rt.ok.cudaGraphDestroy(graph[0])
    lab.rt.ok.cudaGraphLaunch(ready[0], stream)
    assert door.entered.wait(DEADLINE)
    lab.rt.ok.cudaGraphExecDestroy(ready[0])
    assert not gone.is_set()
    door.open()
    assert gone.wait(DEADLINE)
