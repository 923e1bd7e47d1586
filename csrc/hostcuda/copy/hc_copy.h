/* Shared by copies, fills and pointers. */
#ifndef HC_COPY_H
#define HC_COPY_H
#include "copy/hc_bytes.h"
#include "core/hc.h"

/* What a call guarantees about its host memory and when it returns. */
enum hc_copy_mode {
    HC_COPY_SYNC,   /* cudaMemcpy */
    HC_COPY_ASYNC,  /* cudaMemcpyAsync: pageable memory is staged or waited for */
    HC_COPY_STREAM, /* cudaMemcpySrcAccessOrderStream, -Any: the source is read when the stream gets there */
    HC_COPY_DURING, /* cudaMemcpySrcAccessOrderDuringApiCall */
};

/* One operand of a copy or fill, checked. */
struct hc_side {
    enum hc_space space;
    int device; /* device whose access rights apply; -1: that of the stream */
};
/* INVALID_VALUE: NULL, freed, or more than the allocation has. */
int hc_side_of(uintptr_t address, size_t span, bool write, int device, struct hc_side *side);

/* Bytes from the first to the last of a box; false on overflow. */
bool hc_box_span(size_t width, size_t height, size_t depth, size_t pitch, size_t slice, size_t *span);

/* Fills `copy` from addresses of first bytes, with all checks. */
int hc_copy_fill(struct hc_copy *copy, uintptr_t dst, size_t dst_pitch, size_t dst_slice, uintptr_t src,
                 size_t src_pitch, size_t src_slice, const size_t extent[3], int kind, int device);

/* The stream of a call: that of the handle, or for NULL and sync forms the default stream of the call. Rejects sync
 * forms during captures. */
int hc_copy_stream(cudaStream_t handle, bool sync, struct hc_stream **stream);
int hc_copy_submit(struct hc_stream *stream, const struct hc_copy *copy, enum hc_copy_mode mode);
/* Submits if rc is 0, waits as the mode requires, releases the stream. */
int hc_copy_finish(struct hc_stream *stream, struct hc_copy *copy, enum hc_copy_mode mode, int rc);

/* cuPointerSetAttribute(SYNC_MEMOPS) was set for the allocation at this address (pointer.c). */
bool hc_sync_memops(uintptr_t address);
/* Records that a synchronous form is about to return before its work is done. Missing operands are 0. */
void hc_sync_memop_note(const struct hc_ticket *ticket, uintptr_t a, uintptr_t b);

/* Iterates over the pieces of a span on a worker. */
struct hc_cursor {
    struct hc_piece piece;
    uintptr_t at, end; /* the piece begins at `at`; the span ends at `end` */
    int device;
    bool write, held;
};
int hc_cursor_at(struct hc_cursor *cursor, uintptr_t address, char **host, size_t *n);
void hc_cursor_end(struct hc_cursor *cursor);

/* Fills up to this size run in the calling thread if the stream is idle, and pageable sources up to it are staged. */
#define HC_COPY_SMALL ((size_t)64 << 10)
/* Copies up to this size run there, too: waking a worker takes as long as copying them. */
#define HC_COPY_QUICK ((size_t)256 << 10)
/* Copies up to this size hold no memory: nobody waits long for the lock under which they run. */
#define HC_COPY_LOCKED ((size_t)4096)
#endif
