/* The driver's copies between memory. Errors that the runtime distinguishes (pitch, direction) are one error here. */
#include "copy/hc_copy.h"

#define MAX_PITCH ((size_t)0x7fffffff) /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

static int copy_line(CUdeviceptr dst, CUdeviceptr src, size_t n, int kind, CUstream handle, enum hc_copy_mode mode)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    int rc = hc_copy_stream(handle, mode == HC_COPY_SYNC, &stream);
    if (rc) return rc;
    rc = hc_copy_line(&copy, (void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n, kind, hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, mode, rc);
}

CUresult hc_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    return copy_line(dst, src, ByteCount, cudaMemcpyDefault, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
    return copy_line(dst, src, ByteCount, cudaMemcpyDefault, hStream, HC_COPY_ASYNC);
}

CUresult hc_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
    return copy_line(dstDevice, (uintptr_t)srcHost, ByteCount, cudaMemcpyHostToDevice, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
    return copy_line(dstDevice, (uintptr_t)srcHost, ByteCount, cudaMemcpyHostToDevice, hStream, HC_COPY_ASYNC);
}

CUresult hc_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_line((uintptr_t)dstHost, srcDevice, ByteCount, cudaMemcpyDeviceToHost, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return copy_line((uintptr_t)dstHost, srcDevice, ByteCount, cudaMemcpyDeviceToHost, hStream, HC_COPY_ASYNC);
}

CUresult hc_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
    return copy_line(dstDevice, srcDevice, ByteCount, cudaMemcpyDeviceToDevice, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
    return copy_line(dstDevice, srcDevice, ByteCount, cudaMemcpyDeviceToDevice, hStream, HC_COPY_ASYNC);
}

static bool contexts(CUcontext a, CUcontext b)
{
    return hc_context_device(a) >= 0 && hc_context_device(b) >= 0;
}

CUresult hc_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                         size_t ByteCount)
{
    if (!contexts(dstContext, srcContext)) return PSM_CUDA_INVALID_CONTEXT;
    return copy_line(dstDevice, srcDevice, ByteCount, cudaMemcpyDeviceToDevice, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                              size_t ByteCount, CUstream hStream)
{
    if (!contexts(dstContext, srcContext)) return PSM_CUDA_INVALID_CONTEXT;
    return copy_line(dstDevice, srcDevice, ByteCount, cudaMemcpyDeviceToDevice, hStream, HC_COPY_ASYNC);
}

/* ---- 2D and 3D */

struct operand {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    size_t x, y, z, pitch, rows; /* a pitch of 0: rows are contiguous */
};

/* Address of the first byte, and the effective pitch and slice. */
static int resolve(struct operand *o, size_t width, size_t height, size_t depth, uintptr_t *address, size_t *slice)
{
    size_t end, layer, row, start;
    if (o->type == CU_MEMORYTYPE_ARRAY) return PSM_CUDA_NOT_SUPPORTED;
    if (o->type != CU_MEMORYTYPE_HOST && o->type != CU_MEMORYTYPE_DEVICE && o->type != CU_MEMORYTYPE_UNIFIED)
        return PSM_CUDA_INVALID_VALUE;
    uintptr_t base = o->type == CU_MEMORYTYPE_HOST ? (uintptr_t)o->host : (uintptr_t)o->device;
    if (!base || __builtin_add_overflow(o->x, width, &end)) return PSM_CUDA_INVALID_VALUE;
    if (!o->pitch) o->pitch = end;
    if (o->pitch < end || o->pitch > MAX_PITCH) return PSM_CUDA_INVALID_VALUE;
    bool one_layer = depth == 1 && !o->z;
    if (!one_layer && (o->y > o->rows || height > o->rows - o->y)) return PSM_CUDA_INVALID_VALUE;
    if (__builtin_mul_overflow(o->pitch, o->rows, slice) || __builtin_mul_overflow(*slice, o->z, &layer) ||
        __builtin_mul_overflow(o->pitch, o->y, &row) || __builtin_add_overflow(layer, row, &start) ||
        __builtin_add_overflow(start, o->x, &start) || __builtin_add_overflow(base, start, address))
        return PSM_CUDA_INVALID_VALUE;
    return 0;
}

/* The kind that results from two memory types; unified ones promise nothing. */
static int kind_of(CUmemorytype dst, CUmemorytype src)
{
    if (dst == CU_MEMORYTYPE_UNIFIED || src == CU_MEMORYTYPE_UNIFIED) return cudaMemcpyDefault;
    if (dst == CU_MEMORYTYPE_DEVICE)
        return src == CU_MEMORYTYPE_DEVICE ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return src == CU_MEMORYTYPE_DEVICE ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

int hc_copy_box(struct hc_copy *copy, const CUDA_MEMCPY3D *p, int device)
{
    const size_t extent[3] = {p->WidthInBytes, p->Height, p->Depth};
    struct operand from = {p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes,
                           p->srcY,          p->srcZ,    p->srcPitch,  p->srcHeight};
    struct operand to = {p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes,
                         p->dstY,          p->dstZ,    p->dstPitch,  p->dstHeight};
    uintptr_t dst = 0, src = 0;
    size_t dst_slice = 0, src_slice = 0;
    if (p->srcLOD || p->dstLOD) return PSM_CUDA_INVALID_VALUE; /* levels of mipmapped arrays */
    if (extent[0] && extent[1] && extent[2]) {
        int rc = resolve(&from, extent[0], extent[1], extent[2], &src, &src_slice);
        if (!rc) rc = resolve(&to, extent[0], extent[1], extent[2], &dst, &dst_slice);
        if (rc) return rc;
    }
    return hc_copy_fill(copy, dst, to.pitch, dst_slice, src, from.pitch, src_slice, extent,
                        kind_of(p->dstMemoryType, p->srcMemoryType), device);
}

static int copy_box(const CUDA_MEMCPY3D *p, CUstream handle, enum hc_copy_mode mode)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    int rc = hc_copy_stream(handle, mode == HC_COPY_SYNC, &stream);
    if (rc) return rc;
    rc = hc_copy_box(&copy, p, hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, mode, rc);
}

static int copy_plane(const CUDA_MEMCPY2D *p, CUstream handle, enum hc_copy_mode mode)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    CUDA_MEMCPY3D box = {
        .srcXInBytes = p->srcXInBytes,
        .srcY = p->srcY,
        .srcMemoryType = p->srcMemoryType,
        .srcHost = p->srcHost,
        .srcDevice = p->srcDevice,
        .srcArray = p->srcArray,
        .srcPitch = p->srcPitch,
        .dstXInBytes = p->dstXInBytes,
        .dstY = p->dstY,
        .dstMemoryType = p->dstMemoryType,
        .dstHost = p->dstHost,
        .dstDevice = p->dstDevice,
        .dstArray = p->dstArray,
        .dstPitch = p->dstPitch,
        .WidthInBytes = p->WidthInBytes,
        .Height = p->Height,
        .Depth = 1,
    };
    return copy_box(&box, handle, mode);
}

CUresult hc_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
    return copy_plane(pCopy, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
    return copy_plane(pCopy, hStream, HC_COPY_ASYNC);
}

CUresult hc_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
    return pCopy ? copy_box(pCopy, NULL, HC_COPY_SYNC) : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
    return pCopy ? copy_box(pCopy, hStream, HC_COPY_ASYNC) : PSM_CUDA_INVALID_VALUE;
}

static int copy_peer(const CUDA_MEMCPY3D_PEER *p, CUstream handle, enum hc_copy_mode mode)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    if (!contexts(p->dstContext, p->srcContext)) return PSM_CUDA_INVALID_CONTEXT;
    CUDA_MEMCPY3D box = {
        .srcXInBytes = p->srcXInBytes,
        .srcY = p->srcY,
        .srcZ = p->srcZ,
        .srcLOD = p->srcLOD,
        .srcMemoryType = p->srcMemoryType,
        .srcHost = p->srcHost,
        .srcDevice = p->srcDevice,
        .srcArray = p->srcArray,
        .srcPitch = p->srcPitch,
        .srcHeight = p->srcHeight,
        .dstXInBytes = p->dstXInBytes,
        .dstY = p->dstY,
        .dstZ = p->dstZ,
        .dstLOD = p->dstLOD,
        .dstMemoryType = p->dstMemoryType,
        .dstHost = p->dstHost,
        .dstDevice = p->dstDevice,
        .dstArray = p->dstArray,
        .dstPitch = p->dstPitch,
        .dstHeight = p->dstHeight,
        .WidthInBytes = p->WidthInBytes,
        .Height = p->Height,
        .Depth = p->Depth,
    };
    return copy_box(&box, handle, mode);
}

CUresult hc_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
    return copy_peer(pCopy, NULL, HC_COPY_SYNC);
}

CUresult hc_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
    return copy_peer(pCopy, hStream, HC_COPY_ASYNC);
}
