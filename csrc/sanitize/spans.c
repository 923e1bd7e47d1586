/* What is at an address: the living allocations and mappings in order, and between them those that were freed last.
 *
 * The lock of SAN_PLACES guards all of it. The ledger, which stores what ended last, decides when a freed span is
 * dropped. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "san_internal.h"

/* By base, without overlap, starting anywhere in the array: inserting or removing at an end moves nothing. */
static struct san_span *room, *entries;
static size_t count, size;
static size_t last; /* where the last search ended; programs usually free what they have just allocated */

static struct san_guard *lock(void)
{
    return &san_shards[SAN_PLACES].lock;
}

static bool is_place(size_t at, uint64_t address)
{
    return at <= count && (at == count || entries[at].end > address) && (at == 0 || entries[at - 1].end <= address);
}

/* The first that ends after the address. */
static size_t place(uint64_t address)
{
    size_t low = 0, high = count;
    for (size_t near = last; near < last + 2; near++)
        if (is_place(near, address)) return last = near;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (entries[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return last = low;
}

/* At least half of the array is then free, all of it on one side. */
static bool make_room(bool front)
{
    struct san_span *new_room = room;
    size_t new_size = size;
    if (2 * count >= size) {
        new_size = size ? 2 * size : 64;
        new_room = malloc(new_size * sizeof *new_room);
        if (!new_room) return false;
    }
    struct san_span *to = new_room + (front ? new_size - count : 0);
    if (count) memmove(to, entries, count * sizeof *to);
    if (new_room != room) free(room);
    room = new_room;
    entries = to;
    size = new_size;
    return true;
}

static void insert(size_t at, const struct san_span *span)
{
    bool front = at < count - at;
    if ((front ? entries == room : entries + count == room + size) && !make_room(front)) return;
    if (front) {
        memmove(entries - 1, entries, at * sizeof *entries);
        entries--;
    } else {
        memmove(&entries[at + 1], &entries[at], (count - at) * sizeof *entries);
    }
    entries[at] = *span;
    count++;
}

static void erase(size_t at, size_t n)
{
    size_t rest = count - at - n;
    if (!n) return;
    if (at < rest) {
        memmove(&entries[n], entries, at * sizeof *entries);
        entries += n;
    } else {
        memmove(&entries[at], &entries[at + n], rest * sizeof *entries);
    }
    count -= n;
}

/* Index of the span, by its base and generation; SIZE_MAX: none. */
static size_t exactly(uint64_t base, uint32_t generation, bool is_freed)
{
    size_t at = place(base);
    bool is =
        at < count && entries[at].base == base && entries[at].generation == generation && entries[at].freed == is_freed;
    return is ? at : SIZE_MAX;
}

void san_span_add(const struct san_span *span)
{
    size_t from = place(span->base), to = from;
    while (to < count && entries[to].base < span->end) to++;
    /* A living one that overlaps has ended without being seen. */
    if (to > from) {
        erase(from + 1, to - from - 1);
        entries[from] = *span;
    } else {
        insert(from, span);
    }
}

void san_span_remove(uint64_t base, uint32_t generation, bool keep)
{
    size_t at = exactly(base, generation, false);
    if (at == SIZE_MAX) return;
    if (keep)
        entries[at].freed = true;
    else
        erase(at, 1);
}

void san_span_forget(uint64_t base, uint32_t generation)
{
    size_t at = exactly(base, generation, true);
    if (at != SIZE_MAX) erase(at, 1);
}

static enum san_hit find(uint64_t address, struct san_span *first, uint64_t *end)
{
    size_t at = place(address);
    if (at == count || entries[at].base > address) return SAN_HIT_NONE;
    *first = entries[at];
    *end = first->end;
    if (entries[at].freed) return SAN_HIT_FREED;
    /* One copy may span several mappings, but not several allocations. */
    while (first->kind == PSM_SAN_MAP && at + 1 < count && !entries[at + 1].freed &&
           entries[at + 1].kind == PSM_SAN_MAP && entries[at + 1].base == *end)
        *end = entries[++at].end;
    return SAN_HIT_LIVE;
}

enum san_hit san_span_find(uint64_t address, struct san_span *first, uint64_t *end)
{
    san_guard_take(lock());
    enum san_hit hit = find(address, first, end);
    san_guard_leave(lock());
    return hit;
}

bool san_span_try_find(uint64_t address, struct san_span *first)
{
    uint64_t end;
    if (!san_guard_try(lock())) return false;
    enum san_hit hit = find(address, first, &end);
    san_guard_leave(lock());
    return hit == SAN_HIT_LIVE;
}

bool san_span_first(enum psm_san_kind kind, uint64_t from, uint64_t to, struct san_span *span)
{
    san_guard_take(lock());
    size_t at = place(from);
    while (at < count && entries[at].base < to &&
           (entries[at].freed || entries[at].base < from || entries[at].kind != kind))
        at++;
    bool found = at < count && entries[at].base < to;
    if (found) *span = entries[at];
    san_guard_leave(lock());
    return found;
}
