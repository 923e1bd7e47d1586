/* Small allocations share a slab of one granule with one memfd, as they share a physical page on a GPU: the IPC handle
 * of one of them names the slab and an offset. */
#include "memory/hc_memory.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = HC_GRANULE / HC_UNIT };

static struct hc_slab *slabs; /* all slabs that have or had room */

bool hc_slab_start(struct hc_range *range)
{
    struct hc_slab *slab = calloc(1, sizeof *slab);
    if (!slab) return false;
    slab->range = range;
    slab->free_units = UNITS;
    range->slab = slab;
    slab->next = slabs;
    slab->link = &slabs;
    if (slabs) slabs->link = &slab->next;
    slabs = slab;
    return true;
}

void hc_slab_unlink(struct hc_slab *slab)
{
    *slab->link = slab->next;
    if (slab->next) slab->next->link = slab->link;
}

/* The first block that ends after a unit. */
static uint32_t behind(const struct hc_slab *slab, uint32_t unit)
{
    uint32_t low = 0, high = slab->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (slab->blocks[middle].offset + slab->blocks[middle].units <= unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct hc_block *hc_slab_block(struct hc_slab *slab, uintptr_t address)
{
    uint32_t unit = (uint32_t)((address - slab->range->base) / HC_UNIT), i = behind(slab, unit);
    return i < slab->count && slab->blocks[i].offset <= unit ? &slab->blocks[i] : NULL;
}

/* A gap of that many units in [from, to); *index: where its block is inserted. */
static bool find_gap(const struct hc_slab *slab, uint32_t units, uint32_t from, uint32_t to, uint32_t *offset,
                     uint32_t *index)
{
    uint32_t i = behind(slab, from), at = from;
    if (i < slab->count && slab->blocks[i].offset <= at) {
        at = slab->blocks[i].offset + slab->blocks[i].units;
        i++;
    }
    for (;; i++) {
        uint32_t end = i < slab->count ? slab->blocks[i].offset : UNITS;
        if (at + units > to) return false;
        if (at + units <= end) {
            *offset = at;
            *index = i;
            return true;
        }
        if (i == slab->count) return false;
        at = slab->blocks[i].offset + slab->blocks[i].units;
    }
}

static bool take_from(struct hc_slab *slab, size_t size, uintptr_t *address)
{
    uint32_t units = (uint32_t)(hc_round_up(size, HC_UNIT) / HC_UNIT), offset, index;
    if (slab->free_units < units) return false;
    if (!find_gap(slab, units, slab->cursor, UNITS, &offset, &index) &&
        !find_gap(slab, units, 0, UNITS, &offset, &index))
        return false;
    if (slab->count == slab->room) {
        uint32_t room = slab->room ? 2 * slab->room : 8;
        struct hc_block *more = realloc(slab->blocks, room * sizeof *more);
        if (!more) return false;
        slab->blocks = more;
        slab->room = room;
    }
    memmove(slab->blocks + index + 1, slab->blocks + index, (slab->count - index) * sizeof *slab->blocks);
    slab->blocks[index] =
        (struct hc_block){.offset = offset, .units = units, .size = (uint32_t)size, .id = hc_buffer_id()};
    slab->count++;
    slab->free_units -= units;
    slab->cursor = (offset + units) % UNITS;
    *address = slab->range->base + (uintptr_t)offset * HC_UNIT;
    return true;
}

bool hc_slab_take(const struct hc_request *request, uintptr_t *address)
{
    for (struct hc_slab *slab = slabs; slab; slab = slab->next) {
        const struct hc_range *range = slab->range;
        if (range->state == HC_RANGE_LIVE && range->space == request->space && range->origin == request->origin &&
            range->device == request->device && range->flags == request->flags && range->pool == request->pool &&
            take_from(slab, request->size, address))
            return true;
    }
    return false;
}

bool hc_slab_free(struct hc_slab *slab, struct hc_block *block)
{
    slab->free_units += block->units;
    uint32_t index = (uint32_t)(block - slab->blocks);
    memmove(block, block + 1, (slab->count - index - 1) * sizeof *block);
    slab->count--;
    if (slab->count) return false;
    hc_slab_unlink(slab);
    return true;
}
