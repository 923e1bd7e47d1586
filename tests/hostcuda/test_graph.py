"""Graphs as a structure: nodes, edges, clones, child graphs, and what they can be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import differs
from tests.hostcuda.graphs import CHILD, EMPTY, HOST, Graphs

INVALID_VALUE, INVALID_HANDLE, LOSSY_QUERY, NOT_SUPPORTED = 1, 400, 402, 801


@differs("the error is another one: 1")
def test_graph_is_made_and_destroyed(rt: Face) -> None:
    out = rt.new("cudaGraph_t *")
    assert rt.cudaGraphCreate(out, 0) == 0
    assert rt.cudaGraphDestroy(out[0]) == 0
    assert rt.cudaGraphDestroy(out[0]) == INVALID_HANDLE


def test_create_refuses_flags_and_null(rt: Face) -> None:
    assert rt.cudaGraphCreate(rt.new("cudaGraph_t *"), 1) == INVALID_VALUE
    assert rt.cudaGraphCreate(rt.ffi.NULL, 0) == INVALID_VALUE
    assert rt.cudaGraphDestroy(rt.ffi.NULL) == INVALID_VALUE


def test_nodes_are_listed_in_the_order_in_which_they_were_made(lab: Graphs) -> None:
    graph = lab.graph()
    a = lab.empty(graph)
    b = lab.empty(graph, a)
    c = lab.empty(graph, a, b)
    assert lab.nodes_of(graph) == [a, b, c]
    assert lab.nodes_of(graph, lab.rt.cudaGraphGetRootNodes) == [a]
    assert lab.edges_of(graph) == {(a, b), (a, c), (b, c)}
    assert lab.types_of(graph) == [EMPTY, EMPTY, EMPTY]


def test_list_fills_what_there_is_room_for_and_clears_the_rest(lab: Graphs) -> None:
    graph, new = lab.graph(), lab.rt.new
    made = [lab.empty(graph) for _ in range(2)]
    out, n = new("cudaGraphNode_t[]", [lab.node(1)] * 4), new("size_t *", 4)
    assert lab.rt.cudaGraphGetNodes(graph, out, n) == 0
    assert (n[0], [lab.number(node) for node in out]) == (2, [*made, 0, 0])
    n[0] = 1
    assert lab.rt.cudaGraphGetNodes(graph, out, n) == 0
    assert (n[0], lab.number(out[0])) == (1, made[0])


def test_dependencies_and_dependents_of_a_node(lab: Graphs) -> None:
    graph, new = lab.graph(), lab.rt.new
    a, b = lab.empty(graph), lab.empty(graph)
    c = lab.empty(graph, a, b)
    out, n = new("cudaGraphNode_t[4]"), new("size_t *", 4)
    more = [lab.ffi.NULL] if lab.rt.library == "cudart13" else []
    assert lab.rt.cudaGraphNodeGetDependencies(lab.node(c), out, *more, n) == 0
    assert [lab.number(out[i]) for i in range(n[0])] == [a, b]
    n[0] = 4
    assert lab.rt.cudaGraphNodeGetDependentNodes(lab.node(a), out, *more, n) == 0
    assert [lab.number(out[i]) for i in range(n[0])] == [c]
    assert lab.rt.cudaGraphNodeGetDependencies(lab.node(a), lab.ffi.NULL, *more, n) == 0
    assert n[0] == 0


def test_node_needs_dependencies_of_its_own_graph_once_each(lab: Graphs) -> None:
    graph, out = lab.graph(), lab.rt.new("cudaGraphNode_t *")
    foreign, own = lab.empty(lab.graph()), lab.empty(graph)
    add = lab.rt.cudaGraphAddEmptyNode
    assert add(out, graph, lab.nodes([foreign]), 1) == INVALID_VALUE
    assert add(out, graph, lab.nodes([own, own]), 2) == INVALID_VALUE
    assert add(out, graph, lab.ffi.NULL, 1) == INVALID_VALUE
    assert add(lab.ffi.NULL, graph, lab.ffi.NULL, 0) == INVALID_VALUE
    assert add(out, lab.ffi.NULL, lab.ffi.NULL, 0) == INVALID_VALUE
    assert lab.nodes_of(graph) == [own]  # nothing was left behind


def test_edges_are_added_and_removed(lab: Graphs) -> None:
    graph = lab.graph()
    a, b = lab.empty(graph), lab.empty(graph)
    assert lab.order(graph, a, b) == 0
    assert lab.edges_of(graph) == {(a, b)}
    assert lab.order(graph, a, b) == INVALID_VALUE  # it is there
    assert lab.order(graph, a, a) == INVALID_VALUE
    assert lab.disorder(graph, a, b) == 0
    assert lab.disorder(graph, a, b) == INVALID_VALUE  # it is not there
    assert lab.edges_of(graph) == set()


@differs("edges before the wrong one are added")
def test_edges_are_added_all_or_none(lab: Graphs) -> None:
    graph = lab.graph()
    a, b, c = (lab.empty(graph) for _ in range(3))
    more = [lab.ffi.NULL] if lab.rt.library == "cudart13" else []
    add = lab.rt.cudaGraphAddDependencies
    assert add(graph, lab.nodes([a, b, a]), lab.nodes([b, c, b]), *more, 3) == INVALID_VALUE
    assert lab.edges_of(graph) == set()


@pytest.mark.parametrize("name", ["cudaGraphAddDependencies_v2", "cudaGraphRemoveDependencies_v2"])
def test_edges_with_data_of_cuda_12(lab: Graphs, name: str) -> None:
    if lab.rt.library != "cudart12":
        assert not hasattr(lab.rt, name)
        return
    graph = lab.graph()
    a, b = lab.empty(graph), lab.empty(graph)
    data = lab.rt.new("cudaGraphEdgeData *")
    ends = (lab.nodes([a]), lab.nodes([b]))
    data.type = 1  # programmatic: between kernels only
    assert lab.rt.cudaGraphAddDependencies_v2(graph, *ends, data, 1) == INVALID_VALUE
    data.type = 0
    assert lab.rt.cudaGraphAddDependencies_v2(graph, *ends, data, 1) == 0
    n, told = lab.rt.new("size_t *", 1), lab.rt.new("cudaGraphEdgeData *")
    out = lab.rt.new("cudaGraphNode_t[2]")
    assert lab.rt.cudaGraphGetEdges_v2(graph, out, out + 1, told, n) == 0
    assert (n[0], told.type, lab.number(out[0]), lab.number(out[1])) == (1, 0, a, b)
    assert lab.rt.cudaGraphNodeGetDependencies_v2(lab.node(b), out, told, n) == 0
    assert lab.number(out[0]) == a
    assert lab.rt.cudaGraphNodeGetDependentNodes_v2(lab.node(a), out, told, n) == 0
    assert lab.number(out[0]) == b
    assert lab.rt.cudaGraphRemoveDependencies_v2(graph, *ends, data, 1) == 0
    assert lab.edges_of(graph) == set()


@differs("a handle or pointer that is none is followed, and the process dies")
def test_destroyed_node_takes_its_edges_along(lab: Graphs) -> None:
    graph = lab.graph()
    a = lab.empty(graph)
    b = lab.empty(graph, a)
    c = lab.empty(graph, b)
    assert lab.rt.cudaGraphDestroyNode(lab.node(b)) == 0
    assert lab.rt.cudaGraphDestroyNode(lab.node(b)) == INVALID_HANDLE
    assert lab.nodes_of(graph) == [a, c]
    assert lab.edges_of(graph) == set()


@differs("a node of a destroyed graph is not told from one that lives")
def test_nodes_go_with_their_graph(lab: Graphs) -> None:
    out = lab.rt.new("cudaGraph_t *")
    lab.rt.ok.cudaGraphCreate(out, 0)
    node = lab.empty(out[0])
    lab.rt.ok.cudaGraphDestroy(out[0])
    kind = lab.rt.new("enum cudaGraphNodeType *")
    assert lab.rt.cudaGraphNodeGetType(lab.node(node), kind) == INVALID_HANDLE


def test_clone_has_nodes_of_its_own(lab: Graphs) -> None:
    graph = lab.graph()
    a = lab.note(graph, [], "a")
    b = lab.note(graph, [a], "b")
    out, found = lab.rt.new("cudaGraph_t *"), lab.rt.new("cudaGraphNode_t *")
    lab.rt.ok.cudaGraphClone(out, graph)
    clone = lab.keep(out[0])
    twins = []
    for node in (a, b):
        lab.rt.ok.cudaGraphNodeFindInClone(found, lab.node(node), clone)
        twins.append(lab.number(found[0]))
    assert lab.nodes_of(clone) == twins
    assert not set(twins) & {a, b}
    assert lab.edges_of(clone) == {(twins[0], twins[1])}
    lab.empty(graph)
    assert len(lab.nodes_of(clone)) == 2
    assert lab.rt.cudaGraphNodeFindInClone(found, lab.node(a), graph) == INVALID_VALUE
    assert lab.run(clone) == ["a", "b"]


def test_child_graph_is_a_clone(lab: Graphs) -> None:
    child, graph = lab.graph(), lab.graph()
    lab.note(child, [], "child")
    node = lab.add(lab.rt.cudaGraphAddChildGraphNode, graph, [], child)
    assert lab.type_of(node) == CHILD
    out = lab.rt.new("cudaGraph_t *")
    lab.rt.ok.cudaGraphChildGraphNodeGetGraph(lab.node(node), out)
    assert out[0] != child
    assert lab.types_of(out[0]) == [HOST]
    lab.note(child, [], "late")  # not in the clone
    lab.note(out[0], lab.nodes_of(out[0]), "inside")  # in the clone
    assert lab.run(graph) == ["child", "inside"]
    assert lab.rt.cudaGraphDestroy(out[0]) == INVALID_VALUE  # the node owns it
    assert lab.rt.cudaGraphChildGraphNodeGetGraph(lab.node(lab.empty(graph)), out) == INVALID_VALUE


def test_ids_of_cuda_13(lab: Graphs) -> None:
    if lab.rt.library != "cudart13":
        assert not hasattr(lab.rt, "cudaGraphGetId")
        return
    a, b, new = lab.graph(), lab.graph(), lab.rt.new
    nodes = [lab.empty(a), lab.empty(a), lab.empty(b)]
    numbers, owner = new("unsigned int[4]"), new("cudaGraph_t *")
    lab.rt.ok.cudaGraphGetId(a, numbers)
    lab.rt.ok.cudaGraphGetId(b, numbers + 1)
    assert numbers[0] != numbers[1]
    lab.rt.ok.cudaGraphNodeGetLocalId(lab.node(nodes[0]), numbers)
    lab.rt.ok.cudaGraphNodeGetLocalId(lab.node(nodes[1]), numbers + 1)
    assert numbers[0] != numbers[1]
    tools = new("unsigned long long[3]")
    for i, node in enumerate(nodes):
        lab.rt.ok.cudaGraphNodeGetToolsId(lab.node(node), tools + i)
    assert len(set(tools)) == 3
    lab.rt.ok.cudaGraphNodeGetContainingGraph(lab.node(nodes[2]), owner)
    assert owner[0] == b
    lab.rt.ok.cudaGraphExecGetId(lab.ready(a), numbers)
    lab.rt.ok.cudaGraphExecGetId(lab.ready(a), numbers + 1)
    assert numbers[0] != numbers[1]


@differs("the picture has other words")
def test_picture_of_a_graph(lab: Graphs, tmp_path: Path) -> None:
    graph, child, target = lab.graph(), lab.graph(), tmp_path / "graph.dot"
    memory = lab.rt.new("char[16]")
    a = lab.note(graph, [], "a")
    b = lab.copy(graph, [a], memory, memory + 8, 8)
    lab.empty(child)
    lab.add(lab.rt.cudaGraphAddChildGraphNode, graph, [b], child)
    lab.rt.ok.cudaGraphDebugDotPrint(graph, str(target).encode(), 1)
    text = target.read_text()
    assert text.startswith("digraph")
    assert text.count("->") == 2
    for word in ("HOST", "MEMCPY", "GRAPH", "EMPTY", "8 x 1 x 1", f"handle {a:#x}"):
        assert word in text
    assert lab.rt.cudaGraphDebugDotPrint(graph, lab.ffi.NULL, 0) == INVALID_VALUE
    assert lab.rt.cudaGraphDebugDotPrint(graph, str(tmp_path / "none" / "x").encode(), 0) != 0
