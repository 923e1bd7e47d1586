/* Fills. As documented, the forms without a stream also return before the fill is done, unless the memory is pinned
 * host memory (or managed, or CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set for it). */
#include "copy/hc_copy.h"

#include <string.h>

static int check(struct hc_fill *fill, uintptr_t dst, size_t pitch, size_t slice, const size_t extent[3],
                 uint32_t value, unsigned element, int device, enum hc_space *space)
{
    struct hc_side side;
    size_t bytes, span;
    memset(fill, 0, sizeof *fill);
    *space = HC_DEVICE;
    if (!extent[0] || !extent[1] || !extent[2]) return 0;
    if (extent[1] == 1 && extent[2] == 1) pitch = 0; /* unused, as documented */
    if (__builtin_mul_overflow(extent[0], (size_t)element, &bytes) || dst % element || pitch % element)
        return PSM_CUDA_INVALID_VALUE;
    if (extent[1] > 1 && pitch < bytes) return PSM_CUDA_INVALID_VALUE;
    if (!hc_box_span(bytes, extent[1], extent[2], pitch, slice, &span)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_side_of(dst, span, true, device, &side);
    if (rc) return rc;
    if (side.space == HC_PAGEABLE) return PSM_CUDA_INVALID_VALUE;
    *fill = (struct hc_fill){dst, pitch, slice, extent[0], extent[1], extent[2], value, element, side.device};
    *space = side.space;
    return 0;
}

int hc_fill_parms(struct hc_fill *fill, const struct cudaMemsetParams *p, int device)
{
    const size_t extent[3] = {p->width, p->height, 1};
    enum hc_space space;
    if (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) return PSM_CUDA_INVALID_VALUE;
    return check(fill, (uintptr_t)p->dst, p->pitch, 0, extent, p->value, p->elementSize, device, &space);
}

/* ---- on the worker */

/* Elements never cross two pieces: pieces start and end at pages, and elements are aligned. */
static void set(char *to, size_t n, uint32_t value, unsigned element)
{
    if (element == 1) {
        memset(to, (int)(value & 0xff), n);
    } else if (element == 2) {
        uint16_t half = (uint16_t)value;
        for (size_t i = 0; i < n; i += 2) memcpy(to + i, &half, 2);
    } else {
        for (size_t i = 0; i < n; i += 4) memcpy(to + i, &value, 4);
    }
}

int hc_fill_run(void *argument, int device)
{
    const struct hc_fill *fill = argument;
    size_t row = fill->width * fill->element, span;
    if (!row || !hc_box_span(row, fill->height, fill->depth, fill->pitch, fill->slice, &span)) return 0;
    struct hc_cursor out = {.end = fill->dst + span, .write = true};
    out.device = fill->dst_device < 0 ? device : fill->dst_device;
    int rc = 0;
    for (size_t z = 0; z < fill->depth && !rc; z++)
        for (size_t y = 0; y < fill->height && !rc; y++) {
            uintptr_t at = fill->dst + z * fill->slice + y * fill->pitch;
            for (size_t left = row, here; left && !rc; left -= here, at += here) {
                char *to = NULL;
                rc = hc_cursor_at(&out, at, &to, &here);
                if (here > left || rc) here = left;
                if (!rc) set(to, here, fill->value, fill->element);
            }
        }
    hc_cursor_end(&out);
    return rc;
}

/* ---- calls */

static int submit(struct hc_stream *stream, const struct hc_fill *fill, enum hc_space space, bool sync)
{
    size_t n = fill->width * fill->element * fill->height * fill->depth;
    struct hc_work work = {.run = hc_fill_run, .argument = fill, .size = sizeof *fill, .node_type = 2};
    struct cudaMemsetParams parms;
    if (!n) return 0;
    if (hc_is_captured(stream)) {
        parms = (struct cudaMemsetParams){(void *)fill->dst, fill->pitch, fill->value,
                                          fill->element,     fill->width, fill->height};
        work.node_parameters = &parms;
        work.node_parameters_size = sizeof parms;
        sync = false;
    }
    bool wait = sync && (space != HC_DEVICE || hc_sync_memops(fill->dst));
    if (wait || n <= HC_COPY_SMALL) work.flags = HC_WORK_QUICK;
    struct hc_ticket ticket;
    int rc = hc_submit(stream, &work, &ticket);
    if (!rc && wait) return hc_ticket_wait(&ticket);
    if (!rc && sync) hc_sync_memop_note(&ticket, fill->dst, 0);
    return rc;
}

struct box {
    uintptr_t dst;
    size_t pitch, slice, extent[3];
};

static int fill_box(struct box b, uint32_t value, unsigned element, cudaStream_t handle, bool sync)
{
    struct hc_stream *stream;
    struct hc_fill fill;
    enum hc_space space;
    int rc = hc_copy_stream(handle, sync, &stream);
    if (rc) return rc;
    rc = check(&fill, b.dst, b.pitch, b.slice, b.extent, value, element, hc_stream_device(stream), &space);
    if (!rc) rc = submit(stream, &fill, space, sync);
    hc_stream_put(stream);
    return rc;
}

static struct box line(uintptr_t dst, size_t n)
{
    return (struct box){dst, 0, 0, {n, 1, 1}};
}

static struct box plane(uintptr_t dst, size_t pitch, size_t width, size_t height)
{
    return (struct box){dst, pitch, 0, {width, height, 1}};
}

cudaError_t hc_cudaMemset(void *devPtr, int value, size_t count)
{
    return fill_box(line((uintptr_t)devPtr, count), (uint32_t)value & 0xff, 1, NULL, true);
}

cudaError_t hc_cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    return fill_box(line((uintptr_t)devPtr, count), (uint32_t)value & 0xff, 1, stream, false);
}

cudaError_t hc_cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width, size_t height)
{
    return fill_box(plane((uintptr_t)devPtr, pitch, width, height), (uint32_t)value & 0xff, 1, NULL, true);
}

cudaError_t hc_cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height,
                                 cudaStream_t stream)
{
    return fill_box(plane((uintptr_t)devPtr, pitch, width, height), (uint32_t)value & 0xff, 1, stream, false);
}

static int fill_pitched(const struct cudaPitchedPtr *p, int value, const struct cudaExtent *extent, cudaStream_t handle,
                        bool sync)
{
    struct box b = {(uintptr_t)p->ptr, p->pitch, 0, {extent->width, extent->height, extent->depth}};
    if (extent->depth > 1 && extent->width && extent->height) {
        if (p->pitch < extent->width || p->ysize < extent->height ||
            __builtin_mul_overflow(p->pitch, p->ysize, &b.slice))
            return PSM_CUDA_INVALID_VALUE;
    }
    return fill_box(b, (uint32_t)value & 0xff, 1, handle, sync);
}

cudaError_t hc_cudaMemset3D(struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent)
{
    return fill_pitched(&pitchedDevPtr, value, &extent, NULL, true);
}

cudaError_t hc_cudaMemset3DAsync(struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent,
                                 cudaStream_t stream)
{
    return fill_pitched(&pitchedDevPtr, value, &extent, stream, false);
}

CUresult hc_cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    return fill_box(line(dstDevice, N), uc, 1, NULL, true);
}

CUresult hc_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
{
    return fill_box(line(dstDevice, N), uc, 1, hStream, false);
}

CUresult hc_cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    return fill_box(line(dstDevice, N), us, 2, NULL, true);
}

CUresult hc_cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream)
{
    return fill_box(line(dstDevice, N), us, 2, hStream, false);
}

CUresult hc_cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    return fill_box(line(dstDevice, N), ui, 4, NULL, true);
}

CUresult hc_cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream)
{
    return fill_box(line(dstDevice, N), ui, 4, hStream, false);
}

CUresult hc_cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height)
{
    return fill_box(plane(dstDevice, dstPitch, Width, Height), uc, 1, NULL, true);
}

CUresult hc_cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
                              CUstream hStream)
{
    return fill_box(plane(dstDevice, dstPitch, Width, Height), uc, 1, hStream, false);
}

CUresult hc_cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height)
{
    return fill_box(plane(dstDevice, dstPitch, Width, Height), us, 2, NULL, true);
}

CUresult hc_cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
                               CUstream hStream)
{
    return fill_box(plane(dstDevice, dstPitch, Width, Height), us, 2, hStream, false);
}

CUresult hc_cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height)
{
    return fill_box(plane(dstDevice, dstPitch, Width, Height), ui, 4, NULL, true);
}

CUresult hc_cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
                               CUstream hStream)
{
    return fill_box(plane(dstDevice, dstPitch, Width, Height), ui, 4, hStream, false);
}
