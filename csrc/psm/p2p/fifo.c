/* The FIFO in host memory, copied by the processor. A slot starts with the number of the step that filled it, on one
 * cache line with the first bytes, so that a short message costs the transfer of one line. The tail is published once
 * per half round, and when the receiver finds nothing. What a message does not need is done behind it: the other end
 * waits for the message alone. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "psm/psm_fifo.h"
#include "shm/line.h"
#include "shm/segment.h"

#define FIFO_MAGIC   0x50534d464946u /* "PSMFIF" */
#define FIFO_VERSION 2               /* of the layout below */

struct psm_fifo_head {
    PSM_ALIGNED(64) uint64_t magic;
    uint32_t version, slots, slot_bytes, unused;
    uint64_t more[5];
    struct psm_line tail; /* steps received */
};
PSM_SHAREABLE(psm_fifo_head, 128);

struct psm_fifo_slot {
    PSM_ALIGNED(64) _Atomic uint64_t step; /* 1 + the step whose bytes are here */
    uint32_t bytes, unused;
    uint8_t data[48]; /* of a short message; the rest follows the struct, and so does all of a long one */
};
PSM_SHAREABLE(psm_fifo_slot, 64);

struct psmFifo {
    struct psm_segment segment;
    struct psm_fifo_head *head;
    uint8_t *slots, *at, *end; /* first slot; slot of the next step; behind the last slot */
    uint64_t stride, step;
    uint64_t free_until; /* send: steps below it have a slot. receive: the published tail */
    uint32_t count, capacity, back, used;
};

enum {
    IN_LINE = sizeof((struct psm_fifo_slot *)0)->data,
    AHEAD = 1024,
    LONG = 4096, /* a message of more bytes begins on a line of its own: copies between aligned lines are faster */
    /* One end copies a slot while the other end copies the next. Megabytes move fastest through slots that a
     * processor's own cache holds all together, and that are enough for an end to go on while the other one is held up.
     */
    SLOT_MOST = 65536,
    LARGE_SLOTS = 16,
};

/* What a FIFO of slots that its user asked for has: larger slots than SLOT_MOST are some more of that size. */
struct shape {
    uint32_t slots, capacity;
    uint64_t stride, size;
};

static struct shape shape_of(uint32_t slots, uint32_t slot_bytes)
{
    struct shape shape = {.slots = slots, .capacity = slot_bytes};
    if (slot_bytes > SLOT_MOST) {
        shape.capacity = SLOT_MOST;
        if (slots < LARGE_SLOTS) shape.slots = LARGE_SLOTS;
    }
    uint64_t rest = shape.capacity > LONG ? shape.capacity : shape.capacity > IN_LINE ? shape.capacity - IN_LINE : 0;
    shape.stride = sizeof(struct psm_fifo_slot) + (rest + PSM_LINE - 1) / PSM_LINE * PSM_LINE;
    shape.size = sizeof(struct psm_fifo_head) + shape.slots * shape.stride;
    return shape;
}

static psm_status check(uint32_t slots, uint32_t slot_bytes)
{
    if (slots >= 1 && slots <= 65536 && slot_bytes >= 1 && slot_bytes <= 1u << 30) return PSM_OK;
    return psm_fail(PSM_ERR_INVALID, "fifo", -1, -1, 0,
                    "bad FIFO of %u slots of %u bytes, expected 1 to 65536 slots of 1 byte to 1 GiB", slots,
                    slot_bytes);
}

static psmFifo *use(psmFifo *fifo, struct shape shape)
{
    fifo->head = fifo->segment.data;
    fifo->slots = fifo->at = (uint8_t *)fifo->segment.data + sizeof *fifo->head;
    fifo->end = fifo->slots + shape.slots * shape.stride;
    fifo->stride = shape.stride;
    fifo->count = shape.slots;
    fifo->capacity = shape.capacity;
    fifo->back = shape.slots > 1 && shape.capacity <= LONG ? shape.slots / 2 : 1;
    return fifo;
}

psm_status psmFifoCreate(int kind, uint32_t slots, uint32_t slot_bytes, psmFifo **out)
{
    PSM_TRY(check(slots, slot_bytes));
    psmFifo *fifo = calloc(1, sizeof *fifo);
    if (!fifo) return psm_fail(PSM_ERR_NO_MEMORY, "fifo", -1, -1, 0, "no memory for the record of a FIFO");
    struct shape shape = shape_of(slots, slot_bytes);
    psm_status status = psm_segment_create(&fifo->segment, kind, shape.size, "hostfifo");
    if (status != PSM_OK) {
        free(fifo);
        return status;
    }
    struct psm_fifo_head *head = use(fifo, shape)->head;
    head->version = FIFO_VERSION;
    head->slots = slots;
    head->slot_bytes = slot_bytes;
    head->magic = FIFO_MAGIC;
    *out = fifo;
    return PSM_OK;
}

psm_status psmFifoShare(const psmFifo *fifo, struct psm_share *share, int *fd)
{
    psm_segment_share(&fifo->segment, share);
    *fd = fifo->segment.fd;
    return PSM_OK;
}

static psm_status compare(const struct psm_segment *segment, uint32_t slots, uint32_t slot_bytes)
{
    const struct psm_fifo_head *head = segment->data;
    uint64_t meant = shape_of(slots, slot_bytes).size;
    if (segment->size < sizeof *head || head->magic != FIFO_MAGIC)
        return psm_fail(PSM_ERR_PROTOCOL, "fifo", -1, -1, 0,
                        "segment 0x%" PRIx64 " of %" PRIu64 " bytes does not hold a FIFO", segment->id, segment->size);
    if (head->version != FIFO_VERSION)
        return psm_fail(PSM_ERR_VERSION, "fifo", -1, -1, 0, "the peer's FIFO has version %u, this library has %d",
                        head->version, FIFO_VERSION);
    if (head->slots != slots || head->slot_bytes != slot_bytes || segment->size != meant)
        return psm_fail(PSM_ERR_MISMATCH, "fifo", -1, -1, 0,
                        "the peer's FIFO has %u slots of %u bytes, %" PRIu64
                        " in all; this end expects %u of %u, %" PRIu64,
                        head->slots, head->slot_bytes, segment->size, slots, slot_bytes, meant);
    return PSM_OK;
}

psm_status psmFifoAttach(const struct psm_share *share, int fd, uint32_t slots, uint32_t slot_bytes, psmFifo **out)
{
    PSM_TRY(check(slots, slot_bytes));
    psmFifo *fifo = calloc(1, sizeof *fifo);
    if (!fifo) return psm_fail(PSM_ERR_NO_MEMORY, "fifo", -1, -1, 0, "no memory for the record of a FIFO");
    psm_status status = psm_segment_attach(&fifo->segment, share, fd);
    if (status == PSM_OK) status = compare(&fifo->segment, slots, slot_bytes);
    if (status != PSM_OK) {
        struct psm_error kept = *psm_last_error();
        psm_segment_close(&fifo->segment);
        free(fifo);
        return psm_fail_again(&kept);
    }
    *out = use(fifo, shape_of(slots, slot_bytes));
    return PSM_OK;
}

/* Without a branch, because a processor predicts badly what happens once a round. Returns the next step. */
static inline uint64_t next(psmFifo *fifo, uint64_t step)
{
    uint8_t *at = fifo->at + fifo->stride, *slots = fifo->slots;
    fifo->at = at == fifo->end ? slots : at;
    return fifo->step = step + 1;
}

/* A short copy without a call: messages of one cache line are the ones whose time shows. */
static inline void copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    uint64_t first, last;
    if (bytes < sizeof first || bytes > 2 * sizeof first) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(&first, from, sizeof first);
    memcpy(&last, from + bytes - sizeof last, sizeof last);
    memcpy(to, &first, sizeof first);
    memcpy(to + bytes - sizeof last, &last, sizeof last);
}

static inline uint64_t look(psmFifo *fifo)
{
    return fifo->free_until = psm_line_load(&fifo->head->tail) + fifo->count;
}

size_t psmFifoTrySend(psmFifo *fifo, const void *data, size_t bytes)
{
    uint64_t step = fifo->step;
    if (step >= fifo->free_until && step >= look(fifo)) return 0;
    if (bytes == 0) return 0;
    struct psm_fifo_slot *slot = (struct psm_fifo_slot *)fifo->at;
    if (bytes > fifo->capacity) bytes = fifo->capacity;
    if (bytes > LONG)
        memcpy(slot + 1, data, bytes);
    else
        copy(slot->data, data, bytes);
    slot->bytes = (uint32_t)bytes;
    atomic_store_explicit(&slot->step, step + 1, memory_order_release);
    if (fifo->free_until - next(fifo, step) < fifo->count - fifo->back) look(fifo);
    return bytes;
}

/* Reads lines that another processor has written: fetching them takes longer than from memory, and memcpy requests too
 * few at once. */
static void fetch(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (; bytes >= PSM_LINE; bytes -= PSM_LINE, to += PSM_LINE, from += PSM_LINE) {
        psm_line_fetch(from + AHEAD);
        psm_line_fetch_own(to + AHEAD);
        memcpy(to, from, PSM_LINE);
    }
    memcpy(to, from, bytes);
}

static inline void publish(psmFifo *fifo, uint64_t step)
{
    psm_line_store(&fifo->head->tail, fifo->free_until = step);
}

size_t psmFifoTryReceive(psmFifo *fifo, void *buffer, size_t capacity)
{
    struct psm_fifo_slot *slot = (struct psm_fifo_slot *)fifo->at;
    uint64_t step = fifo->step;
    if (atomic_load_explicit(&slot->step, memory_order_acquire) != step + 1) {
        if (step != fifo->free_until) publish(fifo, step);
        return 0;
    }
    uint32_t bytes = slot->bytes; /* read once: the other process could change it after the check */
    __asm__ volatile("" : "+r"(bytes));
    if (bytes <= fifo->used || bytes > fifo->capacity) {
        psm_fail(PSM_ERR_PROTOCOL, "fifo", -1, -1, 0, "bad size of a slot, %u bytes, expected %u to %u", bytes,
                 fifo->used + 1, fifo->capacity);
        return SIZE_MAX;
    }
    size_t got = bytes - fifo->used;
    const uint8_t *from = (bytes > LONG ? (const uint8_t *)(slot + 1) : slot->data) + fifo->used;
    if (got > capacity) got = capacity;
    if (got < LONG)
        copy(buffer, from, got);
    else
        fetch(buffer, from, got);
    fifo->used += (uint32_t)got;
    if (fifo->used < bytes) return got;
    fifo->used = 0;
    step = next(fifo, step);
    if (step - fifo->free_until >= fifo->back) publish(fifo, step);
    return got;
}

void psmFifoClose(psmFifo *fifo)
{
    if (!fifo) return;
    psm_segment_close(&fifo->segment);
    free(fifo);
}
