/* The objects that are alive in this process, and those that ended last. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "san_internal.h"

/* Ended objects are stored in sets by their numbers, WAYS per set: SETS in each shard, PLACE_SETS in SAN_PLACES. */
enum { CHUNK = 32, WAYS = 15, NEXT = WAYS, SETS = 32, PLACE_SETS = 512 };

/* What is stored about an ended object. */
struct san_ended {
    _Alignas(SAN_CACHE_LINE) uint64_t value;
    uint64_t size;
    struct san_shared *birth, *end; /* NULL: unknown */
    uint32_t generation, kind;
    int tid, end_tid;
};
_Static_assert(sizeof(struct san_ended) == SAN_CACHE_LINE, "an end writes one line");

/* Tags of the entries, so that entries of other numbers need not be read. An ended object may stay when its number is
 * reborn: living ones are found first. */
struct san_ended_set {
    /* From the hash, odd; 0: free. tag[NEXT], even: twice the way to use next: a free one, or the one that ended first.
     */
    uint16_t tag[WAYS + 1];
};
_Static_assert(sizeof(struct san_ended_set) == 32, "a set fits in one line");

struct san_shard san_shards[SAN_SHARDS];
static struct san_ended_set sets[SAN_PLACES][SETS], place_sets[PLACE_SETS];
static struct san_ended ended[SAN_PLACES][SETS * WAYS], place_ended[PLACE_SETS * WAYS];
static _Atomic uint32_t generations;
_Thread_local int san_thread __attribute__((tls_model("initial-exec")));

void san_guard_wait(struct san_guard *guard)
{
    for (int i = 0; !san_guard_try(guard); i++) {
        /* Its holder is not running: with priorities, yielding the processor may not be enough. */
        static const struct timespec moment = {0, 50000};
        if (i < 100)
            sched_yield();
        else
            nanosleep(&moment, NULL);
    }
}

static bool has_span(enum psm_san_kind kind)
{
    return kind == PSM_SAN_ALLOC || kind == PSM_SAN_HOST || kind == PSM_SAN_MAP || kind == PSM_SAN_IPC;
}

static uint64_t hash_of(enum psm_san_kind kind, uint64_t value)
{
    uint64_t x = (value ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static struct san_shard *shard_of(enum psm_san_kind kind, uint64_t hash)
{
    return &san_shards[has_span(kind) ? SAN_PLACES : hash >> 60];
}
_Static_assert(SAN_PLACES == 1 << (64 - 60), "shard_of gives one of them");

static struct san_object **bucket_of(const struct san_shard *shard, uint64_t hash)
{
    return &shard->bucket[hash & shard->last];
}

static struct san_object *find(const struct san_shard *shard, uint64_t hash, enum psm_san_kind kind, uint64_t value)
{
    for (struct san_object *o = *bucket_of(shard, hash); o; o = o->next)
        if (o->value == value && o->kind == kind) return o;
    return NULL;
}

struct san_object *san_lock(enum psm_san_kind kind, uint64_t value, struct san_shard **shard)
{
    uint64_t hash = hash_of(kind, value);
    *shard = shard_of(kind, hash);
    san_guard_take(&(*shard)->lock);
    return find(*shard, hash, kind, value);
}

void san_unlock(struct san_shard *shard)
{
    san_guard_leave(&shard->lock);
}

static struct san_stack stack_of(const struct san_shared *shared)
{
    return shared ? shared->stack : (struct san_stack){0};
}

void san_copy(struct san_copy *copy, const struct san_object *object)
{
    copy->object = *object;
    copy->birth = stack_of(object->birth);
    copy->end = (struct san_stack){0};
    copy->end_tid = 0;
}

bool san_try_copy(enum psm_san_kind kind, uint64_t value, struct san_copy *copy)
{
    uint64_t hash = hash_of(kind, value);
    struct san_shard *shard = shard_of(kind, hash);
    if (!san_guard_try(&shard->lock)) return false;
    const struct san_object *o = find(shard, hash, kind, value);
    if (o) san_copy(copy, o);
    san_guard_leave(&shard->lock);
    return o != NULL;
}

/* ---- those that ended ---- */

static struct san_ended_set *set_of(const struct san_shard *shard, uint64_t hash)
{
    return &shard->ended[hash & shard->ended_last];
}

static struct san_ended *ended_at(const struct san_shard *shard, const struct san_ended_set *set, int i)
{
    return &shard->ended_of[(set - shard->ended) * WAYS + i];
}

static uint16_t tag_of(uint64_t hash)
{
    return (uint16_t)(hash >> 40 | 1);
}

/* -1: none. */
static int find_ended(const struct san_shard *shard, uint64_t hash, enum psm_san_kind kind, uint64_t value)
{
    const struct san_ended_set *set = set_of(shard, hash);
    const uint16_t tag = tag_of(hash);
    uint16_t any = 0; /* Of the size of a tag and without branches, so that it compiles to a few vector instructions. */
    for (int i = 0; i <= NEXT; i++) any |= set->tag[i] == tag ? 1 : 0;
    for (int i = 0; any && i < WAYS; i++) {
        const struct san_ended *e = ended_at(shard, set, i);
        if (set->tag[i] == tag && e->value == value && e->kind == kind) return i;
    }
    return -1;
}

bool san_copy_ended(const struct san_shard *shard, enum psm_san_kind kind, uint64_t value, uint32_t generation,
                    struct san_copy *copy)
{
    uint64_t hash = hash_of(kind, value);
    int i = find_ended(shard, hash, kind, value);
    if (i < 0) return false;
    const struct san_ended *e = ended_at(shard, set_of(shard, hash), i);
    if (generation && e->generation != generation) return false;
    *copy = (struct san_copy){.object = {.value = e->value,
                                         .size = e->size,
                                         .kind = (uint8_t)e->kind,
                                         .generation = e->generation,
                                         .tid = e->tid},
                              .birth = stack_of(e->birth),
                              .end = stack_of(e->end),
                              .end_tid = e->end_tid};
    return true;
}

/* Where the next entry of the set goes: replaces one of the same number, a free one, or the oldest. */
static int place_of(const struct san_shard *shard, struct san_ended_set *set, const struct san_object *o)
{
    int i = find_ended(shard, o->hash, o->kind, o->value);
    if (i >= 0) return i;
    i = set->tag[NEXT] / 2;
    set->tag[NEXT] = i + 1 < WAYS ? (uint16_t)(2 * i + 2) : 0;
    return i;
}

/* Takes over the use of the stack. */
static void remember(const struct san_shard *shard, const struct san_object *o, struct san_shared *stack)
{
    struct san_ended_set *set = set_of(shard, o->hash);
    int i = place_of(shard, set, o);
    struct san_ended *e = ended_at(shard, set, i);
    san_stack_drop(e->birth);
    san_stack_drop(e->end);
    /* Nothing else with this number is left: the span that was freed then is the one that was born over it. */
    if (shard == &san_shards[SAN_PLACES] && set->tag[i] && e->value != o->value)
        san_span_forget(e->value, e->generation);
    set->tag[i] = tag_of(o->hash);
    e->value = o->value;
    e->size = o->size;
    e->birth = o->birth;
    e->end = stack;
    e->generation = o->generation;
    e->kind = o->kind;
    e->tid = o->tid;
    e->end_tid = san_tid();
}

/* Moves the object from the living to the ended. Takes over the use of the stack. */
static void bury(struct san_shard *shard, struct san_object *o, struct san_shared *stack)
{
    struct san_object **at = bucket_of(shard, o->hash);
    while (*at != o) at = &(*at)->next;
    *at = o->next;
    shard->living--;
    remember(shard, o, stack);
    o->state = SAN_FREE;
    o->next = shard->free;
    shard->free = o;
}

/* ---- births and ends ---- */

static void grow(struct san_shard *shard)
{
    uint32_t n = shard->last + 1;
    struct san_object **bucket = calloc(2 * (size_t)n, sizeof *bucket);
    if (!bucket) return; /* continue with what there is */
    for (uint32_t i = 0; i < n; i++)
        for (struct san_object *o = shard->bucket[i], *next; o; o = next) {
            struct san_object **to = &bucket[o->hash & (2 * n - 1)];
            next = o->next;
            o->next = *to;
            *to = o;
        }
    if (shard->bucket != shard->few) free(shard->bucket);
    shard->bucket = bucket;
    shard->last = 2 * n - 1;
}

/* Adds it to the living, with nothing but its number. */
static struct san_object *fresh(struct san_shard *shard, uint64_t hash)
{
    if (!shard->free) {
        struct san_object *chunk = aligned_alloc(SAN_CACHE_LINE, CHUNK * sizeof *chunk);
        if (!chunk) return NULL;
        memset(chunk, 0, CHUNK * sizeof *chunk);
        for (int i = CHUNK; i--;) {
            chunk[i].next = shard->free;
            shard->free = &chunk[i];
        }
    }
    if (shard->living++ > shard->last) grow(shard);
    struct san_object *o = shard->free, **bucket = bucket_of(shard, hash);
    shard->free = o->next;
    o->next = *bucket;
    *bucket = o;
    return o;
}

void san_born(enum psm_san_kind kind, uint64_t value, uint64_t size, int device, unsigned flags,
              const struct san_owner *owner)
{
    uint64_t hash = hash_of(kind, value);
    struct san_shard *shard = shard_of(kind, hash);
    struct san_shared *stack = flags & SAN_BORROWED ? NULL : san_stack_take();
    san_guard_take(&shard->lock);
    struct san_object *o = find(shard, hash, kind, value);
    /* A memory handle retained, an address opened twice: one more end is needed. CUDA's own pools are only queried. */
    bool counts = kind == PSM_SAN_MEM || kind == PSM_SAN_IPC || kind == PSM_SAN_EXPORT;
    if (o && (flags & SAN_BORROWED)) {
        san_unlock(shard);
        return;
    }
    if (o && counts && o->state == SAN_ALIVE) {
        o->count++;
        san_unlock(shard);
        san_stack_drop(stack);
        return;
    }
    if (o) {
        /* Its end was not seen, or is still in progress. */
        san_record_end(shard, o);
        san_stack_drop(o->birth);
    } else {
        o = fresh(shard, hash);
    }
    if (o) {
        /* Member by member: clearing a whole struct uses an instruction that takes longer than all of this. */
        o->hash = hash;
        o->value = value;
        o->size = size;
        o->birth = stack;
        o->kind = (uint8_t)kind;
        o->state = SAN_ALIVE;
        o->flags = (uint16_t)(flags | SAN_NO_RECORD);
        o->generation = atomic_fetch_add(&generations, 1) + 1;
        o->count = 1;
        o->device = device;
        o->tid = san_tid();
        if (flags & SAN_IMPORTED) {
            o->owner = *owner;
            o->checked_ns = 0;
        }
        san_record_birth(shard, o);
        if (has_span(kind)) {
            struct san_span span = {value,         value + (size ? size : 1),       o->generation,
                                    (uint8_t)kind, !size || (flags & SAN_IMPORTED), false};
            san_span_add(&span);
        }
    } else {
        san_stack_drop(stack);
    }
    san_unlock(shard);
}

void san_ending(const struct san_shard *shard, struct san_object *o)
{
    struct san_ended_set *set = set_of(shard, o->hash);
    o->state = SAN_ENDING;
    __builtin_prefetch(ended_at(shard, set, set->tag[NEXT] / 2), 1); /* most likely its place */
}

void san_ended(struct san_shard *shard, struct san_object *o, uint32_t generation, bool success,
               struct san_shared *stack)
{
    san_guard_take(&shard->lock);
    if (o->generation == generation && o->state == SAN_ENDING) {
        if (!success || --o->count > 0) {
            o->state = SAN_ALIVE;
        } else {
            san_record_end(shard, o);
            if (has_span(o->kind)) san_span_remove(o->value, generation, o->kind != PSM_SAN_HOST);
            bury(shard, o, stack);
            stack = NULL;
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
    for (int i = 0; i < SAN_SHARDS; i++) {
        struct san_shard *shard = &san_shards[i];
        san_guard_take(&shard->lock);
        for (uint32_t j = 0; j <= shard->last; j++)
            for (struct san_object *o = shard->bucket[j], *next; o; o = next) {
                next = o->next;
                /* A device reset does not end registered and pinned memory, reservations and graphs. */
                if (o->device != device || (o->kind != PSM_SAN_STREAM && o->kind != PSM_SAN_EVENT &&
                                            o->kind != PSM_SAN_ALLOC && o->kind != PSM_SAN_IPC))
                    continue;
                san_record_end(shard, o);
                if (has_span(o->kind)) san_span_remove(o->value, o->generation, true);
                bury(shard, o, san_stack_share(stack));
            }
        san_guard_leave(&shard->lock);
    }
    san_stack_drop(stack);
}

void san_each(void (*visit)(const struct san_object *object, void *context), void *context)
{
    for (int i = 0; i < SAN_SHARDS; i++) {
        struct san_shard *shard = &san_shards[i];
        san_guard_take(&shard->lock);
        for (uint32_t j = 0; j <= shard->last; j++)
            for (const struct san_object *o = shard->bucket[j]; o; o = o->next)
                if (o->state == SAN_ALIVE) visit(o, context);
        san_guard_leave(&shard->lock);
    }
}

void san_ledger_start(void)
{
    for (int i = 0; i < SAN_SHARDS; i++) {
        struct san_shard *s = &san_shards[i];
        bool places = i == SAN_PLACES;
        s->spare = SAN_NO_SLOT;
        s->bucket = s->few;
        s->last = SAN_FEW - 1;
        s->ended = places ? place_sets : sets[i];
        s->ended_of = places ? place_ended : ended[i];
        s->ended_last = (places ? PLACE_SETS : SETS) - 1;
    }
}
