/* The objects that are alive in this process, and those that ended last. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ENDED_MOST: how many ended objects a shard remembers. */
enum { SHARDS = SAN_SHARDS, BUCKETS = 256, ENDED_MOST = 64, CHUNK = 32, CACHE_LINE = 64 };

/* Objects are never given back, only used again by their shard: 64 shards stay small beside what they describe. */
struct san_shard {
    _Alignas(CACHE_LINE) struct san_guard lock;
    uint32_t spare; /* slot of a record that was set aside, or SAN_NO_SLOT */
    unsigned ended;
    struct san_object *free;
    struct san_object *oldest, *newest; /* ended */
    _Alignas(CACHE_LINE) struct san_object *bucket[BUCKETS];
};

static struct san_shard shards[SHARDS];
static _Atomic uint32_t generations;

static uint64_t hash_of(enum psm_san_kind kind, uint64_t value)
{
    uint64_t x = (value ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static struct san_object **bucket_of(struct san_shard *shard, uint64_t hash)
{
    return &shard->bucket[(hash >> 8) % BUCKETS];
}

static struct san_object *find(struct san_shard *shard, uint64_t hash, enum psm_san_kind kind, uint64_t value)
{
    for (struct san_object *o = *bucket_of(shard, hash); o; o = o->next)
        if (o->value == value && o->kind == kind) return o;
    return NULL;
}

struct san_object *san_lock(enum psm_san_kind kind, uint64_t value, struct san_shard **shard)
{
    uint64_t hash = hash_of(kind, value);
    *shard = &shards[hash % SHARDS];
    san_guard_take(&(*shard)->lock);
    __builtin_prefetch((*shard)->oldest, 1); /* to be buried by the next that ends */
    return find(*shard, hash, kind, value);
}

void san_unlock(struct san_shard *shard)
{
    san_guard_leave(&shard->lock);
}

void san_copy(struct san_copy *copy, const struct san_object *object)
{
    copy->object = *object;
    copy->birth = object->birth ? object->birth->stack : (struct san_stack){0};
    copy->end = object->end ? object->end->stack : (struct san_stack){0};
}

bool san_try_copy(enum psm_san_kind kind, uint64_t value, struct san_copy *copy)
{
    uint64_t hash = hash_of(kind, value);
    struct san_shard *shard = &shards[hash % SHARDS];
    if (!san_guard_try(&shard->lock)) return false;
    const struct san_object *o = find(shard, hash, kind, value);
    if (o) san_copy(copy, o);
    san_guard_leave(&shard->lock);
    return o != NULL;
}

static void unqueue(struct san_shard *shard, struct san_object *o)
{
    *(o->older ? &o->older->newer : &shard->oldest) = o->newer;
    *(o->newer ? &o->newer->older : &shard->newest) = o->older;
    o->older = o->newer = NULL;
    shard->ended--;
}

static void drop_stacks(struct san_object *o)
{
    san_stack_drop(o->birth);
    san_stack_drop(o->end);
    o->birth = o->end = NULL;
}

static void unlink_object(struct san_shard *shard, struct san_object *o)
{
    struct san_object **at = bucket_of(shard, hash_of(o->kind, o->value));
    while (*at != o) at = &(*at)->next;
    *at = o->next;
    drop_stacks(o);
    o->state = SAN_FREE;
    o->next = shard->free;
    shard->free = o;
}

static void bury(struct san_shard *shard, struct san_object *o)
{
    o->state = SAN_ENDED;
    o->newer = NULL;
    o->older = shard->newest;
    *(shard->newest ? &shard->newest->newer : &shard->oldest) = o;
    shard->newest = o;
    if (++shard->ended > ENDED_MOST) {
        struct san_object *old = shard->oldest;
        unqueue(shard, old);
        unlink_object(shard, old);
    }
}

static struct san_object *fresh(struct san_shard *shard, uint64_t hash)
{
    if (!shard->free) {
        struct san_object *chunk = aligned_alloc(CACHE_LINE, CHUNK * sizeof *chunk);
        if (!chunk) return NULL;
        memset(chunk, 0, CHUNK * sizeof *chunk);
        for (int i = 0; i < CHUNK; i++) {
            chunk[i].next = shard->free;
            shard->free = &chunk[i];
        }
    }
    struct san_object *o = shard->free, **bucket = bucket_of(shard, hash);
    shard->free = o->next;
    o->next = *bucket;
    *bucket = o;
    return o;
}

static bool has_span(enum psm_san_kind kind)
{
    return kind == PSM_SAN_ALLOC || kind == PSM_SAN_HOST || kind == PSM_SAN_MAP || kind == PSM_SAN_IPC;
}

void san_born(enum psm_san_kind kind, uint64_t value, uint64_t size, int device, unsigned flags,
              const struct san_owner *owner)
{
    uint64_t hash = hash_of(kind, value);
    struct san_shard *shard = &shards[hash % SHARDS];
    __builtin_prefetch(shard, 1);
    __builtin_prefetch(bucket_of(shard, hash), 1);
    struct san_shared *stack = flags & SAN_BORROWED ? NULL : san_stack_take();
    struct san_object *o = san_lock(kind, value, &shard);
    bool again = o && (o->state == SAN_ALIVE || o->state == SAN_ENDING);
    /* A memory handle retained, an address opened twice: one more to end. CUDA's own pools are only asked for. */
    bool counts = kind == PSM_SAN_MEM || kind == PSM_SAN_IPC || kind == PSM_SAN_EXPORT;
    if (again && (flags & SAN_BORROWED)) {
        san_unlock(shard);
        return;
    }
    if (again && counts && o->state == SAN_ALIVE) {
        o->count++;
        san_unlock(shard);
        san_stack_drop(stack);
        return;
    }
    if (again) san_record_end(o, &shard->spare);
    if (o && o->state == SAN_ENDED) unqueue(shard, o);
    if (o)
        drop_stacks(o);
    else
        o = fresh(shard, hash);
    if (o) {
        struct san_object *next = o->next;
        *o = (struct san_object){.next = next,
                                 .value = value,
                                 .size = size,
                                 .kind = kind,
                                 .state = SAN_ALIVE,
                                 .flags = flags | SAN_NO_RECORD,
                                 .generation = atomic_fetch_add(&generations, 1) + 1,
                                 .count = 1,
                                 .device = device,
                                 .tid = psm_tid(),
                                 .birth = stack};
        if (owner) o->owner = *owner;
        san_record_birth(o, &shard->spare);
        if (has_span(kind)) {
            struct san_span span = {value, value + (size ? size : 1), kind, o->generation,
                                    !size || (flags & SAN_IMPORTED)};
            san_span_add(&span);
        }
    } else {
        san_stack_drop(stack);
    }
    san_unlock(shard);
}

void san_ended(enum psm_san_kind kind, uint64_t value, uint32_t generation, bool success, struct san_shared *stack)
{
    struct san_shard *shard;
    struct san_object *o = san_lock(kind, value, &shard);
    if (o && o->generation == generation && o->state == SAN_ENDING) {
        if (!success || --o->count > 0) {
            o->state = SAN_ALIVE;
        } else {
            o->end = stack;
            stack = NULL;
            o->end_tid = psm_tid();
            san_record_end(o, &shard->spare);
            if (has_span(kind)) san_span_remove(value, generation, kind != PSM_SAN_HOST);
            bury(shard, o);
        }
    }
    san_unlock(shard);
    san_stack_drop(stack);
}

uint32_t san_generation(void)
{
    return atomic_load(&generations);
}

void san_reset(int device)
{
    struct san_shared *stack = san_stack_take();
    for (int i = 0; i < SHARDS; i++) {
        struct san_shard *shard = &shards[i];
        san_guard_take(&shard->lock);
        for (int j = 0; j < BUCKETS; j++) {
            struct san_object *o = shard->bucket[j];
            while (o) {
                /* Registered and pinned memory, reservations and graphs belong to no device's reset. */
                bool ends = o->device == device && o->state != SAN_ENDED &&
                            (o->kind == PSM_SAN_STREAM || o->kind == PSM_SAN_EVENT || o->kind == PSM_SAN_ALLOC ||
                             o->kind == PSM_SAN_IPC);
                if (!ends) {
                    o = o->next;
                    continue;
                }
                san_record_end(o, &shard->spare);
                if (has_span(o->kind)) san_span_remove(o->value, o->generation, true);
                o->end = stack ? san_stack_share(stack) : NULL;
                o->end_tid = psm_tid();
                bury(shard, o); /* it may let go of the oldest ended one of any bucket: begin anew */
                o = shard->bucket[j];
            }
        }
        san_guard_leave(&shard->lock);
    }
    san_stack_drop(stack);
}

void san_each(void (*visit)(const struct san_object *object, void *context), void *context)
{
    for (int i = 0; i < SHARDS; i++) {
        san_guard_take(&shards[i].lock);
        for (int j = 0; j < BUCKETS; j++)
            for (const struct san_object *o = shards[i].bucket[j]; o; o = o->next)
                if (o->state == SAN_ALIVE) visit(o, context);
        san_guard_leave(&shards[i].lock);
    }
}

void san_ledger_start(void)
{
    for (int i = 0; i < SHARDS; i++) shards[i].spare = SAN_NO_SLOT;
}
