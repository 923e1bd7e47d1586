/* Graphs of the driver API: the same as of the runtime API except for the parameters of copies, fills and kernels. */
#include "graph/hc_graph.h"

#include <string.h>

CUresult hc_cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    return hc_cudaGraphCreate(phGraph, flags);
}

CUresult hc_cuGraphDestroy(CUgraph hGraph)
{
    return hc_cudaGraphDestroy(hGraph);
}

CUresult hc_cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
    return hc_cudaGraphClone(phGraphClone, originalGraph);
}

CUresult hc_cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph)
{
    return hc_cudaGraphNodeFindInClone(phNode, hOriginalNode, hClonedGraph);
}

CUresult hc_cuGraphDestroyNode(CUgraphNode hNode)
{
    return hc_cudaGraphDestroyNode(hNode);
}

CUresult hc_cuGraphGetId(CUgraph hGraph, unsigned int *graphId)
{
    return hc_cudaGraphGetId(hGraph, graphId);
}

CUresult hc_cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    return hc_cudaGraphNodeGetType(hNode, type);
}

CUresult hc_cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    return hc_cudaGraphChildGraphNodeGetGraph(hNode, phGraph);
}

CUresult hc_cuGraphNodeGetContainingGraph(CUgraphNode hNode, CUgraph *phGraph)
{
    return hc_cudaGraphNodeGetContainingGraph(hNode, phGraph);
}

CUresult hc_cuGraphNodeGetLocalId(CUgraphNode hNode, unsigned int *nodeId)
{
    return hc_cudaGraphNodeGetLocalId(hNode, nodeId);
}

CUresult hc_cuGraphNodeGetToolsId(CUgraphNode hNode, unsigned long long *toolsNodeId)
{
    return hc_cudaGraphNodeGetToolsId(hNode, toolsNodeId);
}

/* ---- adding ---- */

CUresult hc_cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                size_t numDependencies)
{
    return hc_cudaGraphAddEmptyNode(phGraphNode, hGraph, dependencies, numDependencies);
}

CUresult hc_cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                      size_t numDependencies, CUevent event)
{
    return hc_cudaGraphAddEventRecordNode(phGraphNode, hGraph, dependencies, numDependencies, event);
}

CUresult hc_cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                    size_t numDependencies, CUevent event)
{
    return hc_cudaGraphAddEventWaitNode(phGraphNode, hGraph, dependencies, numDependencies, event);
}

CUresult hc_cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                     size_t numDependencies, CUgraph childGraph)
{
    return hc_cudaGraphAddChildGraphNode(phGraphNode, hGraph, dependencies, numDependencies, childGraph);
}

static int recipe_host(struct hc_recipe *recipe, const CUDA_HOST_NODE_PARAMS *p)
{
    return p ? hc_recipe_host(recipe, p->fn, p->userData) : PSM_CUDA_INVALID_VALUE;
}

/* The two structs have the same members. */
static int recipe_fill(struct hc_recipe *recipe, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    struct cudaMemsetParams fill;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    fill =
        (struct cudaMemsetParams){(void *)(uintptr_t)p->dst, p->pitch, p->value, p->elementSize, p->width, p->height};
    return hc_recipe_fill(recipe, &fill, context);
}

CUresult hc_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    struct hc_recipe recipe;
    int error = hc_recipe_box(&recipe, copyParams, ctx);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    struct hc_recipe recipe;
    int error = recipe_fill(&recipe, memsetParams, ctx);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = recipe_host(&recipe, nodeParams);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                    size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_kernel_driver(&recipe, nodeParams);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                     size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_memory(&recipe, nodeParams);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_allocation(&recipe, (struct cudaMemAllocNodeParams *)nodeParams);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, CUdeviceptr dptr)
{
    struct hc_recipe recipe;
    int error = hc_recipe_free(&recipe, (void *)(uintptr_t)dptr);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

static int recipe_of(struct hc_recipe *recipe, CUgraphNodeParams *p)
{
    struct cudaMemsetParams fill;
    switch ((int)p->type) {
    case cudaGraphNodeTypeKernel:
        return hc_recipe_kernel_driver(recipe, &p->kernel);
    case cudaGraphNodeTypeMemcpy:
        return hc_recipe_box(recipe, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case cudaGraphNodeTypeMemset:
        memcpy(&fill, &p->memset, sizeof fill);
        return hc_recipe_fill(recipe, &fill, p->memset.ctx);
    case cudaGraphNodeTypeHost:
        return hc_recipe_host(recipe, p->host.fn, p->host.userData);
    case cudaGraphNodeTypeEmpty:
        *recipe = (struct hc_recipe){.type = cudaGraphNodeTypeEmpty, .device = hc_current_device()};
        return 0;
    case cudaGraphNodeTypeWaitEvent:
        return hc_recipe_event(recipe, cudaGraphNodeTypeWaitEvent, p->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
        return hc_recipe_event(recipe, cudaGraphNodeTypeEventRecord, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return hc_recipe_memory(recipe, &p->memOp);
    case cudaGraphNodeTypeMemAlloc:
        return hc_recipe_allocation(recipe, &p->alloc);
    case cudaGraphNodeTypeMemFree:
        return hc_recipe_free(recipe, p->free.dptr);
    default:
        return PSM_CUDA_NOT_SUPPORTED;
    }
}

static bool may_change(int type)
{
    return type != cudaGraphNodeTypeMemAlloc && type != cudaGraphNodeTypeMemFree;
}

static int add_any(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data,
                   size_t n, CUgraphNodeParams *p)
{
    struct hc_recipe recipe;
    CUgraph child;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    if (p->type != cudaGraphNodeTypeGraph) {
        int error = recipe_of(&recipe, p);
        return hc_recipe_add(error, &recipe, out, graph, dependencies, data, n);
    }
    bool move = p->graph.ownership == cudaGraphChildGraphOwnershipMove;
    int rc = hc_recipe_child(out, graph, dependencies, data, n, p->graph.graph, move);
    if (!rc && !hc_cudaGraphChildGraphNodeGetGraph(*out, &child)) p->graph.graph = child; /* what the node owns */
    return rc;
}

CUresult hc_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    return add_any(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

CUresult hc_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                              CUgraphNodeParams *nodeParams)
{
    return add_any(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

/* The form of CUDA 13.4, which has more types of nodes: they are not supported here. */
CUresult hc_cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                              CUgraphNodeParams *nodeParams)
{
    return add_any(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

CUresult hc_cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct hc_recipe recipe;
    if (!nodeParams || !may_change(nodeParams->type)) return PSM_CUDA_INVALID_VALUE;
    int error = recipe_of(&recipe, nodeParams);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    return hc_cuGraphNodeSetParams(hNode, nodeParams);
}

CUresult hc_cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    CUgraphNodeType type;
    int rc = nodeParams ? hc_cuGraphNodeGetType(hNode, &type) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    memset(nodeParams, 0, sizeof *nodeParams);
    nodeParams->type = type;
    switch ((int)type) {
    case cudaGraphNodeTypeKernel:
        return hc_cuGraphKernelNodeGetParams_v2(hNode, &nodeParams->kernel);
    case cudaGraphNodeTypeMemcpy:
        return hc_cuGraphMemcpyNodeGetParams(hNode, &nodeParams->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        return hc_cuGraphMemsetNodeGetParams(hNode, (CUDA_MEMSET_NODE_PARAMS *)(void *)&nodeParams->memset);
    case cudaGraphNodeTypeHost:
        return hc_cuGraphHostNodeGetParams(hNode, (CUDA_HOST_NODE_PARAMS *)(void *)&nodeParams->host);
    case cudaGraphNodeTypeGraph:
        return hc_cuGraphChildGraphNodeGetGraph(hNode, &nodeParams->graph.graph);
    case cudaGraphNodeTypeWaitEvent:
        return hc_cuGraphEventWaitNodeGetEvent(hNode, &nodeParams->eventWait.event);
    case cudaGraphNodeTypeEventRecord:
        return hc_cuGraphEventRecordNodeGetEvent(hNode, &nodeParams->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return hc_cuGraphBatchMemOpNodeGetParams(hNode, &nodeParams->memOp);
    case cudaGraphNodeTypeMemAlloc:
        return hc_cudaGraphMemAllocNodeGetParams(hNode, &nodeParams->alloc);
    case cudaGraphNodeTypeMemFree:
        return hc_cudaGraphMemFreeNodeGetParams(hNode, &nodeParams->free.dptr);
    case cudaGraphNodeTypeEmpty:
        return 0;
    default:
        return PSM_CUDA_NOT_SUPPORTED;
    }
}

CUresult hc_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    struct hc_recipe recipe;
    if (nodeParams && nodeParams->type == cudaGraphNodeTypeGraph)
        return hc_cudaGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
    if (!nodeParams || !may_change(nodeParams->type)) return PSM_CUDA_INVALID_VALUE;
    int error = recipe_of(&recipe, nodeParams);
    return hc_recipe_set_exec(error, &recipe, hGraphExec, hNode);
}

/* ---- changing and asking ---- */

CUresult hc_cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_box(&recipe, nodeParams, NULL);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams,
                                           CUcontext ctx)
{
    struct hc_recipe recipe;
    int error = hc_recipe_box(&recipe, copyParams, ctx);
    return hc_recipe_set_exec(error, &recipe, hGraphExec, hNode);
}

CUresult hc_cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = recipe_fill(&recipe, nodeParams, NULL);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    struct hc_recipe recipe;
    int error = recipe_fill(&recipe, memsetParams, ctx);
    return hc_recipe_set_exec(error, &recipe, hGraphExec, hNode);
}

CUresult hc_cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = recipe_host(&recipe, nodeParams);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                         const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = recipe_host(&recipe, nodeParams);
    return hc_recipe_set_exec(error, &recipe, hGraphExec, hNode);
}

CUresult hc_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_kernel_driver(&recipe, nodeParams);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_kernel_driver(&recipe, nodeParams);
    return hc_recipe_set_exec(error, &recipe, hGraphExec, hNode);
}

CUresult hc_cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_memory(&recipe, nodeParams);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_memory(&recipe, nodeParams);
    return hc_recipe_set_exec(error, &recipe, hGraphExec, hNode);
}

CUresult hc_cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    return hc_cudaGraphEventRecordNodeSetEvent(hNode, event);
}

CUresult hc_cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
    return hc_cudaGraphEventWaitNodeSetEvent(hNode, event);
}

CUresult hc_cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    return hc_cudaGraphExecEventRecordNodeSetEvent(hGraphExec, hNode, event);
}

CUresult hc_cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
    return hc_cudaGraphExecEventWaitNodeSetEvent(hGraphExec, hNode, event);
}

CUresult hc_cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    return hc_cudaGraphEventRecordNodeGetEvent(hNode, event_out);
}

CUresult hc_cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
    return hc_cudaGraphEventWaitNodeGetEvent(hNode, event_out);
}

CUresult hc_cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
    return hc_node_parameters(hNode, cudaGraphNodeTypeMemcpy, nodeParams, sizeof *nodeParams);
}

CUresult hc_cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    return hc_node_parameters(hNode, cudaGraphNodeTypeMemset, nodeParams, sizeof *nodeParams);
}

CUresult hc_cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
    return hc_node_parameters(hNode, cudaGraphNodeTypeHost, nodeParams, sizeof *nodeParams);
}

CUresult hc_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    return hc_node_parameters(hNode, cudaGraphNodeTypeKernel, nodeParams, sizeof *nodeParams);
}

CUresult hc_cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out)
{
    return hc_node_parameters(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams_out, sizeof *nodeParams_out);
}

CUresult hc_cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    return hc_node_parameters(hNode, cudaGraphNodeTypeMemAlloc, params_out, sizeof *params_out);
}

CUresult hc_cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    return hc_node_parameters(hNode, cudaGraphNodeTypeMemFree, dptr_out, sizeof *dptr_out);
}

/* ---- executable graphs ---- */

/* Headers of CUDA 12 give this name to the form with flags, but cuGetProcAddress returns this one. */
static int instantiate_logged(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    cudaGraphInstantiateParams params = {0, NULL, NULL, cudaGraphInstantiateError};
    int rc = hc_cudaGraphInstantiateWithParams(exec, graph, &params);
    if (error_node) *error_node = params.errNode_out;
    if (log && size) *log = 0;
    return rc;
}

CUresult hc_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize)
{
    return instantiate_logged(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult hc_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                                  size_t bufferSize)
{
    return instantiate_logged(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult hc_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    return hc_cudaGraphInstantiate(phGraphExec, hGraph, flags);
}

CUresult hc_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                         CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    cudaGraphInstantiateParams params;
    if (!instantiateParams) return PSM_CUDA_INVALID_VALUE;
    params = (cudaGraphInstantiateParams){instantiateParams->flags, instantiateParams->hUploadStream, NULL,
                                          cudaGraphInstantiateError};
    int rc = hc_cudaGraphInstantiateWithParams(phGraphExec, hGraph, &params);
    instantiateParams->hErrNode_out = params.errNode_out;
    instantiateParams->result_out = params.result_out;
    return rc;
}

CUresult hc_cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    return hc_cudaGraphExecDestroy(hGraphExec);
}

CUresult hc_cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
    return hc_cudaGraphExecGetFlags(hGraphExec, flags);
}

CUresult hc_cuGraphExecGetId(CUgraphExec hGraphExec, unsigned int *graphId)
{
    return hc_cudaGraphExecGetId(hGraphExec, graphId);
}

CUresult hc_cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
    return hc_cudaGraphNodeSetEnabled(hGraphExec, hNode, isEnabled);
}

CUresult hc_cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
    return hc_cudaGraphNodeGetEnabled(hGraphExec, hNode, isEnabled);
}
