/* Inside the sanitizer. */
#ifndef PSM_SAN_INTERNAL_H
#define PSM_SAN_INTERNAL_H

#include <sched.h>
#include <time.h>

#include "base.h"
#include "record.h"
#include "san.h"

/* ---- locks ---- */

/* Held for tens of nanoseconds, twice or more in a call: a mutex would cost as much as what it guards. */
struct san_guard {
    _Atomic int taken;
};

static inline bool san_guard_try(struct san_guard *guard)
{
    return !atomic_exchange_explicit(&guard->taken, 1, memory_order_acquire);
}

static inline void san_guard_take(struct san_guard *guard)
{
    for (int i = 0; !san_guard_try(guard); i++) {
        /* Its holder does not run: with priorities, giving the processor up may not be enough. */
        static const struct timespec moment = {0, 50000};
        if (i < 100)
            sched_yield();
        else
            nanosleep(&moment, NULL);
    }
}

static inline void san_guard_leave(struct san_guard *guard)
{
    atomic_store_explicit(&guard->taken, 0, memory_order_release);
}

/* ---- stacks (stack.c, unwind.c) ---- */

/* SAN_WALK: with those of our own that may lie below the caller's. */
enum { SAN_FRAMES = 12, SAN_WALK = SAN_FRAMES + 8, SAN_STACK_TEXT = 1024, SAN_MODULES = 512 };

/* The callers, the innermost first, without frames of psmkit's own libraries. Module in the upper 16 bits, offset of
 * the call in it in the rest: records of other processes have it so too. */
struct san_stack {
    uint32_t n;
    uint32_t reserved;
    uint64_t frame[SAN_FRAMES];
};

/* One stack for all that was born or ended with it. */
struct san_shared {
    struct san_stack stack;
    bool stays; /* for ever: its users are not counted */
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
/* The caller is a user of it. NULL: no memory. */
struct san_shared *san_stack_take(void);
struct san_shared *san_stack_share(struct san_shared *shared); /* one more user */
void san_stack_drop(struct san_shared *shared);                /* one less; NULL too */
/* Once, without memory for it. */
void san_stack_take_now(struct san_stack *stack);
/* From a signal handler, beginning at the interrupted instruction. */
void san_stack_take_from(struct san_stack *stack, void *pc);
void san_stack_render(const struct san_stack *stack, char *text, size_t size);
/* Of another process, with the paths of its modules. */
void san_stack_render_foreign(const struct san_stack *stack, const struct psm_view *view, char *text, size_t size);

/* From one of these files to the other. */
void san_unwind_start(void);
void san_stack_set(struct san_stack *stack, const uintptr_t *pc, int n);
/* Return addresses from here on. Returns how many. */
int san_walk(uintptr_t pc[static SAN_WALK]);

/* ---- objects (ledger.c) ---- */

/* Parts of the ledger, each with its lock. */
enum { SAN_SHARDS = 64 };

enum san_state { SAN_FREE, SAN_ALIVE, SAN_ENDING, SAN_ENDED };
enum san_flag {
    SAN_RECORDED = 1,  /* event: cudaEventRecord was called */
    SAN_TOLD = 2,      /* event: that it was not recorded was told */
    SAN_BORROWED = 4,  /* CUDA's or somebody else's: never a leak */
    SAN_IMPORTED = 8,  /* owner says whose it is */
    SAN_NO_RECORD = 16 /* the table was full */
};

struct san_owner {
    int pid, rank;
    uint64_t start_time; /* 0: unknown */
};

struct san_object {
    /* The first cache line: what lookups and burials of others touch. */
    _Alignas(64) struct san_object *next; /* in its bucket */
    struct san_object *older, *newer;     /* ended ones of a shard, for their burial */
    uint64_t value;
    struct san_shared *birth, *end; /* NULL: unknown */
    enum psm_san_kind kind;
    enum san_state state;
    unsigned flags;
    uint32_t generation;

    uint64_t size;
    uint32_t count, slot;
    int device, tid, end_tid;
    uint64_t checked_ns; /* when the owner was last seen alive */
    struct san_owner owner;
};

/* One that stays as it is when the shard is no longer locked. Its object's pointers are not for use. */
struct san_copy {
    struct san_object object;
    struct san_stack birth, end;
};
void san_copy(struct san_copy *copy, const struct san_object *object);

/* The object of that number, with its shard locked; NULL with the shard locked too when there is none. */
struct san_shard;
struct san_object *san_lock(enum psm_san_kind kind, uint64_t value, struct san_shard **shard);
void san_unlock(struct san_shard *shard);
/* For signal handlers: false when the lock is taken. */
bool san_try_copy(enum psm_san_kind kind, uint64_t value, struct san_copy *copy);

/* Born, or born anew under a number that was known. flags: SAN_BORROWED, SAN_IMPORTED, SAN_RECORDED. */
void san_born(enum psm_san_kind kind, uint64_t value, uint64_t size, int device, unsigned flags,
              const struct san_owner *owner);
/* After SAN_ENDING: ended for good, or alive again. Nothing when it was born anew meanwhile. Takes the
 * caller's use of the stack over. */
void san_ended(enum psm_san_kind kind, uint64_t value, uint32_t generation, bool success, struct san_shared *stack);
uint32_t san_generation(void); /* of the youngest */
/* cudaDeviceReset: what the device had has ended. */
void san_reset(int device);
/* Every living object, locked by shard: visit may not take locks of the ledger. */
void san_each(void (*visit)(const struct san_object *object, void *context), void *context);
void san_ledger_start(void);

/* ---- addresses (spans.c) ---- */

struct san_span {
    uint64_t base, end;
    enum psm_san_kind kind;
    uint32_t generation;
    bool look; /* at the object too: it is another process's, or its size is unknown */
};

enum san_hit { SAN_HIT_NONE, SAN_HIT_LIVE, SAN_HIT_FREED };
/* What lies at the address. For mappings side by side span covers all of them; first is the one of the address. */
enum san_hit san_span_find(uint64_t address, struct san_span *first, uint64_t *end);
bool san_span_try_find(uint64_t address, struct san_span *first);
void san_span_add(const struct san_span *span);
/* Out of the living; kept among the freed when keep is true. */
void san_span_remove(uint64_t base, uint32_t generation, bool keep);
/* The first living mapping with base in [from, to). */
bool san_span_first(enum psm_san_kind kind, uint64_t from, uint64_t to, struct san_span *span);

/* ---- records of this and other processes (records.c) ---- */

void san_records_start(void);
/* Shard locked. spare: a slot that the shard has set aside, or SAN_NO_SLOT. */
#define SAN_NO_SLOT UINT32_MAX
void san_record_birth(struct san_object *object, uint32_t *spare);
void san_record_end(struct san_object *object, uint32_t *spare);

struct san_foreign {
    struct san_owner owner;
    enum psm_owner alive;
    int tid;
    enum psm_san_kind kind;
    uint64_t value, size;
    char stack[SAN_STACK_TEXT];
};
/* Who else has it: by number, or for addresses by what they lie in. */
bool san_foreign_find(enum psm_san_kind kind, uint64_t value, struct san_foreign *found);
bool san_foreign_address(uint64_t address, struct san_foreign *found);

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
    const struct san_stack *used; /* NULL: taken now */
    const struct san_stack *birth, *end;
    int tid, end_tid;
    const char *foreign_stack;
};

void san_reports_start(void);
/* Prints and records it, unless the same was told before. True: it was told. */
bool san_report(const struct san_report *report);
const char *san_kind_name(enum psm_san_kind kind);
/* At exit. */
void san_report_left(enum psm_san_kind kind, uint64_t count, uint64_t bytes, const struct san_stack *first, bool leak);

/* ---- the reporter of host accesses (segv.c) ---- */
void san_segv_start(void);

/* ---- process-wide (sanitize.c) ---- */
extern struct psm_san_hooks san_hooks;
int san_device(void);

#endif
