/* Which queued work uses an address. cuMemUnmap waits for nothing, on a GPU neither: work that was queued before it and
 * runs after it fails with cudaErrorIllegalAddress, far from the call that unmapped the memory. */
#include "copy/hc_copy.h"
#include "memory/hc_memory.h"
#include "psm_messages.h"
#include "stream/hc_stream.h"

struct span {
    uintptr_t at;
    size_t size;
};

static bool meets(const struct span *span, uintptr_t at, size_t size)
{
    return size && at < span->at + span->size && span->at < at + size;
}

static bool box_meets(const struct span *span, uintptr_t at, size_t width, size_t height, size_t depth, size_t pitch,
                      size_t slice)
{
    size_t size;
    return hc_box_span(width, height, depth, pitch, slice, &size) && meets(span, at, size);
}

static bool touches(const struct hc_item *item, const struct span *span)
{
    if (item->run == hc_copy_run) {
        const struct hc_copy *c = (const void *)item->argument;
        bool staged = c->packed || c->stage;
        return box_meets(span, c->dst, c->width, c->height, c->depth, c->dst_pitch, c->dst_slice) ||
               (!staged && box_meets(span, c->src, c->width, c->height, c->depth, c->src_pitch, c->src_slice));
    }
    if (item->run == hc_fill_run) {
        const struct hc_fill *f = (const void *)item->argument;
        return box_meets(span, f->dst, f->width * f->element, f->height, f->depth, f->pitch, f->slice);
    }
    uintptr_t address;
    for (unsigned i = 0; hc_batch_address(item, i, &address); i++)
        if (meets(span, address, 1)) return true;
    return false;
}

bool hc_queued_use(uintptr_t at, size_t size, struct hc_use *use)
{
    const struct span span = {at, size};
    bool found = false;
    pthread_mutex_lock(&hc_queue_lock);
    for (int device = 0; device < HC_MAX_DEVICES && !found; device++)
        for (struct hc_stream *stream = hc_queue_streams(device); stream && !found; stream = stream->device_next)
            for (const struct hc_item *item = stream->first; item && !found; item = item->next) {
                found = touches(item, &span);
                if (!found) continue;
                *use = (struct hc_use){.fn = item->fn,
                                       .tid = item->tid,
                                       .kind = hc_stream_kind_name(stream),
                                       .stream = atomic_load_explicit(&stream->handle, memory_order_relaxed),
                                       .device = device};
            }
    pthread_mutex_unlock(&hc_queue_lock);
    return found;
}

void hc_say_unmapped_in_use(uintptr_t at, size_t size, const struct hc_use *use)
{
    psm_msg_hostcuda_unmapped_in_use(size, at, use->fn >= 0 ? hc_functions[use->fn].name : "work", use->tid, use->kind,
                                     use->stream, use->device);
}
