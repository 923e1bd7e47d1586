/* cudaGraphExecUpdate: the nodes of another graph of the same shape replace those of an executable graph. */
#include "graph/hc_graph.h"

#include <stdlib.h>

struct failure {
    enum cudaGraphExecUpdateResult result;
    const struct hc_node *node, *from; /* of the new graph */
};

static bool fail(struct failure *failure, enum cudaGraphExecUpdateResult result, const struct hc_node *node,
                 const struct hc_node *from)
{
    *failure = (struct failure){result, node, from};
    return false;
}

/* The pairs made so far; a node's mark is its index in its graph. */
struct pairs {
    struct hc_node **ours, **theirs; /* by the index of the partner */
    struct hc_node **todo;           /* of the new graph */
    size_t n;
};

static bool pair_up(struct pairs *pairs, struct hc_node *old, struct hc_node *new, struct failure *failure,
                    const struct hc_node *dependent)
{
    if (pairs->ours[new->mark] == old && pairs->theirs[old->mark] == new) return true;
    if (pairs->ours[new->mark] || pairs->theirs[old->mark])
        return fail(failure, cudaGraphExecUpdateErrorTopologyChanged, dependent ? dependent : new,
                    dependent ? new : NULL);
    if (old->type != new->type) return fail(failure, cudaGraphExecUpdateErrorNodeTypeChanged, new, NULL);
    if (old->device != new->device) return fail(failure, cudaGraphExecUpdateErrorParametersChanged, new, NULL);
    if (old->in.n != new->in.n) return fail(failure, cudaGraphExecUpdateErrorTopologyChanged, new, NULL);
    pairs->ours[new->mark] = old;
    pairs->theirs[old->mark] = new;
    pairs->todo[pairs->n++] = new;
    return true;
}

static bool number(const struct hc_graph *graph)
{
    size_t at = 0;
    for (struct hc_node *node = graph->first; node; node = node->next) node->mark = at++;
    return at == graph->n;
}

static struct hc_node *next_sink(struct hc_node *node)
{
    while (node && node->out.n) node = node->next;
    return node;
}

/* Pairs nodes without dependents in their order, then dependencies in the order of their edges. */
static bool pair_all(const struct hc_graph *old, const struct hc_graph *new, struct pairs *pairs,
                     struct failure *failure)
{
    struct hc_node *a = next_sink(old->first), *b = next_sink(new->first);
    for (; a && b; a = next_sink(a->next), b = next_sink(b->next))
        if (!pair_up(pairs, a, b, failure, NULL)) return false;
    if (a || b) return fail(failure, cudaGraphExecUpdateErrorTopologyChanged, b, NULL);
    for (size_t i = 0; i < pairs->n; i++) {
        struct hc_node *node = pairs->todo[i], *partner = pairs->ours[node->mark];
        for (size_t k = 0; k < node->in.n; k++)
            if (!pair_up(pairs, partner->in.at[k].node, node->in.at[k].node, failure, node)) return false;
    }
    /* Nodes in a cycle, and nodes that only lead to one, have no path to a node without dependents. */
    return pairs->n == new->n || fail(failure, cudaGraphExecUpdateErrorTopologyChanged, NULL, NULL);
}

static bool match(const struct hc_graph *old, const struct hc_graph *new, struct hc_graph *clone,
                  struct failure *failure);

/* The nodes of the clone keep the handles that the old plan's nodes had. */
static bool take_over(const struct hc_graph *new, struct hc_graph *clone, struct hc_node *const *ours,
                      struct failure *failure)
{
    struct hc_node *twin = clone->first;
    for (const struct hc_node *node = new->first; node; node = node->next, twin = twin->next) {
        const struct hc_node *old = ours[node->mark];
        twin->origin = old->origin;
        twin->disabled = old->disabled;
        if (node->child && !match(old->child, node->child, twin->child, failure)) return false;
    }
    return true;
}

static bool match(const struct hc_graph *old, const struct hc_graph *new, struct hc_graph *clone,
                  struct failure *failure)
{
    if (old->n != new->n) return fail(failure, cudaGraphExecUpdateErrorTopologyChanged, NULL, NULL);
    struct pairs pairs = {0};
    pairs.ours = calloc(3 * new->n + 1, sizeof(struct hc_node *));
    if (!pairs.ours) return fail(failure, cudaGraphExecUpdateError, NULL, NULL);
    pairs.theirs = pairs.ours + new->n;
    pairs.todo = pairs.theirs + new->n;
    bool good =
        number(old) && number(new) && pair_all(old, new, &pairs, failure) && take_over(new, clone, pairs.ours, failure);
    free(pairs.ours);
    return good;
}

cudaError_t hc_cudaGraphExecUpdate(cudaGraphExec_t exec_handle, cudaGraph_t graph_handle,
                                   cudaGraphExecUpdateResultInfo *resultInfo)
{
    struct failure failure = {cudaGraphExecUpdateError, NULL, NULL};
    struct hc_graph *graph, *clone;
    struct hc_plan *plan;
    struct hc_exec *exec;
    if (!resultInfo) return PSM_CUDA_INVALID_VALUE;
    *resultInfo = (cudaGraphExecUpdateResultInfo){.result = cudaGraphExecUpdateError};
    int rc = hc_exec_get(exec_handle, &exec);
    if (rc) return rc;
    hc_graph_lock();
    rc = hc_graph_find(graph_handle, &graph);
    if (!rc && graph->parent) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) rc = hc_graph_clone(graph, false, &clone);
    if (!rc) {
        if (!match(exec->plan->graph, graph, clone, &failure)) rc = PSM_CUDA_GRAPH_EXEC_UPDATE_FAILURE;
        if (!rc && hc_plan_new(clone, &plan, NULL)) rc = PSM_CUDA_GRAPH_EXEC_UPDATE_FAILURE;
        if (rc) hc_graph_free(clone);
    }
    if (!rc) {
        hc_plan_put(exec->plan);
        exec->plan = plan;
        failure.result = cudaGraphExecUpdateSuccess;
    }
    resultInfo->result = failure.result;
    if (failure.node) resultInfo->errorNode = (cudaGraphNode_t)(uintptr_t)failure.node->handle;
    if (failure.from) resultInfo->errorFromNode = (cudaGraphNode_t)(uintptr_t)failure.from->handle;
    hc_graph_unlock();
    hc_exec_put(exec);
    return rc;
}

/* ---- one child graph ---- */

struct child_change {
    cudaGraphNode_t node;
    cudaGraph_t graph;
};

static int change_child(struct hc_graph *clone, void *context)
{
    const struct child_change *what = context;
    struct failure failure;
    struct hc_graph *graph, *child;
    struct hc_node *node = hc_graph_find_origin(clone, (uintptr_t)what->node, true);
    if (!node || !node->child) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_graph_find(what->graph, &graph);
    if (!rc) rc = hc_graph_clone(graph, false, &child);
    if (rc) return rc;
    if (!match(node->child, graph, child, &failure)) {
        hc_graph_free(child);
        return PSM_CUDA_INVALID_VALUE;
    }
    hc_graph_free(node->child);
    node->child = child;
    child->parent = node;
    return 0;
}

cudaError_t hc_cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                    cudaGraph_t childGraph)
{
    struct child_change what = {node, childGraph};
    struct hc_exec *exec;
    int rc = node ? hc_exec_get(hGraphExec, &exec) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    rc = hc_exec_change(exec, change_child, &what);
    hc_exec_put(exec);
    return rc;
}
