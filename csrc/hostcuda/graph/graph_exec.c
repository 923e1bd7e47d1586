/* Executable graphs: making them, and what can be asked of them and changed in them. */
#include "graph/hc_graph.h"

#include <stdlib.h>

static unsigned last_id; /* under the lock */

static int instantiate(cudaGraphExec_t *out, cudaGraph_t handle, unsigned long long flags, cudaGraphNode_t *error,
                       cudaGraphInstantiateResult *result)
{
    struct hc_graph *graph, *clone;
    struct hc_node *bad = NULL;
    struct hc_plan *plan = NULL;
    *result = cudaGraphInstantiateError;
    *error = NULL;
    struct hc_exec *exec = calloc(1, sizeof *exec);
    if (!exec) return PSM_CUDA_OUT_OF_MEMORY;
    hc_graph_lock();
    int rc = hc_graph_find(handle, &graph);
    if (!rc && graph->parent) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc && hc_handle_get(HC_EXEC, graph->exec) && hc_graph_allocates(graph)) rc = PSM_CUDA_NOT_SUPPORTED;
    if (!rc) rc = hc_graph_clone(graph, false, &clone);
    if (!rc && (rc = hc_plan_new(clone, &plan, &bad))) {
        if (bad) {
            *error = (cudaGraphNode_t)(uintptr_t)bad->origin;
            *result = cudaGraphInstantiateInvalidStructure;
        }
        hc_graph_free(clone);
    }
    if (!rc && !(exec->handle = hc_handle_new(HC_EXEC, exec))) {
        hc_plan_put(plan);
        rc = PSM_CUDA_OUT_OF_MEMORY;
    }
    if (rc) {
        free(exec);
    } else {
        graph->exec = exec->handle;
        exec->references = 1;
        exec->id = ++last_id;
        exec->flags = flags;
        exec->plan = plan;
        pthread_mutex_init(&exec->launching, NULL);
        *result = cudaGraphInstantiateSuccess;
        *out = (cudaGraphExec_t)(uintptr_t)exec->handle;
    }
    hc_graph_unlock();
    return rc;
}

static int instantiate_flags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags, bool upload_allowed,
                             cudaGraphNode_t *error, cudaGraphInstantiateResult *result)
{
    unsigned long long known = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagDeviceLaunch |
                               cudaGraphInstantiateFlagUseNodePriority;
    if (upload_allowed) known |= cudaGraphInstantiateFlagUpload;
    *result = cudaGraphInstantiateError;
    if (!out || flags & ~known) return PSM_CUDA_INVALID_VALUE;
    if (flags & cudaGraphInstantiateFlagDeviceLaunch) { /* no kernel could launch it */
        *result = cudaGraphInstantiateNodeOperationNotSupported;
        return flags & cudaGraphInstantiateFlagAutoFreeOnLaunch ? PSM_CUDA_INVALID_VALUE : PSM_CUDA_NOT_SUPPORTED;
    }
    return instantiate(out, graph, flags, error, result);
}

cudaError_t hc_cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
    cudaGraphInstantiateResult result;
    cudaGraphNode_t error;
    return instantiate_flags(pGraphExec, graph, flags, false, &error, &result);
}

cudaError_t hc_cudaGraphInstantiateWithParams(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                              cudaGraphInstantiateParams *instantiateParams)
{
    if (!instantiateParams) return PSM_CUDA_INVALID_VALUE;
    unsigned long long flags = instantiateParams->flags;
    instantiateParams->errNode_out = NULL;
    int rc = instantiate_flags(pGraphExec, graph, flags, true, &instantiateParams->errNode_out,
                               &instantiateParams->result_out);
    if (!rc && flags & cudaGraphInstantiateFlagUpload &&
        (rc = hc_cudaGraphUpload(*pGraphExec, instantiateParams->uploadStream))) {
        hc_cudaGraphExecDestroy(*pGraphExec);
        instantiateParams->result_out = cudaGraphInstantiateError;
    }
    return rc;
}

cudaError_t hc_cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    struct hc_exec *exec = hc_handle_end(HC_EXEC, (uintptr_t)handle);
    if (!exec) return PSM_CUDA_INVALID_HANDLE;
    hc_exec_put(exec);
    return 0;
}

cudaError_t hc_cudaGraphExecGetFlags(cudaGraphExec_t handle, unsigned long long *flags)
{
    struct hc_exec *exec;
    int rc = flags ? hc_exec_get(handle, &exec) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    *flags = exec->flags;
    hc_exec_put(exec);
    return 0;
}

cudaError_t hc_cudaGraphExecGetId(cudaGraphExec_t handle, unsigned int *graphID)
{
    struct hc_exec *exec;
    int rc = graphID ? hc_exec_get(handle, &exec) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    *graphID = exec->id;
    hc_exec_put(exec);
    return 0;
}

static bool can_be_disabled(int type)
{
    return type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset;
}

struct enable {
    cudaGraphNode_t node;
    bool set;
    unsigned *value;
};

static int enable(struct hc_graph *clone, void *context)
{
    const struct enable *what = context;
    struct hc_node *node = hc_graph_find_origin(clone, (uintptr_t)what->node, true);
    if (!node || !can_be_disabled(node->type)) return PSM_CUDA_INVALID_VALUE;
    if (what->set)
        node->disabled = !*what->value;
    else
        *what->value = !node->disabled;
    return 0;
}

static int enabled(cudaGraphExec_t handle, cudaGraphNode_t node, unsigned *value, bool set)
{
    struct enable what = {node, set, value};
    struct hc_exec *exec;
    int rc = node && value ? hc_exec_get(handle, &exec) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    if (set) {
        rc = hc_exec_change(exec, enable, &what);
    } else {
        hc_graph_lock();
        rc = enable(exec->plan->graph, &what);
        hc_graph_unlock();
    }
    hc_exec_put(exec);
    return rc;
}

cudaError_t hc_cudaGraphNodeSetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode, unsigned int isEnabled)
{
    return enabled(hGraphExec, hNode, &isEnabled, true);
}

cudaError_t hc_cudaGraphNodeGetEnabled(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode, unsigned int *isEnabled)
{
    return enabled(hGraphExec, hNode, isEnabled, false);
}
