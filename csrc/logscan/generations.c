/* How often an opId was used: it is the address of a heap block, and stands for one call after another. */
#include "rpc.h"

/* A process's table of uses, with room for one more. */
static struct uses *uses_of(struct ls_rpc *r, uint32_t proc)
{
    while (r->uses.n <= proc) ls_push(&r->uses);
    struct uses *u = &r->uses.at[proc];
    if (u->n && (u->filled * 2 <= u->n || u->n == MOST_GENERATIONS)) return u;
    struct uses more = {.n = u->n ? u->n * 2 : FEW_GENERATIONS};
    more.at = ls_zalloc(more.n * sizeof *more.at);
    for (uint32_t i = 0; i < u->n; i++) {
        if (!u->at[i].count) continue;
        more.at[u->at[i].hash & (more.n - 1)] = u->at[i];
        more.filled++;
    }
    free(u->at);
    *u = more;
    return u;
}

/* Generations are counted for many calls at once: each is elsewhere in memory, so all can be prefetched together. */
void ls_rpc_count_generations(struct ls_rpc *r)
{
    enum { AHEAD = 8 };
    for (uint32_t i = 0; i < r->nuncounted; i++) {
        const struct uncounted *u = &r->uncounted[i];
        if (i + AHEAD < r->nuncounted && u[AHEAD].proc < r->uses.n) {
            const struct uses *next = &r->uses.at[u[AHEAD].proc];
            if (next->n) __builtin_prefetch(&next->at[u[AHEAD].hash & (next->n - 1)], 1);
        }
        struct uses *of = uses_of(r, u->proc);
        struct used *g = &of->at[u->hash & (of->n - 1)];
        of->filled += !g->count;
        if (g->hash != u->hash) *g = (struct used){.hash = u->hash};
        g->count++;
        struct call *c = &r->calls.at[u->call];
        if (c->uncounted != i + 1) continue; /* the slot belongs to another call by now */
        c->generation = g->count;
        c->uncounted = 0;
    }
    r->nuncounted = 0;
}

void ls_rpc_set_generation(struct ls_scan *scan, struct call *c)
{
    struct ls_rpc *r = scan->rpc;
    if (!scan->keep_calls) {
        if (r->nuncounted == COUNTED_AT_ONCE) ls_rpc_count_generations(r);
        r->uncounted[r->nuncounted++] = (struct uncounted){
            .proc = (uint32_t)c->key_proc, .hash = ls_fold(ls_mix(11, c->op)), .call = (uint32_t)(c - r->calls.at)};
        c->uncounted = r->nuncounted;
        return;
    }
    uint64_t key = ls_mix(ls_mix(11, (uint32_t)c->key_proc), c->op);
    for (LS_EACH(&r->all_index, ls_fold(key), e))
        if (r->all.at[e].key == key) {
            c->generation = ++r->all.at[e].count;
            return;
        }
    *ls_push(&r->all) = (struct generation){.key = key, .count = 1};
    ls_index_add(&r->all_index, ls_fold(key), r->all.n - 1);
    c->generation = 1;
}
