/* The runtime's copies between memory; batches are in copy_batch.c. Copies with arrays are not defined: arrays do not
 * exist. */
#include "copy/hc_copy.h"
#include "fault.h"

#include <time.h>

#define MAX_PITCH ((size_t)0x7fffffff) /* cudaDevAttrMaxPitch */

static int copy_line(void *dst, const void *src, size_t n, int kind, cudaStream_t handle, enum hc_copy_mode mode)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    int rc = hc_copy_stream(handle, mode == HC_COPY_SYNC, &stream);
    if (rc) return rc;
    rc = hc_copy_line(&copy, dst, src, n, kind, hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, mode, rc);
}

cudaError_t hc_cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
    return copy_line(dst, src, count, (int)kind, NULL, HC_COPY_SYNC);
}

/* A host function: what a fault makes late waits behind it. */
static void wait_for(void *data)
{
    int64_t ns = __atomic_load_n((const int64_t *)data, __ATOMIC_RELAXED);
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

cudaError_t hc_cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    int64_t most;
    static int64_t late;
    if (hc_fault_asks(PSM_FAULT_STALL, &most)) {
        __atomic_store_n(&late, most, __ATOMIC_RELAXED); /* the same for each copy */
        hc_cudaLaunchHostFunc(stream, wait_for, &late);
    }
    if (hc_fault_asks(PSM_FAULT_SHORT, &most) && (uint64_t)most < count) count = (size_t)most;
    if (hc_fault_asks(PSM_FAULT_CORRUPT, NULL) && count > 0) { /* all bytes from one place farther */
        src = (const char *)src + 1;
        count--;
    }
    return copy_line(dst, src, count, (int)kind, stream, HC_COPY_ASYNC);
}

/* ---- between devices: no peer access is needed, since the driver can go through the host. The devices must exist; the
 * pointers say where the memory is. */

static bool device_exists(int device)
{
    return device >= 0 && device < hc_device_count();
}

static int copy_peer(void *dst, int to, const void *src, int from, size_t n, cudaStream_t handle,
                     enum hc_copy_mode mode)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    if (!device_exists(to) || !device_exists(from)) return PSM_CUDA_INVALID_DEVICE;
    int rc = hc_copy_stream(handle, mode == HC_COPY_SYNC, &stream);
    if (rc) return rc;
    rc = hc_copy_line(&copy, dst, src, n, cudaMemcpyDeviceToDevice, hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, mode, rc);
}

cudaError_t hc_cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count)
{
    return copy_peer(dst, dstDevice, src, srcDevice, count, NULL, HC_COPY_SYNC);
}

cudaError_t hc_cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
                                   cudaStream_t stream)
{
    return copy_peer(dst, dstDevice, src, srcDevice, count, stream, HC_COPY_ASYNC);
}

/* ---- 2D */

static int copy_plane(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, int kind,
                      cudaStream_t handle, enum hc_copy_mode mode)
{
    const size_t extent[3] = {width, height, 1};
    struct hc_stream *stream;
    struct hc_copy copy;
    int rc = hc_copy_stream(handle, mode == HC_COPY_SYNC, &stream);
    if (rc) return rc;
    if (width && height && (dpitch < width || spitch < width || dpitch > MAX_PITCH || spitch > MAX_PITCH))
        rc = PSM_CUDA_INVALID_PITCH_VALUE;
    else
        rc = hc_copy_fill(&copy, (uintptr_t)dst, dpitch, 0, (uintptr_t)src, spitch, 0, extent, kind,
                          hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, mode, rc);
}

cudaError_t hc_cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                            enum cudaMemcpyKind kind)
{
    return copy_plane(dst, dpitch, src, spitch, width, height, (int)kind, NULL, HC_COPY_SYNC);
}

cudaError_t hc_cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                                 enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_plane(dst, dpitch, src, spitch, width, height, (int)kind, stream, HC_COPY_ASYNC);
}

/* ---- 3D */

/* One operand of a 3D copy: the address of its first byte. The pitch may be missing if there is only one row. */
static int operand(cudaArray_const_t array, const struct cudaPitchedPtr *p, const struct cudaPos *at,
                   const struct cudaExtent *extent, uintptr_t *address, size_t *slice)
{
    size_t end, row, column;
    if (array)
        return p->ptr ? PSM_CUDA_INVALID_VALUE : PSM_CUDA_NOT_SUPPORTED; /* one of the two; arrays do not exist */
    if (!p->ptr) return PSM_CUDA_INVALID_VALUE;
    if (__builtin_add_overflow(at->x, extent->width, &end)) return PSM_CUDA_INVALID_VALUE;
    bool one_row = extent->height == 1 && extent->depth == 1 && !at->y && !at->z;
    bool one_layer = extent->depth == 1 && !at->z;
    if (p->pitch > MAX_PITCH || (p->pitch < end && !(one_row && !p->pitch))) return PSM_CUDA_INVALID_PITCH_VALUE;
    if (!one_layer && (at->y > p->ysize || extent->height > p->ysize - at->y)) return PSM_CUDA_INVALID_VALUE;
    if (__builtin_mul_overflow(p->pitch, p->ysize, slice) || __builtin_mul_overflow(*slice, at->z, &column) ||
        __builtin_mul_overflow(p->pitch, at->y, &row) || __builtin_add_overflow(column, row, &row) ||
        __builtin_add_overflow(row, at->x, &row) || __builtin_add_overflow((uintptr_t)p->ptr, row, address))
        return PSM_CUDA_INVALID_VALUE;
    return 0;
}

int hc_copy_parms(struct hc_copy *copy, const struct cudaMemcpy3DParms *p, int device)
{
    const size_t extent[3] = {p->extent.width, p->extent.height, p->extent.depth};
    uintptr_t dst = 0, src = 0;
    size_t dst_slice = 0, src_slice = 0;
    if (extent[0] && extent[1] && extent[2]) {
        int rc = operand(p->srcArray, &p->srcPtr, &p->srcPos, &p->extent, &src, &src_slice);
        if (!rc) rc = operand(p->dstArray, &p->dstPtr, &p->dstPos, &p->extent, &dst, &dst_slice);
        if (rc) return rc;
    }
    return hc_copy_fill(copy, dst, p->dstPtr.pitch, dst_slice, src, p->srcPtr.pitch, src_slice, extent, (int)p->kind,
                        device);
}

static int copy_parms(const struct cudaMemcpy3DParms *p, cudaStream_t handle, enum hc_copy_mode mode)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    if (!p) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_copy_stream(handle, mode == HC_COPY_SYNC, &stream);
    if (rc) return rc;
    rc = hc_copy_parms(&copy, p, hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, mode, rc);
}

cudaError_t hc_cudaMemcpy3D(const struct cudaMemcpy3DParms *p)
{
    return copy_parms(p, NULL, HC_COPY_SYNC);
}

cudaError_t hc_cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t stream)
{
    return copy_parms(p, stream, HC_COPY_ASYNC);
}

static int copy_peer_parms(const struct cudaMemcpy3DPeerParms *p, cudaStream_t handle, enum hc_copy_mode mode)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    if (!device_exists(p->dstDevice) || !device_exists(p->srcDevice)) return PSM_CUDA_INVALID_DEVICE;
    struct cudaMemcpy3DParms same = {
        .srcArray = p->srcArray,
        .srcPos = p->srcPos,
        .srcPtr = p->srcPtr,
        .dstArray = p->dstArray,
        .dstPos = p->dstPos,
        .dstPtr = p->dstPtr,
        .extent = p->extent,
        .kind = cudaMemcpyDeviceToDevice,
    };
    return copy_parms(&same, handle, mode);
}

cudaError_t hc_cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *p)
{
    return copy_peer_parms(p, NULL, HC_COPY_SYNC);
}

cudaError_t hc_cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream)
{
    return copy_peer_parms(p, stream, HC_COPY_ASYNC);
}

/* ---- variables on the device: those that the application registered, as compiled CUDA code does when it is loaded */

/* Address of [offset, offset + count) in a variable. */
static int variable(const void *symbol, size_t count, size_t offset, uintptr_t *address)
{
    uintptr_t base;
    size_t size;
    int rc = hc_symbol_of(symbol, &base, &size);
    if (rc) return rc;
    if (offset > size || count > size - offset) return PSM_CUDA_INVALID_VALUE;
    *address = base + offset;
    return 0;
}

static int copy_to_symbol(const void *symbol, const void *src, size_t count, size_t offset, int kind,
                          cudaStream_t handle, enum hc_copy_mode mode)
{
    uintptr_t address;
    int rc = variable(symbol, count, offset, &address);
    if (!rc && (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost)) rc = PSM_CUDA_INVALID_MEMCPY_DIRECTION;
    return rc ? rc : copy_line((void *)address, src, count, kind, handle, mode);
}

static int copy_from_symbol(void *dst, const void *symbol, size_t count, size_t offset, int kind, cudaStream_t handle,
                            enum hc_copy_mode mode)
{
    uintptr_t address;
    int rc = variable(symbol, count, offset, &address);
    if (!rc && (kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice)) rc = PSM_CUDA_INVALID_MEMCPY_DIRECTION;
    return rc ? rc : copy_line(dst, (const void *)address, count, kind, handle, mode);
}

cudaError_t hc_cudaMemcpyToSymbol(const void *symbol, const void *src, size_t count, size_t offset,
                                  enum cudaMemcpyKind kind)
{
    return copy_to_symbol(symbol, src, count, offset, (int)kind, NULL, HC_COPY_SYNC);
}

cudaError_t hc_cudaMemcpyToSymbolAsync(const void *symbol, const void *src, size_t count, size_t offset,
                                       enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_to_symbol(symbol, src, count, offset, (int)kind, stream, HC_COPY_ASYNC);
}

cudaError_t hc_cudaMemcpyFromSymbol(void *dst, const void *symbol, size_t count, size_t offset,
                                    enum cudaMemcpyKind kind)
{
    return copy_from_symbol(dst, symbol, count, offset, (int)kind, NULL, HC_COPY_SYNC);
}

cudaError_t hc_cudaMemcpyFromSymbolAsync(void *dst, const void *symbol, size_t count, size_t offset,
                                         enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_from_symbol(dst, symbol, count, offset, (int)kind, stream, HC_COPY_ASYNC);
}
