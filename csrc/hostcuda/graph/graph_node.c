/* What nodes do: recipes made from the parameters of a call, added to a graph or set in an executable graph. */
#include "graph/hc_graph.h"

#include <string.h>

enum { SMALL = 64 << 10 }; /* copies and fills up to this size need no worker */

static int work_recipe(struct hc_recipe *recipe, int type, int device, const struct hc_work *plain,
                       const void *parameters, size_t size)
{
    struct hc_work work = *plain;
    work.node_type = type;
    work.node_parameters = parameters;
    work.node_parameters_size = size;
    *recipe = (struct hc_recipe){.type = type, .device = device};
    return hc_payload_new(&work, &recipe->payload);
}

static int device_of(CUcontext context, int *device)
{
    *device = context ? hc_context_device(context) : hc_current_device();
    return *device < 0 ? PSM_CUDA_INVALID_CONTEXT : 0;
}

/* ---- copies ---- */

static int copy_recipe(struct hc_recipe *recipe, const struct hc_copy *copy, int device, const void *p, size_t size)
{
    struct hc_work work = {.run = hc_copy_run, .size = sizeof *copy, .argument = copy};
    if (copy->width * copy->height * copy->depth <= SMALL) work.flags = HC_WORK_QUICK;
    return work_recipe(recipe, cudaGraphNodeTypeMemcpy, device, &work, p, size);
}

int hc_recipe_copy(struct hc_recipe *recipe, const struct cudaMemcpy3DParms *p)
{
    struct hc_copy copy = {0};
    if (!p) return PSM_CUDA_INVALID_VALUE;
    int device = hc_current_device(), rc = hc_copy_parms(&copy, p, device);
    return rc ? rc : copy_recipe(recipe, &copy, device, p, sizeof *p);
}

int hc_recipe_box(struct hc_recipe *recipe, const CUDA_MEMCPY3D *p, CUcontext context)
{
    struct hc_copy copy = {0};
    int device;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    int rc = device_of(context, &device);
    if (!rc) rc = hc_copy_box(&copy, p, device);
    return rc ? rc : copy_recipe(recipe, &copy, device, p, sizeof *p);
}

int hc_recipe_line(struct hc_recipe *recipe, void *dst, const void *src, size_t n, int kind)
{
    struct cudaMemcpy3DParms p = {0};
    struct hc_copy copy = {0};
    int device = hc_current_device(), rc = hc_copy_line(&copy, dst, src, n, kind, device);
    p.srcPtr = (struct cudaPitchedPtr){(void *)(uintptr_t)src, n, n, 1};
    p.dstPtr = (struct cudaPitchedPtr){dst, n, n, 1};
    p.extent = (struct cudaExtent){n, 1, 1};
    p.kind = (enum cudaMemcpyKind)kind;
    return rc ? rc : copy_recipe(recipe, &copy, device, &p, sizeof p);
}

/* Parameters are stored in the form they were given in, and converted to the requested form. */
static void box_to_parms(const CUDA_MEMCPY3D *box, struct cudaMemcpy3DParms *p)
{
    bool from_host = box->srcMemoryType == CU_MEMORYTYPE_HOST, to_host = box->dstMemoryType == CU_MEMORYTYPE_HOST;
    bool unified = box->srcMemoryType == CU_MEMORYTYPE_UNIFIED || box->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
    void *src = from_host ? (void *)(uintptr_t)box->srcHost : (void *)(uintptr_t)box->srcDevice;
    void *dst = to_host ? box->dstHost : (void *)(uintptr_t)box->dstDevice;
    *p = (struct cudaMemcpy3DParms){0};
    p->srcPos = (struct cudaPos){box->srcXInBytes, box->srcY, box->srcZ};
    p->dstPos = (struct cudaPos){box->dstXInBytes, box->dstY, box->dstZ};
    p->srcPtr = (struct cudaPitchedPtr){src, box->srcPitch, box->WidthInBytes, box->srcHeight};
    p->dstPtr = (struct cudaPitchedPtr){dst, box->dstPitch, box->WidthInBytes, box->dstHeight};
    p->extent = (struct cudaExtent){box->WidthInBytes, box->Height, box->Depth};
    p->kind = unified     ? cudaMemcpyDefault
              : from_host ? (to_host ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice)
                          : (to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice);
}

static void parms_to_box(const struct cudaMemcpy3DParms *p, CUDA_MEMCPY3D *box)
{
    bool from_host = p->kind == cudaMemcpyHostToHost || p->kind == cudaMemcpyHostToDevice;
    bool to_host = p->kind == cudaMemcpyHostToHost || p->kind == cudaMemcpyDeviceToHost;
    CUmemorytype other = p->kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;
    memset(box, 0, sizeof *box);
    box->srcXInBytes = p->srcPos.x, box->srcY = p->srcPos.y, box->srcZ = p->srcPos.z;
    box->dstXInBytes = p->dstPos.x, box->dstY = p->dstPos.y, box->dstZ = p->dstPos.z;
    box->srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : other;
    box->dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : other;
    if (from_host)
        box->srcHost = p->srcPtr.ptr;
    else
        box->srcDevice = (uintptr_t)p->srcPtr.ptr;
    if (to_host)
        box->dstHost = p->dstPtr.ptr;
    else
        box->dstDevice = (uintptr_t)p->dstPtr.ptr;
    box->srcPitch = p->srcPtr.pitch, box->srcHeight = p->srcPtr.ysize;
    box->dstPitch = p->dstPtr.pitch, box->dstHeight = p->dstPtr.ysize;
    box->WidthInBytes = p->extent.width, box->Height = p->extent.height, box->Depth = p->extent.depth;
}

/* ---- fills, host functions, events ---- */

int hc_recipe_fill(struct hc_recipe *recipe, const struct cudaMemsetParams *p, CUcontext context)
{
    struct hc_fill fill = {0};
    int device;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    int rc = device_of(context, &device);
    if (!rc) rc = hc_fill_parms(&fill, p, device);
    if (rc) return rc;
    struct hc_work work = {.run = hc_fill_run, .size = sizeof fill, .argument = &fill};
    if (p->width * p->height * p->elementSize <= SMALL) work.flags = HC_WORK_QUICK;
    return work_recipe(recipe, cudaGraphNodeTypeMemset, device, &work, p, sizeof *p);
}

static int run_host(void *argument, int device)
{
    const struct cudaHostNodeParams *host = argument;
    (void)device;
    host->fn(host->userData);
    return 0;
}

int hc_recipe_host(struct hc_recipe *recipe, void (*fn)(void *), void *argument)
{
    struct cudaHostNodeParams p = {fn, argument};
    struct hc_work work = {.run = run_host, .size = sizeof p, .argument = &p};
    if (!fn) return PSM_CUDA_INVALID_VALUE;
    work.flags = HC_WORK_BLOCKS | HC_WORK_HOST_FUNCTION;
    return work_recipe(recipe, cudaGraphNodeTypeHost, hc_current_device(), &work, &p, sizeof p);
}

int hc_recipe_event(struct hc_recipe *recipe, int type, CUevent handle)
{
    struct hc_event *event;
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_event_get(handle, &event);
    if (rc) return rc;
    *recipe = (struct hc_recipe){.type = type, .device = hc_event_device(event), .event = handle};
    hc_event_put(event);
    return 0;
}

/* ---- what only other rooms know how to do: recorded from the call that does it ---- */

static void drop_alone(struct hc_recipe *recipe)
{
    hc_graph_lock();
    hc_payload_put(recipe->payload);
    hc_graph_unlock();
    recipe->payload = NULL;
}

static int recorded(struct hc_recipe *recipe, int type, int (*call)(cudaStream_t, void *), void *context)
{
    *recipe = (struct hc_recipe){.type = type, .device = hc_current_device()};
    return hc_payload_record(call, context, &recipe->payload);
}

static int call_kernel(cudaStream_t stream, void *context)
{
    const struct cudaKernelNodeParams *p = context;
    if (p->extra) return PSM_CUDA_NOT_SUPPORTED;
    return hc_cudaLaunchKernel(p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, stream);
}

int hc_recipe_kernel(struct hc_recipe *recipe, const struct cudaKernelNodeParams *p)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    return recorded(recipe, cudaGraphNodeTypeKernel, call_kernel, (void *)(uintptr_t)p);
}

static int call_kernel_driver(cudaStream_t stream, void *context)
{
    const CUDA_KERNEL_NODE_PARAMS *p = context;
    return hc_cuLaunchKernel(p->func ? p->func : (CUfunction)p->kern, p->gridDimX, p->gridDimY, p->gridDimZ,
                             p->blockDimX, p->blockDimY, p->blockDimZ, p->sharedMemBytes, stream, p->kernelParams,
                             p->extra);
}

int hc_recipe_kernel_driver(struct hc_recipe *recipe, const CUDA_KERNEL_NODE_PARAMS *p)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    return recorded(recipe, cudaGraphNodeTypeKernel, call_kernel_driver, (void *)(uintptr_t)p);
}

static int call_memory(cudaStream_t stream, void *context)
{
    const CUDA_BATCH_MEM_OP_NODE_PARAMS *p = context;
    return hc_cuStreamBatchMemOp_v2(stream, p->count, p->paramArray, p->flags);
}

int hc_recipe_memory(struct hc_recipe *recipe, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    return recorded(recipe, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, call_memory, (void *)(uintptr_t)p);
}

struct allocation_call {
    size_t size;
    void *address;
};

static int call_allocate(cudaStream_t stream, void *context)
{
    struct allocation_call *call = context;
    return hc_cudaMallocAsync(&call->address, call->size, stream);
}

/* On the device in the properties, not on the current one. */
int hc_recipe_allocation(struct hc_recipe *recipe, struct cudaMemAllocNodeParams *p)
{
    struct allocation_call call = {0};
    if (!p || !p->bytesize || p->poolProps.handleTypes || (p->accessDescCount && !p->accessDescs))
        return PSM_CUDA_INVALID_VALUE;
    if (p->poolProps.allocType != cudaMemAllocationTypePinned ||
        p->poolProps.location.type != cudaMemLocationTypeDevice)
        return PSM_CUDA_INVALID_VALUE;
    for (size_t i = 0; i < p->accessDescCount; i++)
        if (!hc_peer_possible(p->accessDescs[i].location.id, p->poolProps.location.id) &&
            p->accessDescs[i].location.id != p->poolProps.location.id)
            return PSM_CUDA_INVALID_VALUE;
    call.size = p->bytesize;
    int before = hc_current_device(), rc = hc_set_current_device(p->poolProps.location.id);
    if (rc) return rc;
    rc = recorded(recipe, cudaGraphNodeTypeMemAlloc, call_allocate, &call);
    hc_set_current_device(before);
    if (rc) return rc;
    p->dptr = call.address;
    struct cudaMemAllocNodeParams told = *p;
    told.accessDescs = NULL; /* the node copies the application's array */
    told.accessDescCount = 0;
    rc = hc_payload_describe(&recipe->payload, &told, sizeof told);
    if (rc) drop_alone(recipe);
    return rc;
}

static int call_free(cudaStream_t stream, void *context)
{
    return hc_cudaFreeAsync(context, stream);
}

int hc_recipe_free(struct hc_recipe *recipe, void *address)
{
    if (!address) return PSM_CUDA_INVALID_VALUE;
    int rc = recorded(recipe, cudaGraphNodeTypeMemFree, call_free, address);
    if (!rc && (rc = hc_payload_describe(&recipe->payload, &address, sizeof address))) drop_alone(recipe);
    return rc;
}

/* ---- what is done with a recipe ---- */

static void drop(struct hc_recipe *recipe)
{
    hc_payload_put(recipe->payload);
    recipe->payload = NULL;
}

static void apply(struct hc_recipe *recipe, struct hc_node *node)
{
    hc_payload_put(node->payload);
    node->payload = recipe->payload;
    node->event = recipe->event;
    node->device = recipe->device;
    recipe->payload = NULL;
}

int hc_recipe_add(int error, struct hc_recipe *recipe, cudaGraphNode_t *out, cudaGraph_t graph_handle,
                  const cudaGraphNode_t *dependencies, const CUgraphEdgeData *data, size_t n)
{
    struct hc_graph *graph;
    struct hc_node *node;
    if (error) return error;
    hc_graph_lock();
    int rc = out ? hc_graph_find(graph_handle, &graph) : PSM_CUDA_INVALID_VALUE;
    if (!rc) rc = hc_node_new(graph, recipe->type, dependencies, data, n, &node);
    if (rc) {
        drop(recipe);
    } else {
        apply(recipe, node);
        *out = (cudaGraphNode_t)(uintptr_t)node->handle;
    }
    hc_graph_unlock();
    return rc;
}

int hc_recipe_set(int error, struct hc_recipe *recipe, cudaGraphNode_t handle)
{
    struct hc_node *node;
    if (error) return error;
    hc_graph_lock();
    int rc = hc_node_find(handle, &node);
    if (!rc && node->type != recipe->type) rc = PSM_CUDA_INVALID_VALUE;
    if (rc)
        drop(recipe);
    else
        apply(recipe, node);
    hc_graph_unlock();
    return rc;
}

struct exec_change {
    struct hc_recipe *recipe;
    uint64_t node;
};

static int change(struct hc_graph *clone, void *context)
{
    struct exec_change *what = context;
    struct hc_node *node = hc_graph_find_origin(clone, what->node, true);
    if (!node || node->type != what->recipe->type) return PSM_CUDA_INVALID_VALUE;
    apply(what->recipe, node);
    return 0;
}

int hc_recipe_set_exec(int error, struct hc_recipe *recipe, cudaGraphExec_t handle, cudaGraphNode_t node)
{
    struct exec_change what = {recipe, (uintptr_t)node};
    struct hc_exec *exec;
    if (error) return error;
    int rc = node ? hc_exec_get(handle, &exec) : PSM_CUDA_INVALID_VALUE;
    if (!rc) {
        rc = hc_exec_change(exec, change, &what);
        hc_exec_put(exec);
    }
    drop_alone(recipe);
    return rc;
}

static bool inside(const struct hc_graph *graph, const struct hc_graph *outer)
{
    while (graph != outer && graph->parent) graph = graph->parent->graph;
    return graph == outer;
}

/* The node owns the child: a clone, or the graph itself, which then no longer belongs to the application. */
int hc_recipe_child(cudaGraphNode_t *out, cudaGraph_t graph_handle, const cudaGraphNode_t *dependencies,
                    const CUgraphEdgeData *data, size_t n, cudaGraph_t child_handle, bool move)
{
    struct hc_graph *graph, *child;
    struct hc_node *node;
    hc_graph_lock();
    int rc = out ? hc_graph_find(graph_handle, &graph) : PSM_CUDA_INVALID_VALUE;
    if (!rc) rc = hc_graph_find(child_handle, &child);
    if (!rc && move && (child->parent || child->sequence || inside(graph, child))) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc && !move && hc_graph_allocates(child)) rc = PSM_CUDA_NOT_SUPPORTED;
    if (!rc && !move) rc = hc_graph_clone(child, true, &child);
    if (!rc) {
        rc = hc_node_new(graph, cudaGraphNodeTypeGraph, dependencies, data, n, &node);
        if (rc && !move) hc_graph_free(child);
    }
    if (!rc) {
        node->child = child;
        node->device = hc_current_device();
        child->parent = node;
        *out = (cudaGraphNode_t)(uintptr_t)node->handle;
    }
    hc_graph_unlock();
    return rc;
}

/* ---- what nodes are asked ---- */

/* Kernel nodes report what kernel.c stored, in the driver's form; the location of the argument copies is not reported.
 */
static void runtime_kernel(const CUDA_KERNEL_NODE_PARAMS *noted, struct cudaKernelNodeParams *p)
{
    *p = (struct cudaKernelNodeParams){.func = noted->func, .sharedMemBytes = noted->sharedMemBytes};
    p->gridDim = (dim3){noted->gridDimX, noted->gridDimY, noted->gridDimZ};
    p->blockDim = (dim3){noted->blockDimX, noted->blockDimY, noted->blockDimZ};
}

int hc_node_parameters(cudaGraphNode_t handle, int type, void *out, size_t size)
{
    struct hc_node *node;
    if (!out) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = hc_node_find(handle, &node);
    if (!rc && node->type != type) rc = PSM_CUDA_INVALID_VALUE;
    const struct hc_work *work = !rc && node->payload ? &node->payload->work : NULL;
    if (rc) {
    } else if (!work || !work->node_parameters) {
        rc = PSM_CUDA_NOT_SUPPORTED;
    } else if (work->node_parameters_size == size) {
        memcpy(out, work->node_parameters, size);
    } else if (type == cudaGraphNodeTypeKernel && size == sizeof(struct cudaKernelNodeParams)) {
        runtime_kernel(work->node_parameters, out);
    } else if (type == cudaGraphNodeTypeMemcpy && size == sizeof(CUDA_MEMCPY3D)) {
        parms_to_box(work->node_parameters, out);
    } else if (type == cudaGraphNodeTypeMemcpy && size == sizeof(struct cudaMemcpy3DParms)) {
        box_to_parms(work->node_parameters, out);
    } else {
        rc = PSM_CUDA_NOT_SUPPORTED;
    }
    hc_graph_unlock();
    return rc;
}

int hc_node_event(cudaGraphNode_t handle, int type, CUevent *event)
{
    struct hc_node *node;
    if (!event) return PSM_CUDA_INVALID_VALUE;
    hc_graph_lock();
    int rc = hc_node_find(handle, &node);
    if (!rc && node->type != type) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc) *event = node->event;
    hc_graph_unlock();
    return rc;
}

static int add_graph(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                     const CUgraphEdgeData *data, size_t n, struct cudaChildGraphNodeParams *p)
{
    struct hc_node *node;
    bool move = p->ownership == cudaGraphChildGraphOwnershipMove;
    int rc = hc_recipe_child(out, graph, dependencies, data, n, p->graph, move);
    if (rc) return rc;
    hc_graph_lock();
    if (!hc_node_find(*out, &node) && node->child) p->graph = (cudaGraph_t)(uintptr_t)node->child->handle;
    hc_graph_unlock();
    return 0;
}

/* The two unions have their common members in one place. */
_Static_assert(offsetof(struct cudaGraphNodeParams, type) == offsetof(CUgraphNodeParams, type) &&
                   offsetof(struct cudaGraphNodeParams, graph) == offsetof(CUgraphNodeParams, graph),
               "the type and the child graph of all parameters");

int hc_any_add(hc_recipe_of *of, void *params, cudaGraphNode_t *out, cudaGraph_t graph,
               const cudaGraphNode_t *dependencies, const CUgraphEdgeData *data, size_t n)
{
    struct hc_recipe recipe;
    struct cudaGraphNodeParams *p = params;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    if (p->type == cudaGraphNodeTypeGraph) return add_graph(out, graph, dependencies, data, n, &p->graph);
    int error = of(&recipe, params);
    return hc_recipe_add(error, &recipe, out, graph, dependencies, data, n);
}

static bool may_change(const struct cudaGraphNodeParams *p)
{
    return p && p->type != cudaGraphNodeTypeMemAlloc && p->type != cudaGraphNodeTypeMemFree;
}

int hc_any_set(hc_recipe_of *of, void *params, cudaGraphNode_t node)
{
    struct hc_recipe recipe;
    if (!may_change(params)) return PSM_CUDA_INVALID_VALUE;
    int error = of(&recipe, params);
    return hc_recipe_set(error, &recipe, node);
}

int hc_any_set_exec(hc_recipe_of *of, void *params, cudaGraphExec_t exec, cudaGraphNode_t node)
{
    struct hc_recipe recipe;
    struct cudaGraphNodeParams *p = params;
    if (p && p->type == cudaGraphNodeTypeGraph)
        return hc_cudaGraphExecChildGraphNodeSetParams(exec, node, p->graph.graph);
    if (!may_change(p)) return PSM_CUDA_INVALID_VALUE;
    int error = of(&recipe, params);
    return hc_recipe_set_exec(error, &recipe, exec, node);
}

int hc_recipe_same(struct hc_recipe *recipe, int type, void *parameters)
{
    switch (type) {
    case cudaGraphNodeTypeEmpty:
        *recipe = (struct hc_recipe){.type = cudaGraphNodeTypeEmpty, .device = hc_current_device()};
        return 0;
    case cudaGraphNodeTypeWaitEvent:
        return hc_recipe_event(recipe, type, ((const struct cudaEventWaitNodeParams *)parameters)->event);
    case cudaGraphNodeTypeEventRecord:
        return hc_recipe_event(recipe, type, ((const struct cudaEventRecordNodeParams *)parameters)->event);
    case cudaGraphNodeTypeMemAlloc:
        return hc_recipe_allocation(recipe, parameters);
    case cudaGraphNodeTypeMemFree:
        return hc_recipe_free(recipe, ((const struct cudaMemFreeNodeParams *)parameters)->dptr);
    default:
        return PSM_CUDA_NOT_SUPPORTED;
    }
}
