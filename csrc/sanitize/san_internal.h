/* Internals of the sanitizer. */
#ifndef PSM_SAN_INTERNAL_H
#define PSM_SAN_INTERNAL_H

#include <stdlib.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base.h"
#include "record.h"
#include "san.h"

enum { SAN_CACHE_LINE = 64 };

/* ---- locks ---- */

/* Held for tens of nanoseconds, twice or more per call: a mutex would cost as much as the code that it guards. */
struct san_guard {
    _Atomic int taken;
};

static inline bool san_guard_try(struct san_guard *guard)
{
    return !atomic_exchange_explicit(&guard->taken, 1, memory_order_acquire);
}

void san_guard_wait(struct san_guard *guard); /* ledger.c */

static inline void san_guard_take(struct san_guard *guard)
{
    if (__builtin_expect(!san_guard_try(guard), 0)) san_guard_wait(guard);
}

static inline void san_guard_leave(struct san_guard *guard)
{
    atomic_store_explicit(&guard->taken, 0, memory_order_release);
}

/* ---- time and thread of a birth (clock.c) ---- */

void san_clock_start(void);

#if defined(__x86_64__)
struct san_moment {
    uint64_t ticks, ns;
};
enum { SAN_CLOCK_SHIFT = 30 };
/* A thread calls the system again after so many ticks, less than a millisecond: the error of the counter stays far
 * below a microsecond, and that of another processor's counter below that millisecond. */
#define SAN_CLOCK_TICKS ((uint64_t)1 << 20)
extern _Atomic uint64_t san_clock_rate; /* ns per 2^SAN_CLOCK_SHIFT ticks; 0: unknown */
extern _Thread_local struct san_moment san_clock_seen __attribute__((tls_model("initial-exec")));
uint64_t san_clock_look(void);
#endif

/* As psm_clock_ns() returns it. */
static inline uint64_t san_clock_ns(void)
{
#if defined(__x86_64__)
    uint64_t ticks = __rdtsc() - san_clock_seen.ticks;
    if (__builtin_expect(ticks >= SAN_CLOCK_TICKS, 0)) return san_clock_look();
    return san_clock_seen.ns + (ticks * atomic_load_explicit(&san_clock_rate, memory_order_relaxed) >> SAN_CLOCK_SHIFT);
#else
    return psm_clock_ns();
#endif
}

extern _Thread_local int san_thread __attribute__((tls_model("initial-exec")));
/* As psm_tid() returns it; in a child of fork the sanitizer is off. */
static inline int san_tid(void)
{
    if (__builtin_expect(!san_thread, 0)) san_thread = psm_tid();
    return san_thread;
}

/* ---- stacks (stack.c, unwind.c) ---- */

/* SAN_WALK: including our own frames below the caller's. */
enum { SAN_FRAMES = 12, SAN_WALK = SAN_FRAMES + 8, SAN_STACK_TEXT = 1024, SAN_MODULES = 512 };

/* The callers, innermost first, without frames of psmkit's own libraries. The upper 16 bits are the module, the rest is
 * the offset of the call in it; records of other processes use the same form. */
struct san_stack {
    uint32_t n;
    uint32_t reserved;
    uint64_t frame[SAN_FRAMES];
};

/* One stack, shared by all objects that were born or ended with it. */
struct san_shared {
    struct san_stack stack;
    bool stays; /* kept for ever: its users are not counted */
    _Atomic uint32_t users;
};

struct san_module_record {
    uint32_t index;
    uint32_t reserved;
    uint64_t base;
    char path[240];
};
extern const struct psm_schema san_module_schema;

void san_stack_start(void);
/* The caller becomes a user of it. NULL: no memory. */
struct san_shared *san_stack_take(void);
/* Adds a user. */
static inline struct san_shared *san_stack_share(struct san_shared *shared)
{
    if (shared && !shared->stays) atomic_fetch_add_explicit(&shared->users, 1, memory_order_relaxed);
    return shared;
}
/* Removes a user; accepts NULL. */
static inline void san_stack_drop(struct san_shared *shared)
{
    if (shared && !shared->stays && atomic_fetch_sub_explicit(&shared->users, 1, memory_order_acq_rel) == 1)
        free(shared);
}
/* Call it once, without memory for it. */
void san_stack_take_now(struct san_stack *stack);
/* From a signal handler, starting at the interrupted instruction. */
void san_stack_take_from(struct san_stack *stack, void *pc);
void san_stack_render(const struct san_stack *stack, char *text, size_t size);
/* Of another process, with the paths of its modules. */
void san_stack_render_foreign(const struct san_stack *stack, const struct psm_view *view, char *text, size_t size);

/* Between these two files. */
void san_unwind_start(void);
void san_stack_set(struct san_stack *stack, const uintptr_t *pc, int n);
/* Collects return addresses from here on. Returns how many. */
int san_walk(uintptr_t pc[static SAN_WALK]);

/* ---- objects (ledger.c) ---- */

enum san_state { SAN_FREE, SAN_ALIVE, SAN_ENDING };
enum san_flag {
    SAN_RECORDED = 1,  /* event: cudaEventRecord was called */
    SAN_TOLD = 2,      /* event: the missing record was already reported */
    SAN_BORROWED = 4,  /* owned by CUDA or by unknown code: never a leak */
    SAN_IMPORTED = 8,  /* owner identifies its owner */
    SAN_NO_RECORD = 16 /* the table was full */
};

struct san_owner {
    int pid, rank;
    uint64_t start_time; /* 0: unknown */
};

/* A living object, or one that is about to end. */
struct san_object {
    _Alignas(SAN_CACHE_LINE) struct san_object *next; /* link in its bucket, or in the free list */
    uint64_t value, size;
    struct san_shared *birth; /* NULL: unknown */
    uint8_t kind, state;      /* enum psm_san_kind, enum san_state */
    uint16_t flags;
    uint32_t generation;
    uint32_t count, slot;
    int device, tid;
    uint64_t hash; /* of kind and value */

    /* Only with SAN_IMPORTED. */
    _Alignas(SAN_CACHE_LINE) struct san_owner owner;
    uint64_t checked_ns; /* when the owner was last seen alive */
};
_Static_assert(offsetof(struct san_object, owner) == SAN_CACHE_LINE, "most objects use one line");

/* A part of the ledger. Everything at addresses is in one, SAN_PLACES, whose lock also covers spans.c: births and ends
 * of memory take one lock. The others share the rest by number. Objects that come and go often reuse few cache lines: a
 * free object is reused before older ones, and the tables are as small as possible. */
enum { SAN_PLACES = 16, SAN_SHARDS, SAN_FEW = 8 };
struct san_ended_set;
struct san_shard {
    _Alignas(SAN_CACHE_LINE) struct san_guard lock;
    uint32_t spare;                       /* slot of a record that was set aside, or SAN_NO_SLOT */
    const struct san_shared *spare_birth; /* the stack in it, NULL: unknown */
    uint32_t living, last;                /* living: how many; last: of the buckets */
    struct san_object **bucket;           /* small, until there are many objects */
    struct san_object *free;
    struct san_ended_set *ended;
    struct san_ended *ended_of; /* the entries of all sets, contiguous */
    uint32_t ended_last;        /* of the sets */
    _Alignas(SAN_CACHE_LINE) struct san_object *few[SAN_FEW];
};
extern struct san_shard san_shards[SAN_SHARDS];

/* A copy that stays valid after the shard is unlocked. Do not follow its object's pointers. */
struct san_copy {
    struct san_object object;
    struct san_stack birth, end;
    int end_tid;
};
void san_copy(struct san_copy *copy, const struct san_object *object);

/* The object with that number, with its shard locked; NULL, also with the shard locked, if there is none now. */
struct san_object *san_lock(enum psm_san_kind kind, uint64_t value, struct san_shard **shard);
void san_unlock(struct san_shard *shard);
/* Shard locked: the last object that ended with that number. generation: of which one, 0 for any. */
bool san_copy_ended(const struct san_shard *shard, enum psm_san_kind kind, uint64_t value, uint32_t generation,
                    struct san_copy *copy);
/* For signal handlers: false if the lock is taken. */
bool san_try_copy(enum psm_san_kind kind, uint64_t value, struct san_copy *copy);

/* Records a birth, or a rebirth under a known number. flags: SAN_BORROWED, SAN_IMPORTED, SAN_RECORDED. */
void san_born(enum psm_san_kind kind, uint64_t value, uint64_t size, int device, unsigned flags,
              const struct san_owner *owner);
/* Shard locked: marks the object as SAN_ENDING. */
void san_ending(const struct san_shard *shard, struct san_object *object);
/* After it: ended for good, or alive again. Does nothing if it was reborn meanwhile, or the object belongs to another
 * process. Takes over the caller's use of the stack. */
void san_ended(struct san_shard *shard, struct san_object *object, uint32_t generation, bool success,
               struct san_shared *stack);
uint32_t san_generation(void); /* of the youngest object */
/* cudaDeviceReset: ends everything on the device. */
void san_reset(int device);
/* Visits every living object, with its shard locked: visit must not take locks of the ledger. */
void san_each(void (*visit)(const struct san_object *object, void *context), void *context);
void san_ledger_start(void);

/* ---- addresses (spans.c) ---- */

struct san_span {
    uint64_t base, end;
    uint32_t generation;
    uint8_t kind; /* enum psm_san_kind */
    bool look;    /* stored in the object too: it belongs to another process, or its size is unknown */
    bool freed;
};

enum san_hit { SAN_HIT_NONE, SAN_HIT_LIVE, SAN_HIT_FREED };
/* What is at the address. For adjacent mappings span covers all of them; first is the one at the address. */
enum san_hit san_span_find(uint64_t address, struct san_span *first, uint64_t *end);
bool san_span_try_find(uint64_t address, struct san_span *first);
/* Call the next three with SAN_PLACES locked. */
void san_span_add(const struct san_span *span);
/* Removes it from the living; keeps it among the freed if keep is true, until it is forgotten or another is born over
 * it. */
void san_span_remove(uint64_t base, uint32_t generation, bool keep);
void san_span_forget(uint64_t base, uint32_t generation);
/* The first living mapping with base in [from, to). */
bool san_span_first(enum psm_san_kind kind, uint64_t from, uint64_t to, struct san_span *span);

/* ---- records of this and other processes (records.c) ---- */

void san_records_start(void);
/* Shard locked. */
#define SAN_NO_SLOT UINT32_MAX
void san_record_birth(struct san_shard *shard, struct san_object *object);
void san_record_end(struct san_shard *shard, struct san_object *object);

struct san_foreign {
    struct san_owner owner;
    enum psm_owner alive;
    int tid;
    enum psm_san_kind kind;
    uint64_t value, size;
    char stack[SAN_STACK_TEXT];
};
/* Other holders of it: by number, or for addresses by the allocation that they are in. */
bool san_foreign_find(enum psm_san_kind kind, uint64_t value, struct san_foreign *found);
bool san_foreign_address(uint64_t address, struct san_foreign *found);
/* For a process that has ended: whether its objects may still be named. */
bool san_same_job(const psm_view *view);

/* ---- what was given to other processes (exports.c) ---- */

void san_exports_start(void);
void san_export_note(uint64_t key); /* a key is a hash of what was exported, never 0 */
/* Another exporter of it: a living process, else a dead one of this job. */
bool san_export_find(uint64_t key, struct san_owner *owner);

/* ---- reports (report.c) ---- */

enum san_finding {
    SAN_FOREIGN,
    SAN_DESTROYED,
    SAN_NEVER_CREATED,
    SAN_OUT_OF_BOUNDS,
    SAN_FREED_MEMORY,
    SAN_DOUBLE_FREE,
    SAN_BAD_FREE,
    SAN_NOT_RECORDED,
    SAN_HOST_ACCESS,
    SAN_DEAD_OWNER,
    SAN_EMPTY_UNMAP,
    SAN_FINDINGS
};

struct san_report {
    enum san_finding finding;
    const char *call;
    enum psm_san_kind kind;
    uint64_t value, size, address, bytes, beyond;
    uint32_t generation;
    int device;
    bool write;
    struct san_owner owner;
    const struct san_stack *used; /* NULL: the stack of now */
    const struct san_stack *birth, *end;
    int tid, end_tid;
    const char *foreign_stack;
};

void san_reports_start(void);
/* Prints and records it, unless the same was reported before. True: it was reported. */
bool san_report(const struct san_report *report);
const char *san_kind_name(enum psm_san_kind kind);
/* At exit. */
void san_report_left(enum psm_san_kind kind, uint64_t count, uint64_t bytes, const struct san_stack *first, bool leak);

/* ---- the reporter of host accesses (segv.c) ---- */
void san_segv_start(void);

/* ---- process-wide (sanitize.c) ---- */
extern struct psm_san_hooks san_hooks;

#endif
