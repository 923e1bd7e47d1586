/* Copies: the checks at the call, the work on the stream, and what the call waits for.
 *
 * CUDA documents the direction as a promise of the application; the pointers decide (unified addressing). A kind that
 * contradicts them is undefined there, and in practice a pageable address on the device's side is an invalid value.
 * Here every contradiction is.
 *
 * Waiting follows "API synchronization behavior" of the documentation: asynchronous copies between host memory are
 * synchronous; those from pageable memory return when their source was read, which for more than 64 KiB means when they
 * are done; those to pageable memory return when they are done. Synchronous copies between devices do not wait, unless
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set. */
#include "copy/hc_copy.h"
#include "memory/hc_memory.h"

#include <stdlib.h>
#include <string.h>

/* Sources up to this size are stored in the argument of the work. */
#define PACKED (HC_ARGUMENT - sizeof(struct hc_copy))

/* ---- operands */

/* NULL, and addresses close to it. */
static bool wrong(uintptr_t address, size_t span)
{
    return address < HC_PAGE || address + span < address;
}

static struct hc_side side_at(const struct hc_place *place, bool write)
{
    /* Another process may own it: fetch it while the call is checked and queued. */
    if (place->space != HC_PAGEABLE) {
        if (write)
            hc_fetch_own(place->host);
        else
            __builtin_prefetch(place->host);
    }
    return (struct hc_side){place->space, place->origin == HC_FROM_VMM ? -1 : place->device};
}

int hc_side_of(uintptr_t address, size_t span, bool write, int device, struct hc_side *side)
{
    struct hc_place place;
    if (wrong(address, span)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_operand_of(address, span, device, write, &place);
    *side = side_at(&place, write);
    return rc;
}

bool hc_box_span(size_t width, size_t height, size_t depth, size_t pitch, size_t slice, size_t *span)
{
    size_t layers, rows;
    return !__builtin_mul_overflow(depth - 1, slice, &layers) && !__builtin_mul_overflow(height - 1, pitch, &rows) &&
           !__builtin_add_overflow(layers, rows, span) && !__builtin_add_overflow(*span, width, span);
}

/* Whether an operand matches the kind. Pinned and managed memory match both sides. */
static bool fits(enum hc_space space, bool device)
{
    return device ? space != HC_PAGEABLE : space != HC_DEVICE;
}

static bool kind_fits(const struct hc_copy *copy)
{
    if (copy->kind == cudaMemcpyDefault) return true;
    bool to_device = copy->kind == cudaMemcpyHostToDevice || copy->kind == cudaMemcpyDeviceToDevice;
    bool from_device = copy->kind == cudaMemcpyDeviceToHost || copy->kind == cudaMemcpyDeviceToDevice;
    return fits(copy->dst_space, to_device) && fits(copy->src_space, from_device);
}

int hc_copy_fill(struct hc_copy *copy, uintptr_t dst, size_t dst_pitch, size_t dst_slice, uintptr_t src,
                 size_t src_pitch, size_t src_slice, const size_t extent[3], int kind, int device)
{
    memset(copy, 0, sizeof *copy);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return PSM_CUDA_INVALID_MEMCPY_DIRECTION;
    if (!extent[0] || !extent[1] || !extent[2]) return 0;
    copy->width = extent[0], copy->height = extent[1], copy->depth = extent[2];
    copy->dst = dst, copy->dst_pitch = dst_pitch, copy->dst_slice = dst_slice;
    copy->src = src, copy->src_pitch = src_pitch, copy->src_slice = src_slice;
    copy->kind = kind;

    size_t to = 0, from = 0;
    if (!hc_box_span(extent[0], extent[1], extent[2], dst_pitch, dst_slice, &to) ||
        !hc_box_span(extent[0], extent[1], extent[2], src_pitch, src_slice, &from))
        return PSM_CUDA_INVALID_VALUE;
    struct hc_place places[2];
    if (wrong(dst, to) || wrong(src, from)) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_operands_of(dst, to, src, from, device, places);
    if (rc) return rc;
    struct hc_side out = side_at(&places[0], true), in = side_at(&places[1], false);
    copy->dst_space = out.space, copy->dst_device = out.device;
    copy->src_space = in.space, copy->src_device = in.device;
    return kind_fits(copy) ? 0 : PSM_CUDA_INVALID_VALUE;
}

int hc_copy_line(struct hc_copy *copy, void *dst, const void *src, size_t n, int kind, int device)
{
    const size_t extent[3] = {n, 1, 1};
    return hc_copy_fill(copy, (uintptr_t)dst, n, n, (uintptr_t)src, n, n, extent, kind, device);
}

/* ---- on the worker */

int hc_cursor_at(struct hc_cursor *cursor, uintptr_t address, char **host, size_t *n)
{
    if (!cursor->held || address < cursor->at || address - cursor->at >= cursor->piece.n) {
        hc_cursor_end(cursor);
        /* Memory that was valid at the call and is not any more: a GPU reports an illegal address. */
        if (hc_piece_of(address, cursor->end - address, cursor->device, cursor->write, &cursor->piece))
            return PSM_CUDA_ILLEGAL_ADDRESS;
        cursor->held = true;
        cursor->at = address;
        if (!cursor->piece.n) return PSM_CUDA_ILLEGAL_ADDRESS;
    }
    *host = (char *)cursor->piece.host + (address - cursor->at);
    *n = cursor->piece.n - (address - cursor->at);
    return 0;
}

void hc_cursor_end(struct hc_cursor *cursor)
{
    if (cursor->held) hc_piece_end(&cursor->piece);
    cursor->held = false;
}

static int copy_row(struct hc_cursor *to, struct hc_cursor *from, uintptr_t dst, uintptr_t src, size_t n)
{
    while (n) {
        char *out, *in;
        size_t room, here;
        int rc = hc_cursor_at(to, dst, &out, &room);
        if (!rc) rc = hc_cursor_at(from, src, &in, &here);
        if (rc) return rc;
        if (here > room) here = room;
        if (here > n) here = n;
        hc_bytes_move(out, in, here);
        dst += here, src += here, n -= here;
    }
    return 0;
}

int hc_copy_run(void *argument, int device)
{
    const struct hc_copy *copy = argument;
    uintptr_t src = copy->packed ? (uintptr_t)(copy + 1) : copy->stage ? (uintptr_t)copy->stage : copy->src;
    size_t width = copy->width, height = copy->height, depth = copy->depth, to, from;
    if (width <= HC_COPY_LOCKED && height == 1 && depth == 1 && !copy->packed && !copy->stage &&
        hc_ranges_copy(copy->dst, copy->dst_device < 0 ? device : copy->dst_device, src,
                       copy->src_device < 0 ? device : copy->src_device, width))
        return 0;
    hc_box_span(width, height, depth, copy->dst_pitch, copy->dst_slice, &to);
    hc_box_span(width, height, depth, copy->src_pitch, copy->src_slice, &from);
    struct hc_cursor out = {.end = copy->dst + to, .write = true};
    struct hc_cursor in = {.end = src + from};
    out.device = copy->dst_device < 0 ? device : copy->dst_device;
    in.device = copy->src_device < 0 ? device : copy->src_device;

    if (copy->dst_pitch == width && copy->src_pitch == width) width *= height, height = 1;
    if (height == 1 && copy->dst_slice == width && copy->src_slice == width) width *= depth, depth = 1;
    int rc = 0;
    for (size_t z = 0; z < depth && !rc; z++)
        for (size_t y = 0; y < height && !rc; y++)
            rc = copy_row(&out, &in, copy->dst + z * copy->dst_slice + y * copy->dst_pitch,
                          src + z * copy->src_slice + y * copy->src_pitch, width);
    hc_cursor_end(&out);
    hc_cursor_end(&in);
    return rc;
}

/* ---- submission */

int hc_copy_stream(cudaStream_t handle, bool sync, struct hc_stream **stream)
{
    const struct hc_call *call = hc_current_call();
    if (!handle && call && call->per_thread_default) handle = (cudaStream_t)PSM_CUDA_STREAM_PER_THREAD;
    int rc = sync ? hc_capture_forbids(!handle) : 0;
    if (!rc) rc = hc_stream_get(handle, stream);
    if (rc || !sync || !hc_is_captured(*stream)) return rc;
    rc = hc_captures->forbids_stream(*stream); /* a per-thread stream: a call that waits cannot become a node */
    if (rc) hc_stream_put(*stream);
    return rc;
}

static bool is_host(enum hc_space space)
{
    return space == HC_PAGEABLE || space == HC_PINNED;
}

/* Whether the source must be read before the call returns. */
static bool reads_at_call(const struct hc_copy *copy, enum hc_copy_mode mode)
{
    if (mode == HC_COPY_ASYNC) return copy->src_space == HC_PAGEABLE && !is_host(copy->dst_space);
    return mode == HC_COPY_DURING;
}

static bool waits(const struct hc_copy *copy, enum hc_copy_mode mode)
{
    switch (mode) {
    case HC_COPY_SYNC:
        return copy->src_space != HC_DEVICE || copy->dst_space != HC_DEVICE || hc_sync_memops(copy->src) ||
               hc_sync_memops(copy->dst);
    case HC_COPY_ASYNC:
        return copy->dst_space == HC_PAGEABLE || (is_host(copy->src_space) && is_host(copy->dst_space));
    default:
        return false;
    }
}

static void free_stage(void *argument)
{
    free(((struct hc_copy *)argument)->stage);
}

/* Reads the source now if it is host memory and small. The staged box has no gaps. */
static bool stage(struct hc_copy *copy, size_t n, char *packed)
{
    if (!is_host(copy->src_space) || n > HC_COPY_SMALL) return false;
    char *to = n <= PACKED ? packed : malloc(n);
    if (!to) return false;
    struct hc_copy now = *copy;
    now.dst = (uintptr_t)to;
    now.dst_pitch = copy->width;
    now.dst_slice = copy->width * copy->height;
    now.dst_device = -1;
    if (hc_copy_run(&now, copy->src_device < 0 ? 0 : copy->src_device)) {
        if (to != packed) free(to);
        return false;
    }
    copy->packed = to == packed;
    copy->stage = copy->packed ? NULL : to;
    copy->src_pitch = now.dst_pitch;
    copy->src_slice = now.dst_slice;
    copy->src_device = -1;
    return true;
}

/* The copy as cudaGraphMemcpyNodeGetParams returns it. */
static struct cudaMemcpy3DParms parms_of(const struct hc_copy *copy)
{
    struct cudaMemcpy3DParms p = {0};
    p.srcPtr.ptr = (void *)copy->src;
    p.srcPtr.pitch = copy->src_pitch;
    p.srcPtr.xsize = copy->width;
    p.srcPtr.ysize = copy->src_pitch ? copy->src_slice / copy->src_pitch : 0;
    p.dstPtr.ptr = (void *)copy->dst;
    p.dstPtr.pitch = copy->dst_pitch;
    p.dstPtr.xsize = copy->width;
    p.dstPtr.ysize = copy->dst_pitch ? copy->dst_slice / copy->dst_pitch : 0;
    p.extent = (struct cudaExtent){copy->width, copy->height, copy->depth};
    p.kind = (enum cudaMemcpyKind)copy->kind;
    return p;
}

int hc_copy_submit(struct hc_stream *stream, const struct hc_copy *plain, enum hc_copy_mode mode)
{
    if (!plain->width) return 0; /* nothing to copy */
    struct {
        struct hc_copy copy;
        char packed[PACKED];
    } argument;
    argument.copy = *plain;
    struct hc_copy *copy = &argument.copy;
    struct hc_work work = {.run = hc_copy_run, .argument = &argument, .node_type = 1, .size = sizeof *copy};
    size_t n = copy->width * copy->height * copy->depth;
    struct cudaMemcpy3DParms parms;
    bool wait = false;
    if (hc_is_captured(stream)) { /* a node reads its operands each time the graph runs */
        parms = parms_of(copy);
        work.node_parameters = &parms;
        work.node_parameters_size = sizeof parms;
    } else if (reads_at_call(copy, mode) && stage(copy, n, argument.packed)) {
        if (copy->packed)
            work.size += n;
        else
            work.end = free_stage;
    } else {
        wait = reads_at_call(copy, mode) || waits(copy, mode);
    }
    if (wait || n <= HC_COPY_QUICK) work.flags = HC_WORK_QUICK;
    struct hc_ticket ticket;
    int rc = hc_submit(stream, &work, &ticket);
    if (rc && work.end) work.end(copy);
    if (!rc && wait) return hc_ticket_wait(&ticket);
    if (!rc && mode == HC_COPY_SYNC && !work.node_parameters) hc_sync_memop_note(&ticket, copy->dst, copy->src);
    return rc;
}

int hc_copy_finish(struct hc_stream *stream, struct hc_copy *copy, enum hc_copy_mode mode, int rc)
{
    if (!rc) rc = hc_copy_submit(stream, copy, mode);
    hc_stream_put(stream);
    return rc;
}
