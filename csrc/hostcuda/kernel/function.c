/* What is known about a kernel without parsing its code, and its occupancy of a multiprocessor. */
#define _GNU_SOURCE
#include "kernel/hc_kernel.h"

enum { INVALID_FUNCTION = 98 };

/* The runtime's name of a kernel, or a handle: a kernel of cudaGetKernel may be passed instead. */
static struct hc_function *find(const void *func)
{
    struct hc_function *f = hc_function_of(func);
    return f ? f : hc_function_get(func);
}

static int get(struct hc_function *f, int attribute, int *value)
{
    if (attribute < 0 || attribute >= HC_FUNCTION_ATTRIBUTES) return PSM_CUDA_INVALID_VALUE;
    *value = atomic_load(&f->attributes[attribute]);
    if (attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION || attribute == CU_FUNC_ATTRIBUTE_BINARY_VERSION)
        *value = hc_gpu_of(hc_current_device())->major * 10 + hc_gpu_of(hc_current_device())->minor;
    return 0;
}

static int set_attribute(struct hc_function *f, int attribute, int value)
{
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > hc_attribute(hc_current_device(), cudaDevAttrMaxSharedMemoryPerBlockOptin))
            return PSM_CUDA_INVALID_VALUE;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100) return PSM_CUDA_INVALID_VALUE;
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        if (value < 0) return PSM_CUDA_INVALID_VALUE;
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        if (value != 0 && value != 1) return PSM_CUDA_INVALID_VALUE;
        break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if (value < 0 || value > 2) return PSM_CUDA_INVALID_VALUE;
        break;
    default: /* the others can only be asked */
        return PSM_CUDA_INVALID_VALUE;
    }
    atomic_store(&f->attributes[attribute], value);
    return 0;
}

/* ---- the runtime ---- */

cudaError_t hc_cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func)
{
    struct hc_function *f = find(func);
    if (!attr) return PSM_CUDA_INVALID_VALUE;
    if (!f) return INVALID_FUNCTION;
    *attr = (struct cudaFuncAttributes){0};
    attr->maxThreadsPerBlock = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]);
    attr->numRegs = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS]);
    (void)get(f, CU_FUNC_ATTRIBUTE_PTX_VERSION, &attr->ptxVersion);
    (void)get(f, CU_FUNC_ATTRIBUTE_BINARY_VERSION, &attr->binaryVersion);
    attr->maxDynamicSharedSizeBytes = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]);
    attr->preferredShmemCarveout = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT]);
    attr->requiredClusterWidth = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]);
    attr->requiredClusterHeight = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT]);
    attr->requiredClusterDepth = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH]);
    attr->clusterSchedulingPolicyPreference =
        atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE]);
    attr->nonPortableClusterSizeAllowed =
        atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED]);
    return 0;
}

cudaError_t hc_cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value)
{
    struct hc_function *f = find(func);
    return f ? set_attribute(f, (int)attr, value) : INVALID_FUNCTION;
}

cudaError_t hc_cudaFuncGetName(const char **name, const void *func)
{
    struct hc_function *f = find(func);
    if (!name) return PSM_CUDA_INVALID_VALUE;
    if (!f) return INVALID_FUNCTION;
    *name = f->name;
    return 0;
}

/* Preferences for caches and banks have no visible effect. */
cudaError_t hc_cudaFuncSetCacheConfig(const void *func, enum cudaFuncCache cacheConfig)
{
    if ((unsigned)cacheConfig > 3) return PSM_CUDA_INVALID_VALUE;
    return find(func) ? 0 : INVALID_FUNCTION;
}

cudaError_t hc_cudaFuncSetSharedMemConfig(const void *func, enum cudaSharedMemConfig config)
{
    if ((unsigned)config > 2) return PSM_CUDA_INVALID_VALUE;
    return find(func) ? 0 : INVALID_FUNCTION;
}

/* ---- the driver ---- */

CUresult hc_cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    struct hc_function *f = hc_function_get(hfunc);
    if (!pi) return PSM_CUDA_INVALID_VALUE;
    return f ? get(f, (int)attrib, pi) : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    struct hc_function *f = hc_function_get(hfunc);
    return f ? set_attribute(f, (int)attrib, value) : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuFuncGetName(const char **name, CUfunction hfunc)
{
    struct hc_function *f = hc_function_get(hfunc);
    if (!name) return PSM_CUDA_INVALID_VALUE;
    if (!f) return PSM_CUDA_INVALID_HANDLE;
    *name = f->name;
    return 0;
}

CUresult hc_cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    if ((unsigned)config > 3) return PSM_CUDA_INVALID_VALUE;
    return hc_function_get(hfunc) ? 0 : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    if ((unsigned)config > 2) return PSM_CUDA_INVALID_VALUE;
    return hc_function_get(hfunc) ? 0 : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuFuncLoad(CUfunction function)
{
    return hc_function_get(function) ? 0 : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    if (!state) return PSM_CUDA_INVALID_VALUE;
    if (!hc_function_get(function)) return PSM_CUDA_INVALID_HANDLE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return 0;
}

/* A kernel and its function in a context are the same here. */
CUresult hc_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    int rc = hc_context_require();
    if (!pFunc) return PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    if (!hc_function_get(kernel)) return PSM_CUDA_INVALID_HANDLE;
    *pFunc = (CUfunction)kernel;
    return 0;
}

CUresult hc_cuKernelGetName(const char **name, CUkernel hfunc)
{
    return hc_cuFuncGetName(name, (CUfunction)hfunc);
}

CUresult hc_cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    return hc_cuFuncGetAttribute(pi, attrib, (CUfunction)kernel);
}

CUresult hc_cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    if (!hc_device_valid(dev)) return PSM_CUDA_INVALID_DEVICE;
    return hc_cuFuncSetAttribute((CUfunction)kernel, attrib, val);
}

/* ---- occupancy: by threads, shared memory, registers and blocks ---- */

static int fitting_blocks(struct hc_function *f, int threads, size_t shared)
{
    int per_block = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]);
    int dynamic = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]);
    if (threads > per_block || shared > (size_t)dynamic) return 0;
    int warps = (threads + 31) / 32, registers = atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS]);
    int blocks = hc_attribute(hc_current_device(), cudaDevAttrMaxThreadsPerMultiProcessor) / (warps * 32);
    int limit = hc_attribute(hc_current_device(), cudaDevAttrMaxBlocksPerMultiprocessor);
    if (blocks > limit) blocks = limit;
    limit = hc_attribute(hc_current_device(), cudaDevAttrMaxRegistersPerMultiprocessor) / (warps * 32 * registers);
    if (blocks > limit) blocks = limit;
    size_t each = shared + (size_t)hc_attribute(hc_current_device(), cudaDevAttrReservedSharedMemoryPerBlock);
    if (each) {
        limit = (int)((size_t)hc_attribute(hc_current_device(), cudaDevAttrMaxSharedMemoryPerMultiprocessor) / each);
        if (blocks > limit) blocks = limit;
    }
    return blocks;
}

static int occupancy(int *blocks, struct hc_function *f, int none, int threads, size_t shared, unsigned flags)
{
    if (!blocks || threads <= 0 || (flags & ~1u)) return PSM_CUDA_INVALID_VALUE;
    if (!f) return none;
    *blocks = fitting_blocks(f, threads, shared);
    return 0;
}

cudaError_t hc_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *func, int blockSize,
                                                             size_t dynamicSMemSize)
{
    return occupancy(numBlocks, find(func), INVALID_FUNCTION, blockSize, dynamicSMemSize, 0);
}

cudaError_t hc_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, const void *func, int blockSize,
                                                                      size_t dynamicSMemSize, unsigned int flags)
{
    return occupancy(numBlocks, find(func), INVALID_FUNCTION, blockSize, dynamicSMemSize, flags);
}

CUresult hc_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                        size_t dynamicSMemSize)
{
    int rc = hc_context_require();
    return rc ? rc
              : occupancy(numBlocks, hc_function_get(func), PSM_CUDA_INVALID_HANDLE, blockSize, dynamicSMemSize, 0);
}

CUresult hc_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                                 size_t dynamicSMemSize, unsigned int flags)
{
    int rc = hc_context_require();
    return rc ? rc
              : occupancy(numBlocks, hc_function_get(func), PSM_CUDA_INVALID_HANDLE, blockSize, dynamicSMemSize, flags);
}
