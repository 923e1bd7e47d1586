/* Communicators: their files, limits and end. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler_plugin.h"
#include "profiler_say.h"

/* A context: a tag, 16 bits of the process, 12 of the communicator's hash, its number, and how often the number was
 * used. */
enum { CONTEXT_TAG = 0x5f };

struct prof_comm *_Atomic prof_comms[PROF_COMMS];
_Atomic uint64_t prof_lost_handles;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* serialises init and finalize */
static _Atomic uint64_t bytes_taken;
static uint64_t most_bytes;
static struct prof_settings settings;
static bool settled;

/* ---- the file ---- */

/* The caller of psm_schema_good needs plain types: an atomic may have another size. */
static const struct psm_field comm_fields[] = {
    PSM_FIELDS(struct psm_prof_comm, PSM_HEX64, comm_hash),
    PSM_FIELDS(struct psm_prof_comm, PSM_TIME, begin_ns, end_ns),
    PSM_FIELDS(struct psm_prof_comm, PSM_I32, rank, nranks, nnodes),
    PSM_FIELDS(struct psm_prof_comm, PSM_U32, context, abi, slots, trigger, clock),
    PSM_FIELDS(struct psm_prof_comm, PSM_U64, interval_ns, force_ns),
    PSM_FIELDS(struct psm_prof_comm, PSM_U32, mask, mask_wanted, consumer),
    PSM_FIELDS(struct psm_prof_comm, PSM_TIME, heartbeat_ns),
    PSM_FIELDS(struct psm_prof_comm, PSM_U64, begun, dropped_full, dropped_memory, overwritten, carried, bad_handle,
               stale_handle, stopped_twice, state_after_stop, never_stopped, foreign_parents),
    PSM_FIELDS(struct psm_prof_comm, PSM_STR, name),
};
static const struct psm_field window_fields[] = {
    PSM_FIELDS(struct psm_prof_window, PSM_U32, state, cycle, next, pending),
    PSM_FIELDS(struct psm_prof_window, PSM_TIME, open_ns, close_ns),
    PSM_FIELDS(struct psm_prof_window, PSM_U64, forced, serial),
};
/* What follows differs for each kind: raw words. */
#define WORD(n) {"w" #n, PSM_HEX64, (uint32_t)(offsetof(struct psm_prof_event, u) + 8 * (n)), 8}
static const struct psm_field event_fields[] = {
    PSM_FIELDS(struct psm_prof_event, PSM_HEX64, parent),
    PSM_FIELDS(struct psm_prof_event, PSM_TIME, stop_ns),
    PSM_FIELDS(struct psm_prof_event, PSM_U8, type, abi, flags, state),
    WORD(0),
    WORD(1),
    WORD(2),
    WORD(3),
    WORD(4),
    WORD(5),
    WORD(6),
    WORD(7),
    WORD(8),
    WORD(9),
};
#define COUNT(array) (sizeof(array) / sizeof *(array))
static const struct psm_record_message lines[] = {PSM_MESSAGE_PSM_PROFILER_RECORD};
static const struct psm_schema comm_schema = {
    "psm.prof.comm", PSM_PROF_VERSION, sizeof(struct psm_prof_comm), comm_fields, COUNT(comm_fields), lines, 1, -1};
static const struct psm_schema window_schema = {"psm.prof.windows",
                                                PSM_PROF_VERSION,
                                                sizeof(struct psm_prof_window),
                                                window_fields,
                                                COUNT(window_fields),
                                                NULL,
                                                0,
                                                -1};
static const struct psm_schema event_schema = {
    "psm.prof.events", PSM_PROF_VERSION, sizeof(struct psm_prof_event), event_fields, COUNT(event_fields), NULL, 0, -1};

/* Header, schemas and sections, except for the rows. */
enum { FIXED_BYTES = 1 << 16 };

static bool make_file(struct prof_comm *comm)
{
    uint64_t rows = (uint64_t)comm->total * (sizeof(struct rec_slot) + sizeof(struct psm_prof_event));
    comm->record = psm_record_more(FIXED_BYTES + rows);
    psm_section *one = psm_record_section(comm->record, &comm_schema, PSM_TABLE, 1);
    psm_section *four = psm_record_section(comm->record, &window_schema, PSM_TABLE, PSM_PROF_WINDOWS);
    comm->events = psm_record_sparse(comm->record, &event_schema, comm->total);
    size_t size = 0;
    uint32_t slot;
    comm->rows = comm->events ? psm_section_rows(comm->events, &size) : NULL;
    comm->shared = psm_table_claim(one, &slot);
    bool good = comm->rows && comm->shared && size == sizeof(struct rec_slot) + sizeof(struct psm_prof_event);
    for (int w = 0; w < PSM_PROF_WINDOWS; w++) good = (comm->window[w] = psm_table_claim(four, &slot)) && good;
    if (good) {
        /* They change in place from now on, in whole members. */
        psm_table_publish(one, 0);
        for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) psm_table_publish(four, w);
        return true;
    }
    psm_record_end(comm->record);
    comm->record = NULL;
    return false;
}

bool prof_comm_take(struct prof_comm *comm, uint32_t chunk, uint64_t now)
{
    uint32_t first = chunk * PROF_CHUNK, count = comm->total - first < PROF_CHUNK ? comm->total - first : PROF_CHUNK;
    uint64_t bytes = (uint64_t)count * (sizeof(struct rec_slot) + sizeof(struct psm_prof_event));
    uint8_t none = PROF_CHUNK_NONE;
    bool mine = atomic_compare_exchange_strong(&comm->chunk[chunk], &none, PROF_CHUNK_TAKING);
    if (!mine && none == PROF_CHUNK_THERE) return true;
    /* Another thread is taking the blocks and has counted them: counting twice does no harm, and waiting would. The
     * thread that gets them first sets the bit, because rows are used from then on. */
    bool good = !mine || atomic_fetch_add(&bytes_taken, bytes) + bytes <= most_bytes;
    bool room = good && psm_section_take(comm->events, first, count) == 0;
    uint8_t taking = PROF_CHUNK_TAKING;
    if (room && !atomic_compare_exchange_strong(&comm->chunk[chunk], &taking, PROF_CHUNK_THERE))
        room = taking == PROF_CHUNK_THERE; /* otherwise the other thread was refused, and took its count back */
    if (!room) atomic_store_explicit(&comm->no_memory_ns, now, memory_order_relaxed);
    taking = PROF_CHUNK_TAKING;
    /* Refused here, and granted to the other thread meanwhile: it counts as taken. */
    if (mine && !room && atomic_compare_exchange_strong(&comm->chunk[chunk], &taking, PROF_CHUNK_NONE))
        atomic_fetch_sub(&bytes_taken, bytes);
    else if (mine)
        atomic_fetch_add(&comm->bytes, bytes);
    return room;
}

bool prof_consumer_lives(const struct psm_prof_comm *shared, uint64_t now)
{
    uint64_t beat = atomic_load_explicit(&shared->heartbeat_ns, memory_order_relaxed);
    return beat && (beat > now || now - beat < PSM_PROF_CONSUMER_NS);
}

/* ---- lookup ---- */

struct prof_comm *prof_comm_any(void)
{
    for (int i = 0; i < PROF_COMMS; i++) {
        struct prof_comm *comm = atomic_load(&prof_comms[i]);
        if (!comm) break; /* numbers are used from 0 on */
        if (atomic_load(&comm->context)) return comm;
    }
    return NULL;
}

/* With PXN the proxy of this process works for another one, and NCCL passes that process's context. */
static struct prof_comm *alike(uint64_t context)
{
    uint64_t process = context >> 40 & 0xffff, hash = context >> 28 & 0xfff;
    struct prof_comm *found = NULL;
    if (context >> 56 != CONTEXT_TAG || process == psm_proc_self()->tag) return NULL;
    for (int i = 0; i < PROF_COMMS; i++) {
        struct prof_comm *comm = atomic_load(&prof_comms[i]);
        if (!comm) break;
        uint64_t own = atomic_load(&comm->context);
        if (!own || (own >> 28 & 0xfff) != hash) continue;
        if (found) return NULL; /* two candidates */
        found = comm;
    }
    return found;
}

struct prof_comm *prof_comm_other(uint64_t context)
{
    struct prof_comm *comm = alike(context);
    if (comm) return comm;
    comm = prof_comm_any();
    prof_count(comm ? &comm->shared->bad_handle : &prof_lost_handles);
    return NULL;
}

static uint64_t folded(uint64_t hash)
{
    hash ^= hash >> 32;
    hash ^= hash >> 16;
    return (hash ^ hash >> 12) & 0xfff;
}

/* ---- the mask ---- */

/* Keep one kind enabled in NCCL: a plugin that is never called does not see requests for another mask. */
static void set_mask(struct prof_comm *comm, uint32_t wanted)
{
    uint32_t mask = prof_mask_closed(wanted, comm->shared->abi);
    if (mask == atomic_load_explicit(&comm->mask, memory_order_relaxed)) return;
    atomic_store(&comm->mask, mask);
    atomic_store(&comm->shared->mask, mask);
    if (comm->nccl_mask) __atomic_store_n(comm->nccl_mask, (int)(mask ? mask : ncclProfileGroup), __ATOMIC_RELAXED);
}

void prof_comm_tick(struct prof_comm *comm)
{
    uint32_t wanted = atomic_load_explicit(&comm->shared->mask_wanted, memory_order_relaxed);
    if (wanted == UINT32_MAX || !atomic_load_explicit(&comm->context, memory_order_relaxed)) return;
    set_mask(comm, wanted);
}

/* ---- begin ---- */

static struct prof_comm *free_comm(void)
{
    for (uint32_t i = 0; i < PROF_COMMS; i++) {
        struct prof_comm *comm = atomic_load(&prof_comms[i]);
        if (comm && (atomic_load(&comm->context) || comm->forked)) continue;
        if (!comm) {
            comm = calloc(1, sizeof *comm);
            if (!comm) return NULL;
            comm->number = i;
            atomic_store(&prof_comms[i], comm);
        }
        return comm;
    }
    return NULL;
}

static void describe(struct prof_comm *comm, const struct prof_init *init, uint64_t now)
{
    struct psm_prof_comm *shared = comm->shared;
    shared->comm_hash = init->comm_hash;
    shared->begin_ns = now;
    shared->rank = init->rank;
    shared->nranks = init->nranks;
    shared->nnodes = init->nnodes;
    shared->context = comm->number;
    shared->abi = init->abi;
    shared->slots = comm->slots;
    shared->trigger = comm->trigger;
    shared->clock = (uint32_t)prof_clock_prepare(settings.tsc);
    shared->interval_ns = comm->interval_ns;
    shared->force_ns = settings.force_ns;
    atomic_store(&shared->mask_wanted, UINT32_MAX);
    if (init->name) memcpy(shared->name, init->name, strnlen(init->name, sizeof shared->name - 1));
}

static ncclResult_t begin(struct prof_comm *comm, const struct prof_init *init)
{
    comm->slots = settings.slots;
    comm->total = PSM_PROF_WINDOWS * comm->slots;
    comm->trigger = settings.trigger;
    comm->interval_ns = settings.interval_ns;
    comm->logger = init->logger;
    comm->tags = init->tags;
    atomic_store(&comm->bytes, FIXED_BYTES);
    if (atomic_fetch_add(&bytes_taken, FIXED_BYTES) + FIXED_BYTES > most_bytes || !make_file(comm)) {
        atomic_fetch_sub(&bytes_taken, atomic_load(&comm->bytes));
        PROF_SAY(comm->logger, PSM_PROFILER_NO_FILE, psm_profiler_no_file, init->comm_hash, init->rank, most_bytes);
        return ncclSystemError;
    }
    uint64_t now = psm_clock_ns();
    describe(comm, init, now);
    uint32_t cycle = 0;
    for (int w = 0; w < PSM_PROF_WINDOWS; w++) {
        /* Handles of the previous communicator with this number have other cycles. */
        if (comm->history[w].cycle > cycle) cycle = comm->history[w].cycle;
        comm->history[w].owed = false;
        comm->history[w].forced_seen = 0;
        atomic_store(&comm->history[w].n_forced, 0);
    }
    for (int w = 0; w < PSM_PROF_WINDOWS; w++) atomic_store(&comm->window[w]->cycle, cycle + PSM_PROF_WINDOWS);
    for (int i = 0; i < PROF_CHUNKS; i++) atomic_store(&comm->chunk[i], PROF_CHUNK_NONE);
    atomic_store(&comm->no_memory_ns, 0);
    atomic_store(&comm->late_lost, 0);
    atomic_store(&comm->said_full, false);
    atomic_store(&comm->said_memory, false);
    comm->serial = 0;
    atomic_fetch_add(&comm->generation, 1);
    atomic_store(&comm->current, 0);
    prof_open_first(comm, now);
    prof_comm_take(comm, 0, now);
    return ncclSuccess;
}

ncclResult_t prof_comm_init(void **context, int *mask, const struct prof_init *init)
{
    if (!context) return ncclInvalidArgument;
    *context = NULL;
    pthread_mutex_lock(&mutex);
    if (!prof_comm_any()) {
        settled = prof_settings_read(&settings, init->logger);
        most_bytes = settings.most_bytes;
    }
    struct prof_comm *comm = settled ? free_comm() : NULL;
    ncclResult_t result = !settled ? ncclInvalidUsage : comm ? begin(comm, init) : ncclSystemError;
    if (result == ncclSuccess) {
        comm->nccl_mask = mask;
        atomic_store(&comm->mask, UINT32_MAX);
        set_mask(comm, settings.mask);
        uint64_t value = (uint64_t)CONTEXT_TAG << 56 | (uint64_t)psm_proc_self()->tag << 40 |
                         folded(init->comm_hash) << 28 | (uint64_t)comm->number << 16 |
                         (atomic_load(&comm->generation) & 0xffff);
        atomic_store(&comm->context, value);
        *context = (void *)(uintptr_t)value;
        PROF_SAY(comm->logger, PSM_PROFILER_USING, psm_profiler_using, init->abi, psm_record_path(comm->record),
                 init->comm_hash, init->rank, init->nranks, atomic_load(&comm->mask),
                 comm->shared->clock == PROF_CLOCK_TSC ? "TSC" : "clock_gettime");
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* ---- end ---- */

/* Final counters; windows that a consumer can take. */
static void settle(struct prof_comm *comm, uint64_t now)
{
    uint32_t generation = atomic_load(&comm->generation);
    for (struct prof_local *l = atomic_load(&comm->locals); l; l = l->next) {
        if (atomic_load(&l->generation) != generation) continue;
        uint64_t begun = atomic_load(&l->begun);
        atomic_fetch_add(&comm->shared->begun, begun - l->told);
        l->told = begun;
    }
    uint64_t open = 0;
    for (int w = 0; w < PSM_PROF_WINDOWS; w++) {
        struct psm_prof_window *window = comm->window[w];
        uint32_t state = atomic_load(&window->state), filling = PSM_PROF_FILLING;
        if (state == PSM_PROF_FILLING || state == PSM_PROF_CLOSING)
            for (int i = 0; i < PSM_PROF_SHARDS; i++)
                open += atomic_load(&window->shard[i].started) - atomic_load(&window->shard[i].stopped);
        if (state != PSM_PROF_FILLING) continue;
        PROF_SET(window->close_ns, now);
        atomic_compare_exchange_strong(&window->state, &filling, PSM_PROF_CLOSING);
    }
    atomic_store(&comm->shared->never_stopped, open);
}

/* NCCL has no call in flight when it finalizes, except for its proxy thread in some releases: wait a while for that. */
static void wait_for_calls(struct prof_comm *comm)
{
    uint64_t until = psm_clock_ns() + 100000000;
    for (struct prof_local *l = atomic_load(&comm->locals); l; l = l->next)
        while (atomic_load(&l->inside) && psm_clock_ns() < until) sched_yield();
    while (atomic_load(&comm->opening) && psm_clock_ns() < until) sched_yield();
}

static void report(const struct prof_comm *comm)
{
    const struct psm_prof_comm *s = comm->shared;
    uint64_t breaches = atomic_load(&s->bad_handle) + atomic_load(&s->stale_handle) + atomic_load(&s->stopped_twice) +
                        atomic_load(&s->state_after_stop);
    PROF_SAY(comm->logger, PSM_PROFILER_ENDED, psm_profiler_ended, s->comm_hash, s->rank, atomic_load(&s->begun),
             atomic_load(&s->dropped_full) + atomic_load(&s->dropped_memory), atomic_load(&s->overwritten),
             atomic_load(&s->carried), breaches, atomic_load(&s->never_stopped));
}

ncclResult_t prof_comm_finalize(void *context)
{
    uint64_t value = (uint64_t)(uintptr_t)context;
    pthread_mutex_lock(&mutex);
    struct prof_comm *comm = atomic_load(&prof_comms[value >> 16 & (PROF_COMMS - 1)]);
    /* Up to 2.27 NCCL also finalizes what init refused. */
    if (value && comm && atomic_compare_exchange_strong(&comm->context, &value, 0)) {
        uint64_t now = psm_clock_ns();
        wait_for_calls(comm);
        settle(comm, now);
        atomic_fetch_add(&comm->shared->bad_handle, atomic_exchange(&prof_lost_handles, 0));
        report(comm);
        PROF_SET(comm->shared->end_ns, now);
        atomic_fetch_sub(&bytes_taken, atomic_load(&comm->bytes));
        comm->nccl_mask = NULL;
        psm_record_keep(comm->record, prof_consumer_lives(comm->shared, now));
        psm_record_end(comm->record);
    }
    pthread_mutex_unlock(&mutex);
    return ncclSuccess;
}

/* A process that ends without finalize, which NCCL does not require. Runs before the records are closed. */
__attribute__((destructor)) static void at_exit(void)
{
    for (int i = 0; i < PROF_COMMS; i++) {
        struct prof_comm *comm = atomic_load(&prof_comms[i]);
        if (!comm) break;
        if (!atomic_load(&comm->context) || comm->forked) continue;
        uint64_t now = psm_clock_ns();
        settle(comm, now);
        psm_record_keep(comm->record, prof_consumer_lives(comm->shared, now));
    }
}

/* ---- fork ---- */

/* The child has none of its parent's communicators: everything that it holds of them is stale. */
static void after_fork(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    mutex = fresh;
    for (int i = 0; i < PROF_COMMS; i++) {
        struct prof_comm *comm = atomic_load(&prof_comms[i]);
        if (!comm) break;
        /* The parent's threads, which do not exist here, may have left it in any state. */
        comm->forked = true;
        atomic_store(&comm->context, 0);
        comm->nccl_mask = NULL;
    }
    atomic_store(&bytes_taken, 0);
    prof_threads_forked();
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}
