/* Membership of communicators. */
#include "comms.h"

struct ls_comms *ls_comms_new(void)
{
    return ls_zalloc(sizeof(struct ls_comms));
}

/* Frees what only reading needs. */
static void forget(struct ls_comms *c)
{
    for (uint32_t i = 0; i < c->groups.n; i++) {
        free(c->groups.at[i].members.at);
        free(c->groups.at[i].places);
    }
    for (uint32_t i = 0; i < c->queues.n; i++) free(c->queues.at[i].ring);
    ls_drop(&c->states);
    ls_drop(&c->named);
    ls_drop(&c->groups);
    ls_drop(&c->queues);
    LS_INDEX_DROP(&c->index, &c->named_index, &c->by_id, &c->by_guess, &c->queue_index);
}

void ls_comms_free(struct ls_comms *c)
{
    forget(c);
    LS_FREE(c->instances.at, c->colls.at, c->divergents.at, c->out_groups.at, c->out_pairs.at, c->pair_refs.at, c);
}

static uint32_t comm_hash(int32_t proc, uint64_t comm)
{
    return ls_fold(ls_mix(ls_mix(40, (uint32_t)proc), comm));
}

static uint32_t find_instance(const struct ls_comms *c, int32_t proc, uint64_t comm)
{
    for (LS_EACH(&c->index, comm_hash(proc, comm), e))
        if (c->instances.at[e].proc == proc && c->instances.at[e].comm == comm) return e;
    return LS_NONE;
}

static uint32_t new_group(struct ls_comms *c, int64_t nranks)
{
    struct ls_group_state *g = ls_push(&c->groups);
    g->out.nranks = nranks;
    return c->groups.n - 1;
}

static uint32_t group_by_id(struct ls_comms *c, uint64_t commid, int64_t nranks)
{
    uint32_t hash = ls_fold(ls_mix(ls_mix(41, commid), (uint64_t)nranks));
    for (LS_EACH(&c->by_id, hash, e))
        if (c->groups.at[e].out.commid == commid && c->groups.at[e].out.nranks == nranks) return e;
    uint32_t at = new_group(c, nranks);
    c->groups.at[at].out.commid = commid;
    c->groups.at[at].out.has_commid = 1;
    ls_index_add(&c->by_id, hash, at);
    return at;
}

static bool has_rank(const struct ls_comms *c, const struct ls_group_state *g, int64_t rank)
{
    if (rank < 0) return g->members.n >= (uint64_t)g->out.nranks;
    for (uint32_t i = 0; i < g->members.n; i++)
        if (c->instances.at[g->members.at[i]].rank == rank) return true;
    return false;
}

/* Without a commId, the n-th communicator of this size of one process is taken for the n-th of another. If several sets
 * of processes do the same, they cannot be distinguished. */
static uint32_t group_by_guess(struct ls_comms *c, int64_t nranks, uint64_t ordinal, int64_t rank)
{
    enum { MOST_TWINS = 256 };
    uint32_t hash = ls_fold(ls_mix(ls_mix(42, (uint64_t)nranks), ordinal)), twins = 0, last = LS_NONE;
    for (LS_EACH(&c->by_guess, hash, e)) {
        struct ls_group_state *g = &c->groups.at[e];
        if (g->out.nranks != nranks || g->ordinal != ordinal) continue;
        if (!has_rank(c, g, rank)) return e;
        twins++;
        last = e;
        g->ambiguous = true;
    }
    if (twins >= MOST_TWINS) return last;
    uint32_t at = new_group(c, nranks);
    struct ls_group_state *g = &c->groups.at[at];
    g->ordinal = ordinal;
    g->twin = twins;
    g->ambiguous = twins > 0;
    ls_index_add(&c->by_guess, hash, at);
    return at;
}

/* A process that drives several devices has one communicator of a set for each of them: count those separately. */
static uint64_t ordinal_of(const struct ls_comms *c, int32_t proc, int64_t nranks, int64_t dev)
{
    uint64_t n = 0;
    for (uint32_t e = 0; e < c->instances.n; e++) {
        const ls_instance *i = &c->instances.at[e];
        n += i->proc == proc && i->nranks == nranks && (dev < 0 || i->dev < 0 || i->dev == dev);
    }
    return n;
}

static struct ls_named *find_named(struct ls_comms *c, int32_t proc, uint64_t comm)
{
    for (LS_EACH(&c->named_index, comm_hash(proc, comm), e))
        if (c->named.at[e].proc == proc && c->named.at[e].comm == comm) return &c->named.at[e];
    return NULL;
}

/* The one communicator of this size that lacks this rank, LS_NONE if there are none or several. */
static uint32_t group_lacking(const struct ls_comms *c, int64_t nranks, int64_t rank)
{
    uint32_t found = LS_NONE;
    for (uint32_t at = 0; at < c->groups.n; at++) {
        const struct ls_group_state *g = &c->groups.at[at];
        if (g->out.nranks != nranks || g->ambiguous || g->members.n >= (uint64_t)nranks || has_rank(c, g, rank))
            continue;
        if (found != LS_NONE) return LS_NONE;
        found = at;
    }
    return found;
}

static uint32_t new_instance(struct ls_scan *scan, int32_t proc, uint32_t group, uint64_t comm, int64_t rank,
                             int64_t nranks, int64_t dev, bool has_id, uint64_t commid)
{
    enum { MOST = 2 * LS_MAX_PROCS, MOST_MEMBERS = LS_MAX_PROCS };
    struct ls_comms *c = scan->comms;
    if (c->instances.n >= MOST) {
        scan->totals.dropped_items++;
        return LS_NONE;
    }
    struct ls_named *named = find_named(c, proc, comm);
    if (named) named->known = true;
    if (named && rank < 0 && named->nranks == nranks) rank = named->rank;
    if (group == LS_NONE)
        group =
            has_id ? group_by_id(c, commid, nranks) : group_by_guess(c, nranks, ordinal_of(c, proc, nranks, dev), rank);
    uint32_t old = find_instance(c, proc, comm), hash = comm_hash(proc, comm);
    if (old != LS_NONE) ls_index_del(&c->index, hash, old);
    ls_instance *i = ls_push(&c->instances);
    ls_push(&c->states);
    *i = (ls_instance){.proc = proc,
                       .group = group,
                       .comm = comm,
                       .rank = rank,
                       .nranks = nranks,
                       .commid = commid,
                       .has_commid = has_id,
                       .guessed = !has_id,
                       .dev = -1,
                       .last_opcount = -1,
                       .last_count = -1,
                       .last_datatype = -1,
                       .last_redop = -1,
                       .last_root = -1};
    ls_index_add(&c->index, hash, c->instances.n - 1);
    struct ls_group_state *g = &c->groups.at[group];
    if (g->members.n < MOST_MEMBERS) *ls_push(&g->members) = c->instances.n - 1;
    return c->instances.n - 1;
}

/* A rank or a number of ranks. NCCL's are ints: a greater one is a damaged line, and counts as not printed. */
static int64_t rank_of(const struct ls_match *m, int field)
{
    int64_t value = ls_role_int(m, field, -1);
    return value > INT32_MAX || value < -1 ? -1 : value;
}

static void learn(struct ls_scan *scan, ls_instance *i, const struct ls_match *m)
{
    if (i->dev < 0) i->dev = ls_role_int(m, F_DEV, -1);
    if (i->rank < 0) i->rank = rank_of(m, F_RANK);
    int slot = m->message->role_field[F_BUS];
    if (i->bus || slot < 0 || !(m->present & 1ull << slot)) return;
    if (m->texts & 1ull << slot)
        i->bus = ls_keep_text(&scan->texts, m->text + m->field[slot].start, m->field[slot].length);
    else {
        char hex[20];
        int n = snprintf(hex, sizeof hex, "%llx", (unsigned long long)m->field[slot].value);
        i->bus = ls_keep_text(&scan->texts, hex, (size_t)n);
    }
}

/* Whether a line that names rank and size of this pointer can be about the instance; another rank or size means that
 * the pointer was used again. What the line does not say, and what the instance does not know, contradicts nothing. */
static bool may_be(const ls_instance *i, int64_t rank, int64_t nranks)
{
    return (i->rank < 0 || rank < 0 || i->rank == rank) && (nranks <= 0 || i->nranks <= 0 || i->nranks == nranks);
}

static void on_init(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint64_t comm)
{
    struct ls_comms *c = scan->comms;
    bool start = m->message->role == LS_COMM_START;
    int64_t rank = rank_of(m, F_RANK), nranks = rank_of(m, F_NRANKS);
    uint64_t commid = 0;
    bool has_id = ls_role_value(m, F_COMMID, &commid);
    uint32_t at = find_instance(c, rec->proc, comm);
    if (at != LS_NONE) {
        const ls_instance *i = &c->instances.at[at];
        bool same = i->rank == rank && i->nranks == nranks && (!has_id || !i->has_commid || i->commid == commid);
        if (!same || (start && i->complete.line)) at = LS_NONE;
    }
    if (at == LS_NONE)
        at = new_instance(scan, rec->proc, LS_NONE, comm, rank, nranks, ls_role_int(m, F_DEV, -1), has_id, commid);
    if (at == LS_NONE) return;
    ls_instance *i = &c->instances.at[at];
    if (start && !i->start.line)
        i->start = rec->ref;
    else if (!start && !i->complete.line)
        i->complete = rec->ref;
    learn(scan, i, m);
}

static void on_end(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint64_t comm)
{
    enum { MOST_GROUPS = 64 };
    struct ls_comms *c = scan->comms;
    uint32_t at = find_instance(c, rec->proc, comm);
    int64_t rank = rank_of(m, F_RANK), nranks = rank_of(m, F_NRANKS);
    if (at != LS_NONE && !may_be(&c->instances.at[at], rank, nranks)) at = LS_NONE;
    if (at == LS_NONE) {
        if (nranks <= 0) return;
        int64_t dev = ls_role_int(m, F_DEV, -1);
        /* the first communicator of a process whose begin is cut off: the only one with a member that lacks this rank
         */
        bool first = rank >= 0 && c->groups.n <= MOST_GROUPS && ordinal_of(c, rec->proc, nranks, dev) == 0;
        uint32_t group = first ? group_lacking(c, nranks, rank) : LS_NONE;
        at = new_instance(scan, rec->proc, group, comm, rank, nranks, dev, false, 0);
        if (at == LS_NONE) return;
    }
    ls_instance *i = &c->instances.at[at];
    if (nranks < 0 || nranks == i->nranks) learn(scan, i, m);
    i->end = rec->ref;
    /* The pointer may be that of the next communicator. */
    ls_index_del(&c->index, comm_hash(rec->proc, comm), at);
}

/* A line in the life of a communicator names a member: one that was first seen in a call, or one that no other line
 * may show. */
static void on_named(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint64_t comm)
{
    enum { MOST = 1 << 17 };
    struct ls_comms *c = scan->comms;
    int64_t rank = rank_of(m, F_RANK), nranks = rank_of(m, F_NRANKS);
    uint32_t at = find_instance(c, rec->proc, comm);
    if (at != LS_NONE) {
        if (c->instances.at[at].rank < 0 && may_be(&c->instances.at[at], -1, nranks))
            learn(scan, &c->instances.at[at], m);
        return;
    }
    if (rank < 0 || nranks <= rank || c->named.n >= MOST || find_named(c, rec->proc, comm)) return;
    *ls_push(&c->named) = (struct ls_named){rec->proc, comm, rank, nranks, ls_role_int(m, F_DEV, -1), false};
    ls_index_add(&c->named_index, comm_hash(rec->proc, comm), c->named.n - 1);
    for (uint32_t e = 0; e < c->instances.n; e++) /* one that has ended */
        c->named.at[c->named.n - 1].known |= c->instances.at[e].proc == rec->proc && c->instances.at[e].comm == comm;
}

/* The members that lines only name: their creation is not in the log. */
static void take_named(struct ls_scan *scan)
{
    struct ls_comms *c = scan->comms;
    for (uint32_t at = 0; at < c->named.n; at++) {
        const struct ls_named n = c->named.at[at];
        if (n.known) continue;
        uint32_t e =
            new_instance(scan, n.proc, group_lacking(c, n.nranks, n.rank), n.comm, n.rank, n.nranks, n.dev, false, 0);
        if (e != LS_NONE) c->instances.at[e].dev = n.dev;
    }
}

void ls_comms_record(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m)
{
    struct ls_comms *c = scan->comms;
    uint64_t comm;
    int role = m->message->role;
    if (!ls_role_value(m, role == LS_SEQ_OP ? F_SEQ_COMM : F_COMM, &comm)) return;
    if (role == LS_COMM_END) {
        on_end(scan, rec, m, comm);
        return;
    }
    if (role == LS_COMM_NAMED) {
        on_named(scan, rec, m, comm);
        return;
    }
    if (role != LS_SEQ_OP) {
        on_init(scan, rec, m, comm);
        return;
    }
    uint32_t at = find_instance(c, rec->proc, comm);
    if (at == LS_NONE) {
        at = new_instance(scan, rec->proc, LS_NONE, comm, -1, rank_of(m, F_SEQ_NRANKS), -1, false, 0);
        if (at == LS_NONE) return;
        c->states.at[at].by_op = true;
        if (rec->device >= 0) c->instances.at[at].dev = rec->device;
        c->groups.at[c->instances.at[at].group].unaligned |= ls_role_int(m, F_OPCOUNT, 0) != 0;
    }
    ls_seq_call(scan, rec, m, at);
}

void ls_comms_finish(struct ls_scan *scan)
{
    struct ls_comms *c = scan->comms;
    ls_seq_finish(scan);
    take_named(scan);
    for (uint32_t i = 0; i < c->groups.n; i++) {
        c->groups.at[i].out.members = c->groups.at[i].members.n;
        *ls_push(&c->out_groups) = c->groups.at[i].out;
    }
    forget(c);
}

LS_TABLE(ls_instance, ls_instances, comms->instances)
LS_TABLE(ls_group, ls_groups, comms->out_groups)
LS_TABLE(ls_divergent, ls_divergents, comms->divergents)
LS_TABLE(uint64_t, ls_colls, comms->colls)
LS_TABLE(ls_pair, ls_pairs, comms->out_pairs)
LS_TABLE(ls_ref, ls_pair_refs, comms->pair_refs)
