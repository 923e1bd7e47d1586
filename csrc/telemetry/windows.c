/* The life of windows from the consumer's side: closing, taking, returning. window.h says why it is safe. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "consumer.h"

bool tel_rows_room(struct psm_tel *tel, uint32_t n)
{
    if (n <= tel->rows_room) return true;
    struct tel_slot *rows = realloc(tel->rows, (size_t)n * sizeof *rows);
    if (rows) tel->rows = rows;
    struct tel_side *side = realloc(tel->side, (size_t)n * sizeof *side);
    if (side) tel->side = side;
    uint32_t *ops = realloc(tel->ops_at, (size_t)n * sizeof *ops);
    if (ops) tel->ops_at = ops;
    if (!rows || !side || !ops) return false;
    tel->rows_room = n;
    return true;
}

/* The activity in a window, as two sums: equal if everything that started has stopped. Read stopped first: starts
 * between the two reads are seen, stops are not. Likewise for the awaited and completed parts of operations. */
static bool is_quiet(struct psm_prof_window *w)
{
    uint64_t started = 0, stopped = 0, awaited = 0, completed = 0;
    for (int i = 0; i < PSM_PROF_SHARDS; i++) {
        stopped += atomic_load(&w->shard[i].stopped);
        completed += atomic_load(&w->shard[i].completed);
    }
    for (int i = 0; i < PSM_PROF_SHARDS; i++) {
        started += atomic_load(&w->shard[i].started);
        awaited += atomic_load(&w->shard[i].awaited);
    }
    return started == stopped && awaited == completed && atomic_load(&w->pending) == 0;
}

static bool older(uint64_t now, uint64_t since, uint64_t age)
{
    return since > now || now - since > age; /* since > now: of another boot, or damaged */
}

static uint64_t interval_of(const struct psm_tel *tel, const struct tel_comm *c)
{
    return tel->settings.interval_ns ? tel->settings.interval_ns : c->head.interval_ns;
}

static uint64_t force_of(const struct psm_tel *tel, const struct tel_comm *c)
{
    return tel->settings.force_ns ? tel->settings.force_ns : c->head.force_ns;
}

static void keep_raw(struct psm_tel *tel, const struct tel_batch *b)
{
    if (!tel->settings.rows) return;
    for (uint32_t i = 0; i < b->n; i++) {
        if (!tel_live(b, i) || (b->counted && b->counted[i / 64] >> (i % 64) & 1)) continue;
        if (tel->raw.n >= tel->settings.rows || !tel_list_room(&tel->raw, 1)) {
            tel->raw_dropped++;
            tel->losses.rows++;
            continue;
        }
        struct psm_tel_row *row = &tel->raw.rows[tel->raw.n];
        *row = (struct psm_tel_row){.handle = tel_handle(b, i),
                                    .start_ns = b->rows[i].start_ns,
                                    .comm = b->c->seen.id,
                                    .root = (uint32_t)tel->raw.n,
                                    .tid = b->rows[i].tid};
        tel_set_times(row, tel_times_at(b, i));
        memcpy(row->event, &b->rows[i].event, sizeof row->event);
        tel->raw.n++;
    }
}

/* Rows that were started and are not complete, of the window's cycle. */
static uint64_t torn_rows(const struct tel_batch *b)
{
    uint64_t torn = 0;
    for (uint32_t i = 0; i < b->n; i++) torn += b->rows[i].sequence == ((uint64_t)b->cycle << 2 | SLOT_CLAIMED);
    return torn;
}

/* Open events of a window: by its sums, and by its rows. They differ while a start is in progress. */
static uint64_t open_by_sums(struct psm_prof_window *w)
{
    uint64_t started = 0, stopped = 0;
    for (int i = 0; i < PSM_PROF_SHARDS; i++) stopped += atomic_load(&w->shard[i].stopped);
    for (int i = 0; i < PSM_PROF_SHARDS; i++) started += atomic_load(&w->shard[i].started);
    return started - stopped;
}

static uint64_t open_by_rows(const struct tel_batch *b)
{
    uint64_t open = 0;
    for (uint32_t i = 0; i < b->n; i++) open += tel_live(b, i) && !(b->rows[i].event.flags & PSM_PROF_STOPPED);
    return open;
}

/* Longest wait for a start in progress, in a window that is taken by force. */
enum { TAKE_TRIES = 4 };
#define TAKE_NS UINT64_C(100000000)

/* The window is PROCESSING: copies its rows and returns it. */
static bool take(struct psm_tel *tel, struct tel_comm *c, uint32_t w, bool forced, bool ended, uint64_t now)
{
    struct psm_prof_window *window = c->window[w];
    uint32_t next = atomic_load(&window->next);
    struct tel_batch b = {
        .c = c, .w = w, .cycle = atomic_load(&window->cycle), .forced = forced, .ended = ended, .now = now};
    if (!tel_rows_room(tel, next < c->slots ? next : c->slots)) {
        tel->failed = true;
        atomic_store(&window->state, PSM_PROF_CLOSING);
        return false;
    }
    b.rows = tel->rows;
    b.side = tel->side;
    /* A start in progress is done in a moment, if its thread runs: the window waits for it, we do not. */
    bool settled = false;
    for (int i = 0; i < TAKE_TRIES && !settled; i++) {
        uint64_t open = open_by_sums(window);
        b.n = tel_file_rows(c, w, next, b.rows);
        settled = !forced || c->seen.owner == 1 || c->seen.owner == 3 ||
                  (open == open_by_rows(&b) && open == open_by_sums(window));
    }
    if (!settled && !c->awaited[w]) c->awaited[w] = now;
    if (!settled && !older(now, c->awaited[w], TAKE_NS)) return false;
    c->awaited[w] = 0;
    c->seen.torn += torn_rows(&b);
    c->seen.windows++;
    if (forced) {
        c->seen.forced++;
        atomic_fetch_add(&window->forced, 1);
    }
    c->taken_cycle[w] = b.cycle;
    atomic_store(&window->state, PSM_PROF_READY);
    tel_kernels_of(&b);
    keep_raw(tel, &b);
    tel_aggregate(tel, &b);
    return true;
}

/* 1: it was taken. left: it was found PROCESSING when the file was locked, so its consumer died. */
static int step_window(struct psm_tel *tel, struct tel_comm *c, uint32_t w, bool left, bool final, uint64_t now)
{
    struct psm_prof_window *window = c->window[w];
    bool ended = c->seen.owner == 1 || c->seen.owner == 3;
    uint32_t state = atomic_load(&window->state);
    if (state == PSM_PROF_FILLING) {
        bool close = ended || final || c->head.end_ns ||
                     (atomic_load(&window->next) && older(now, atomic_load(&window->open_ns), interval_of(tel, c)));
        if (!close || !atomic_compare_exchange_strong(&window->state, &state, PSM_PROF_CLOSING)) return 0;
        atomic_store(&window->close_ns, now);
        state = PSM_PROF_CLOSING;
    }
    bool forced = (left || c->awaited[w]) && state == PSM_PROF_PROCESSING;
    if (!forced) {
        if (state != PSM_PROF_CLOSING) return 0;
        uint64_t since = atomic_load(&window->close_ns); /* 0: it is being closed right now */
        bool must = ended || final || (since && older(now, since, force_of(tel, c)));
        bool quiet = is_quiet(window);
        if (!quiet && !must) return 0;
        if (!atomic_compare_exchange_strong(&window->state, &state, PSM_PROF_PROCESSING)) return 0;
        if (quiet && !is_quiet(window)) {
            if (!must) {
                atomic_store(&window->state, PSM_PROF_CLOSING);
                return 0;
            }
            quiet = false;
        }
        forced = !quiet;
    }
    return take(tel, c, w, forced, ended || final, now) ? 1 : 0;
}

static int consume(struct psm_tel *tel, struct tel_comm *c, bool final, uint64_t now)
{
    bool fresh = !c->locked;
    if (!tel_file_lock(c)) return 0;
    atomic_store(&c->live->consumer, (uint32_t)psm_proc_self()->pid);
    atomic_store(&c->live->heartbeat_ns, now);
    /* By age, so that most children find their parents already counted. */
    uint32_t order[PSM_PROF_WINDOWS] = {0, 1, 2, 3};
    for (int i = 1; i < PSM_PROF_WINDOWS; i++)
        for (int k = i; k > 0 && c->window[order[k]]->serial < c->window[order[k - 1]]->serial; k--) {
            uint32_t swap = order[k];
            order[k] = order[k - 1];
            order[k - 1] = swap;
        }
    int taken = 0;
    for (int i = 0; i < PSM_PROF_WINDOWS; i++) {
        taken += step_window(tel, c, order[i], fresh, final, now);
        /* There is no next time: wait for it here. */
        for (int k = 0; final && c->awaited[order[i]] && k < 200; k++) {
            struct timespec moment = {0, 1000000};
            nanosleep(&moment, NULL);
            taken += step_window(tel, c, order[i], fresh, final, tel_now());
        }
    }
    return taken;
}

/* The rows that an observer has not counted yet. A window that is taken meanwhile has another cycle afterwards. */
static int look_window(struct psm_tel *tel, struct tel_comm *c, uint32_t w, const struct psm_prof_window *window,
                       bool final, uint64_t now)
{
    uint32_t next = window->next, room = next < c->slots ? next : c->slots;
    if (!window->cycle || !room || c->looked_ready[w] == window->cycle) return 0;
    if (window->state == PSM_PROF_READY) c->looked_ready[w] = window->cycle;
    size_t words = ((size_t)c->slots + 63) / 64;
    if (!c->looked[w]) c->looked[w] = calloc(words, sizeof(uint64_t));
    if (!c->looked[w] || !tel_rows_room(tel, room)) {
        tel->failed = true;
        return 0;
    }
    if (c->looked_cycle[w] != window->cycle) memset(c->looked[w], 0, words * sizeof(uint64_t));
    c->looked_cycle[w] = window->cycle;
    bool ended = c->seen.owner == 1 || c->seen.owner == 3 || final;
    struct tel_batch b = {.c = c,
                          .rows = tel->rows,
                          .side = tel->side,
                          .w = w,
                          .cycle = window->cycle,
                          .forced = true,
                          .ended = ended,
                          .counted = c->looked[w],
                          .now = now};
    b.n = tel_file_rows(c, w, next, b.rows);
    uint64_t before = c->seen.events;
    tel_kernels_of(&b);
    keep_raw(tel, &b);
    tel_aggregate(tel, &b);
    return c->seen.events != before;
}

static int look(struct psm_tel *tel, struct tel_comm *c, bool final, uint64_t now)
{
    struct psm_prof_window windows[PSM_PROF_WINDOWS];
    int seen = 0;
    if (!tel_file_windows(c, windows)) return 0;
    for (uint32_t w = 0; w < PSM_PROF_WINDOWS; w++) seen += look_window(tel, c, w, &windows[w], final, now);
    return seen;
}

static bool all_taken(struct tel_comm *c)
{
    for (int w = 0; w < PSM_PROF_WINDOWS; w++)
        if (atomic_load(&c->window[w]->state) != PSM_PROF_READY) return false;
    return true;
}

int tel_poll_comm(struct psm_tel *tel, struct tel_comm *c, bool final)
{
    if (c->done) return 0;
    uint64_t now = tel_now();
    if (!tel_file_refresh(tel, c)) {
        /* Truncated, or its file system is gone: do not access it. */
        tel_held_expire(tel, c, now, true);
        tel_file_close(c);
        c->done = true;
        return 0;
    }
    /* Ended by finalize, while the process continues: its windows are closed, but taken like any others. */
    bool ended = c->seen.owner == 1 || c->seen.owner == 3;
    int taken = tel->consume ? consume(tel, c, final, now) : look(tel, c, final, now);
    bool over = ended || (c->head.end_ns && c->locked && all_taken(c));
    tel_held_expire(tel, c, now, over || final);
    if (tel->consume && c->locked && over && all_taken(c)) {
        tel_file_remove(tel, c);
        tel_file_close(c);
        c->done = true;
    } else if (!tel->consume && ended && c->seen.owner != 2) {
        c->done = c->judged;
        c->judged = true;
        if (c->done) tel_file_close(c);
    }
    return taken;
}
