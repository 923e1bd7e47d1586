/* Edges of graphs: adding, removing, listing, in the forms of both APIs and both sonames. */
#include "graph/hc_graph.h"

/* ---- adding and removing: all of it or nothing ---- */

static int change(struct hc_node *from, struct hc_node *to, CUgraphEdgeData data, bool add)
{
    return add ? hc_edge_add(from, to, data) : hc_edge_remove(from, to, data);
}

static int change_all(cudaGraph_t handle, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                      const CUgraphEdgeData *data, size_t n, bool add)
{
    static const CUgraphEdgeData plain;
    struct hc_graph *graph;
    struct hc_node *a, *b;
    if (n && (!from || !to)) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = hc_graph_find(handle, &graph);
    if (!rc && !add && n && hc_graph_allocates(graph)) rc = PSM_CUDA_NOT_SUPPORTED;
    size_t done = 0;
    for (; done < n && !rc; done++) {
        rc = hc_node_find(from[done], &a);
        if (!rc) rc = hc_node_find(to[done], &b);
        if (!rc && (a->graph != graph || b->graph != graph)) rc = PSM_CUDA_INVALID_VALUE;
        if (!rc && !add && graph->sequence) hc_node_forgive(a);
        if (!rc) rc = change(a, b, data ? data[done] : plain, add);
        if (rc) break;
    }
    while (rc && done--) {
        hc_node_find(from[done], &a);
        hc_node_find(to[done], &b);
        change(a, b, data ? data[done] : plain, !add);
    }
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphAddDependencies_v2(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                           const cudaGraphEdgeData *edgeData, size_t numDependencies)
{
    return change_all(graph, from, to, edgeData, numDependencies, true);
}

CUresult hc_cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies)
{
    return change_all(hGraph, from, to, NULL, numDependencies, true);
}

cudaError_t hc_cudaGraphRemoveDependencies_v2(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                              const cudaGraphEdgeData *edgeData, size_t numDependencies)
{
    return change_all(graph, from, to, edgeData, numDependencies, false);
}

CUresult hc_cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                      size_t numDependencies)
{
    return change_all(hGraph, from, to, NULL, numDependencies, false);
}

/* ---- lists: without arrays the count; with arrays as many as there is room for, the rest of the room set to NULL ----
 */

struct list {
    cudaGraphNode_t *a, *b; /* b: of edges only */
    CUgraphEdgeData *data;
    size_t room, n;
    bool lossy;
};

static void list_add(struct list *list, const struct hc_node *a, const struct hc_node *b, const CUgraphEdgeData *data)
{
    size_t at = list->n++;
    if (data && !hc_edge_plain(*data)) list->lossy = true;
    if (at >= list->room) return;
    if (list->a) list->a[at] = (cudaGraphNode_t)(uintptr_t)a->handle;
    if (list->b) list->b[at] = (cudaGraphNode_t)(uintptr_t)b->handle;
    if (list->data) list->data[at] = *data;
}

static int list_end(struct list *list, size_t *n)
{
    bool filled = list->a || list->b;
    if (filled && list->lossy && !list->data) return PSM_CUDA_LOSSY_QUERY;
    for (size_t i = list->n; filled && i < list->room; i++) {
        if (list->a) list->a[i] = NULL;
        if (list->b) list->b[i] = NULL;
    }
    *n = filled && list->n > list->room ? list->room : list->n;
    return 0;
}

static int list_edges(cudaGraph_t handle, cudaGraphNode_t *from, cudaGraphNode_t *to, CUgraphEdgeData *data, size_t *n)
{
    struct hc_graph *graph;
    if (!n || !from != !to || (data && !from)) return PSM_CUDA_INVALID_VALUE;
    struct list list = {.a = from, .b = to, .data = data, .room = *n};
    hc_graph_lock();
    int rc = hc_graph_find(handle, &graph);
    for (const struct hc_node *node = rc ? NULL : graph->first; node; node = node->next)
        for (size_t i = 0; i < node->out.n; i++) list_add(&list, node, node->out.at[i].node, &node->out.at[i].data);
    if (!rc) rc = list_end(&list, n);
    hc_graph_unlock();
    return rc;
}

static int list_neighbours(cudaGraphNode_t handle, cudaGraphNode_t *nodes, CUgraphEdgeData *data, size_t *n,
                           bool backwards)
{
    struct hc_node *node;
    if (!n || (data && !nodes)) return PSM_CUDA_INVALID_VALUE;
    struct list list = {.a = nodes, .data = data, .room = *n};
    hc_graph_lock();
    int rc = hc_node_find(handle, &node);
    const struct hc_edges *edges = rc ? NULL : backwards ? &node->in : &node->out;
    for (size_t i = 0; edges && i < edges->n; i++) list_add(&list, edges->at[i].node, NULL, &edges->at[i].data);
    if (!rc) rc = list_end(&list, n);
    hc_graph_unlock();
    return rc;
}

static int list_nodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *n, bool roots)
{
    struct hc_graph *graph;
    if (!n) return PSM_CUDA_INVALID_VALUE;
    struct list list = {.a = nodes, .room = *n};
    hc_graph_lock();
    int rc = hc_graph_find(handle, &graph);
    for (const struct hc_node *node = rc ? NULL : graph->first; node; node = node->next)
        if (!roots || !node->in.n) list_add(&list, node, NULL, NULL);
    if (!rc) rc = list_end(&list, n);
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphGetEdges_v2(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                                    cudaGraphEdgeData *edgeData, size_t *numEdges)
{
    return list_edges(graph, from, to, edgeData, numEdges);
}

CUresult hc_cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
    return list_edges(hGraph, from, to, NULL, numEdges);
}

cudaError_t hc_cudaGraphNodeGetDependencies_v2(cudaGraphNode_t node, cudaGraphNode_t *pDependencies,
                                               cudaGraphEdgeData *edgeData, size_t *pNumDependencies)
{
    return list_neighbours(node, pDependencies, edgeData, pNumDependencies, true);
}

CUresult hc_cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies)
{
    return list_neighbours(hNode, dependencies, NULL, numDependencies, true);
}

cudaError_t hc_cudaGraphNodeGetDependentNodes_v2(cudaGraphNode_t node, cudaGraphNode_t *pDependentNodes,
                                                 cudaGraphEdgeData *edgeData, size_t *pNumDependentNodes)
{
    return list_neighbours(node, pDependentNodes, edgeData, pNumDependentNodes, false);
}

CUresult hc_cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes)
{
    return list_neighbours(hNode, dependentNodes, NULL, numDependentNodes, false);
}

cudaError_t hc_cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes)
{
    return list_nodes(graph, nodes, numNodes, false);
}

cudaError_t hc_cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *pRootNodes, size_t *pNumRootNodes)
{
    return list_nodes(graph, pRootNodes, pNumRootNodes, true);
}
