/* Parts of a job: a scan of some of its files, and the scan of all made from such parts.
 *
 * What follows from the lines of one process, or of the processes of one host, is found in the part. Communicators,
 * exchanges of descriptors and ledgers join processes of different hosts: a part only keeps the records of their lines,
 * and the scan of all replays them in the order in which it would have read them. */
#include "rpc.h"

enum { MOST_ASKED = 4096 };

struct bytes {
    unsigned char *at;
    size_t n, cap;
};

/* What the record before it had: records differ from it in few bytes. */
struct before {
    ls_ref ref;
    int32_t proc, thread;
    uint64_t **values; /* by message */
    uint32_t messages;
};

struct ls_part {
    LS_VEC(ls_turn) turns;
    LS_VEC(uint32_t) lines;          /* of each event */
    LS_VEC(uint32_t) outside;        /* by message */
    LS_VEC(uint8_t) orphaned;        /* by host */
    LS_VEC(uint64_t) orphans, asked; /* texts */
    struct ls_index asked_index;
    struct bytes later;
    uint64_t *tracked; /* by message: the fields that a tracker reads, 0: not asked for yet */
    uint64_t records;
    struct before before;
    ls_bounds bounds;
};

struct ls_replay {
    ls_scan *scan;
    const unsigned char *p, *end;
    uint64_t done;
    struct before before;
    const int32_t *procs, *threads;
    const uint32_t *files;
    size_t nprocs, nthreads, nfiles;
    char *text;
    size_t text_cap;
};

static uint64_t *values_before(struct before *b, const struct ls_catalogue *cat, uint32_t message)
{
    if (!b->values) {
        b->messages = cat->messages.n;
        b->values = ls_zalloc((b->messages + 1) * sizeof *b->values);
    }
    if (!b->values[message]) b->values[message] = ls_zalloc(LS_FIELDS * sizeof(uint64_t));
    return b->values[message];
}

static void forget_before(struct before *b)
{
    for (uint32_t i = 0; b->values && i < b->messages; i++) free(b->values[i]);
    free(b->values);
}

void ls_part_begin(struct ls_scan *scan)
{
    scan->part = ls_zalloc(sizeof *scan->part);
    scan->part->tracked = ls_zalloc((scan->cat->messages.n + 1) * sizeof *scan->part->tracked);
    for (uint32_t i = 0; i <= scan->cat->messages.n; i++) *ls_push(&scan->part->outside) = 0;
}

void ls_part_free(struct ls_scan *scan)
{
    struct ls_part *p = scan->part;
    if (!p) return;
    forget_before(&p->before);
    ls_index_drop(&p->asked_index);
    LS_FREE(p->turns.at, p->lines.at, p->outside.at, p->orphaned.at, p->orphans.at, p->asked.at, p->later.at,
            p->tracked, p);
}

uint32_t ls_part_turn(const struct ls_scan *scan)
{
    return scan->part ? scan->part->turns.n : 0;
}

void ls_part_orphan(struct ls_scan *scan, uint32_t host)
{
    struct ls_part *p = scan->part;
    if (!p) return;
    while (p->orphaned.n <= host) ls_push(&p->orphaned);
    p->orphaned.at[host] = 1;
}

void ls_part_asked(struct ls_scan *scan, const char *s, uint32_t n)
{
    struct ls_part *p = scan->part;
    uint32_t hash = ls_fold(ls_hash_bytes(9, s, n));
    for (LS_EACH(&p->asked_index, hash, e))
        if (ls_same_text(&scan->texts, p->asked.at[e], s, n)) return;
    p->bounds.asked++;
    if (p->asked.n >= MOST_ASKED) return;
    uint64_t text = ls_keep_text(&scan->texts, s, n);
    *ls_push(&p->asked) = text;
    ls_index_add(&p->asked_index, hash, p->asked.n - 1);
}

void ls_part_again(struct ls_scan *scan, uint32_t event)
{
    struct ls_part *p = scan->part;
    while (p->lines.n <= event) *ls_push(&p->lines) = 1;
    p->lines.at[event]++;
}

void ls_part_outside(struct ls_scan *scan, uint32_t message)
{
    scan->part->outside.at[message] = scan->part->turns.n;
}

void ls_part_continues(ls_scan *scan)
{
    scan->continued = true;
}

void ls_end_turn(ls_scan *scan, uint32_t round, uint32_t stream)
{
    *ls_push(&scan->part->turns) = (ls_turn){.round = round,
                                             .stream = stream,
                                             .seq = scan->streams.at[stream].seq,
                                             .later = scan->part->records,
                                             .tags = scan->tags.n,
                                             .hosts = scan->hosts.n,
                                             .procs = scan->procs.n,
                                             .threads = scan->threads.n,
                                             .counts = scan->counts.n,
                                             .events = scan->events.n,
                                             .shapes = scan->shapes.n,
                                             .services = scan->rpc->services.n,
                                             .tallies = scan->rpc->tallies.n};
}

const ls_bounds *ls_part_bounds(ls_scan *scan)
{
    ls_bounds *b = &scan->part->bounds;
    b->calls = scan->rpc->most_calls;
    b->underway = scan->rpc->most_underway;
    b->words = scan->words.n;
    memcpy(b->learned, scan->rpc->learned, sizeof b->learned);
    memcpy(b->learned_in, scan->rpc->learned_in, sizeof b->learned_in);
    return b;
}

const uint64_t *ls_orphans(ls_scan *scan, size_t *n)
{
    struct ls_part *p = scan->part;
    p->orphans.n = 0;
    for (uint32_t i = 0; i < p->orphaned.n; i++)
        if (p->orphaned.at[i]) *ls_push(&p->orphans) = scan->hosts.at[i];
    *n = p->orphans.n;
    return p->orphans.at;
}

const uint32_t *ls_event_lines(const ls_scan *scan, size_t *n)
{
    struct ls_part *p = scan->part;
    while (p->lines.n < scan->events.n) *ls_push(&p->lines) = 1;
    *n = p->lines.n;
    return p->lines.at;
}

LS_TABLE(ls_turn, ls_turns, part->turns)
LS_TABLE(uint64_t, ls_words, words)
LS_TABLE(uint64_t, ls_hosts, hosts)
LS_TABLE(uint32_t, ls_outside_turns, part->outside)
LS_TABLE(uint64_t, ls_asked, part->asked)

const char *ls_later(const ls_scan *scan, size_t *n)
{
    *n = scan->part->later.n;
    return (const char *)scan->part->later.at;
}

/* ---- records of trackers ---- */

/* A record has at most NUMBERS numbers beside those of its fields; each needs NUMBER bytes at most. */
enum { NUMBERS = 10, NUMBER = 10 };

static unsigned char *room(struct bytes *to, size_t n)
{
    if (to->n + n > to->cap) {
        to->cap = (to->n + n) * 2 + 4096;
        to->at = ls_realloc(to->at, to->cap);
    }
    return to->at + to->n;
}

/* Seven bits a byte, the lowest first. */
static inline unsigned char *put_number(unsigned char *p, uint64_t v)
{
    for (; v >= 128; v >>= 7) *p++ = (unsigned char)(v | 128);
    *p++ = (unsigned char)v;
    return p;
}

static inline unsigned char *put_change(unsigned char *p, uint64_t now, uint64_t before)
{
    uint64_t d = now - before;
    return put_number(p, d << 1 ^ (d >> 63 ? UINT64_MAX : 0));
}

/* The fields that a tracker reads, as bits. */
static uint64_t tracked(const struct ls_message *m)
{
    uint64_t out = 0;
    for (int i = 0; i < LS_ROLE_FIELDS; i++)
        if (m->role_field[i] >= 0) out |= 1ull << m->role_field[i];
    for (int i = 0; i < m->keys; i++) out |= 1ull << m->key[i];
    return out;
}

void ls_part_later(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    struct ls_part *part = scan->part;
    struct before *b = &part->before;
    if (!part->tracked[m->index]) part->tracked[m->index] = tracked(m->message);
    uint64_t present = m->present & part->tracked[m->index], *values = values_before(b, scan->cat, m->index);
    size_t texts = 0;
    for (uint64_t left = m->texts & present; left; left &= left - 1) texts += m->field[__builtin_ctzll(left)].length;
    unsigned char *p = room(&part->later, (NUMBERS + LS_FIELDS) * NUMBER + texts);
    p = put_number(p, m->index);
    p = put_change(p, (uint64_t)rec->proc, (uint64_t)b->proc);
    p = put_change(p, (uint64_t)rec->thread, (uint64_t)b->thread);
    p = put_change(p, (uint64_t)rec->device, 0);
    p = put_change(p, rec->ref.file, b->ref.file);
    p = put_change(p, rec->ref.line, b->ref.line);
    p = put_change(p, rec->ref.offset, b->ref.offset);
    p = put_change(p, rec->ref.seq, b->ref.seq);
    p = put_number(p, present);
    p = put_number(p, m->texts & present);
    for (uint64_t left = present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        const struct ls_capture *c = &m->field[i];
        if (m->texts & 1ull << i) {
            p = put_number(p, c->length);
            if (c->length) memcpy(p, m->text + c->start, c->length);
            p += c->length;
        } else {
            p = put_number(p, c->value ^ values[i]);
            values[i] = c->value;
        }
    }
    part->later.n = (size_t)(p - part->later.at);
    b->ref = rec->ref;
    b->proc = rec->proc;
    b->thread = rec->thread;
    part->records++;
}

static bool take_number(struct ls_replay *r, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->p == r->end) return false;
        unsigned char c = *r->p++;
        *v |= (uint64_t)(c & 127) << shift;
        if (c < 128) return true;
    }
    return false;
}

static bool take_change(struct ls_replay *r, uint64_t *v)
{
    uint64_t d;
    if (!take_number(r, &d)) return false;
    *v += d >> 1 ^ (d & 1 ? UINT64_MAX : 0);
    return true;
}

/* The text of a field, at the end of those of the record. */
static bool take_text(struct ls_replay *r, struct ls_capture *c, size_t *used)
{
    uint64_t n;
    if (!take_number(r, &n) || n > (uint64_t)(r->end - r->p) || n > LS_LINE_MAX) return false;
    if (*used + n > r->text_cap) {
        r->text_cap = (*used + n) * 2;
        r->text = ls_realloc(r->text, r->text_cap);
    }
    if (n) memcpy(r->text + *used, r->p, n);
    c->start = (uint32_t)*used;
    c->length = (uint32_t)n;
    r->p += n;
    *used += n;
    return true;
}

static bool take_fields(struct ls_replay *r, const struct ls_message *message, struct ls_match *m)
{
    uint64_t *values = values_before(&r->before, r->scan->cat, m->index), fields = message->fields, v;
    size_t used = 0;
    if (!take_number(r, &m->present) || !take_number(r, &m->texts) || (m->texts & ~m->present)) return false;
    if (fields < 64 && m->present >> fields) return false;
    for (uint64_t left = m->present; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        m->own[i] = (struct ls_capture){0};
        if (m->texts & 1ull << i) {
            if (!take_text(r, &m->own[i], &used)) return false;
        } else {
            if (!take_number(r, &v)) return false;
            m->own[i].value = values[i] ^= v;
        }
    }
    m->field = m->own;
    m->text = r->text;
    return true;
}

static bool replay_one(struct ls_replay *r)
{
    struct before *b = &r->before;
    struct ls_match m;
    uint64_t index, device = 0, proc = (uint64_t)b->proc, thread = (uint64_t)b->thread, file = b->ref.file,
                    line = b->ref.line;
    if (!take_number(r, &index) || index >= r->scan->cat->messages.n) return false;
    if (!take_change(r, &proc) || !take_change(r, &thread) || !take_change(r, &device) || !take_change(r, &file) ||
        !take_change(r, &line) || !take_change(r, &b->ref.offset) || !take_change(r, &b->ref.seq))
        return false;
    if (proc >= r->nprocs || thread >= r->nthreads || file >= r->nfiles || line > UINT32_MAX) return false;
    b->proc = (int32_t)proc;
    b->thread = (int32_t)thread;
    b->ref.file = (uint32_t)file;
    b->ref.line = (uint32_t)line;
    m.message = &r->scan->cat->messages.at[index];
    m.index = (uint32_t)index;
    if (!take_fields(r, m.message, &m)) return false;
    struct ls_record rec = {.ref = b->ref,
                            .proc = r->procs[proc],
                            .thread = r->threads[thread],
                            .device = (int32_t)(int64_t)device,
                            .tag = -1,
                            .repeated = 1};
    rec.ref.file = r->files[file];
    if (rec.ref.file >= r->scan->files.n || rec.proc < 0 || (uint32_t)rec.proc >= r->scan->states.n || rec.thread < 0)
        return false;
    int role = m.message->role;
    if (role > LS_RPC_CONNECTED && role <= LS_FD_RETURNED)
        ls_fds_record(r->scan, &rec, &m);
    else if (role > LS_FD_RETURNED && role <= LS_SEQ_OP)
        ls_comms_record(r->scan, &rec, &m);
    else if (role > LS_SEQ_OP && role <= LS_LEDGER_CLOSE)
        ls_book_record(r->scan, &rec, &m);
    else
        return false;
    return true;
}

ls_replay *ls_replay_new(ls_scan *scan, const char *data, size_t n, const int32_t *procs, size_t nprocs,
                         const int32_t *threads, size_t nthreads, const uint32_t *files, size_t nfiles)
{
    ls_replay *r = ls_zalloc(sizeof *r);
    *r = (ls_replay){.scan = scan,
                     .p = (const unsigned char *)data,
                     .end = (const unsigned char *)data + n,
                     .procs = procs,
                     .threads = threads,
                     .files = files,
                     .nprocs = nprocs,
                     .nthreads = nthreads,
                     .nfiles = nfiles};
    return r;
}

void ls_replay_free(ls_replay *replay)
{
    if (!replay) return;
    forget_before(&replay->before);
    free(replay->text);
    free(replay);
}

int ls_replay_to(ls_replay *replay, uint64_t records)
{
    for (; replay->done < records; replay->done++)
        if (!replay_one(replay)) return -1;
    return 0;
}

/* ---- the whole from its parts ---- */

#define ADOPT(vec, rows, count)                                                                                        \
    do {                                                                                                               \
        while ((vec)->cap < (vec)->n + (count))                                                                        \
            ls_reserve((void **)&(vec)->at, &(vec)->cap, (vec)->cap, sizeof *(vec)->at);                               \
        if (count) memcpy((vec)->at + (vec)->n, rows, (count) * sizeof *(vec)->at);                                    \
        (vec)->n += (uint32_t)(count);                                                                                 \
    } while (0)

static void adopt_text(struct ls_arena *a, const char *s, size_t n)
{
    a->at = ls_realloc(a->at, a->n + n + 1);
    memcpy(a->at + a->n, s, n);
    a->n += n;
    a->cap = a->n + 1;
}

void ls_adopt(ls_scan *scan, int table, const void *rows, size_t n)
{
    switch (table) {
    case LS_TEXTS:
        adopt_text(&scan->texts, rows, n);
        break;
    case LS_EVENT_TEXTS:
        adopt_text(&scan->event_texts, rows, n);
        break;
    case LS_TAGS:
        ADOPT(&scan->tags, rows, n);
        break;
    case LS_PROCS:
        ADOPT(&scan->procs, rows, n);
        break;
    case LS_THREADS:
        ADOPT(&scan->threads, rows, n);
        break;
    case LS_COUNTS:
        ADOPT(&scan->counts, rows, n);
        break;
    case LS_EVENTS:
        ADOPT(&scan->events, rows, n);
        break;
    case LS_VALUES:
        ADOPT(&scan->values, rows, n);
        break;
    case LS_SHAPES:
        ADOPT(&scan->shapes, rows, n);
        break;
    case LS_CALLS:
        ADOPT(&scan->rpc->out, rows, n);
        break;
    case LS_SERVICES:
        ADOPT(&scan->rpc->services, rows, n);
        break;
    case LS_TALLIES:
        ADOPT(&scan->rpc->tallies, rows, n);
        break;
    default:
        break;
    }
}

void ls_adopt_totals(ls_scan *scan, const ls_totals *add)
{
    ls_totals *t = &scan->totals;
    uint64_t call = t->max_call_age > add->max_call_age ? t->max_call_age : add->max_call_age;
    uint64_t fd = t->max_fd_age > add->max_fd_age ? t->max_fd_age : add->max_fd_age;
    uint64_t *to = (uint64_t *)t;
    const uint64_t *from = (const uint64_t *)add;
    for (size_t i = 0; i < sizeof *t / sizeof *to; i++) to[i] += from[i];
    t->max_call_age = call;
    t->max_fd_age = fd;
}

void ls_adopt_file(ls_scan *scan, uint32_t file, uint32_t lines, uint64_t bytes, int complete)
{
    scan->files.at[file].line = lines;
    scan->files.at[file].offset = bytes;
    scan->files.at[file].complete = complete != 0;
}

void ls_adopt_stream(ls_scan *scan, uint32_t stream, uint64_t lines)
{
    scan->streams.at[stream].seq = lines;
}

void ls_adopt_hosts(ls_scan *scan, const uint32_t *host_of, size_t n)
{
    for (size_t i = 0; i < n; i++) ls_push(&scan->states)->host_id = host_of[i];
}

void ls_admit(ls_scan *scan, const ls_event *events, const uint32_t *lines, size_t n, uint8_t *kept)
{
    uint32_t *outside = ls_zalloc((scan->cat->messages.n + 1) * sizeof *outside), admitted = 0;
    for (size_t i = 0; i < n; i++) {
        const ls_event *e = &events[i];
        if (e->message >= scan->cat->messages.n) {
            kept[i] = 0;
            continue;
        }
        const struct ls_message *m = &scan->cat->messages.at[e->message];
        uint32_t most = m->keep == LS_KEEP_DISTINCT || m->keep == LS_KEEP_LATEST ? LS_MAX_DISTINCT : LS_MAX_ALL;
        bool rare = scan->kept_of[e->message] < LS_RARE_EVENTS && admitted < LS_MOST_EVENTS;
        kept[i] = (rare || scan->kept[m->complaint] < LS_MAX_EVENTS) && (e->proc >= 0 || outside[e->message] < most);
        if (!kept[i]) {
            scan->totals.dropped_events += lines[i];
            continue;
        }
        admitted++;
        scan->kept_of[e->message]++;
        scan->kept[m->complaint]++;
        outside[e->message] += e->proc < 0;
    }
    free(outside);
}
