/* Internals of the consumer of the profiler's windows. */
#ifndef PSM_TELEMETRY_CONSUMER_H
#define PSM_TELEMETRY_CONSUMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "record_format.h"
#include "telemetry.cdef.h"
#include "window.h"

enum {
    TEL_DEFAULT_KEYS = 4096,
    TEL_DEFAULT_SPANS = 64,
    TEL_MOST_KEYS = 1 << 16,
    TEL_MOST_SPANS = 1024,
    TEL_TREE_ROWS = 1024, /* rows of one operation that is kept */
    TEL_MOST_COMMS = 4096,
    TEL_MOST_HELD = 1 << 16,
    TEL_MOST_EARLY = 1 << 11,
    TEL_MOST_OPEN = 4096
};
#define TEL_NONE    UINT32_MAX
#define TEL_HOLD_NS UINT64_C(600000000000) /* for open events: after this time they do not end any more */

/* A row of psm.prof.events as stored in the file. */
struct tel_slot {
    uint64_t sequence, start_ns;
    int32_t tid, device;
    struct psm_prof_event event;
};
_Static_assert(sizeof(struct tel_slot) == 128, "slots of psm.prof.events");

/* ---- tables.c: found by key, taken all at once ---- */

struct tel_key {
    uint64_t a, b;
};
struct tel_table {
    uint32_t *index; /* 1 + index; 0: free */
    struct tel_key *keys;
    unsigned char *items;
    size_t size; /* size of an item */
    uint32_t n, limit, mask;
};
bool tel_table_make(struct tel_table *t, size_t size, uint32_t limit);
void tel_table_free(struct tel_table *t);
void tel_table_clear(struct tel_table *t);
/* The index of key, with a new zeroed item if there is none; TEL_NONE: the table is full. */
uint32_t tel_table_place(struct tel_table *t, struct tel_key key, bool *fresh);
static inline void *tel_table_at(const struct tel_table *t, uint32_t place)
{
    return t->items + t->size * place;
}

static inline uint64_t tel_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return x;
}

void tel_stat_merge(struct psm_tel_stat *to, const struct psm_tel_stat *from);
static inline void tel_stat_add(struct psm_tel_stat *s, uint64_t value)
{
    double v = (double)value;
    if (!s->count || value < s->least) s->least = value;
    if (value > s->most) s->most = value;
    s->count++;
    s->sum += v;
    s->squares += v * v;
    unsigned bit = 63u - (unsigned)__builtin_clzll(value | 1);
    s->bucket[bit < 48 ? bit : 47]++;
}

/* ---- communicators ---- */

struct tel_comm {
    struct psm_tel_comm seen; /* what is returned about it; seen.id is its number */
    int fd;
    dev_t dev;
    ino_t ino;
    char name[128]; /* of the file */
    struct psm_proc proc;
    uint64_t need;                           /* the file has at least this size, or it was truncated */
    uint64_t comm_at, windows_at, events_at; /* of the first record, after its slot's header */
    uint32_t window_stride;
    uint32_t slots, context;
    bool locked, done, told, judged;
    bool children;              /* it has shown proxy ops or kernel channels */
    struct psm_prof_comm head;  /* a copy, made at each poll */
    struct psm_prof_comm *live; /* the mapped ones; NULL: we only look */
    struct psm_prof_window *window[PSM_PROF_WINDOWS];
    void *maps[2];
    size_t map_size[2];
    uint32_t taken_cycle[PSM_PROF_WINDOWS]; /* the last one that was taken; 0: none */
    uint64_t
        awaited[PSM_PROF_WINDOWS]; /* since when it is PROCESSING and waits for a start in progress; 0: it does not */
    uint32_t looked_cycle[PSM_PROF_WINDOWS];
    uint32_t looked_ready[PSM_PROF_WINDOWS]; /* the cycle of a READY one that was read: it does not change */
    uint64_t *looked[PSM_PROF_WINDOWS];      /* bits of rows that were counted, if we only look */
    uint32_t held, early;                    /* of its events, in tables of the consumer */
    int64_t gpu_offset;                      /* CLOCK_MONOTONIC minus the GPU's timer, at paired_ns */
    uint64_t paired_ns;
    bool paired;
    uint64_t mark_ns; /* of the proxy thread: the last idle or active */
    int32_t mark_tid, mark;
};

/* Finds new files; opens, checks, locks. */
void tel_files_scan(struct psm_tel *tel);
/* Reads what may have changed: size, owner, counters. false: it is not usable now. */
bool tel_file_refresh(struct psm_tel *tel, struct tel_comm *c);
bool tel_file_lock(struct tel_comm *c);
bool tel_file_windows(struct tel_comm *c, struct psm_prof_window *copy);
/* Rows of window w, as many as were handed out; returns their number. */
uint32_t tel_file_rows(struct tel_comm *c, uint32_t w, uint32_t next, struct tel_slot *rows);
void tel_file_remove(struct psm_tel *tel, struct tel_comm *c);
void tel_file_close(struct tel_comm *c);

/* ---- what is held across windows (held.c) ---- */

/* Kernel channels of an operation that ended and have the GPU's timer. */
struct tel_kernels {
    uint64_t gpu_end_ns; /* of the last */
    uint32_t n;
};

/* An event that was open when its window was taken: it waits for its LATE row, or for its children. */
struct tel_held {
    uint64_t handle, start_ns, deadline;
    uint64_t taken_done;               /* done_ns when it was taken: it already counts children that ended before */
    uint32_t comm, next, newer, older; /* next of its chain; in order of arrival */
    uint32_t transfers;
    int32_t tid;
    uint32_t early; /* 1 + index in early: no row of it has arrived yet, but children of it have */
    struct tel_kernels kernels;
    struct psm_prof_event event;
};
/* Transfers of children that arrived before their parent: [1]: of the sending side. */
struct tel_early {
    uint32_t transfers[2];
    struct psm_tel_stat bytes[2], time[2];
};
struct tel_holding {
    struct tel_held *items;
    uint32_t heads[1 << 14];
    uint32_t n, room, free, first, last; /* 1 + index; 0: none */
    struct tel_early *early;
    uint32_t early_used[TEL_MOST_EARLY];
};
struct tel_held *tel_hold(struct psm_tel *tel, struct tel_comm *c, uint64_t handle);
struct tel_held *tel_held_find(struct psm_tel *tel, const struct tel_comm *c, uint64_t handle);
struct tel_early *tel_hold_early(struct psm_tel *tel, struct tel_comm *c, uint64_t handle);
void tel_held_drop(struct psm_tel *tel, struct tel_comm *c, struct tel_held *h);
/* Handles entries that waited long enough; all of the communicator if it has ended. */
void tel_held_expire(struct psm_tel *tel, struct tel_comm *c, uint64_t now, bool ended);
void tel_held_free(struct psm_tel *tel);

/* ---- aggregation (aggregate.c, ops.c) ---- */

/* Data about each row of the window that is being counted. */
struct tel_side {
    uint32_t key; /* 1 + index of its op in the table of ops; TEL_NONE: other */
    uint32_t transfers;
    uint32_t first, next; /* 1 + index: children, for the trees of spans */
    struct tel_kernels kernels;
    uint32_t proxied; /* proxy ops: 1 + index of its op, TEL_NONE: not in this window */
};

/* A window, or what is new in one. */
struct tel_batch {
    struct tel_comm *c;
    struct tel_slot *rows;
    struct tel_side *side;
    uint32_t n, w, cycle;
    bool forced;       /* there may be open events */
    bool ended;        /* no more rows will come */
    uint64_t *counted; /* bits; NULL: none was counted before */
    uint64_t now;
};
void tel_aggregate(struct psm_tel *tel, struct tel_batch *b);
bool tel_op_key(const struct tel_comm *c, const struct psm_prof_event *e, struct tel_key *key);
struct psm_tel_op *tel_op_of_key(struct psm_tel *tel, const struct tel_comm *c, const struct psm_prof_event *e,
                                 uint32_t *place);
struct tel_times;
/* Counts an operation that has ended, or will not. Returns its duration; 0: unknown. */
uint64_t tel_count_op(struct psm_tel *tel, struct tel_comm *c, struct psm_tel_op *op, const struct psm_prof_event *e,
                      uint32_t transfers, const struct tel_times *times);
bool tel_is_op(const struct psm_prof_event *e);
/* Whether some of its parts have started and not ended. */
bool tel_is_open(const struct psm_prof_event *e);
/* Where transfers of a step with this parent are counted. */
struct tel_sink {
    struct psm_tel_op *op;
    uint32_t *transfers;
    struct tel_early *early;
    bool receives; /* the op counts the receiving side: it is a Recv */
    bool again;    /* set by the caller: only the number of transfers is needed, op stays NULL */
};
bool tel_sink_of(struct psm_tel *tel, struct tel_comm *c, struct tel_batch *b, uint64_t parent, struct tel_sink *sink);
/* The row of this window that a handle refers to; TEL_NONE: not in this window. */
static inline uint32_t tel_local(const struct tel_batch *b, uint64_t handle)
{
    if (handle >> 56 != PSM_PROF_HANDLE_TAG || PSM_PROF_HANDLE_CONTEXT(handle) != (b->c->context & 0xfff) ||
        PSM_PROF_HANDLE_CYCLE(handle) != (b->cycle & 0xffffff))
        return TEL_NONE;
    uint32_t i = PSM_PROF_HANDLE_ROW(handle) - b->w * b->c->slots;
    if (i >= b->n || b->rows[i].sequence != ((uint64_t)b->cycle << 2 | SLOT_LIVE)) return TEL_NONE;
    return i;
}
static inline bool tel_live(const struct tel_batch *b, uint32_t i)
{
    return b->rows[i].sequence == ((uint64_t)b->cycle << 2 | SLOT_LIVE);
}
static inline uint64_t tel_handle(const struct tel_batch *b, uint32_t i)
{
    return PSM_PROF_HANDLE(b->c->context & 0xfff, b->w * b->c->slots + i, b->cycle);
}
static inline bool tel_stopped(const struct psm_prof_event *e)
{
    return (e->flags & PSM_PROF_STOPPED) && e->stop_ns;
}

/* ---- ends of events (ends.c) ---- */

struct tel_times { /* as in struct psm_tel_row */
    uint64_t begin_ns, end_ns;
    enum psm_tel_by by;
};
static inline void tel_set_times(struct psm_tel_row *row, struct tel_times t)
{
    row->begin_ns = t.begin_ns;
    row->end_ns = t.end_ns;
    row->by = t.by;
}

/* First of all for a batch: clears its side, pairs the clocks, and finds the kernel channels of its operations. */
void tel_kernels_of(struct tel_batch *b);
void tel_kernel_ended(struct tel_kernels *kernels, const struct psm_prof_event *e);
/* c NULL: the GPU's timer is not used. kernels: of an operation; NULL: not known. */
struct tel_times tel_times_of(const struct tel_comm *c, uint64_t start_ns, const struct psm_prof_event *e,
                              const struct tel_kernels *kernels);
static inline struct tel_times tel_times_at(const struct tel_batch *b, uint32_t i)
{
    return tel_times_of(b->c, b->rows[i].start_ns, &b->rows[i].event, &b->side[i].kernels);
}
static inline struct tel_times tel_times_held(const struct tel_comm *c, const struct tel_held *h)
{
    return tel_times_of(c, h->start_ns, &h->event, &h->kernels);
}

/* ---- links (links.c) ---- */

struct tel_link {
    struct psm_tel_link face;
    uint32_t total;    /* 1 + index of the link over all channels; 0: it is that one */
    uint32_t least_at; /* of the last transfer: 1 + index of its size among the least */
};
struct tel_least {
    uint64_t bytes, time;
    uint32_t link; /* place */
};
void tel_count_step(struct psm_tel *tel, struct tel_comm *c, const struct psm_prof_event *e, uint64_t *time);
void tel_links_total(struct psm_tel *tel);

/* ---- spans (spans.c) ---- */

enum { TEL_SLOWEST = 1, TEL_OPEN, TEL_RANDOM, TEL_INCOMPLETE };
struct tel_tree {
    uint32_t why, n, room;
    uint64_t score, kind, op; /* op: its handle */
    uint64_t group, seq;      /* of a collective: its kind over all ranks, and its number */
    uint32_t comm;
    struct psm_tel_row *rows;
};
struct tel_pick { /* candidates of one window: the slowest of each kind */
    uint64_t duration;
    uint32_t at, window; /* window: number of its batch */
};
void tel_span_op(struct psm_tel *tel, struct tel_batch *b, uint32_t i, uint32_t place, uint64_t duration, uint32_t why);
void tel_spans_of_batch(struct psm_tel *tel, struct tel_batch *b);
void tel_span_held(struct psm_tel *tel, struct tel_comm *c, const struct tel_held *h, uint32_t why);
void tel_spans_free(struct psm_tel *tel);

struct tel_list {
    struct psm_tel_row *rows;
    size_t n, room;
};
bool tel_list_room(struct tel_list *list, size_t more);

struct psm_tel {
    bool consume;
    int folder;
    char directory[4096];
    struct psm_tel_settings settings;
    struct tel_comm **comms;
    uint32_t ncomms, next_id;
    struct psm_tel_losses losses;
    struct tel_table ops, links, leasts, times;
    struct psm_tel_op other_op;
    struct tel_link other_link;
    struct psm_tel_span_stat other_time;
    struct tel_slot *rows; /* of the window that is being read */
    uint32_t rows_room;
    struct tel_side *side;
    uint32_t *ops_at; /* rows of operations in it */
    uint32_t nops;
    struct tel_holding holding;
    struct tel_tree *trees;
    uint32_t ntrees;
    struct tel_pick *picks; /* by index of the op */
    uint32_t batch, linked; /* numbers of windows: the one being counted, the one whose children are linked */
    uint64_t random_bar;    /* no larger hash is kept */
    struct tel_list raw;
    uint64_t raw_dropped;
    /* The last link that was counted: steps of one proxy op follow each other. */
    struct tel_key last_link;
    uint32_t last_link_at;
    bool failed; /* no memory */
};

uint64_t tel_now(void);
bool tel_rows_room(struct psm_tel *tel, uint32_t n);
int tel_poll_comm(struct psm_tel *tel, struct tel_comm *c, bool final);

#endif
