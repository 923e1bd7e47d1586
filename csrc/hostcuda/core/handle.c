/* Handles: numbers that are valid in one process only.
 *
 *   bits 46..31  tag of the process, random, not 0
 *   bits 30..21  generation of the slot, so that a reused slot has another handle
 *   bits 20..4   slot
 *   bits 3..0    0, so that no handle equals one of CUDA's special stream values */
#define _GNU_SOURCE
#include "core/hc.h"

#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum { SLOT_BITS = 17, PAGE = 1024, PAGES = (1 << SLOT_BITS) / PAGE };

struct slot {
    _Atomic uint64_t value; /* 0: free */
    void *_Atomic object;
    _Atomic int kind;
    uint32_t generation;
    uint32_t next; /* free list, first in first out: a slot is reused as late as possible */
};

static struct slot *_Atomic pages[PAGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t used = 1, free_first, free_last; /* slot 0 is never used */
static _Atomic uint32_t tag;

uint32_t hc_process_tag(void)
{
    uint32_t now = atomic_load_explicit(&tag, memory_order_relaxed);
    while (!now) {
        uint32_t fresh = 0, none = 0;
        if (getrandom(&fresh, sizeof fresh, 0) != (ssize_t)sizeof fresh) fresh = (uint32_t)getpid() * 2654435761u >> 8;
        fresh &= 0xffff;
        if (fresh) atomic_compare_exchange_strong(&tag, &none, fresh);
        now = atomic_load(&tag);
    }
    return now;
}

static struct slot *slot_at(uint32_t index)
{
    struct slot *page = atomic_load_explicit(&pages[index / PAGE], memory_order_acquire);
    return page ? &page[index % PAGE] : NULL;
}

/* Call it under the lock. */
static uint32_t take_slot(void)
{
    if (used < (1u << SLOT_BITS)) { /* unused slots first, then those that were freed longest ago */
        uint32_t index = used;
        if (!atomic_load(&pages[index / PAGE])) {
            struct slot *page = calloc(PAGE, sizeof *page);
            if (!page) return 0;
            atomic_store_explicit(&pages[index / PAGE], page, memory_order_release);
        }
        used++;
        return index;
    }
    uint32_t index = free_first;
    if (index) {
        free_first = slot_at(index)->next;
        if (!free_first) free_last = 0;
    }
    return index;
}

uint64_t hc_handle_new(enum hc_kind kind, void *object)
{
    uint64_t high = (uint64_t)hc_process_tag() << 31;
    pthread_mutex_lock(&lock);
    uint32_t index = take_slot();
    uint64_t value = 0;
    if (index) {
        struct slot *slot = slot_at(index);
        slot->generation = (slot->generation + 1) & 0x3ff;
        value = high | (uint64_t)slot->generation << 21 | (uint64_t)index << 4;
        atomic_store(&slot->object, object);
        atomic_store(&slot->kind, (int)kind);
        atomic_store_explicit(&slot->value, value, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return value;
}

static struct slot *find(enum hc_kind kind, uint64_t value)
{
    if (value >> 47 || value & 15) return NULL;
    struct slot *slot = slot_at((uint32_t)(value >> 4) & ((1u << SLOT_BITS) - 1));
    if (!slot || !value || atomic_load_explicit(&slot->value, memory_order_acquire) != value) return NULL;
    return atomic_load(&slot->kind) == (int)kind ? slot : NULL;
}

void *hc_handle_get(enum hc_kind kind, uint64_t value)
{
    struct slot *slot = find(kind, value);
    if (!slot) return NULL;
    void *object = atomic_load(&slot->object);
    return atomic_load(&slot->value) == value ? object : NULL; /* ended meanwhile */
}

void *hc_handle_end(enum hc_kind kind, uint64_t value)
{
    void *object = NULL;
    pthread_mutex_lock(&lock);
    struct slot *slot = find(kind, value);
    if (slot) {
        uint32_t index = (uint32_t)(value >> 4) & ((1u << SLOT_BITS) - 1);
        object = atomic_load(&slot->object);
        atomic_store(&slot->value, 0);
        slot->next = 0;
        if (free_last)
            slot_at(free_last)->next = index;
        else
            free_first = index;
        free_last = index;
    }
    pthread_mutex_unlock(&lock);
    return object;
}

void hc_handle_each(enum hc_kind kind, void (*visit)(uint64_t value, void *object, void *context), void *context)
{
    pthread_mutex_lock(&lock);
    uint32_t end = used;
    pthread_mutex_unlock(&lock);
    for (uint32_t index = 1; index < end; index++) { /* unlocked: visit may end the handle */
        struct slot *slot = slot_at(index);
        uint64_t value = slot ? atomic_load_explicit(&slot->value, memory_order_acquire) : 0;
        void *object = value ? hc_handle_get(kind, value) : NULL;
        if (object) visit(value, object, context);
    }
}
