/* The recorder: a row for each connection, and one for each of its requests, which keeps its data after the request is
 * done, until the slot is reused. The file survives SIGKILL. psmkit/analysis/net_requests.py compares the rows of both
 * ends. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "front.h"
#include "net_say.h"
#include "record_format.h"
#include "shm/line.h"

enum {
    COMMS = 1024,
    REQUESTS = 8192,
    KEPT = 64,          /* failed connections whose rows stay after they are closed */
    FIRST_LOOK = 16,    /* unsuccessful tests before the first that is recorded; the next one after twice as many, */
    LOOKS = 1u << 16,   /* up to these */
    WINDOW = 1u << 20,  /* ticks for which one reading of the clock is valid */
    BASE = 1u << 21,    /* ticks that are enough to determine their rate */
    TOGETHER = 1u << 12 /* ticks between two reads that were not interrupted */
};

/* ---- the clock ---- */

/* The monotonic clock, computed from the processor's counter if the kernel does so, too: half the time. */
#if defined(__x86_64__)
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool trusted;
static uint64_t first_tick, first_ns;
static _Atomic uint64_t rate; /* ns per tick, with 32 fractional bits; 0: unknown yet */

static void learn(void)
{
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file) return;
    bool same = fgets(name, sizeof name, file) && strcmp(name, "tsc\n") == 0;
    fclose(file);
    for (int tries = 0; same && !trusted && tries < 10; tries++) {
        first_tick = __rdtsc();
        first_ns = psm_clock_ns();
        trusted = __rdtsc() - first_tick < TOGETHER;
    }
}

static __attribute__((noinline)) uint64_t anchor(struct net_clock *k)
{
    pthread_once(&once, learn);
    uint64_t tick = __rdtsc(), ns = psm_clock_ns(), since = tick - first_tick;
    bool good = trusted && __rdtsc() - tick < TOGETHER;
    if (good && since > BASE) {
        double each = (double)(ns - first_ns) / (double)since;
        good = each > 0.05 && each < 20;
        if (good) atomic_store_explicit(&rate, (uint64_t)(each * 4294967296.0), memory_order_relaxed);
    }
    k->rate = atomic_load_explicit(&rate, memory_order_relaxed);
    k->window = good && k->rate ? WINDOW : 0;
    k->tick = tick;
    /* The previous estimate may have been ahead by some ns. */
    k->ns = ns > k->last ? ns : k->last;
    return k->last = k->ns;
}

static inline uint64_t now(struct net_comm *c)
{
    struct net_clock *k = &c->clock;
    uint64_t gone = __rdtsc() - k->tick;
    if (__builtin_expect(gone >= k->window, 0)) return anchor(k);
    return k->last = k->ns + (gone * k->rate >> 32);
}
#else
static inline uint64_t now(struct net_comm *c)
{
    return c->clock.last = psm_clock_ns();
}
#endif

void net_record_wait(struct net_comm *c)
{
    if (!c->rows) {
        psm_cpu_relax();
        return;
    }
    c->clock.kernel = psm_tick_ns();
    now(c);
    psm_cpu_relax();
    c->clock.fresh = 2;
}

/* For the end of a receive that the thread waited for, and for the next one, which it then posts: use the time of its
 * last unsuccessful look, if the kernel's clock has not moved since. Reading the time would delay the thread by a tenth
 * of the latency between two processes. */
static inline uint64_t soon(struct net_comm *c)
{
    struct net_clock *k = &c->clock;
    if (!k->fresh) return now(c);
    k->fresh--;
    return psm_tick_ns() == k->kernel ? k->last : now(c);
}

/* ---- what there is ---- */

/* looked: the last test, or isend, that was recorded as unsuccessful. later: since when isend refuses a message, and
 * which one; 0: it does not. error: the first that a call returned or that hit the connection, and its cause. closed:
 * when, with that many open requests. unseen: requests without a row. Times 0: never. */
struct comm_row {
    uint64_t connection;
    int32_t rank, device, peer, peer_device;
    uint32_t max_recvs;
    char backend[12], role[8], address[NET_ADDRESS];
    int32_t later_tag, error;
    uint32_t open, unseen;
    char call[12], cause[12];
    uint64_t looked, later, later_size, error_at, closed;
};
static const struct psm_field comm_fields[] = {
    PSM_FIELDS(struct comm_row, PSM_HEX64, connection),
    PSM_FIELDS(struct comm_row, PSM_I32, rank, device, peer, peer_device),
    PSM_FIELDS(struct comm_row, PSM_U32, max_recvs),
    PSM_FIELDS(struct comm_row, PSM_STR, backend, role, address),
    PSM_FIELDS(struct comm_row, PSM_I32, later_tag, error),
    PSM_FIELDS(struct comm_row, PSM_U32, open, unseen),
    PSM_FIELDS(struct comm_row, PSM_STR, call, cause),
    PSM_FIELDS(struct comm_row, PSM_TIME, looked, later),
    PSM_FIELDS(struct comm_row, PSM_U64, later_size),
    PSM_FIELDS(struct comm_row, PSM_TIME, error_at, closed),
};
static const struct psm_record_message comm_message[] = {PSM_MESSAGE_PSM_NET_END};
static const struct psm_schema comm_schema = PSM_SCHEMA("psm.net.comm", struct comm_row, comm_fields, comm_message);

/* size, room, tag: of the first buffer; of all: n, total and the other tags. completed 0: not done. message, slot: the
 * receive of the connection that it is or goes to, and its buffer, as counted by both ends; -1: a fault kept it from
 * the network. */
struct request_row {
    uint64_t connection, number, size, total, posted, completed;
    int32_t peer, device, tag, error;
    uint32_t n;
    char op[4];
    int32_t rank;
    uint32_t slot;
    int64_t message;
    uint64_t room;
    int32_t tag1, tag2, tag3, tag4, tag5, tag6, tag7;
    uint32_t unused;
};
_Static_assert(NET_RECVS == 8, "a row has so many tags");
static const struct psm_field request_fields[] = {
    PSM_FIELDS(struct request_row, PSM_HEX64, connection),
    PSM_FIELDS(struct request_row, PSM_U64, number, size, total),
    PSM_FIELDS(struct request_row, PSM_TIME, posted, completed),
    PSM_FIELDS(struct request_row, PSM_I32, peer, device, tag, error),
    PSM_FIELDS(struct request_row, PSM_U32, n),
    PSM_FIELDS(struct request_row, PSM_STR, op),
    PSM_FIELDS(struct request_row, PSM_I32, rank),
    PSM_FIELDS(struct request_row, PSM_U32, slot),
    PSM_FIELDS(struct request_row, PSM_I64, message),
    PSM_FIELDS(struct request_row, PSM_U64, room),
    PSM_FIELDS(struct request_row, PSM_I32, tag1, tag2, tag3, tag4, tag5, tag6, tag7),
};
static const struct psm_record_message request_message[] = {PSM_MESSAGE_PSM_NET_REQUEST};
static const struct psm_schema request_schema =
    PSM_SCHEMA("psm.net", struct request_row, request_fields, request_message);

/* ---- connections ---- */

void net_record_comm(struct net_comm *c)
{
    psm_record *record = psm_record_self();
    c->next_look = FIRST_LOOK;
    c->rows = psm_record_section(record, &request_schema, PSM_TABLE, REQUESTS);
    c->comms = psm_record_section(record, &comm_schema, PSM_TABLE, COMMS);
    struct comm_row *row = psm_table_claim(c->comms, &c->row);
    c->has_row = row != NULL;
    if (!row) return;
    *row = (struct comm_row){.connection = c->id,
                             .rank = c->rank,
                             .device = c->dev,
                             .peer = c->peer_rank,
                             .peer_device = c->peer_dev,
                             .max_recvs = (uint32_t)c->max_recvs};
    psm_record_text(row->backend, sizeof row->backend, c->backend->name);
    psm_record_text(row->role, sizeof row->role, net_role(c));
    psm_record_text(row->address, sizeof row->address, c->address);
    psm_table_publish(c->comms, c->row);
}

/* Rows of failed connections are kept for a later reader, up to a limit; all others are released. */
void net_record_comm_end(struct net_comm *c)
{
    static _Atomic unsigned kept;
    bool bad = c->failed != ncclSuccess || c->open > 0 || c->said_error || c->lost_any;
    struct comm_row *row =
        c->has_row && bad && atomic_fetch_add(&kept, 1) < KEPT ? psm_table_update(c->comms, c->row) : NULL;
    if (row) {
        row->closed = now(c);
        row->open = c->open;
        psm_table_publish(c->comms, c->row);
        return;
    }
    if (c->has_row) psm_table_release(c->comms, c->row);
    for (uint32_t i = 0; i < c->capacity; i++)
        if (c->request[i].row) psm_table_release(c->rows, c->request[i].row_number);
}

void net_record_error(struct net_comm *c, const char *call, const char *cause, ncclResult_t result)
{
    if (c->said_error) return;
    c->said_error = true;
    struct comm_row *row = c->has_row ? psm_table_update(c->comms, c->row) : NULL;
    if (!row) return;
    row->error = (int32_t)result;
    row->error_at = now(c);
    psm_record_text(row->call, sizeof row->call, call);
    psm_record_text(row->cause, sizeof row->cause, cause);
    psm_table_publish(c->comms, c->row);
}

void net_record_look(struct net_comm *c)
{
    c->looks = 0;
    c->next_look = c->next_look < LOOKS ? 2 * c->next_look : LOOKS;
    struct comm_row *row = c->has_row ? psm_table_update(c->comms, c->row) : NULL;
    if (!row) return;
    row->looked = now(c);
    psm_table_publish(c->comms, c->row);
}

void net_record_later(struct net_comm *c, bool later, size_t size, int tag)
{
    if (later && c->says_later) {
        net_record_idle(c);
        return;
    }
    c->says_later = later;
    c->looks = 0;
    c->next_look = FIRST_LOOK;
    struct comm_row *row = c->has_row ? psm_table_update(c->comms, c->row) : NULL;
    if (!row) return;
    row->later = later ? now(c) : 0;
    row->later_size = size;
    row->later_tag = tag;
    psm_table_publish(c->comms, c->row);
}

/* ---- requests ---- */

/* psm_table_update and psm_table_publish, in place: a row that was claimed once stays where it is, even after fork and
 * after the end of the record, when nobody reads it any more. */
static inline struct rec_slot *slot_of(struct request_row *row)
{
    return (struct rec_slot *)((char *)row - offsetof(struct rec_slot, record));
}

static inline uint64_t begin(struct request_row *row)
{
    struct rec_slot *slot = slot_of(row);
    uint64_t seen = atomic_load_explicit(&slot->sequence, memory_order_relaxed) & ~(uint64_t)SLOT_BITS;
    atomic_store_explicit(&slot->sequence, seen + SLOT_STEP + SLOT_UPDATING, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return seen + 2 * SLOT_STEP + SLOT_LIVE;
}

static inline void publish(struct request_row *row, uint64_t sequence)
{
    atomic_store_explicit(&slot_of(row)->sequence, sequence, memory_order_release);
}

static __attribute__((noinline)) struct request_row *first_row(struct net_request *r)
{
    struct net_comm *c = r->comm;
    struct request_row *row = psm_table_claim(c->rows, &r->row_number);
    if (row) {
        r->row = row;
        row->connection = c->id;
        row->rank = c->rank;
        row->peer = c->peer_rank;
        row->device = c->dev;
        memcpy(row->op, net_role(c), sizeof row->op);
        return row;
    }
    struct comm_row *comm = c->has_row ? psm_table_update(c->comms, c->row) : NULL;
    if (comm) {
        comm->unseen++;
        psm_table_publish(c->comms, c->row);
    }
    return NULL;
}

static void other_tags(struct request_row *row, const struct net_request *r)
{
    int32_t *tags[NET_RECVS - 1] = {&row->tag1, &row->tag2, &row->tag3, &row->tag4, &row->tag5, &row->tag6, &row->tag7};
    for (int i = 1; i < r->n; i++) {
        *tags[i - 1] = r->part[i].tag;
        row->total += r->part[i].room;
    }
}

void net_record_posted(struct net_request *r)
{
    struct net_comm *c = r->comm;
    if (!c->rows) return;
    uint64_t at = soon(c);
    struct request_row *row = r->row ? r->row : first_row(r);
    if (!row) return;
    uint64_t sequence = begin(row);
    row->number = r->number;
    row->size = row->total = row->room = r->part[0].room;
    row->posted = at;
    row->completed = 0;
    row->tag = r->part[0].tag;
    row->error = 0;
    row->n = r->n;
    row->message = r->lost ? -1 : (int64_t)r->message;
    if (__builtin_expect(r->lost, 0)) c->lost_any = true;
    row->slot = r->slot;
    if (r->n > 1) other_tags(row, r);
    publish(row, sequence);
}

void net_record_done(struct net_request *r, ncclResult_t result)
{
    struct net_comm *c = r->comm;
    c->looks = 0;
    c->next_look = FIRST_LOOK;
    struct request_row *row = r->row;
    if (!row) return;
    uint64_t at = soon(c), sequence = begin(row);
    row->size = row->total = r->part[0].size;
    for (int i = 1; i < r->n; i++) row->total += r->part[i].size;
    row->completed = at;
    row->error = (int32_t)result;
    publish(row, sequence);
}
