/* Proxy calls: served by a service thread, received and matched by a caller, which is usually in the same process.
 *
 * An opId is the address of a heap block of the caller and is reused, so one (process, opId) stands for many calls in
 * turn. The service's line precedes the caller's if both are in one process. An answer without a preceding line of its
 * own process was served by another process of the host; such ends are paired late, so that equal addresses of two
 * processes are not confused while an answer of the own process can still come. */
#include "rpc.h"

struct ls_rpc *ls_rpc_new(void)
{
    return ls_zalloc(sizeof(struct ls_rpc));
}

/* Frees what only reading needs. */
static void forget(struct ls_rpc *r)
{
    ls_drop(&r->calls);
    ls_drop(&r->unused);
    for (uint32_t i = 0; i < r->states.n; i++) free(r->states.at[i].begun.at.at);
    for (uint32_t i = 0; i < r->uses.n; i++) free(r->uses.at[i].at);
    ls_drop(&r->uses);
    ls_drop(&r->answered);
    ls_drop(&r->service_of);
    ls_drop(&r->states);
    ls_drop(&r->all);
    ls_drop(&r->taken);
    LS_INDEX_DROP(&r->index, &r->tally_index, &r->all_index);
}

void ls_rpc_free(struct ls_rpc *r)
{
    forget(r);
    LS_FREE(r->services.at, r->tallies.at, r->out.at, r);
}

/* The name of a type. learned: its text, if it has no fixed name. */
static const char *type_name(const struct ls_scan *scan, int64_t type, uint64_t learned, size_t *n)
{
    static const char *const names[] = {"", "Init", "SharedInit", "Setup", "Connect", "Start", "Close"};
    if (type > 0 && type < LEARNED) {
        *n = strlen(names[type]);
        return names[type];
    }
    return learned ? ls_text_at(&scan->texts, learned, n) : NULL;
}

static bool may_learn(int64_t type)
{
    return type >= LEARNED && type < TYPES;
}

static struct call *new_call(struct ls_scan *scan, const struct ls_record *rec, uint64_t op, uint32_t hash)
{
    struct ls_rpc *r = scan->rpc;
    uint32_t at;
    if (r->calls.n - r->unused.n >= LS_MAX_ITEMS) {
        scan->totals.dropped_items++;
        return NULL;
    }
    if (r->unused.n)
        at = r->unused.at[--r->unused.n];
    else {
        ls_push(&r->calls);
        at = r->calls.n - 1;
        r->most_calls = r->calls.n;
    }
    struct call *c = &r->calls.at[at];
    *c = (struct call){.op = op,
                       .hash = hash,
                       .key_proc = rec->proc,
                       .type = -1,
                       .peer_local_rank = -1,
                       .resp_size = -1,
                       .service = -1,
                       .caller = -1,
                       .service_thread = -1,
                       .caller_thread = -1,
                       .began = ls_stamp_of(scan, rec)};
    c->ended = c->began;
    ls_rpc_set_generation(scan, c);
    ls_index_add(&r->index, hash, at);
    return c;
}

void ls_call_drop(struct ls_rpc *r, struct call *c)
{
    uint32_t at = (uint32_t)(c - r->calls.at);
    ls_index_del(&r->index, c->hash, at);
    c->flags = FREE;
    *ls_push(&r->unused) = at;
}

uint32_t ls_call_stream(const struct ls_scan *scan, const ls_ref *ref)
{
    return scan->files.at[ref->file].stream;
}

static void hand_over(struct ls_scan *scan, const struct call *c, uint32_t state)
{
    ls_call *o = ls_push(&scan->rpc->out);
    *o = (ls_call){.op = c->op,
                   .state = state,
                   .type = c->type,
                   .service = c->service,
                   .caller = c->caller,
                   .generation = c->generation,
                   .peer_local_rank = c->peer_local_rank,
                   .resp_size = c->resp_size,
                   .service_thread = c->service_thread,
                   .caller_thread = c->caller_thread,
                   .expected = c->expected,
                   .again = c->again,
                   .began = c->began,
                   .ended = c->ended,
                   .begun = c->begun,
                   .served = c->served,
                   .received = c->received,
                   .matched = c->matched};
    size_t n;
    const char *name = type_name(scan, c->type, may_learn(c->type) ? scan->rpc->learned[c->type] : 0, &n);
    /* A learned name is already in the arena, but the arena may move while a text is added. */
    char copy[64];
    if (name && n < sizeof copy) {
        memcpy(copy, name, n);
        o->stage = ls_word(scan, copy, (uint32_t)n); /* one for all calls: a scan may keep them all */
    }
    const ls_ref *newest = c->matched.line    ? &c->matched
                           : c->received.line ? &c->received
                           : c->served.line   ? &c->served
                                              : &c->begun;
    o->age = scan->streams.at[ls_call_stream(scan, newest)].seq - newest->seq;
}

void ls_call_complete(struct ls_scan *scan, struct call *c)
{
    struct ls_rpc *r = scan->rpc;
    scan->totals.calls_matched++;
    const ls_ref *end = c->received.line ? &c->received : &c->matched;
    if (end->line && c->served.line && ls_call_stream(scan, end) == ls_call_stream(scan, &c->served) &&
        end->seq > c->served.seq) {
        uint64_t age = end->seq - c->served.seq;
        if (age > scan->totals.max_call_age) scan->totals.max_call_age = age;
    }
    if (scan->keep_calls) hand_over(scan, c, 4);
    /* A call of this address that is still open although a later one was answered has lost a line. */
    for (LS_EACH(&r->index, c->hash, e)) {
        struct call *o = &r->calls.at[e];
        if (o != c && o->op == c->op && o->key_proc == c->key_proc && (o->flags & SUPERSEDED)) o->flags |= LATER_DONE;
    }
    ls_call_drop(r, c);
}

static struct service *service_of(struct ls_scan *scan, const struct ls_record *rec, ls_service **out)
{
    struct ls_rpc *r = scan->rpc;
    while (r->service_of.n <= (uint32_t)rec->thread) *ls_push(&r->service_of) = 0;
    uint32_t *at = &r->service_of.at[rec->thread];
    if (!*at) {
        *ls_push(&r->services) = (ls_service){.proc = rec->proc, .thread = rec->thread};
        *ls_push(&r->states) = (struct service){.consumed = LS_NONE, .fresh_type = -1, .conn_rank = -1};
        *at = r->services.n;
    }
    *out = &r->services.at[*at - 1];
    return &r->states.at[*at - 1];
}

enum { OPENED = 0, TYPE_SERVED = 1, SETUP_SERVED = 2, SETUP = 3 };

/* Counts a thing that a service did; returns the index of its tally, LS_NONE if there are too many. */
static uint32_t tally(struct ls_rpc *r, uint32_t service, uint32_t served, uint64_t dir, int64_t transport,
                      int64_t rank, int64_t type, const ls_ref *ref)
{
    uint64_t h =
        ls_mix(ls_mix(ls_mix(ls_mix(12, (uint64_t)service << 2 | served), dir), (uint64_t)transport), (uint64_t)rank);
    h = ls_mix(h, (uint64_t)type);
    for (LS_EACH(&r->tally_index, ls_fold(h), e)) {
        ls_tally *t = &r->tallies.at[e];
        if (t->service != service || t->served != served || t->dir != dir || t->transport != transport ||
            t->rank != rank || t->type != type)
            continue;
        t->count++;
        return e;
    }
    if (r->tallies.n >= 10 * LS_MAX_PROCS) return LS_NONE;
    *ls_push(&r->tallies) = (ls_tally){.service = service,
                                       .served = served,
                                       .dir = dir,
                                       .transport = transport,
                                       .rank = rank,
                                       .type = type,
                                       .count = 1,
                                       .first = *ref};
    ls_index_add(&r->tally_index, ls_fold(h), r->tallies.n - 1);
    return r->tallies.n - 1;
}

static void tally_served(struct ls_rpc *r, struct service *state, uint32_t service, int64_t type, const ls_ref *ref)
{
    struct of_type *known = type >= 0 && type < TYPES ? &state->type[type] : NULL;
    if (known && known->tally) {
        if (!++known->more) r->tallies.at[known->tally - 1].count += UINT32_MAX + 1ull;
        return;
    }
    uint32_t at = tally(r, service, TYPE_SERVED, 0, 0, 0, type, ref);
    if (known) known->tally = at + 1; /* LS_NONE: none */
}

/* Adds what was counted beside the tallies. */
static void end_tallies(struct ls_rpc *r)
{
    for (uint32_t i = 0; i < r->states.n; i++)
        for (uint32_t k = 0; k < TYPES; k++) {
            const struct of_type *t = &r->states.at[i].type[k];
            if (t->more) r->tallies.at[t->tally - 1].count += t->more;
        }
}

static void on_new_conn(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    ls_service *s;
    struct service *state = service_of(scan, rec, &s);
    uint32_t n;
    const char *dir = ls_role_text(m, F_DIR, &n);
    int64_t id = ls_role_int(m, F_ID, -1);
    s->gaps += s->last_opened.line && (uint64_t)id != (uint64_t)s->opened_id + 1; /* a damaged id may be the greatest */
    s->opened_id = id;
    s->last_opened = rec->ref;
    s->opened_dir = dir ? ls_word(scan, dir, n < 32 ? n : 32) : 0;
    s->opened_transport = ls_role_int(m, F_TRANSPORT, -1);
    s->opened_rank = ls_role_int(m, F_LOCAL_RANK, -1);
    state->conn_rank = s->opened_rank;
    tally(scan->rpc, (uint32_t)(s - scan->rpc->services.at), OPENED, s->opened_dir, s->opened_transport, s->opened_rank,
          0, &rec->ref);
}

static void on_served(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint64_t op,
                      uint32_t hash)
{
    struct ls_rpc *r = scan->rpc;
    ls_service *s;
    struct service *state = service_of(scan, rec, &s);
    struct call *half = NULL;
    int64_t type = ls_role_int(m, F_TYPE, -1);
    s->last_served = rec->ref;
    s->served_type = type;
    tally_served(r, state, (uint32_t)(s - r->services.at), type, &rec->ref);
    if (type == SETUP && s->opened_dir)
        tally(r, (uint32_t)(s - r->services.at), SETUP_SERVED, s->opened_dir, 0, 0, ls_role_int(m, F_RESP_SIZE, -1),
              &rec->ref);
    for (LS_EACH(&r->index, hash, e)) {
        struct call *o = &r->calls.at[e];
        if (o->op != op || o->key_proc != rec->proc) continue;
        if ((o->flags & SERVED) && (o->flags & RECEIVED))
            half = o;
        else if (o->flags & SERVED)
            o->flags |= SUPERSEDED;
    }
    if (half) ls_call_complete(scan, half); /* the line that says matched is lost */
    struct call *c = new_call(scan, rec, op, hash);
    state->consumed = LS_NONE;
    state->fresh_type = type;
    state->fresh_name = may_learn(type) ? state->type[type].name : 0;
    if (!c) return;
    c->flags = SERVED;
    c->type = (int32_t)type;
    c->resp_size = ls_role_int(m, F_RESP_SIZE, -1);
    c->service = rec->proc;
    c->service_thread = rec->thread;
    c->served = rec->ref;
    if (type == 1) {
        c->peer_local_rank = (int32_t)state->conn_rank;
        state->conn_rank = -1;
    }
    size_t n;
    const char *name = type_name(scan, type, state->fresh_name, &n);
    for (uint32_t i = 0; name && i < state->begun.at.n; i++) {
        struct begun *b = &state->begun.at.at[i];
        if (!b->open || !ls_same_text(&scan->texts, b->operation, name, n)) continue;
        b->open = false;
        c->begun = b->ref;
        c->began = b->stamp;
        state->consumed = i;
        break;
    }
}

/* Whether the previous served line can belong to this operation. Such pairs teach the numbers of newer types. */
static bool fits(const struct ls_scan *scan, const struct service *state, uint64_t operation)
{
    size_t n;
    if (state->fresh_type < 0) return false;
    const char *name = type_name(scan, state->fresh_type, state->fresh_name, &n);
    return !name || ls_same_text(&scan->texts, operation, name, n);
}

/* Close, Stop, Abort and Start have no answer. */
static bool answered(const char *operation, uint32_t n)
{
    static const char *const none[] = {"Close", "Stop", "Abort", "Start"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (strlen(none[i]) == n && memcmp(operation, none[i], n) == 0) return false;
    return true;
}

/* The operation that a call of a type with a newer number named, to the service that served it. */
static void learn_type(struct ls_scan *scan, struct service *state, uint64_t operation)
{
    int64_t type = state->fresh_type;
    struct ls_rpc *r = scan->rpc;
    if (state->fresh_name != operation) state->type[type].name = operation;
    r->learned[type] = operation;
    r->learned_in[type] = ls_part_turn(scan);
}

/* Adds an operation in progress to those of its service, without those that have ended since. */
static void add_begun(struct ls_scan *scan, struct service *state, const struct begun *b)
{
    enum { MOST_OPEN = 4096 };
    struct ls_rpc *r = scan->rpc;
    uint32_t open = 0, n = state->begun.at.n;
    for (uint32_t i = 0; i < n; i++)
        if (state->begun.at.at[i].open) state->begun.at.at[open++] = state->begun.at.at[i];
    state->begun.at.n = open;
    r->underway -= n - open;
    if (open >= MOST_OPEN || r->underway >= LS_MAX_ITEMS) {
        scan->totals.dropped_items++;
        return;
    }
    *ls_push(&state->begun.at) = *b;
    if (++r->underway > r->most_underway) r->most_underway = r->underway;
}

/* "Received and initiated" is printed after the served line of a call that was done at once, and before it otherwise.
 * It has no opId, and its result is 0 also for a call in progress (7 in some forks), so the order of the lines decides.
 */
static void on_begun(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    enum { DONE = 0, IN_PROGRESS = 7 };
    ls_service *s;
    struct service *state = service_of(scan, rec, &s);
    uint32_t n;
    const char *word = ls_role_text(m, F_OPERATION, &n);
    if (!word) return;
    uint64_t operation = ls_word(scan, word, n < 64 ? n : 64);
    /* a record that was glued to its own copy is one record */
    bool copy =
        s->last_begun.line == rec->ref.line && s->last_begun.file == rec->ref.file && s->begun_operation == operation;
    uint64_t lines = scan->procs.at[rec->proc].lines;
    bool again = s->begun_operation == operation && state->lines + 1 == lines;
    bool at_once = copy || fits(scan, state, operation) || !s->last_served.line || !answered(word, n);
    s->last_begun = rec->ref;
    state->lines = lines;
    s->begun_operation = operation;
    s->begun_res = ls_role_int(m, F_RES, 0);
    s->begun += !copy && answered(word, n);
    if (s->begun_res == DONE && at_once) {
        if (state->consumed != LS_NONE && state->begun.at.at[state->consumed].operation == operation)
            state->begun.at.at[state->consumed].open = true; /* this call was served, not the one in progress */
        if (may_learn(state->fresh_type)) learn_type(scan, state, operation);
    } else if (s->begun_res == DONE || s->begun_res == IN_PROGRESS)
        add_begun(scan, state,
                  &(struct begun){.proc = rec->proc,
                                  .thread = rec->thread,
                                  .operation = operation,
                                  .ref = rec->ref,
                                  .stamp = ls_stamp_of(scan, rec),
                                  .open = true,
                                  .again = again});
    state->consumed = LS_NONE;
    state->fresh_type = -1;
}

static struct taken *taken_by(struct ls_scan *scan, int32_t proc)
{
    struct ls_rpc *r = scan->rpc;
    while (r->taken.n <= (uint32_t)proc) *ls_push(&r->taken) = (struct taken){0};
    return &r->taken.at[proc];
}

/* A line that was cut inside a number shows its first digits. */
static bool same_op(uint64_t a, uint64_t b)
{
    while (a > b) a >>= 4;
    while (b > a) b >>= 4;
    return a == b;
}

/* An answer came whose service is not known: another process of its host may have printed the call. */
static void orphan(struct ls_scan *scan, int32_t proc)
{
    struct ls_rpc *r = scan->rpc;
    uint32_t host = scan->states.at[proc].host_id;
    while (r->answered.n <= host) ls_push(&r->answered);
    r->answered.at[host]++;
    r->orphans++;
    ls_part_orphan(scan, host);
}

static void on_received(struct ls_scan *scan, const struct ls_record *rec, uint64_t op, uint32_t hash,
                        struct call *open, struct call *half)
{
    if (!open && half) ls_call_complete(scan, half);
    struct call *c = open ? open : new_call(scan, rec, op, hash);
    if (!c) return;
    c->flags |= RECEIVED;
    c->caller = rec->proc;
    c->caller_thread = rec->thread;
    c->received = rec->ref;
    c->ended = ls_stamp_of(scan, rec);
    if (!open) orphan(scan, rec->proc);
    if (!open && rec->proc >= 0) {
        const struct taken *last = taken_by(scan, rec->proc);
        c->again = half                                                                   ? LS_AGAIN_UNREAD
                   : last->op == op && last->lines + 1 == scan->procs.at[rec->proc].lines ? LS_AGAIN_NEXT
                                                                                          : 0;
    }
}

static void on_caller(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint64_t op,
                      uint32_t hash)
{
    struct ls_rpc *r = scan->rpc;
    int role = m->message->role;
    struct call *open = NULL, *half = NULL, *stray = NULL;
    for (LS_EACH(&r->index, hash, e)) {
        struct call *o = &r->calls.at[e];
        if (o->op != op || o->key_proc != rec->proc || (o->flags & MATCHED)) continue;
        if ((o->flags & SERVED) && !(o->flags & RECEIVED)) {
            if (!open || o->served.seq > open->served.seq) open = o;
        } else if (o->flags & SERVED)
            half = o;
        else if (!stray || o->received.seq > stray->received.seq)
            stray = o;
    }
    if (role == LS_RPC_RECEIVED) {
        on_received(scan, rec, op, hash, open, half);
        return;
    }
    struct call *c = half ? half : stray ? stray : open;
    uint64_t expected;
    if (role == LS_RPC_MATCHED && stray && ls_role_value(m, F_EXPECTED, &expected) && !same_op(op, expected)) {
        c = stray; /* two lines say that this answer was taken for another call's */
        c->expected = expected;
    }
    if (role == LS_RPC_QUEUED) {
        if (!c) return;
        if (c == open) {
            c->flags |= RECEIVED;
            c->received = rec->ref;
            c->ended = ls_stamp_of(scan, rec);
        }
        c->flags |= QUEUED;
        c->caller = rec->proc;
        return;
    }
    if (!c) {
        const struct taken *last = taken_by(scan, rec->proc);
        if (last->op == op && last->lines + 1 == scan->procs.at[rec->proc].lines)
            return; /* the line before, repeated */
        c = new_call(scan, rec, op, hash);
        if (!c) return;
        orphan(scan, rec->proc);
    }
    c->flags = (c->flags | MATCHED | RECEIVED) & ~(uint32_t)QUEUED;
    c->caller = rec->proc;
    c->caller_thread = rec->thread;
    c->matched = rec->ref;
    c->ended = ls_stamp_of(scan, rec);
    if (rec->proc >= 0) *taken_by(scan, rec->proc) = (struct taken){.op = op, .lines = scan->procs.at[rec->proc].lines};
    if (c->flags & SERVED) ls_call_complete(scan, c);
}

void ls_rpc_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    int role = m->message->role;
    uint64_t op;
    if (role == LS_RPC_CONNECTED) return; /* counted with its message */
    if (role == LS_RPC_NEW_CONN) {
        on_new_conn(scan, rec, m);
        return;
    }
    if (role == LS_RPC_BEGUN) {
        on_begun(scan, rec, m);
        return;
    }
    if (!ls_role_value(m, F_OP, &op)) return;
    uint32_t hash = ls_rpc_hash(rec->proc, op);
    if (role == LS_RPC_SERVED)
        on_served(scan, rec, m, op, hash);
    else
        on_caller(scan, rec, m, op, hash);
}

/* No branch depends on what a line says: the first entry is loaded where there is none. */
void ls_rpc_load_ahead(const struct ls_rpc *r, const struct ls_who *who, uint32_t hash, uint8_t type)
{
    if (!r->services.n || !r->index.slot) return;
    uint32_t at = (uint32_t)who->thread < r->service_of.n ? r->service_of.at[who->thread] : 0;
    at -= at != 0;
    const ls_service *s = &r->services.at[at];
    const struct service *state = &r->states.at[at];
    __builtin_prefetch(s, 1);
    __builtin_prefetch(&s->served_type, 1);
    __builtin_prefetch(state, 1);
    __builtin_prefetch(&state->type[type & (TYPES - 1)], 1);
    __builtin_prefetch(&r->index.slot[hash & r->index.mask], 1);
    if ((uint32_t)who->proc < r->taken.n) __builtin_prefetch(&r->taken.at[who->proc], 1);
}

void ls_rpc_load_call(const struct ls_rpc *r, uint32_t hash)
{
    enum { LINE = 64 };
    if (!r->index.slot) return;
    uint64_t slot = r->index.slot[hash & r->index.mask]; /* not always the right one */
    const char *call = (const char *)&r->calls.at[(uint32_t)slot - (slot != 0)];
    for (size_t i = 0; i < sizeof(struct call); i += LINE) __builtin_prefetch(call + i, 1);
}

void ls_rpc_round(struct ls_scan *scan)
{
    if (scan->rpc->orphans) ls_rpc_pair(scan, false);
}

static void hand_over_begun(struct ls_scan *scan, const struct begun *b)
{
    if (!b->open) return;
    struct call c = {.type = -1,
                     .peer_local_rank = -1,
                     .resp_size = -1,
                     .service = b->proc,
                     .caller = -1,
                     .service_thread = b->thread,
                     .caller_thread = -1,
                     .again = b->again ? LS_AGAIN_NEXT : 0,
                     .began = b->stamp,
                     .ended = b->stamp,
                     .begun = b->ref};
    hand_over(scan, &c, 1);
    scan->rpc->out.at[scan->rpc->out.n - 1].stage = b->operation;
}

void ls_rpc_finish(struct ls_scan *scan)
{
    struct ls_rpc *r = scan->rpc;
    end_tallies(r);
    ls_rpc_pair(scan, true);
    for (uint32_t i = 0; i < r->calls.n; i++) {
        struct call *c = &r->calls.at[i];
        if (c->flags & FREE) continue;
        bool served = c->flags & SERVED, received = c->flags & RECEIVED;
        if (served && received && !(c->flags & QUEUED))
            ls_call_complete(scan, c);
        else if (served && !received && (c->flags & LATER_DONE))
            ls_call_drop(r, c);
        else
            hand_over(scan, c, served ? 2 : 3);
    }
    for (uint32_t k = 0; k < r->states.n; k++)
        for (uint32_t i = 0; i < r->states.at[k].begun.at.n; i++)
            hand_over_begun(scan, &r->states.at[k].begun.at.at[i]);
    forget(r);
}

void ls_rpc_clear(struct ls_rpc *r)
{
    r->out.n = 0;
}

const ls_call *ls_calls(const ls_scan *scan, size_t *n)
{
    *n = scan->rpc->out.n;
    return scan->rpc->out.at;
}

const ls_service *ls_services(const ls_scan *scan, size_t *n)
{
    *n = scan->rpc->services.n;
    return scan->rpc->services.at;
}

const ls_tally *ls_tallies(const ls_scan *scan, size_t *n)
{
    *n = scan->rpc->tallies.n;
    return scan->rpc->tallies.at;
}
