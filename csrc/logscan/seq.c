/* The calls of a communicator's members: collectives in order, sends and recvs by pair. */
#include "comms.h"

enum {
    MOST_PLACES = 1 << 15, /* of one group, when a member lags or its log is missing */
    FEW_PLACES = 1 << 11,  /* of one group, when all groups together hold many */
    ALL_PLACES = 400000,
    MOST_WAITING = 1 << 16, /* of one pair */
    ALL_WAITING = 1 << 20,
    MOST_QUEUES = 200000,
    KEPT_REFS = 64,      /* of one pair, in the result */
    MOST_DIVERGENT = 64, /* members of one group */
};

static uint32_t coll_id(struct ls_scan *scan, const char *s, uint32_t n)
{
    struct ls_comms *c = scan->comms;
    for (uint32_t i = 0; i < c->colls.n; i++)
        if (ls_same_text(&scan->texts, c->colls.at[i], s, n)) return i;
    if (c->colls.n >= 256) return 0; /* names of collectives are few; noise ends here */
    uint64_t text = ls_keep_text(&scan->texts, s, n);
    *ls_push(&c->colls) = text;
    return c->colls.n - 1;
}

static bool is(const char *s, uint32_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

static uint64_t size_of(int64_t datatype)
{
    /* int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 fp8e4m3 fp8e5m2 */
    static const uint8_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return datatype >= 0 && datatype < (int64_t)sizeof sizes ? sizes[datatype] : 0;
}

static ls_divergent divergent(uint32_t group, uint64_t index, uint32_t instance, const struct ls_call_sig *sig,
                              const ls_ref *ref)
{
    return (ls_divergent){.group = group,
                          .instance = instance,
                          .index = index,
                          .coll = sig->coll,
                          .opcount = sig->opcount,
                          .count = sig->count,
                          .datatype = sig->datatype,
                          .redop = sig->redop,
                          .root = sig->root,
                          .ref = *ref};
}

static void diverges(struct ls_comms *c, uint32_t group, uint64_t index, uint32_t instance,
                     const struct ls_call_sig *sig, const ls_ref *ref)
{
    struct ls_group_state *g = &c->groups.at[group];
    if (g->out.diverged > MOST_DIVERGENT) return;
    g->out.diverged++;
    *ls_push(&c->divergents) = divergent(group, index, instance, sig, ref);
}

static struct ls_place *place_at(struct ls_group_state *g, uint32_t k)
{
    return &g->places[(g->head + k) & (g->place_cap - 1)];
}

static void forget_first(struct ls_comms *c, struct ls_group_state *g)
{
    g->head = (g->head + 1) & (g->place_cap - 1);
    g->n--;
    g->base++;
    c->places_held--;
}

static void add_place(struct ls_comms *c, struct ls_group_state *g, const struct ls_place *p)
{
    uint32_t most = c->places_held > ALL_PLACES ? FEW_PLACES : MOST_PLACES;
    while (g->n >= most) forget_first(c, g);
    if (g->n == g->place_cap) {
        uint32_t cap = g->place_cap ? g->place_cap * 2 : 16;
        struct ls_place *to = ls_realloc(NULL, cap * sizeof *to);
        for (uint32_t i = 0; i < g->n; i++) to[i] = *place_at(g, i);
        free(g->places);
        g->places = to;
        g->place_cap = cap;
        g->head = 0;
    }
    g->n++;
    *place_at(g, g->n - 1) = *p;
    c->places_held++;
}

static bool same_call(const struct ls_call_sig *a, const struct ls_call_sig *b)
{
    return a->coll == b->coll && a->count == b->count && a->datatype == b->datatype && a->redop == b->redop &&
           a->root == b->root;
}

/* Whether two calls of a collective that computes nothing move the same bytes. */
static bool same_bytes(const struct ls_call_sig *a, const struct ls_call_sig *b)
{
    uint64_t ours = size_of(a->datatype), theirs = size_of(b->datatype);
    return a->coll == b->coll && a->root == b->root && ours && theirs &&
           (uint64_t)a->count * ours == (uint64_t)b->count * theirs;
}

static void on_collective(struct ls_scan *scan, const struct ls_record *rec, uint32_t instance,
                          const struct ls_call_sig *printed, bool rooted, bool moves)
{
    enum { USER_OP = 5 };
    struct ls_comms *c = scan->comms;
    uint32_t group = c->instances.at[instance].group;
    struct ls_group_state *g = &c->groups.at[group];
    uint64_t index = c->states.at[instance].collectives++;
    struct ls_call_sig sig = *printed;
    if (!rooted) sig.root = 0;
    if (sig.redop >= USER_OP) sig.redop = USER_OP; /* each rank scrambles the number of a user-defined operation */
    if (g->out.diverged) {
        if (index == g->divergence) diverges(c, group, index, instance, printed, &rec->ref);
        return;
    }
    if (g->out.nranks == 1) {
        g->out.matched++;
        return;
    }
    if (g->unaligned || index < g->base) return;
    uint64_t k = index - g->base;
    if (k >= g->n) {
        struct ls_place p = {.sig = sig, .ref = rec->ref, .instance = instance, .count = 1};
        p.sig.opcount = printed->opcount;
        add_place(c, g, &p);
        return;
    }
    struct ls_place *p = place_at(g, (uint32_t)k);
    bool same = same_call(&p->sig, &sig);
    if (!same && moves && same_bytes(&p->sig, &sig)) {
        if (!g->retyped) {
            g->as[0] = divergent(group, index, p->instance, &p->sig, &p->ref);
            g->as[1] = divergent(group, index, instance, printed, &rec->ref);
        }
        g->retyped = same = true;
    }
    if (!same) {
        if (g->ambiguous) {
            g->unaligned = true;
            return;
        }
        g->divergence = index;
        diverges(c, group, index, p->instance, &p->sig, &p->ref);
        diverges(c, group, index, instance, printed, &rec->ref);
        c->places_held -= g->n;
        free(g->places);
        g->places = NULL;
        g->n = g->place_cap = g->head = 0;
        return;
    }
    p->count++;
    while (g->n && place_at(g, 0)->count >= (uint64_t)g->out.nranks) {
        forget_first(c, g);
        g->out.matched++;
    }
}

static struct ls_queue *queue_of(struct ls_scan *scan, uint32_t group, int64_t src, int64_t dst)
{
    struct ls_comms *c = scan->comms;
    uint32_t hash = ls_fold(ls_mix(ls_mix(ls_mix(43, group), (uint64_t)src), (uint64_t)dst));
    for (LS_EACH(&c->queue_index, hash, e)) {
        ls_pair *p = &c->queues.at[e].out;
        if (p->group == group && p->src == src && p->dst == dst) return &c->queues.at[e];
    }
    if (c->queues.n >= MOST_QUEUES) {
        scan->totals.dropped_items++;
        return NULL;
    }
    struct ls_queue *q = ls_push(&c->queues);
    q->out = (ls_pair){.group = group, .src = src, .dst = dst};
    ls_index_add(&c->queue_index, hash, c->queues.n - 1);
    return q;
}

static void wait_in(struct ls_comms *c, struct ls_queue *q, const struct ls_waiting *w)
{
    if (q->beyond || q->n >= MOST_WAITING || c->waiting_held >= ALL_WAITING) {
        q->beyond++;
        return;
    }
    if (q->n == q->cap) {
        uint32_t cap = q->cap ? q->cap * 2 : 8;
        struct ls_waiting *to = ls_realloc(NULL, cap * sizeof *to);
        for (uint32_t i = 0; i < q->n; i++) to[i] = q->ring[(q->head + i) & (q->cap - 1)];
        free(q->ring);
        q->ring = to;
        q->cap = cap;
        q->head = 0;
    }
    q->ring[(q->head + q->n++) & (q->cap - 1)] = *w;
    c->waiting_held++;
}

static void on_pair(struct ls_scan *scan, const struct ls_record *rec, uint32_t instance, bool recv,
                    const struct ls_call_sig *sig)
{
    int64_t peer = sig->root;
    uint64_t bytes = (uint64_t)sig->count * size_of(sig->datatype);
    struct ls_comms *c = scan->comms;
    const ls_instance *i = &c->instances.at[instance];
    if (i->rank < 0 || peer < 0) return;
    struct ls_queue *q = queue_of(scan, i->group, recv ? peer : i->rank, recv ? i->rank : peer);
    if (!q) return;
    struct ls_waiting w = {.ref = rec->ref, .bytes = bytes, .datatype = sig->datatype};
    if (!q->n && !q->beyond) q->recvs = recv;
    if (q->recvs == recv) {
        wait_in(c, q, &w);
        return;
    }
    q->out.matched++;
    scan->totals.pairs_matched++;
    if (!q->n) {
        q->beyond--;
        return;
    }
    struct ls_waiting other = q->ring[q->head];
    q->head = (q->head + 1) & (q->cap - 1);
    q->n--;
    c->waiting_held--;
    if (other.bytes == bytes) {
        if (!bytes || other.datatype == w.datatype || q->out.retyped) return;
        q->out.retyped = 1;
        q->out.retyped_send = recv ? other.ref : w.ref;
        q->out.retyped_recv = recv ? w.ref : other.ref;
        q->out.retyped_send_type = recv ? other.datatype : w.datatype;
        q->out.retyped_recv_type = recv ? w.datatype : other.datatype;
        return;
    }
    if (q->out.mismatch) return;
    q->out.mismatch = 1;
    q->out.mismatch_send = recv ? other.ref : w.ref;
    q->out.mismatch_recv = recv ? w.ref : other.ref;
    q->out.mismatch_send_bytes = recv ? other.bytes : bytes;
    q->out.mismatch_recv_bytes = recv ? bytes : other.bytes;
}

void ls_seq_call(struct ls_scan *scan, const struct ls_record *rec, const struct ls_match *m, uint32_t instance)
{
    uint32_t n;
    const char *name = ls_role_text(m, F_COLL, &n);
    if (!name) return;
    struct ls_call_sig sig = {.coll = coll_id(scan, name, n < 64 ? n : 64),
                              .datatype = (int32_t)ls_role_int(m, F_DATATYPE, -1),
                              .redop = (int32_t)ls_role_int(m, F_REDOP, -1),
                              .root = (int32_t)ls_role_int(m, F_ROOT, -1),
                              .opcount = ls_role_int(m, F_OPCOUNT, -1),
                              .count = ls_role_int(m, F_COUNT, -1)};
    ls_instance *i = &scan->comms->instances.at[instance];
    i->ops++;
    i->last_op = rec->ref;
    bool send = is(name, n, "Send"), recv = is(name, n, "Recv");
    /* One-sided calls differ from rank to rank, and a wait does not print its peers: they are counted, not matched. */
    bool put = is(name, n, "PutSignal") || is(name, n, "Signal"), wait = is(name, n, "WaitSignal");
    if (send || recv || put || wait) {
        if (send || put)
            i->sends++;
        else
            i->recvs++;
        if (send || recv) on_pair(scan, rec, instance, recv, &sig);
        return;
    }
    i->last_coll_ref = rec->ref;
    i->last_coll = sig.coll;
    i->last_opcount = sig.opcount;
    i->last_count = sig.count;
    i->last_datatype = sig.datatype;
    i->last_redop = sig.redop;
    i->last_root = sig.root;
    bool rooted_move =
        is(name, n, "Broadcast") || is(name, n, "Bcast") || is(name, n, "Gather") || is(name, n, "Scatter");
    bool moves = rooted_move || is(name, n, "AllGather") || is(name, n, "AlltoAll") || is(name, n, "AllToAll") ||
                 is(name, n, "AllToAllPivot");
    on_collective(scan, rec, instance, &sig, rooted_move || is(name, n, "Reduce"), moves);
}

void ls_seq_finish(struct ls_scan *scan)
{
    struct ls_comms *c = scan->comms;
    for (uint32_t i = 0; i < c->groups.n; i++) {
        const struct ls_group_state *g = &c->groups.at[i];
        scan->totals.seq_matched += g->out.matched;
        if (!g->retyped || g->out.diverged || g->ambiguous) continue;
        *ls_push(&c->divergents) = g->as[0];
        *ls_push(&c->divergents) = g->as[1];
    }
    for (uint32_t i = 0; i < c->queues.n; i++) {
        struct ls_queue *q = &c->queues.at[i];
        if (c->groups.at[q->out.group].ambiguous) continue; /* the pairs of senders and receivers are unknown */
        ls_pair *p = ls_push(&c->out_pairs);
        *p = q->out;
        p->first_ref = c->pair_refs.n;
        uint32_t kept = q->n < KEPT_REFS ? q->n : KEPT_REFS;
        for (uint32_t k = 0; k < kept; k++) *ls_push(&c->pair_refs) = q->ring[(q->head + k) & (q->cap - 1)].ref;
        if (q->recvs) {
            p->kept_recvs = kept;
            p->pending_recvs = q->n + q->beyond;
        } else {
            p->kept_sends = kept;
            p->pending_sends = q->n + q->beyond;
        }
    }
}
