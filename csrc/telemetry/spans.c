/* Which operations are kept completely, as trees: the slowest of each kind, those that are open for too long, those
 * that failed, and a random sample. Those without room are counted. */
#include <stdlib.h>
#include <string.h>

#include "consumer.h"

enum { DEPTH = 6 };
#define SEED UINT64_C(0x2545f4914f6cdd1d)

static int rank_of(uint32_t why)
{
    return why == TEL_INCOMPLETE ? 3 : why == TEL_OPEN ? 2 : why == TEL_SLOWEST ? 1 : 0;
}

/* Size of the sample: an operation of all ranks is one, with as many trees as ranks. */
static uint32_t random_quota(const struct psm_tel *tel)
{
    uint32_t trees = tel->settings.spans / 4, ranks = tel->ncomms ? tel->ncomms : 1;
    return trees / ranks ? trees / ranks : 1;
}

/* Keeps those with the least hashes: the same set in any order. Their maximum number; their number. */
static uint64_t most_random(const struct psm_tel *tel, uint32_t *n, bool *there, uint64_t score)
{
    uint64_t most = 0;
    *n = 0;
    *there = false;
    for (uint32_t i = 0; i < tel->ntrees; i++) {
        if (tel->trees[i].why != TEL_RANDOM) continue;
        bool first = true;
        for (uint32_t k = 0; k < i && first; k++)
            first = tel->trees[k].why != TEL_RANDOM || tel->trees[k].score != tel->trees[i].score;
        *n += first;
        *there |= tel->trees[i].score == score;
        if (tel->trees[i].score > most) most = tel->trees[i].score;
    }
    return most;
}

static void drop_random(struct psm_tel *tel, uint64_t score)
{
    for (uint32_t i = tel->ntrees; i-- > 0;) {
        if (tel->trees[i].why != TEL_RANDOM || tel->trees[i].score != score) continue;
        struct tel_tree last = tel->trees[--tel->ntrees];
        tel->trees[tel->ntrees] = tel->trees[i];
        tel->trees[i] = last;
    }
}

/* Whether an operation with this hash is in the sample; makes room by dropping another. */
static bool draw(struct psm_tel *tel, uint64_t score)
{
    uint32_t n;
    bool there;
    uint64_t most = most_random(tel, &n, &there, score);
    if (there || n < random_quota(tel)) return true;
    if (score > most) {
        tel->random_bar = most;
        return false;
    }
    drop_random(tel, most);
    return true;
}

static struct tel_tree *weakest(struct psm_tel *tel)
{
    struct tel_tree *found = NULL;
    for (uint32_t i = 0; i < tel->ntrees; i++) {
        struct tel_tree *t = &tel->trees[i];
        if (!found || rank_of(t->why) < rank_of(found->why) ||
            (rank_of(t->why) == rank_of(found->why) && t->score < found->score))
            found = t;
    }
    return found;
}

static struct tel_tree *same_kind(struct psm_tel *tel, uint64_t kind)
{
    for (uint32_t i = 0; i < tel->ntrees; i++)
        if (tel->trees[i].why == TEL_SLOWEST && tel->trees[i].kind == kind) return &tel->trees[i];
    return NULL;
}

/* An empty tree to fill; NULL: others are more important. */
static struct tel_tree *place_tree(struct psm_tel *tel, uint32_t why, uint64_t kind, uint64_t score)
{
    struct tel_tree *t = NULL;
    if (why == TEL_SLOWEST && (t = same_kind(tel, kind)) && t->score >= score) return NULL;
    if (why == TEL_RANDOM && !draw(tel, score)) return NULL;
    if (!t && tel->ntrees < tel->settings.spans) t = &tel->trees[tel->ntrees++];
    if (!t) {
        tel->losses.spans++;
        t = weakest(tel);
        if (!t || rank_of(t->why) > rank_of(why)) return NULL;
        if (rank_of(t->why) == rank_of(why) && t->score >= score) return NULL;
    }
    t->why = why;
    t->kind = kind;
    t->score = score;
    t->n = 0;
    return t;
}

static bool push(struct psm_tel *tel, struct tel_tree *t, const struct tel_comm *c, uint64_t handle, uint64_t start_ns,
                 int32_t tid, const struct psm_prof_event *e, struct tel_times times)
{
    if (t->n == TEL_TREE_ROWS) {
        tel->losses.span_rows++;
        return false;
    }
    if (t->n == t->room) {
        uint32_t room = t->room ? t->room * 2 : 16;
        struct psm_tel_row *rows = realloc(t->rows, room * sizeof *rows);
        if (!rows) return false;
        t->rows = rows;
        t->room = room;
    }
    struct psm_tel_row *row = &t->rows[t->n++];
    *row = (struct psm_tel_row){.handle = handle, .start_ns = start_ns, .comm = c->seen.id, .tid = tid, .why = t->why};
    tel_set_times(row, times);
    memcpy(row->event, e, sizeof row->event);
    return true;
}

static void push_row(struct psm_tel *tel, struct tel_tree *t, const struct tel_batch *b, uint32_t i)
{
    push(tel, t, b->c, tel_handle(b, i), b->rows[i].start_ns, b->rows[i].tid, &b->rows[i].event, tel_times_at(b, i));
}

/* Children by parent, linked when the first tree of a window is made. */
static void link_children(struct psm_tel *tel, struct tel_batch *b)
{
    if (tel->linked == tel->batch) return;
    tel->linked = tel->batch;
    for (uint32_t i = b->n; i-- > 0;) {
        const struct psm_prof_event *e = &b->rows[i].event;
        if (!tel_live(b, i) || e->type == PSM_PROF_LATE || e->flags & PSM_PROF_FOREIGN) continue;
        uint32_t parent = tel_local(b, e->parent);
        if (parent == TEL_NONE || parent == i) continue;
        b->side[i].next = b->side[parent].first;
        b->side[parent].first = i + 1;
    }
}

/* Parents before children. A damaged file may have cycles: the depth ends them. */
static void push_children(struct psm_tel *tel, struct tel_tree *t, const struct tel_batch *b, uint32_t parent,
                          int depth)
{
    for (uint32_t at = b->side[parent].first; at; at = b->side[at - 1].next) {
        push_row(tel, t, b, at - 1);
        if (depth < DEPTH) push_children(tel, t, b, at - 1, depth + 1);
    }
}

static void fill_tree(struct psm_tel *tel, struct tel_tree *t, struct tel_batch *b, uint32_t i)
{
    uint32_t above[DEPTH];
    int n = 0;
    const struct psm_prof_event *e = &b->rows[i].event;
    link_children(tel, b);
    uint64_t group = e->type == PSM_PROF_COLL ? e->u.coll.group : e->type == PSM_PROF_P2P ? e->u.p2p.group : 0;
    for (uint64_t parent = e->parent; parent && n < DEPTH; n++) {
        above[n] = tel_local(b, parent);
        if (above[n] == TEL_NONE) break;
        parent = b->rows[above[n]].event.parent;
        if (tel_handle(b, above[n]) == group) group = 0;
    }
    while (n > 0) push_row(tel, t, b, above[--n]);
    uint32_t together = group ? tel_local(b, group) : TEL_NONE;
    if (together != TEL_NONE) push_row(tel, t, b, together);
    t->op = tel_handle(b, i);
    t->comm = b->c->seen.id;
    push_row(tel, t, b, i);
    push_children(tel, t, b, i, 0);
}

void tel_span_op(struct psm_tel *tel, struct tel_batch *b, uint32_t i, uint32_t place, uint64_t duration, uint32_t why)
{
    if (!tel->settings.spans) return;
    if (why != TEL_SLOWEST) {
        struct tel_tree *t = place_tree(tel, why, 0, duration);
        if (t) fill_tree(tel, t, b, i);
        return;
    }
    if (place != TEL_NONE) {
        struct tel_pick *pick = &tel->picks[place];
        if (pick->window != tel->batch || duration > pick->duration) *pick = (struct tel_pick){duration, i, tel->batch};
    }
    /* A collective is sampled on all ranks or on none, so that both ends of its transfers are there. */
    const struct psm_prof_event *e = &b->rows[i].event;
    bool coll = e->type == PSM_PROF_COLL && e->u.coll.seq;
    uint64_t which = coll ? b->c->head.comm_hash ^ tel_mix(e->u.coll.seq << 8 | e->u.coll.func)
                          : tel_handle(b, i) ^ tel_mix(b->rows[i].start_ns);
    uint64_t score = tel_mix(which ^ SEED);
    if (score > tel->random_bar) return;
    struct tel_tree *t = place_tree(tel, TEL_RANDOM, 0, score);
    if (t) fill_tree(tel, t, b, i);
}

/* A kind of collectives over all ranks; 0: not a collective. */
static uint64_t group_of(const struct tel_batch *b, const struct psm_prof_event *e)
{
    if (e->type != PSM_PROF_COLL) return 0;
    uint64_t kind = (uint64_t)e->u.coll.func << 24 | (uint64_t)e->u.coll.algo << 16 | (uint64_t)e->u.coll.proto << 8 |
                    e->u.coll.datatype;
    return tel_mix(b->c->head.comm_hash ^ tel_mix(kind | UINT64_C(1) << 32)) | 1;
}

/* If another rank of this host has the slowest of a kind, prefer our part of the same collective to another one that is
 * hardly slower: the two are looked at together. */
static void follow(struct psm_tel *tel, struct tel_batch *b, uint64_t group, struct tel_pick *pick)
{
    const struct tel_tree *leader = NULL;
    for (uint32_t i = 0; i < tel->ntrees; i++) {
        const struct tel_tree *t = &tel->trees[i];
        if (t->why == TEL_SLOWEST && t->group == group && t->comm != b->c->seen.id &&
            (!leader || t->score > leader->score))
            leader = t;
    }
    for (uint32_t k = 0; leader && k < tel->nops; k++) {
        uint32_t i = tel->ops_at[k];
        const struct psm_prof_event *e = &b->rows[i].event;
        if (e->type != PSM_PROF_COLL || e->u.coll.seq != leader->seq || group_of(b, e) != group) continue;
        struct tel_times t = tel_times_at(b, i);
        if (!t.end_ns || t.end_ns < t.begin_ns) continue;
        uint64_t took = t.end_ns - t.begin_ns;
        if (pick->duration / 3 < took / 2) *pick = (struct tel_pick){took, i, pick->window};
        return;
    }
}

void tel_spans_of_batch(struct psm_tel *tel, struct tel_batch *b)
{
    if (!tel->settings.spans) return;
    for (uint32_t place = 0; place < tel->ops.n; place++) {
        struct tel_pick *pick = &tel->picks[place];
        if (pick->window != tel->batch) continue;
        const struct tel_key *key = &tel->ops.keys[place];
        const struct psm_prof_event *e = &b->rows[pick->at].event;
        uint64_t group = group_of(b, e);
        if (group) follow(tel, b, group, pick);
        struct tel_tree *t = place_tree(tel, TEL_SLOWEST, tel_mix(key->a ^ tel_mix(key->b)), pick->duration);
        if (!t) continue;
        t->group = group;
        t->seq = b->rows[pick->at].event.u.coll.seq;
        fill_tree(tel, t, b, pick->at);
    }
}

void tel_span_held(struct psm_tel *tel, struct tel_comm *c, const struct tel_held *h, uint32_t why)
{
    if (!tel->settings.spans) return;
    struct tel_times times = tel_times_held(c, h);
    uint64_t end = times.end_ns ? times.end_ns : tel_now();
    struct tel_tree *t = place_tree(tel, why, 0, end > h->start_ns ? end - h->start_ns : 0);
    if (!t) return;
    t->op = h->handle;
    t->comm = c->seen.id;
    push(tel, t, c, h->handle, h->start_ns, h->tid, &h->event, times);
}

/* An operation in the sample may also be kept for another reason. */
static void drop_doubles(struct psm_tel *tel)
{
    for (uint32_t i = 0; i < tel->ntrees; i++) {
        struct tel_tree *drawn = &tel->trees[i];
        for (uint32_t k = 0; drawn->why == TEL_RANDOM && k < tel->ntrees; k++) {
            const struct tel_tree *t = &tel->trees[k];
            if (t->why != TEL_RANDOM && t->op == drawn->op && t->comm == drawn->comm) drawn->n = 0;
        }
    }
}

size_t psm_tel_take_spans(struct psm_tel *tel, struct psm_tel_row *out, size_t n)
{
    size_t there = 0, at = 0;
    drop_doubles(tel);
    for (uint32_t i = 0; i < tel->ntrees; i++) there += tel->trees[i].n;
    if (there > n) return there;
    for (uint32_t i = 0; i < tel->ntrees; i++) {
        struct tel_tree *t = &tel->trees[i];
        for (uint32_t k = 0; k < t->n; k++) {
            out[at + k] = t->rows[k];
            out[at + k].root = (uint32_t)at;
        }
        at += t->n;
        t->n = 0;
    }
    tel->ntrees = 0;
    tel->random_bar = UINT64_MAX;
    return there;
}

void tel_spans_free(struct psm_tel *tel)
{
    for (uint32_t i = 0; tel->trees && i < TEL_MOST_SPANS; i++) free(tel->trees[i].rows);
    free(tel->trees);
    tel->trees = NULL;
    tel->ntrees = 0;
}
