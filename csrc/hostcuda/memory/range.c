/* Which address is what. Device, pinned and managed addresses come from one reserved region: a table with an entry per
 * 2 MiB answers immediately, and distinguishes freed addresses from those that were never ours. Registered host memory
 * may be anywhere: a sorted array. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "memory/hc_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_rwlock_t hc_ranges_lock;
static uintptr_t region;
static size_t region_size;
static struct hc_range **table; /* an entry per granule; NULL: free. Only touched pages of it use memory. */
static size_t cursor;           /* addresses are used in turn, so that freed ones are reused as late as possible */
static struct hc_range *all;
static struct hc_range **registered;
static size_t registered_count, registered_room;

static int start(void)
{
    hc_descriptors_start();
    /* Prefer writers: a steady stream of lookups must not starve cudaMalloc. */
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&hc_ranges_lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);

    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (size_t size = (size_t)1 << 40; size >= (size_t)1 << 34; size /= 4) { /* less under `ulimit -v` */
        char *at = mmap(NULL, size + HC_GRANULE, PROT_NONE, flags, -1, 0);
        if (at == MAP_FAILED) continue;
        region = hc_round_up((uintptr_t)at, HC_GRANULE);
        region_size = size;
        break;
    }
    if (!region) return PSM_CUDA_OUT_OF_MEMORY;
    void *entries = mmap(NULL, region_size / HC_GRANULE * sizeof *table, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (entries == MAP_FAILED) return PSM_CUDA_OUT_OF_MEMORY;
    table = entries;
    return 0;
}

/* Nothing stops it: the memory is released with the process, because workers and other threads may still use it. */
HC_LIFE(HC_MODULE_RANGES, .start = start)

bool hc_in_region(uintptr_t address)
{
    return address - region < region_size;
}

static size_t granule_of(uintptr_t address)
{
    return (address - region) / HC_GRANULE;
}

static void fill(const struct hc_range *range, struct hc_range *with)
{
    size_t first = granule_of(range->start), n = range->span / HC_GRANULE;
    for (size_t i = 0; i < n; i++) table[first + i] = with;
}

/* Under the lock: n free granules in a row. */
static bool find_free(size_t n, size_t step, size_t *first)
{
    size_t total = region_size / HC_GRANULE, base = granule_of(hc_round_up(region, step * HC_GRANULE));
    for (int round = 0; round < 2; round++) {
        size_t at = round ? 0 : cursor, end = round && cursor + n < total ? cursor + n : total;
        if (at < base) at = base;
        at = base + (at - base + step - 1) / step * step;
        while (at + n <= end) {
            size_t run = n;
            while (run && !table[at + run - 1]) run--; /* from the end: skips most after an occupied one */
            if (!run) {
                *first = at;
                return true;
            }
            at = base + (at + run - base + step - 1) / step * step;
        }
    }
    return false;
}

static void link_range(struct hc_range *range)
{
    range->next = all;
    range->link = &all;
    if (all) all->link = &range->next;
    all = range;
}

static void unlink_range(struct hc_range *range)
{
    *range->link = range->next;
    if (range->next) range->next->link = range->link;
}

struct hc_range *hc_range_new(size_t bytes, size_t alignment, uintptr_t at)
{
    if (bytes > region_size || alignment > region_size / 2) return NULL;
    struct hc_range *range = calloc(1, sizeof *range);
    if (!range) return NULL;
    size_t n = hc_round_up(bytes ? bytes : 1, HC_GRANULE) / HC_GRANULE, first = 0;
    size_t step = alignment > HC_GRANULE ? alignment / HC_GRANULE : 1;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    bool found = false;
    if (at && at % (step * HC_GRANULE) == 0 && hc_in_region(at) && granule_of(at) + n <= region_size / HC_GRANULE) {
        first = granule_of(at);
        found = true;
        for (size_t i = 0; found && i < n; i++) found = !table[first + i];
    }
    if (!found) {
        found = find_free(n, step, &first);
        if (found) cursor = first + n;
    }
    if (found) {
        range->start = region + first * HC_GRANULE;
        range->span = n * HC_GRANULE;
        range->base = range->start;
        range->memfd = -1;
        atomic_init(&range->holds, 1);
        link_range(range);
        fill(range, range);
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (!found) {
        free(range);
        return NULL;
    }
    return range;
}

void hc_range_publish(struct hc_range *range)
{
    pthread_rwlock_wrlock(&hc_ranges_lock);
    range->state = HC_RANGE_LIVE;
    pthread_rwlock_unlock(&hc_ranges_lock);
}

void hc_range_retire(struct hc_range *range)
{
    range->state = HC_RANGE_DEAD;
}

void hc_range_overlay(struct hc_range *mapping)
{
    link_range(mapping);
    fill(mapping, mapping);
}

void hc_range_overlay_end(struct hc_range *mapping)
{
    unlink_range(mapping);
    fill(mapping, mapping->reserved);
    mapping->state = HC_RANGE_DEAD;
}

bool hc_range_is(const struct hc_range *range, uintptr_t start, size_t span)
{
    size_t first = granule_of(start), n = span / HC_GRANULE;
    bool is = true;
    for (size_t i = 0; is && i < n; i++) is = table[first + i] == range;
    return is;
}

bool hc_region_map(uintptr_t at, size_t size, int protection, int memfd, uint64_t offset)
{
    return mmap((void *)at, size, protection, MAP_SHARED | MAP_FIXED, memfd, (off_t)offset) != MAP_FAILED;
}

void hc_region_clear(uintptr_t at, size_t size)
{
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void end(struct hc_range *range)
{
    if (range->unmapped) {
        range->unmapped(range);
        free(range);
        return;
    }
    if (range->map && hc_in_region((uintptr_t)range->map))
        hc_region_clear((uintptr_t)range->map, range->map_size);
    else if (range->map)
        munmap(range->map, range->map_size);
    if (range->memfd >= 0) close(range->memfd);
    if (range->accounted) hc_device_account(range->device, -(int64_t)range->accounted);
    if (range->slab) free(range->slab->blocks);
    free(range->slab);
    pthread_rwlock_wrlock(&hc_ranges_lock);
    fill(range, NULL);
    unlink_range(range);
    pthread_rwlock_unlock(&hc_ranges_lock);
    free(range->advice);
    free(range);
}

void hc_range_release(struct hc_range *range)
{
    if (atomic_fetch_sub_explicit(&range->holds, 1, memory_order_acq_rel) == 1) end(range);
}

void hc_ranges_each(void (*visit)(struct hc_range *range, void *context), void *context)
{
    for (struct hc_range *range = all, *next; range; range = next) {
        next = range->next;
        if (range->state == HC_RANGE_LIVE || range->state == HC_RANGE_RESERVED) visit(range, context);
    }
    for (size_t i = 0; i < registered_count; i++) visit(registered[i], context);
}

/* ---- registered host memory */

/* The first one that ends after the address. */
static size_t registered_behind(uintptr_t address)
{
    size_t low = 0, high = registered_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (registered[middle]->base + registered[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct hc_range *hc_registered_at(uintptr_t address)
{
    size_t i = registered_behind(address);
    return i < registered_count && registered[i]->base <= address ? registered[i] : NULL;
}

bool hc_registered_overlaps(uintptr_t address, size_t size)
{
    size_t i = registered_behind(address);
    return i < registered_count && registered[i]->base < address + size;
}

bool hc_registered_add(struct hc_range *range)
{
    if (hc_registered_overlaps(range->base, range->size)) return false;
    if (registered_count == registered_room) {
        size_t room = registered_room ? 2 * registered_room : 16;
        struct hc_range **more = realloc(registered, room * sizeof(*more));
        if (!more) return false;
        registered = more;
        registered_room = room;
    }
    size_t i = registered_behind(range->base);
    memmove(registered + i + 1, registered + i, (registered_count - i) * sizeof *registered);
    registered[i] = range;
    registered_count++;
    return true;
}

void hc_registered_remove(struct hc_range *range)
{
    size_t i = registered_behind(range->base);
    if (i == registered_count || registered[i] != range) return;
    memmove(registered + i, registered + i + 1, (registered_count - i - 1) * sizeof *registered);
    registered_count--;
}

/* ---- queries */

struct hc_range *hc_range_at(uintptr_t address)
{
    if (!hc_in_region(address)) return hc_registered_at(address);
    struct hc_range *range = table[granule_of(address)];
    return range && (range->state == HC_RANGE_LIVE || range->state == HC_RANGE_RESERVED) ? range : NULL;
}

/* Under the lock: the allocation around an address. `id` may be NULL. */
static struct hc_range *allocation_around(uintptr_t address, uintptr_t *base, size_t *size, uint64_t *id)
{
    struct hc_range *range = hc_range_at(address);
    if (!range || range->state == HC_RANGE_RESERVED) return NULL;
    *base = range->base;
    *size = range->size;
    if (id) *id = range->id;
    if (range->slab) {
        const struct hc_block *block = hc_slab_block(range->slab, address);
        if (!block) return NULL;
        *base = range->base + (uintptr_t)block->offset * HC_UNIT;
        *size = block->size;
        if (id) *id = block->id;
    }
    return address - *base < *size ? range : NULL;
}

/* Under the lock; NULL: no allocation. */
static const struct hc_range *place_at(uintptr_t address, struct hc_place *place)
{
    const struct hc_range *range = allocation_around(address, &place->base, &place->size, &place->id);
    if (range) {
        place->space = range->space;
        place->origin = range->origin;
        place->device = range->device;
        place->flags = range->flags;
        place->memfd = range->memfd;
        place->offset = range->offset + (place->base - range->base);
        place->device_address = place->base;
        place->host = range->alias + (address - range->base);
    }
    return range;
}

bool hc_place_of(uintptr_t address, struct hc_place *place, bool *freed)
{
    pthread_rwlock_rdlock(&hc_ranges_lock);
    const struct hc_range *range = place_at(address, place);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (freed) *freed = !range && hc_in_region(address);
    if (range) return true;
    *place =
        (struct hc_place){.base = address, .host = (void *)address, .space = HC_PAGEABLE, .device = -1, .memfd = -1};
    return false;
}

static int access_of(const struct hc_range *range, int device, bool write)
{
    if (range->memory) {
        uint64_t allowed = write ? range->writable : range->readable;
        return (device < 0 ? allowed != 0 : allowed >> device & 1) ? 0 : PSM_CUDA_ILLEGAL_ADDRESS;
    }
    if (write && range->origin == HC_FROM_REGISTER && range->flags & cudaHostRegisterReadOnly)
        return PSM_CUDA_ILLEGAL_ADDRESS;
    return 0; /* copies reach all devices: without peer access they are staged */
}

/* Under the lock. How much of the span is in one piece (*n), and where; *range NULL: pageable. */
static int look(uintptr_t address, size_t *n, int device, bool write, struct hc_range **range, void **host)
{
    uintptr_t base;
    size_t size;
    *range = allocation_around(address, &base, &size, NULL);
    if (!*range) {
        if (address < HC_PAGE || hc_in_region(address) || address + *n < address) return PSM_CUDA_INVALID_VALUE;
        *host = (void *)address;
        return 0;
    }
    size_t left = size - (address - base);
    if (*n > left) {
        if (!(*range)->memory) return PSM_CUDA_INVALID_VALUE;
        *n = left;
    }
    *host = (*range)->alias + (address - (*range)->base);
    return access_of(*range, device, write);
}

int hc_piece_of(uintptr_t address, size_t n, int device, bool write, struct hc_piece *piece)
{
    struct hc_range *range;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    int rc = look(address, &n, device, write, &range, &piece->host);
    if (rc == 0) {
        piece->n = n;
        piece->space = range ? range->space : HC_PAGEABLE;
        piece->device = range ? range->device : -1;
        piece->pin = range && range->origin != HC_FROM_REGISTER ? range : NULL;
        if (piece->pin) atomic_fetch_add_explicit(&range->holds, 1, memory_order_relaxed);
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}

void hc_piece_end(struct hc_piece *piece)
{
    if (piece->pin) hc_range_release(piece->pin);
    piece->pin = NULL;
}

/* Under the lock. */
static int check_span(uintptr_t address, size_t n, int device, bool write)
{
    int rc = 0;
    while (n && rc == 0) {
        struct hc_range *range;
        void *host;
        size_t part = n;
        rc = look(address, &part, device, write, &range, &host);
        address += part;
        n -= part;
    }
    return rc;
}

int hc_span_check(uintptr_t address, size_t n, int device, bool write)
{
    pthread_rwlock_rdlock(&hc_ranges_lock);
    int rc = check_span(address, n, device, write);
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}

/* Under the lock. */
static int operand(uintptr_t address, size_t span, int device, bool write, struct hc_place *place)
{
    const struct hc_range *range = place_at(address, place);
    if (!range) {
        *place = (struct hc_place){
            .base = address, .host = (void *)address, .space = HC_PAGEABLE, .device = -1, .memfd = -1};
        return hc_in_region(address) ? PSM_CUDA_INVALID_VALUE : 0; /* freed, or never allocated */
    }
    if (range->origin == HC_FROM_VMM) {
        /* Whether a span that starts in a mapping ends in the same reservation: memory after it belongs to another
         * allocation. Access was granted per device, and the stream's device copies. Without access the copy fails when
         * it runs, as on a GPU. */
        const struct hc_range *around = range->reserved ? range->reserved : range;
        bool in = span <= around->size - (address - around->base);
        return !in || check_span(address, span, device, write) == PSM_CUDA_INVALID_VALUE ? PSM_CUDA_INVALID_VALUE : 0;
    }
    return span <= place->size - (address - place->base) ? 0 : PSM_CUDA_INVALID_VALUE;
}

int hc_operand_of(uintptr_t address, size_t span, int device, bool write, struct hc_place *place)
{
    pthread_rwlock_rdlock(&hc_ranges_lock);
    int rc = operand(address, span, device, write, place);
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}

int hc_operands_of(uintptr_t dst, size_t to, uintptr_t src, size_t from, int device, struct hc_place places[2])
{
    pthread_rwlock_rdlock(&hc_ranges_lock);
    int rc = operand(dst, to, device, true, &places[0]);
    if (!rc) rc = operand(src, from, device, false, &places[1]);
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}

static bool plain(const struct hc_range *range)
{
    return range && range->origin != HC_FROM_REGISTER && range->space != HC_MANAGED;
}

bool hc_ranges_copy(uintptr_t dst, int dst_device, uintptr_t src, int src_device, size_t n)
{
    struct hc_range *to, *from;
    void *out, *in;
    size_t room = n, here = n;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    bool can = look(dst, &room, dst_device, true, &to, &out) == 0 &&
               look(src, &here, src_device, false, &from, &in) == 0 && room == n && here == n && plain(to) &&
               plain(from);
    if (can) memmove(out, in, n);
    pthread_rwlock_unlock(&hc_ranges_lock);
    return can;
}
