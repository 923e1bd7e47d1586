/* Nodes of the runtime API: adding, changing, querying. api.def makes the functions of one kind of node. */
#include "graph/hc_graph.h"

#include <string.h>

/* ---- adding ---- */

cudaError_t hc_cudaGraphAddEmptyNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                     const cudaGraphNode_t *pDependencies, size_t numDependencies)
{
    struct hc_recipe recipe = {.type = cudaGraphNodeTypeEmpty, .device = hc_current_device()};
    return hc_recipe_add(0, &recipe, pGraphNode, graph, pDependencies, NULL, numDependencies);
}

/* A stretch of a device variable. */
static int symbol_part(const void *symbol, size_t count, size_t offset, void **address)
{
    uintptr_t start = 0;
    size_t size = 0;
    int rc = hc_symbol_of(symbol, &start, &size);
    if (!rc && (offset > size || count > size - offset)) rc = PSM_CUDA_INVALID_VALUE;
    *address = (void *)(start + offset); // NOLINT: an address of the device
    return rc;
}

int hc_recipe_to_symbol(struct hc_recipe *recipe, const void *symbol, const void *src, size_t count, size_t offset,
                        int kind)
{
    void *address;
    int rc = symbol_part(symbol, count, offset, &address);
    return rc ? rc : hc_recipe_line(recipe, address, src, count, kind);
}

int hc_recipe_from_symbol(struct hc_recipe *recipe, void *dst, const void *symbol, size_t count, size_t offset,
                          int kind)
{
    void *address;
    int rc = symbol_part(symbol, count, offset, &address);
    return rc ? rc : hc_recipe_line(recipe, dst, address, count, kind);
}

int hc_recipe_host_runtime(struct hc_recipe *recipe, const struct cudaHostNodeParams *p)
{
    return p ? hc_recipe_host(recipe, p->fn, p->userData) : PSM_CUDA_INVALID_VALUE;
}

int hc_recipe_fill_runtime(struct hc_recipe *recipe, const struct cudaMemsetParams *p)
{
    return hc_recipe_fill(recipe, p, NULL);
}

int hc_recipe_record(struct hc_recipe *recipe, cudaEvent_t event)
{
    return hc_recipe_event(recipe, cudaGraphNodeTypeEventRecord, event);
}

int hc_recipe_wait(struct hc_recipe *recipe, cudaEvent_t event)
{
    return hc_recipe_event(recipe, cudaGraphNodeTypeWaitEvent, event);
}

cudaError_t hc_cudaGraphAddChildGraphNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                          const cudaGraphNode_t *pDependencies, size_t numDependencies,
                                          cudaGraph_t childGraph)
{
    return hc_recipe_child(pGraphNode, graph, pDependencies, NULL, numDependencies, childGraph, false);
}

/* ---- adding and changing by the union of all parameters ---- */

static int recipe_of(struct hc_recipe *recipe, void *params)
{
    struct cudaGraphNodeParams *p = params;
    struct cudaKernelNodeParams kernel;
    switch ((int)p->type) {
    case cudaGraphNodeTypeKernel:
        if (p->kernel.functionType || p->kernel.ctx) return PSM_CUDA_NOT_SUPPORTED;
        kernel = (struct cudaKernelNodeParams){p->kernel.func,           p->kernel.gridDim,      p->kernel.blockDim,
                                               p->kernel.sharedMemBytes, p->kernel.kernelParams, p->kernel.extra};
        return hc_recipe_kernel(recipe, &kernel);
    case cudaGraphNodeTypeMemcpy:
        if (p->memcpy.flags || p->memcpy.reserved) return PSM_CUDA_INVALID_VALUE;
        return p->memcpy.ctx ? PSM_CUDA_NOT_SUPPORTED : hc_recipe_copy(recipe, &p->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        if (p->memset.ctx) return PSM_CUDA_NOT_SUPPORTED;
        return hc_recipe_fill(recipe, (const struct cudaMemsetParams *)&p->memset, NULL);
    case cudaGraphNodeTypeHost:
        return p->host.ctx ? PSM_CUDA_NOT_SUPPORTED : hc_recipe_host(recipe, p->host.fn, p->host.userData);
    default:
        return hc_recipe_same(recipe, p->type, &p->reserved1);
    }
}

cudaError_t hc_cudaGraphAddNode__12(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                    const cudaGraphNode_t *pDependencies, size_t numDependencies,
                                    struct cudaGraphNodeParams *nodeParams)
{
    return hc_any_add(recipe_of, nodeParams, pGraphNode, graph, pDependencies, NULL, numDependencies);
}

cudaError_t hc_cudaGraphAddNode_v2(cudaGraphNode_t *pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,
                                   const cudaGraphEdgeData *dependencyData, size_t numDependencies,
                                   struct cudaGraphNodeParams *nodeParams)
{
    return hc_any_add(recipe_of, nodeParams, pGraphNode, graph, pDependencies, dependencyData, numDependencies);
}

cudaError_t hc_cudaGraphNodeSetParams(cudaGraphNode_t node, struct cudaGraphNodeParams *nodeParams)
{
    return hc_any_set(recipe_of, nodeParams, node);
}

cudaError_t hc_cudaGraphExecNodeSetParams(cudaGraphExec_t graphExec, cudaGraphNode_t node,
                                          struct cudaGraphNodeParams *nodeParams)
{
    return hc_any_set_exec(recipe_of, nodeParams, graphExec, node);
}

int hc_node_same(cudaGraphNode_t handle, int type, void *parameters)
{
    switch (type) {
    case cudaGraphNodeTypeGraph:
        return hc_cudaGraphChildGraphNodeGetGraph(handle, &((struct cudaChildGraphNodeParams *)parameters)->graph);
    case cudaGraphNodeTypeWaitEvent:
        return hc_node_event(handle, type, &((struct cudaEventWaitNodeParams *)parameters)->event);
    case cudaGraphNodeTypeEventRecord:
        return hc_node_event(handle, type, &((struct cudaEventRecordNodeParams *)parameters)->event);
    case cudaGraphNodeTypeMemAlloc:
        return hc_cudaGraphMemAllocNodeGetParams(handle, parameters);
    case cudaGraphNodeTypeMemFree:
        return hc_cudaGraphMemFreeNodeGetParams(handle, &((struct cudaMemFreeNodeParams *)parameters)->dptr);
    case cudaGraphNodeTypeEmpty:
        return 0;
    default:
        return PSM_CUDA_NOT_SUPPORTED;
    }
}

cudaError_t hc_cudaGraphNodeGetParams(cudaGraphNode_t node, struct cudaGraphNodeParams *nodeParams)
{
    enum cudaGraphNodeType type;
    int rc = nodeParams ? hc_cudaGraphNodeGetType(node, &type) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    memset(nodeParams, 0, sizeof *nodeParams);
    nodeParams->type = type;
    switch ((int)type) {
    case cudaGraphNodeTypeMemcpy:
        return hc_cudaGraphMemcpyNodeGetParams(node, &nodeParams->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        return hc_cudaGraphMemsetNodeGetParams(node, (struct cudaMemsetParams *)&nodeParams->memset);
    case cudaGraphNodeTypeHost:
        return hc_cudaGraphHostNodeGetParams(node, (struct cudaHostNodeParams *)&nodeParams->host);
    default:
        return hc_node_same(node, type, &nodeParams->reserved1);
    }
}

/* ---- changing: nodes of graphs, and of executable graphs ---- */

/* ---- asking ---- */

cudaError_t hc_cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void *dptr_out)
{
    return hc_node_parameters(node, cudaGraphNodeTypeMemFree, dptr_out, sizeof(void *));
}

cudaError_t hc_cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t *event_out)
{
    return hc_node_event(node, cudaGraphNodeTypeEventRecord, event_out);
}

cudaError_t hc_cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t *event_out)
{
    return hc_node_event(node, cudaGraphNodeTypeWaitEvent, event_out);
}

enum question { TYPE, CHILD, GRAPH, LOCAL_ID, TOOLS_ID };

static int ask(cudaGraphNode_t handle, enum question question, void *out)
{
    struct hc_node *node;
    if (!out) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = hc_node_find(handle, &node);
    if (!rc && question == CHILD && !node->child) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) switch (question) {
        case TYPE:
            *(enum cudaGraphNodeType *)out = (enum cudaGraphNodeType)node->type;
            break;
        case CHILD:
            *(cudaGraph_t *)out = (cudaGraph_t)(uintptr_t)node->child->handle;
            break;
        case GRAPH:
            *(cudaGraph_t *)out = (cudaGraph_t)(uintptr_t)node->graph->handle;
            break;
        case LOCAL_ID:
            *(unsigned *)out = node->id;
            break;
        case TOOLS_ID: /* unique in the process */
            *(unsigned long long *)out = (unsigned long long)node->graph->id << 32 | node->id;
            break;
        }
    hc_graph_unlock();
    return rc;
}

cudaError_t hc_cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *pType)
{
    return ask(node, TYPE, pType);
}

cudaError_t hc_cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t *pGraph)
{
    return ask(node, CHILD, pGraph);
}

cudaError_t hc_cudaGraphNodeGetContainingGraph(cudaGraphNode_t hNode, cudaGraph_t *phGraph)
{
    return ask(hNode, GRAPH, phGraph);
}

cudaError_t hc_cudaGraphNodeGetLocalId(cudaGraphNode_t hNode, unsigned int *nodeId)
{
    return ask(hNode, LOCAL_ID, nodeId);
}

cudaError_t hc_cudaGraphNodeGetToolsId(cudaGraphNode_t hNode, unsigned long long *toolsNodeId)
{
    return ask(hNode, TOOLS_ID, toolsNodeId);
}
