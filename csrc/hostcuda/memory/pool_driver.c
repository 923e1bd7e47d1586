/* Memory pools with the driver's names: the same handles, structs and errors as the runtime's. */
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

CUresult hc_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    return hc_cudaMemPoolCreate(pool, poolProps);
}

CUresult hc_cuMemPoolDestroy(CUmemoryPool pool)
{
    return hc_cudaMemPoolDestroy(pool);
}

CUresult hc_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    return hc_cudaDeviceGetDefaultMemPool(pool_out, dev);
}

CUresult hc_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    return hc_cudaDeviceGetMemPool(pool, dev);
}

CUresult hc_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    return hc_cudaDeviceSetMemPool(dev, pool);
}

CUresult hc_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    return hc_cudaMemGetDefaultMemPool(pool_out, location, type);
}

CUresult hc_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return hc_cudaMemGetMemPool(pool, location, type);
}

CUresult hc_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    return hc_cudaMemSetMemPool(location, type, pool);
}

CUresult hc_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    return hc_cudaMemPoolTrimTo(pool, minBytesToKeep);
}

CUresult hc_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    return hc_cudaMemPoolGetAttribute(pool, attr, value);
}

CUresult hc_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    return hc_cudaMemPoolSetAttribute(pool, attr, value);
}

CUresult hc_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    return hc_cudaMemPoolSetAccess(pool, map, count);
}

CUresult hc_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location)
{
    return hc_cudaMemPoolGetAccess(flags, memPool, location);
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

CUresult hc_cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    return hc_cudaMemPoolExportPointer(shareData_out, (void *)(uintptr_t)ptr);
}

CUresult hc_cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData)
{
    void *at;
    int rc = ptr_out ? hc_cudaMemPoolImportPointer(&at, pool, shareData) : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) *ptr_out = (uintptr_t)at;
    return rc;
}
