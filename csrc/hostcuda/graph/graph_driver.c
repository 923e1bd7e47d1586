/* Graphs of the driver API, where they differ from the runtime API: the parameters of copies, fills and kernels. */
#include "graph/hc_graph.h"

#include <string.h>

/* ---- adding ---- */

int hc_recipe_host_driver(struct hc_recipe *recipe, const CUDA_HOST_NODE_PARAMS *p)
{
    return p ? hc_recipe_host(recipe, p->fn, p->userData) : PSM_CUDA_INVALID_VALUE;
}

/* The two structs have the same members. */
int hc_recipe_fill_driver(struct hc_recipe *recipe, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    struct cudaMemsetParams fill;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    fill =
        (struct cudaMemsetParams){(void *)(uintptr_t)p->dst, p->pitch, p->value, p->elementSize, p->width, p->height};
    return hc_recipe_fill(recipe, &fill, context);
}

CUresult hc_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_allocation(&recipe, (struct cudaMemAllocNodeParams *)nodeParams);
    return hc_recipe_add(error, &recipe, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

static int recipe_of(struct hc_recipe *recipe, void *params)
{
    CUgraphNodeParams *p = params;
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
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return hc_recipe_memory(recipe, &p->memOp);
    default:
        return hc_recipe_same(recipe, p->type, &p->reserved1);
    }
}

CUresult hc_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                           size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    return hc_any_add(recipe_of, nodeParams, phGraphNode, hGraph, dependencies, NULL, numDependencies);
}

CUresult hc_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                              CUgraphNodeParams *nodeParams)
{
    return hc_any_add(recipe_of, nodeParams, phGraphNode, hGraph, dependencies, dependencyData, numDependencies);
}

CUresult hc_cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    return hc_any_set(recipe_of, nodeParams, hNode);
}

CUresult hc_cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    CUgraphNodeType type;
    int rc = nodeParams ? hc_cudaGraphNodeGetType(hNode, &type) : PSM_CUDA_INVALID_VALUE;
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
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return hc_cuGraphBatchMemOpNodeGetParams(hNode, &nodeParams->memOp);
    default:
        return hc_node_same(hNode, type, &nodeParams->reserved1);
    }
}

CUresult hc_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    return hc_any_set_exec(recipe_of, nodeParams, hGraphExec, hNode);
}

/* ---- changing and asking ---- */

CUresult hc_cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_box(&recipe, nodeParams, NULL);
    return hc_recipe_set(error, &recipe, hNode);
}

CUresult hc_cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
    struct hc_recipe recipe;
    int error = hc_recipe_fill_driver(&recipe, nodeParams, NULL);
    return hc_recipe_set(error, &recipe, hNode);
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
