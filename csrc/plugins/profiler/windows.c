/* Where a row is: slots of windows in batches, the next window, blocks of the file.
 *
 * A thread that is about to access rows of a window sets its bit in `inside`, then counts `started` (or changes the
 * row's life) with sequential consistency, and only then reads the window's cycle and state. The thread that opens a
 * window gives it a new cycle first, and leaves it alone if it finds somebody inside. So a row does not change its
 * owner while a thread reads it. Every store to `inside` is a release: it may leave another window, as the end of an
 * event does that its window did not see. */
#include "profiler_plugin.h"
#include "profiler_say.h"

enum tried { GOT, CLOSED, ENOUGH, FULL, NO_MEMORY };

static bool blocks(struct prof_comm *comm, uint32_t first, uint32_t end, uint64_t now)
{
    for (uint32_t chunk = first / PROF_CHUNK; chunk <= (end - 1) / PROF_CHUNK; chunk++)
        if (atomic_load_explicit(&comm->chunk[chunk], memory_order_acquire) != PROF_CHUNK_THERE &&
            !prof_comm_take(comm, chunk, now))
            return false;
    return true;
}

/* Slots for this thread. The window cannot be reused meanwhile: the caller has counted itself as started. */
static enum tried refill(struct prof_comm *comm, struct prof_local *local, uint32_t w, uint32_t cycle, uint64_t now,
                         bool closing)
{
    struct psm_prof_window *window = comm->window[w];
    struct prof_batch *batch = &local->batch[w];
    uint64_t begun = atomic_load_explicit(&local->begun, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->shared->begun, begun - local->told, memory_order_relaxed);
    local->told = begun;
    /* Check first: a full window is tried again and again, and the counter must not wrap around. */
    uint32_t next = atomic_load_explicit(&window->next, memory_order_relaxed);
    if (next >= comm->slots) return FULL;
    if (next >= comm->trigger && !closing) return ENOUGH;
    if (now - atomic_load_explicit(&comm->no_memory_ns, memory_order_relaxed) < 1000000) {
        if (!prof_row_there(comm, w * comm->slots + next)) return NO_MEMORY;
    }
    uint32_t first = atomic_fetch_add_explicit(&window->next, PROF_BATCH, memory_order_relaxed);
    if (first >= comm->slots) return FULL;
    uint32_t end = comm->slots - first < PROF_BATCH ? comm->slots : first + PROF_BATCH;
    if (!blocks(comm, w * comm->slots + first, w * comm->slots + end, now)) return NO_MEMORY;
    if (atomic_load_explicit(&batch->cycle, memory_order_relaxed) != cycle) {
        atomic_store_explicit(&batch->rows, 0, memory_order_relaxed);
        atomic_store_explicit(&batch->cycle, cycle, memory_order_relaxed);
    }
    batch->next = first;
    batch->end = end;
    batch->deadline = PROF_GET(window->open_ns) + comm->interval_ns;
    return GOT;
}

static enum tried try_window(struct prof_comm *comm, struct prof_local *local, uint32_t w, uint64_t now, bool closing,
                             bool counted, struct prof_place *place)
{
    struct psm_prof_window *window = comm->window[w];
    struct psm_prof_shard *shard = &window->shard[local->shard];
    struct prof_batch *batch = &local->batch[w];
    enum tried result = CLOSED;
    atomic_fetch_add(&shard->started, 1);
    /* Read the cycle before the state: a window that is FILLING in between cannot have a later cycle. */
    uint32_t cycle = atomic_load(&window->cycle), state = atomic_load(&window->state);
    place->rotate = false;
    if (state == PSM_PROF_FILLING || (closing && state == PSM_PROF_CLOSING)) {
        result = GOT;
        if (__builtin_expect(
                batch->next >= batch->end || atomic_load_explicit(&batch->cycle, memory_order_relaxed) != cycle, 0))
            result = refill(comm, local, w, cycle, now, closing);
    }
    if (__builtin_expect(result != GOT, 0)) {
        atomic_fetch_add(&shard->stopped, 1);
        return result;
    }
    place->row = w * comm->slots + batch->next++;
    /* Prefetch the row after the next, since rows are cold. Beyond the table it does no harm: nothing is read. */
    const char *ahead = (const char *)prof_slot(comm, place->row + 2);
    __builtin_prefetch(ahead, 1);
    __builtin_prefetch(ahead + 64, 1);
    place->window = w;
    place->cycle = cycle;
    if (counted)
        atomic_store_explicit(&batch->rows, atomic_load_explicit(&batch->rows, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    if (__builtin_expect(now >= batch->deadline, 0)) {
        /* By time only if somebody waits for it: otherwise the file keeps more of the past. */
        place->rotate |= prof_consumer_lives(comm->shared, now);
        batch->deadline = now + comm->interval_ns;
    }
    return GOT;
}

/* A child goes to its parent's window while that is open. The result may be out of date. */
static bool goes_along(const struct prof_comm *comm, uint64_t parent, uint32_t w)
{
    const struct psm_prof_window *window = comm->window[w];
    if (atomic_load_explicit(&window->state, memory_order_relaxed) != PSM_PROF_CLOSING) return false;
    if (PROF_CYCLE(atomic_load_explicit(&window->cycle, memory_order_relaxed)) != PSM_PROF_HANDLE_CYCLE(parent))
        return false;
    const struct rec_slot *slot = prof_slot(comm, PSM_PROF_HANDLE_ROW(parent));
    const struct psm_prof_event *event = (const struct psm_prof_event *)slot->record;
    uint8_t flags = atomic_load_explicit(&event->flags, memory_order_relaxed), type = PROF_GET(event->type);
    if (!(flags & PSM_PROF_STOPPED)) return true;
    return (type == PSM_PROF_COLL || type == PSM_PROF_P2P) && !(flags & PSM_PROF_COMPLETE);
}

static bool lose(struct prof_comm *comm, struct prof_local *local, enum tried why, bool counted)
{
    atomic_store_explicit(&local->inside, 0, memory_order_release);
    if (!counted) {
        prof_count(&comm->late_lost);
        return false;
    }
    bool memory = why == NO_MEMORY;
    prof_count(memory ? &comm->shared->dropped_memory : &comm->shared->dropped_full);
    if (!atomic_exchange_explicit(memory ? &comm->said_memory : &comm->said_full, true, memory_order_relaxed)) {
        if (memory)
            PROF_SAY(comm->logger, PSM_PROFILER_NO_MEMORY, psm_profiler_no_memory, comm->shared->rank);
        else
            PROF_SAY(comm->logger, PSM_PROFILER_FULL, psm_profiler_full, comm->shared->rank, comm->slots);
    }
    return false;
}

bool prof_take_slot(struct prof_comm *comm, struct prof_local *local, uint64_t parent, uint64_t now, bool counted,
                    struct prof_place *place)
{
    enum tried tried = FULL;
    for (int attempt = 0; attempt < PSM_PROF_WINDOWS; attempt++) {
        uint32_t w = atomic_load_explicit(&comm->current, memory_order_acquire);
        if (parent) {
            uint32_t its = prof_window_of(comm, PSM_PROF_HANDLE_ROW(parent));
            atomic_store_explicit(&local->inside, 1u << w | 1u << its, memory_order_release);
            if (__builtin_expect(its != w, 0) && goes_along(comm, parent, its) &&
                try_window(comm, local, its, now, true, counted, place) == GOT) {
                place->rotate = false;
                return true;
            }
        } else {
            atomic_store_explicit(&local->inside, 1u << w, memory_order_release);
        }
        tried = try_window(comm, local, w, now, false, counted, place);
        if (__builtin_expect(tried == GOT, 1)) return true;
        if (prof_rotate(comm, local, w, now, tried == NO_MEMORY)) continue;
        if (atomic_load_explicit(&comm->current, memory_order_acquire) != w) continue;
        /* Nowhere else: a window that is full, or waits for its events, may take one more. */
        if (tried <= ENOUGH && (tried = try_window(comm, local, w, now, true, counted, place)) == GOT) {
            place->rotate = false;
            return true;
        }
        break;
    }
    return lose(comm, local, tried, counted);
}

/* ---- the next window ---- */

static uint64_t rows_in_memory(const struct prof_comm *comm, uint32_t w)
{
    uint64_t rows = 0;
    for (uint32_t at = w * comm->slots, end = at + comm->slots; at < end; at = (at / PROF_CHUNK + 1) * PROF_CHUNK) {
        uint32_t next = (at / PROF_CHUNK + 1) * PROF_CHUNK;
        if (!prof_row_there(comm, at)) break;
        rows += (next < end ? next : end) - at;
    }
    return rows;
}

static bool anybody_inside(struct prof_comm *comm, const struct prof_local *self, uint32_t w)
{
    for (int i = 0; i < PSM_PROF_SHARDS; i++) (void)atomic_load(&comm->window[w]->shard[i].started);
    for (struct prof_local *l = atomic_load(&comm->locals); l; l = l->next)
        if (l != self && atomic_load(&l->inside) >> w & 1) return true;
    return false;
}

static uint64_t rows_of(struct prof_comm *comm, uint32_t w, uint32_t cycle)
{
    uint64_t rows = 0;
    for (struct prof_local *l = atomic_load(&comm->locals); l; l = l->next)
        if (atomic_load_explicit(&l->batch[w].cycle, memory_order_relaxed) == cycle)
            rows += atomic_load_explicit(&l->batch[w].rows, memory_order_relaxed);
    return rows;
}

enum { OVERWRITTEN = 1 << 24 };

static void remember(struct prof_comm *comm, uint32_t w, uint32_t entry)
{
    uint32_t n = atomic_load_explicit(&comm->history[w].n_forced, memory_order_relaxed);
    atomic_store_explicit(&comm->history[w].forced[n % PROF_FORCED], entry, memory_order_relaxed);
    atomic_store_explicit(&comm->history[w].n_forced, n + 1, memory_order_release);
}

enum prof_fate prof_fate_of(const struct prof_comm *comm, uint32_t w, uint32_t cycle)
{
    uint32_t n = atomic_load_explicit(&comm->history[w].n_forced, memory_order_acquire);
    for (uint32_t i = 0; i < n && i < PROF_FORCED; i++) {
        uint32_t entry = atomic_load_explicit(&comm->history[w].forced[i], memory_order_relaxed);
        if (PROF_CYCLE(entry) == PROF_CYCLE(cycle)) return entry & OVERWRITTEN ? PROF_OVERWRITTEN : PROF_FORCED_OUT;
    }
    return PROF_UNKNOWN;
}

/* Reuses a READY window. False: somebody is inside. */
static bool open_window(struct prof_comm *comm, const struct prof_local *self, uint32_t w, uint64_t now)
{
    struct psm_prof_window *window = comm->window[w];
    uint32_t used = comm->history[w].cycle;
    uint64_t forced = atomic_load_explicit(&window->forced, memory_order_relaxed);
    /* Before the cycle changes: from then on lookups of old handles ask what happened to it. */
    if (forced != comm->history[w].forced_seen) remember(comm, w, PROF_CYCLE(used));
    comm->history[w].forced_seen = forced;
    atomic_store(&window->cycle, atomic_load_explicit(&window->cycle, memory_order_relaxed) + 1);
    if (anybody_inside(comm, self, w)) return false;
    if (comm->history[w].owed)
        atomic_fetch_add_explicit(&comm->shared->overwritten, rows_of(comm, w, used), memory_order_relaxed);
    comm->history[w].owed = false;
    comm->history[w].cycle = atomic_load_explicit(&window->cycle, memory_order_relaxed);
    for (int i = 0; i < PSM_PROF_SHARDS; i++) {
        atomic_store_explicit(&window->shard[i].started, 0, memory_order_relaxed);
        atomic_store_explicit(&window->shard[i].stopped, 0, memory_order_relaxed);
        atomic_store_explicit(&window->shard[i].awaited, 0, memory_order_relaxed);
        atomic_store_explicit(&window->shard[i].completed, 0, memory_order_relaxed);
    }
    atomic_store_explicit(&window->next, 0, memory_order_relaxed);
    atomic_store_explicit(&window->pending, 0, memory_order_relaxed);
    PROF_SET(window->open_ns, now);
    PROF_SET(window->close_ns, 0);
    PROF_SET(window->serial, ++comm->serial);
    atomic_store(&window->state, PSM_PROF_FILLING);
    return true;
}

void prof_open_first(struct prof_comm *comm, uint64_t now)
{
    /* Nobody can be inside new windows; threads that were in another file's have left. */
    for (struct prof_local *l = atomic_load(&comm->locals); l; l = l->next) atomic_store(&l->inside, 0);
    open_window(comm, NULL, 0, now);
}

static void close_window(struct prof_comm *comm, uint32_t w, uint64_t now)
{
    uint32_t filling = PSM_PROF_FILLING;
    if (atomic_load(&comm->window[w]->state) != PSM_PROF_FILLING) return;
    PROF_SET(comm->window[w]->close_ns, now);
    atomic_compare_exchange_strong(&comm->window[w]->state, &filling, PSM_PROF_CLOSING);
}

/* The one with the most blocks; -1: none. */
static int find_ready(const struct prof_comm *comm, uint32_t passed, bool memory)
{
    int best = -1;
    uint64_t most = 0;
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) {
        if (passed >> w & 1 || atomic_load(&comm->window[w]->state) != PSM_PROF_READY) continue;
        uint64_t rows = rows_in_memory(comm, w);
        if ((memory && !rows) || (best >= 0 && rows <= most)) continue;
        best = (int)w;
        most = rows;
    }
    return best;
}

static int find_oldest(const struct prof_comm *comm, uint32_t passed, bool memory)
{
    int best = -1;
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) {
        if (passed >> w & 1 || atomic_load(&comm->window[w]->state) != PSM_PROF_CLOSING) continue;
        if (memory && !rows_in_memory(comm, w)) continue;
        if (best < 0 || PROF_GET(comm->window[w]->serial) < PROF_GET(comm->window[best]->serial)) best = (int)w;
    }
    return best;
}

static int open_next(struct prof_comm *comm, const struct prof_local *self, uint64_t now, bool memory)
{
    uint32_t passed = 0;
    int w;
    while ((w = find_ready(comm, passed, memory)) >= 0) {
        if (open_window(comm, self, (uint32_t)w, now)) return w;
        passed |= 1u << w;
    }
    if (prof_consumer_lives(comm->shared, now) || passed) return -1;
    while ((w = find_oldest(comm, passed, memory)) >= 0) {
        uint32_t closing = PSM_PROF_CLOSING;
        passed |= 1u << w;
        if (!atomic_compare_exchange_strong(&comm->window[w]->state, &closing, PSM_PROF_READY)) continue;
        comm->history[w].owed = true;
        remember(comm, (uint32_t)w, PROF_CYCLE(comm->history[w].cycle) | OVERWRITTEN);
        if (open_window(comm, self, (uint32_t)w, now)) return w;
    }
    return -1;
}

bool prof_rotate(struct prof_comm *comm, struct prof_local *local, uint32_t from, uint64_t now, bool memory)
{
    /* Another thread is doing it: the caller continues with what there is. */
    if (atomic_exchange(&comm->opening, true)) return false;
    bool done = false;
    if (atomic_load(&comm->current) == from && atomic_load_explicit(&comm->context, memory_order_relaxed)) {
        if (memory) close_window(comm, from, now);
        int next = open_next(comm, local, now, memory);
        if (next >= 0) {
            atomic_store(&comm->current, (uint32_t)next);
            if ((uint32_t)next != from) close_window(comm, from, now);
            done = true;
        }
    }
    atomic_store(&comm->opening, false);
    return done;
}
