"""User objects: the destructor runs once, when the last reference of callers and graphs is gone, in a thread of its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.hostcuda.conftest import differs
from tests.hostcuda.gates import DEADLINE
from tests.hostcuda.graphs import Graphs

INVALID_VALUE, INVALID_HANDLE, NOT_PERMITTED = 1, 400, 800
NO_DESTRUCTOR_SYNC, MOVE = 1, 1


class Object:
    """A user object; `gone` is set by its destructor."""

    def __init__(self, lab: Graphs, count: int = 1, blocked: threading.Event | None = None) -> None:
        self.gone = threading.Event()
        self.times = 0
        self.thread = 0
        self.code = 0
        self._lab, self._blocked = lab, blocked
        out = lab.rt.new("cudaUserObject_t *")
        self._destroy = lab.function(self._run)
        lab.rt.ok.cudaUserObjectCreate(out, lab.ffi.NULL, self._destroy, count, NO_DESTRUCTOR_SYNC)
        self.handle = out[0]

    def _run(self) -> None:
        if self._blocked:
            self._blocked.wait(DEADLINE)
        self.times += 1
        self.thread = threading.get_ident()
        self.code = self._lab.rt.cudaDeviceSynchronize()
        self.gone.set()

    def still_there(self) -> bool:
        """Whether the object lives. Destructors run in order: one that is started later has run meanwhile."""
        later = Object(self._lab)
        self._lab.rt.ok.cudaUserObjectRelease(later.handle, 1)
        assert later.gone.wait(DEADLINE)
        return not self.gone.is_set()


@differs("an object that is gone is not told from one that lives")
def test_destructor_runs_when_the_last_reference_goes(lab: Graphs) -> None:
    thing = Object(lab, 2)
    lab.rt.ok.cudaUserObjectRetain(thing.handle, 3)
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 4)
    assert thing.still_there()
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)
    assert thing.gone.wait(DEADLINE)
    assert thing.times == 1
    assert lab.rt.cudaUserObjectRetain(thing.handle, 1) == INVALID_HANDLE


@differs("the destructor runs in the thread that releases the last reference")
def test_destructor_runs_elsewhere_and_may_not_call_cuda(lab: Graphs) -> None:
    thing = Object(lab)
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)
    assert thing.gone.wait(DEADLINE)
    assert thing.thread != threading.get_ident()
    assert thing.code == NOT_PERMITTED


@differs("the destructor runs in the thread that releases the last reference")
def test_no_call_waits_for_a_destructor(lab: Graphs) -> None:
    blocked = threading.Event()
    thing = Object(lab, blocked=blocked)
    stream = lab.stream()
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)
    lab.rt.ok.cudaStreamSynchronize(stream)
    lab.rt.ok.cudaDeviceSynchronize()
    assert lab.probe(stream, "others run").wait(DEADLINE)
    assert not thing.gone.is_set()
    blocked.set()
    assert thing.gone.wait(DEADLINE)


@differs("the count of references is not checked")
def test_create_is_checked(lab: Graphs) -> None:
    out, null, function = lab.rt.new("cudaUserObject_t *"), lab.ffi.NULL, lab.function(lambda: None)
    create = lab.rt.cudaUserObjectCreate
    assert create(out, null, function, 1, 0) == INVALID_VALUE  # the flag is required
    assert create(out, null, function, 0, NO_DESTRUCTOR_SYNC) == INVALID_VALUE
    assert create(out, null, function, 1 << 31, NO_DESTRUCTOR_SYNC) == INVALID_VALUE
    assert create(out, null, null, 1, NO_DESTRUCTOR_SYNC) == INVALID_VALUE
    assert create(null, null, function, 1, NO_DESTRUCTOR_SYNC) == INVALID_VALUE


@pytest.mark.parametrize("call", ["cudaUserObjectRetain", "cudaUserObjectRelease"])
def test_counts_are_checked(lab: Graphs, call: str) -> None:
    thing = Object(lab)
    function = getattr(lab.rt, call)
    assert function(thing.handle, 0) == INVALID_VALUE
    assert function(thing.handle, 1 << 31) == INVALID_VALUE
    assert function(lab.ffi.NULL, 1) == INVALID_VALUE
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)


@differs("too many references may be released")
def test_caller_cannot_release_what_a_graph_holds(lab: Graphs) -> None:
    thing, graph = Object(lab), lab.graph()
    lab.rt.ok.cudaGraphRetainUserObject(graph, thing.handle, 1, 0)
    assert lab.rt.cudaUserObjectRelease(thing.handle, 2) == INVALID_VALUE
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)
    assert thing.still_there()
    lab.rt.ok.cudaGraphReleaseUserObject(graph, thing.handle, 1)
    assert thing.gone.wait(DEADLINE)


def graph_with(lab: Graphs, thing: Object) -> Any:
    """A graph of its own, not destroyed at the end, that has taken the only reference over."""
    out = lab.rt.new("cudaGraph_t *")
    lab.rt.ok.cudaGraphCreate(out, 0)
    lab.rt.ok.cudaGraphRetainUserObject(out[0], thing.handle, 1, MOVE)
    return out[0]


@differs("too many references may be released")
def test_moved_reference_goes_with_the_graph(lab: Graphs) -> None:
    thing = Object(lab)
    graph = graph_with(lab, thing)
    assert lab.rt.cudaUserObjectRelease(thing.handle, 1) == INVALID_VALUE  # the caller has none left
    assert lab.rt.cudaGraphRetainUserObject(graph, thing.handle, 1, MOVE) == INVALID_VALUE
    assert thing.still_there()
    lab.rt.ok.cudaGraphDestroy(graph)
    assert thing.gone.wait(DEADLINE)
    assert thing.times == 1


@differs("too many references may be released")
def test_graph_counts_its_references(lab: Graphs) -> None:
    thing, graph = Object(lab, 3), lab.graph()
    lab.rt.ok.cudaGraphRetainUserObject(graph, thing.handle, 2, MOVE)
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)
    assert lab.rt.cudaGraphReleaseUserObject(graph, thing.handle, 3) == INVALID_VALUE
    lab.rt.ok.cudaGraphReleaseUserObject(graph, thing.handle, 1)
    assert thing.still_there()
    lab.rt.ok.cudaGraphReleaseUserObject(graph, thing.handle, 1)
    assert thing.gone.wait(DEADLINE)


@differs("too many references may be released")
def test_graph_retain_is_checked(lab: Graphs) -> None:
    thing, graph, null = Object(lab), lab.graph(), lab.ffi.NULL
    retain, release = lab.rt.cudaGraphRetainUserObject, lab.rt.cudaGraphReleaseUserObject
    assert retain(graph, thing.handle, 0, 0) == INVALID_VALUE
    assert retain(graph, thing.handle, 1, 2) == INVALID_VALUE
    assert retain(null, thing.handle, 1, 0) == INVALID_VALUE
    assert retain(graph, null, 1, 0) == INVALID_VALUE
    assert release(graph, thing.handle, 0) == INVALID_VALUE
    assert release(graph, thing.handle, 1) == INVALID_VALUE  # the graph has none
    lab.rt.ok.cudaUserObjectRelease(thing.handle, 1)


def test_clone_holds_references_of_its_own(lab: Graphs) -> None:
    thing, clone = Object(lab), lab.rt.new("cudaGraph_t *")
    graph = graph_with(lab, thing)
    lab.rt.ok.cudaGraphClone(clone, graph)
    lab.rt.ok.cudaGraphDestroy(graph)
    assert thing.still_there()
    lab.rt.ok.cudaGraphDestroy(clone[0])
    assert thing.gone.wait(DEADLINE)


def test_child_graph_holds_references_of_its_own(lab: Graphs) -> None:
    thing, outer = Object(lab), lab.rt.new("cudaGraph_t *")
    graph = graph_with(lab, thing)
    lab.rt.ok.cudaGraphCreate(outer, 0)
    lab.add(lab.rt.cudaGraphAddChildGraphNode, outer[0], [], graph)
    lab.rt.ok.cudaGraphDestroy(graph)
    assert thing.still_there()
    lab.rt.ok.cudaGraphDestroy(outer[0])
    assert thing.gone.wait(DEADLINE)


def test_instance_holds_references_until_its_launches_are_done(lab: Graphs) -> None:
    thing, door, stream, out = Object(lab), lab.door(), lab.stream(), lab.rt.new("cudaGraphExec_t *")
    graph = graph_with(lab, thing)
    lab.host(graph, [], door.hold)
    lab.rt.ok.cudaGraphInstantiate(out, graph, 0)
    lab.rt.ok.cudaGraphDestroy(graph)
    assert thing.still_there()
    lab.rt.ok.cudaGraphLaunch(out[0], stream)
    assert door.entered.wait(DEADLINE)
    lab.rt.ok.cudaGraphExecDestroy(out[0])
    assert thing.still_there()
    door.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert thing.gone.wait(DEADLINE)
    assert thing.times == 1


def test_update_releases_references_when_earlier_launches_are_done(lab: Graphs) -> None:
    thing, door, stream = Object(lab), lab.door(), lab.stream()
    graph, other = graph_with(lab, thing), lab.graph()
    lab.host(graph, [], door.hold)
    lab.note(other, [], "other")
    ready = lab.ready(graph)
    lab.rt.ok.cudaGraphDestroy(graph)
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    assert door.entered.wait(DEADLINE)
    lab.rt.ok.cudaGraphExecUpdate(ready, other, lab.rt.new("cudaGraphExecUpdateResultInfo *"))
    assert thing.still_there()
    door.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert thing.gone.wait(DEADLINE)


def captured(lab: Graphs) -> tuple[Object, Any]:
    """An object of the graph that is being captured, and the stream."""
    thing, stream = Object(lab), lab.stream()
    lab.begin(stream)
    graph = lab.ffi.cast("cudaGraph_t", lab.info(stream).graph)
    lab.rt.ok.cudaGraphRetainUserObject(graph, thing.handle, 1, MOVE)
    return thing, stream


def test_captured_graph_can_take_an_object(lab: Graphs) -> None:
    """As NCCL adds its destructors: to the graph that is being captured."""
    thing, stream = captured(lab)
    lab.call(stream, lambda: None)
    out = lab.rt.new("cudaGraph_t *")
    lab.rt.ok.cudaStreamEndCapture(stream, out)
    assert thing.still_there()
    lab.rt.ok.cudaGraphDestroy(out[0])
    assert thing.gone.wait(DEADLINE)


def test_failed_capture_lets_its_objects_go(lab: Graphs) -> None:
    thing, stream = captured(lab)
    lab.rt.cudaStreamQuery(stream)
    lab.end_code(stream)
    assert thing.gone.wait(DEADLINE)
