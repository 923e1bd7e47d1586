/* Memory pools of the driver API, where they differ from the runtime API. */
#include "memory/hc_pool.h"

CUresult hc_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    void *at;
    int rc = hc_context_require();
    if (rc == 0 && (!dptr || !bytesize)) rc = PSM_CUDA_INVALID_VALUE;
    if (rc == 0) rc = hc_cudaMallocAsync(&at, bytesize, hStream);
    if (rc == 0) *dptr = (uintptr_t)at;
    return rc;
}

CUresult hc_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
    void *at;
    int rc = hc_context_require();
    if (rc == 0 && (!dptr || !bytesize)) rc = PSM_CUDA_INVALID_VALUE;
    if (rc == 0) rc = hc_cudaMallocFromPoolAsync(&at, bytesize, pool, hStream);
    if (rc == 0) *dptr = (uintptr_t)at;
    return rc;
}

CUresult hc_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    int rc = hc_context_require();
    if (rc == 0 && !dptr) rc = PSM_CUDA_INVALID_VALUE;
    return rc ? rc : hc_cudaFreeAsync((void *)(uintptr_t)dptr, hStream);
}

CUresult hc_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                             unsigned long long flags)
{
    return hc_cudaMemPoolExportToShareableHandle(handle_out, pool, handleType, flags != 0);
}

CUresult hc_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                               CUmemAllocationHandleType handleType, unsigned long long flags)
{
    return hc_cudaMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags != 0);
}

CUresult hc_cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData)
{
    void *at;
    int rc = ptr_out ? hc_cudaMemPoolImportPointer(&at, pool, shareData) : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) *ptr_out = (uintptr_t)at;
    return rc;
}
