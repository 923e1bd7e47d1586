"""Changing executable graphs: cudaGraphExecUpdate, child graphs, and nodes that are switched off."""

from __future__ import annotations

from typing import Any

from tests.hostcuda.conftest import differs
from tests.hostcuda.gates import DEADLINE
from tests.hostcuda.graphs import Graphs

INVALID_VALUE, UPDATE_FAILURE = 1, 910
SUCCESS, ERROR, TOPOLOGY, TYPE = 0, 1, 2, 3


def chain(lab: Graphs, *names: str) -> Any:
    graph, node = lab.graph(), list[int]()
    for name in names:
        node = [lab.note(graph, node, name)]
    return graph


def update(lab: Graphs, ready: Any, graph: Any) -> tuple[int, int, int, int]:
    """What it answers, its result, the node and the node before it that it complains of."""
    info = lab.rt.new("cudaGraphExecUpdateResultInfo *")
    code = lab.rt.cudaGraphExecUpdate(ready, graph, info)
    return code, int(info.result), lab.number(info.errorNode), lab.number(info.errorFromNode)


def launch(lab: Graphs, ready: Any) -> list[str]:
    stream = lab.stream()
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    lab.rt.ok.cudaStreamSynchronize(stream)
    log, lab.log = lab.log, []
    return log


def test_update_takes_the_nodes_of_the_other_graph(lab: Graphs) -> None:
    ready = lab.ready(chain(lab, "a", "b"))
    assert update(lab, ready, chain(lab, "c", "d")) == (0, SUCCESS, 0, 0)
    assert launch(lab, ready) == ["c", "d"]


def test_update_from_a_second_capture(lab: Graphs) -> None:
    stream, other = lab.stream(), lab.stream()
    ready = None
    for name in ("first", "second"):
        lab.begin(stream)
        lab.fork(stream, other)
        lab.call(other, lambda name=name: lab.log.append(name))
        lab.fork(other, stream)
        lab.call(stream, lambda: lab.log.append("joined"))
        graph = lab.end(stream)
        if ready is None:
            ready = lab.ready(graph)
        else:
            assert update(lab, ready, graph)[:2] == (0, SUCCESS)
    assert launch(lab, ready) == ["second", "joined"]


def test_nodes_of_an_updated_instance_are_those_of_its_first_graph(lab: Graphs) -> None:
    graph = chain(lab, "a")
    (node,) = lab.nodes_of(graph)
    ready = lab.ready(graph)
    update(lab, ready, chain(lab, "b"))
    lab.rt.ok.cudaGraphExecHostNodeSetParams(ready, lab.node(node), lab.host_params(lambda: lab.log.append("c")))
    assert launch(lab, ready) == ["c"]


def test_running_launch_keeps_what_it_was_started_with(lab: Graphs) -> None:
    graph, door, stream = lab.graph(), lab.door("old"), lab.stream()
    lab.note(graph, [lab.host(graph, [], door.hold)], "old")
    ready = lab.ready(graph)
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    assert door.entered.wait(DEADLINE)
    assert update(lab, ready, chain(lab, "new", "new"))[0] == 0
    lab.rt.ok.cudaGraphLaunch(ready, stream)
    door.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert lab.log == ["old", "old", "new", "new"]


def test_update_refuses_another_number_of_nodes(lab: Graphs) -> None:
    ready = lab.ready(chain(lab, "a"))
    assert update(lab, ready, chain(lab, "b", "c")) == (UPDATE_FAILURE, TOPOLOGY, 0, 0)
    assert launch(lab, ready) == ["a"]


def test_update_refuses_other_edges(lab: Graphs) -> None:
    ready = lab.ready(chain(lab, "a", "b"))
    graph = lab.graph()
    lab.note(graph, [], "c")
    lab.note(graph, [], "d")
    code, result, _, _ = update(lab, ready, graph)
    assert (code, result) == (UPDATE_FAILURE, TOPOLOGY)
    assert launch(lab, ready) == ["a", "b"]


def test_update_names_the_node_with_other_dependencies(lab: Graphs) -> None:
    def diamond(bent: bool) -> tuple[Any, int]:
        graph = lab.graph()
        top = lab.empty(graph)
        left = lab.empty(graph, top)
        right = lab.empty(graph, *([left] if bent else [top]))
        return graph, lab.empty(graph, left, right)

    ready = lab.ready(diamond(False)[0])
    graph, bottom = diamond(True)
    code, result, node, _ = update(lab, ready, graph)
    assert (code, result) == (UPDATE_FAILURE, TOPOLOGY)
    assert node in lab.nodes_of(graph)
    assert bottom in lab.nodes_of(graph)


def test_update_names_the_node_of_another_type(lab: Graphs) -> None:
    ready = lab.ready(chain(lab, "a"))
    graph = lab.graph()
    node = lab.empty(graph)
    assert update(lab, ready, graph) == (UPDATE_FAILURE, TYPE, node, 0)


def test_update_refuses_a_cycle(lab: Graphs) -> None:
    ready = lab.ready(chain(lab, "a", "b"))
    graph = chain(lab, "a", "b")
    lab.order(graph, *reversed(lab.nodes_of(graph)))
    assert update(lab, ready, graph)[:2] == (UPDATE_FAILURE, TOPOLOGY)


@differs("cudaGraphExecUpdate takes NULL for the result")
def test_update_needs_its_arguments(lab: Graphs) -> None:
    graph = chain(lab, "a")
    ready, null = lab.ready(graph), lab.ffi.NULL
    assert lab.rt.cudaGraphExecUpdate(ready, graph, null) == INVALID_VALUE
    assert update(lab, ready, null)[:2] == (INVALID_VALUE, ERROR)
    assert update(lab, null, graph)[:2] == (INVALID_VALUE, ERROR)


def test_update_reaches_into_child_graphs(lab: Graphs) -> None:
    def nested(name: str) -> Any:
        graph = lab.graph()
        lab.add(lab.rt.cudaGraphAddChildGraphNode, graph, [], chain(lab, name))
        return graph

    ready = lab.ready(nested("a"))
    assert update(lab, ready, nested("b"))[:2] == (0, SUCCESS)
    assert launch(lab, ready) == ["b"]


@differs("the error is another one: 910")
def test_child_graph_of_an_instance_is_replaced(lab: Graphs) -> None:
    graph = lab.graph()
    node = lab.node(lab.add(lab.rt.cudaGraphAddChildGraphNode, graph, [], chain(lab, "a")))
    ready = lab.ready(graph)
    set_child = lab.rt.cudaGraphExecChildGraphNodeSetParams
    assert set_child(ready, node, chain(lab, "b")) == 0
    assert launch(lab, ready) == ["b"]
    assert set_child(ready, node, chain(lab, "b", "c")) == INVALID_VALUE  # another shape
    assert launch(lab, ready) == ["b"]


def test_nodes_are_switched_off_and_on(lab: Graphs) -> None:
    graph, value = lab.graph(), lab.rt.new("unsigned int *")
    source, target = lab.rt.new("char[]", b"x"), lab.rt.new("char[2]")
    copy = lab.copy(graph, [lab.note(graph, [], "before")], target, source, 1)
    lab.note(graph, [copy], "after")
    ready = lab.ready(graph)
    lab.rt.ok.cudaGraphNodeGetEnabled(ready, lab.node(copy), value)
    assert value[0] == 1
    lab.rt.ok.cudaGraphNodeSetEnabled(ready, lab.node(copy), 0)
    lab.rt.ok.cudaGraphNodeGetEnabled(ready, lab.node(copy), value)
    assert value[0] == 0
    assert launch(lab, ready) == ["before", "after"]
    assert target[0] == b"\0"
    lab.rt.ok.cudaGraphNodeSetEnabled(ready, lab.node(copy), 1)
    launch(lab, ready)
    assert target[0] == b"x"


def test_only_copies_fills_and_kernels_can_be_switched_off(lab: Graphs) -> None:
    graph = chain(lab, "a")
    (node,) = lab.nodes_of(graph)
    ready = lab.ready(graph)
    assert lab.rt.cudaGraphNodeSetEnabled(ready, lab.node(node), 0) == INVALID_VALUE
    assert lab.rt.cudaGraphNodeSetEnabled(ready, lab.node(lab.empty(lab.graph())), 0) == INVALID_VALUE


def test_instance_knows_the_nodes_of_its_own_graph_only(lab: Graphs) -> None:
    ready = lab.ready(chain(lab, "a"))
    (foreign,) = lab.nodes_of(chain(lab, "b"))
    params = lab.host_params(lambda: None)
    assert lab.rt.cudaGraphExecHostNodeSetParams(ready, lab.node(foreign), params) == INVALID_VALUE
    assert lab.rt.cudaGraphExecHostNodeSetParams(ready, lab.ffi.NULL, params) == INVALID_VALUE
