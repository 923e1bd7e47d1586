/* Internals of the profiler plugin. csrc/telemetry/window.h describes the file.
 *
 * A call of NCCL goes through tables.c (which translates), events.c (what the event does to its row and its parents),
 * windows.c (where the row is) and local.c (the thread's own part). None of these takes a lock. A thread's part is
 * created at its first event of a communicator, and blocks of the file are allocated a MiB at a time; nothing else
 * allocates memory. */
#ifndef PSM_PROFILER_H
#define PSM_PROFILER_H

#include "psm_abi/profiler.h"
#include "psm_abi_rows.h"
#include "psm_abi_versions.h"
#include "record_format.h"
#include "window.h"

enum {
    PROF_COMMS = 1 << 12, /* live at the same time: 12 bits of a handle */
    PROF_BATCH = 32,      /* slots that a thread takes at once */
    PROF_CHUNK = 1 << 13, /* rows whose blocks are allocated at once: a MiB */
    PROF_CHUNKS = PSM_PROF_WINDOWS * PSM_PROF_MAX_SLOTS / PROF_CHUNK,
    PROF_FORCED = 16 /* last cycles of a window for which a forced take is remembered */
};
#define PROF_CYCLE(c) ((uint32_t)(c) & 0xffffff)

/* ---- time (clock.c) ---- */

struct prof_clock {
    uint64_t tsc, ns, mult; /* ns is the time at tsc; mult: ns per cycle, times 2^32 */
    uint64_t limit;         /* cycles after tsc until the clock is synchronised again */
    uint64_t anchor_tsc, anchor_ns;
};
enum { PROF_CLOCK_MONOTONIC, PROF_CLOCK_TSC };

/* Measures the TSC, once; tsc false: does not use it. Returns the clock that is used. */
int prof_clock_prepare(bool tsc);
/* Out of line: synchronises the thread's clock with CLOCK_MONOTONIC, about a hundred times a second. */
uint64_t prof_clock_set(struct prof_clock *clock, bool *tick);
extern _Atomic int prof_clock_kind;

#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t prof_tsc(void)
{
    return __rdtsc();
}
#else
static inline uint64_t prof_tsc(void)
{
    return 0;
}
#endif

static inline uint64_t prof_now(struct prof_clock *clock, bool *tick)
{
    if (atomic_load_explicit(&prof_clock_kind, memory_order_relaxed) == PROF_CLOCK_TSC) {
        uint64_t passed = prof_tsc() - clock->tsc;
        if (passed <= clock->limit) return clock->ns + (passed * clock->mult >> 32);
    }
    return prof_clock_set(clock, tick);
}

/* ---- settings (settings.c) ---- */

struct prof_settings {
    uint32_t slots, trigger, mask;
    uint64_t interval_ns, force_ns, most_bytes;
    bool tsc;
};
/* False: a setting cannot be read; a line has said which. */
bool prof_settings_read(struct prof_settings *settings, ncclDebugLogger_t logger);
/* Includes the kinds that are parents of those in the mask; without those that a version of the table lacks. */
uint32_t prof_mask_closed(uint32_t mask, uint32_t abi);

/* ---- threads (local.c) ---- */

struct prof_comm;

/* One thread's part of one communicator: written by that thread, read by the thread that opens a window. */
struct prof_local {
    _Atomic uint32_t inside; /* windows that the thread is currently reading or writing, one bit each */
    _Atomic uint32_t generation;
    uint32_t shard;
    bool alone; /* no other thread counts in that shard */
    struct prof_batch {
        uint32_t next, end;
        uint64_t deadline;
        _Atomic uint32_t cycle;
        _Atomic uint32_t rows; /* of that cycle, without PSM_PROF_LATE */
    } batch[PSM_PROF_WINDOWS];
    _Atomic uint64_t begun;
    _Atomic uint64_t told; /* the part of begun that the communicator's counter includes */
    _Atomic bool taken;
    struct {
        uint8_t func, algo, proto, datatype, phase;
    } last;                  /* names of the last operation */
    struct prof_local *next; /* list of the communicator, never removed from */
} __attribute__((aligned(64)));

struct prof_thread {
    struct prof_clock clock;
    bool tick; /* the clock was synchronised: time for checks that are not made in each call */
    int tid;
    struct prof_local *local[PROF_COMMS];
};
extern _Thread_local struct prof_thread *prof_thread_self __attribute__((tls_model("initial-exec")));
struct prof_thread *prof_thread_make(void); /* NULL: no memory */
struct prof_local *prof_local_make(struct prof_thread *thread, struct prof_comm *comm);
void prof_threads_forked(void);

static inline struct prof_thread *prof_thread(void)
{
    struct prof_thread *thread = prof_thread_self;
    return __builtin_expect(thread != NULL, 1) ? thread : prof_thread_make();
}

/* ---- communicators (comm.c) ---- */

/* Never freed: handles and contexts are numbers, and a stale one leads here. */
struct prof_comm {
    _Atomic uint64_t context; /* the mask that NCCL received, 0: none */
    _Atomic uint32_t mask;    /* the mask that is recorded */
    uint32_t number, slots, total, trigger;
    bool tags;
    _Atomic uint32_t generation;
    struct psm_prof_comm *shared;
    struct psm_prof_window *window[PSM_PROF_WINDOWS];
    unsigned char *rows;
    psm_section *events;
    psm_record *record;
    _Atomic uint32_t current; /* the window that new events go to */
    _Atomic bool opening;     /* a thread is looking for the next one */
    _Atomic uint8_t chunk[PROF_CHUNKS];
    _Atomic uint64_t no_memory_ns; /* when blocks were last refused */
    struct prof_local *_Atomic locals;
    /* Owned by the holder of `opening`. */
    uint64_t serial;
    struct {
        bool owed;            /* its rows are overwritten and not counted yet */
        uint32_t cycle;       /* in which it was last opened */
        uint64_t forced_seen; /* of the window's `forced` */
        _Atomic uint32_t forced[PROF_FORCED], n_forced;
    } history[PSM_PROF_WINDOWS];
    _Atomic uint64_t late_lost;
    _Atomic bool said_full, said_memory;
    _Atomic uint32_t naming; /* a thread is adding a name */
    _Atomic uint32_t threads;
    uint64_t interval_ns;
    _Atomic uint64_t bytes; /* bytes of the process's limit that it uses */
    int *nccl_mask;
    ncclDebugLogger_t logger;
    bool forked;
};
enum { PROF_CHUNK_NONE, PROF_CHUNK_TAKING, PROF_CHUNK_THERE };

extern struct prof_comm *_Atomic prof_comms[PROF_COMMS];
extern _Atomic uint64_t prof_lost_handles; /* bad ones while no communicator existed */

struct prof_init {
    uint32_t abi;
    uint64_t comm_hash;
    const char *name;
    int nnodes, nranks, rank;
    ncclDebugLogger_t logger;
    bool tags; /* its descriptors have userTag */
};
ncclResult_t prof_comm_init(void **context, int *mask, const struct prof_init *init);
ncclResult_t prof_comm_finalize(void *context);
/* The communicator of a context; one of another process maps to ours with the same hash. NULL: none; this is counted.
 */
struct prof_comm *prof_comm_other(uint64_t context);
/* For events that belong to no communicator. NULL: none exists. */
struct prof_comm *prof_comm_any(void);
/* Called about a hundred times a second: applies a mask that another process has requested. */
void prof_comm_tick(struct prof_comm *comm);
/* Allocates blocks for a chunk; false: the limit of the process, or the disk is full. */
bool prof_comm_take(struct prof_comm *comm, uint32_t chunk, uint64_t now);
bool prof_consumer_lives(const struct psm_prof_comm *shared, uint64_t now);

static inline struct prof_comm *prof_comm_of(void *context)
{
    uint64_t value = (uint64_t)(uintptr_t)context;
    struct prof_comm *comm = atomic_load_explicit(&prof_comms[value >> 16 & (PROF_COMMS - 1)], memory_order_acquire);
    if (__builtin_expect(value && comm && atomic_load_explicit(&comm->context, memory_order_acquire) == value, 1))
        return comm;
    return value ? prof_comm_other(value) : NULL;
}

static inline struct prof_local *prof_local(struct prof_thread *thread, struct prof_comm *comm)
{
    struct prof_local *local = thread->local[comm->number];
    if (__builtin_expect(local && atomic_load_explicit(&local->generation, memory_order_relaxed) ==
                                      atomic_load_explicit(&comm->generation, memory_order_relaxed),
                         1))
        return local;
    return prof_local_make(thread, comm);
}

/* ---- windows (windows.c) ---- */

static inline struct rec_slot *prof_slot(const struct prof_comm *comm, uint32_t row)
{
    return (struct rec_slot *)(comm->rows + (size_t)row * (sizeof(struct rec_slot) + sizeof(struct psm_prof_event)));
}

static inline uint32_t prof_window_of(const struct prof_comm *comm, uint32_t row)
{
    uint32_t half = row >= 2 * comm->slots;
    return 2 * half + (row - 2 * half * comm->slots >= comm->slots);
}

static inline bool prof_row_there(const struct prof_comm *comm, uint32_t row)
{
    return row < comm->total &&
           atomic_load_explicit(&comm->chunk[row / PROF_CHUNK], memory_order_relaxed) == PROF_CHUNK_THERE;
}

/* Counted as started in its window; the caller writes the row and clears local->inside, and counts `stopped` when the
 * event has ended. */
struct prof_place {
    uint32_t row, window, cycle;
    bool rotate; /* call prof_rotate after the row is written */
};
/* parent: a row of this communicator that the caller may read while it is inside, UINT32_MAX: none. False: no room;
 * this is counted if `counted`. */
bool prof_take_slot(struct prof_comm *comm, struct prof_local *local, uint64_t parent, uint64_t now, bool counted,
                    struct prof_place *place);
void prof_open_first(struct prof_comm *comm, uint64_t now);
bool prof_rotate(struct prof_comm *comm, struct prof_local *local, uint32_t from, uint64_t now, bool memory);
/* What happened to an older cycle of a window: taken by force (report what ends now again), overwritten (nobody has
 * it), or taken regularly, or too long ago. */
enum prof_fate { PROF_UNKNOWN, PROF_FORCED_OUT, PROF_OVERWRITTEN };
enum prof_fate prof_fate_of(const struct prof_comm *comm, uint32_t window, uint32_t cycle);

/* ---- events (events.c) ---- */

struct prof_new {
    struct psm_prof_event *event; /* zeros except for what begin knows */
    struct rec_slot *slot;
    struct prof_comm *comm;
    struct prof_local *local;
    struct prof_thread *thread;
    struct prof_place place;
    uint64_t parent; /* handle of this communicator, 0: none */
};

/* A row for an event. False: none is requested, or there is no room. */
bool prof_begin(struct prof_new *made, void *context, unsigned abi, uint64_t type, uint64_t parent, int pid);
void *prof_commit(struct prof_new *made);
void prof_stop(uint64_t handle);

#define ARG(type, field) type field;
struct prof_args {
    PSM_ABI_PROFILER_ARGS(ARG)
};
#undef ARG
void prof_record(uint64_t handle, int state, const struct prof_args *args);
/* What is known about a net plugin's event; data of unknown plugins is not read. */
void prof_net_data(struct psm_prof_event *event, int64_t id, const void *data);

/* ---- names (names.c) ---- */

uint8_t prof_func(const struct prof_new *made, const char *name);
uint8_t prof_algo(const struct prof_new *made, const char *name);
uint8_t prof_proto(const struct prof_new *made, const char *name);
uint8_t prof_datatype(const struct prof_new *made, const char *name);
uint8_t prof_phase(const struct prof_new *made, const char *name);
/* A string of a kind for which the plugin knows no names. */
uint8_t prof_word(const struct prof_new *made, const char *name);

/* A single store, as readers in other processes require. The type of the value is that of the member without _Atomic,
 * which clang wants. */
#define PROF_TYPE(member)       __typeof__((void)0, (member))
#define PROF_AT(member)         ((PROF_TYPE(member) *)(uintptr_t)&(member))
#define PROF_SET(member, value) __atomic_store_n(PROF_AT(member), (value), __ATOMIC_RELAXED)
#define PROF_GET(member)        __atomic_load_n(PROF_AT(member), __ATOMIC_RELAXED)

/* One of a shard's sums that nothing is ordered behind. */
static inline void prof_sum(const struct prof_local *local, _Atomic uint64_t *sum)
{
    if (__builtin_expect(local->alone, 1))
        atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + 1, memory_order_release);
    else
        atomic_fetch_add_explicit(sum, 1, memory_order_release);
}

static inline void prof_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

#endif
