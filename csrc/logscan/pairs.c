/* Answers whose call was served in another process of the host: their two ends are joined by opId, host and order. */
#include "rpc.h"

/* A served call is offered to other processes after so many further lines of its own process. */
enum { PATIENCE = 500 };

struct end {
    uint64_t op;
    uint64_t order;
    uint32_t proc, call;
};

/* Sorts by op and order, byte by byte of op: most bytes of addresses are the same in all, and need no pass. Equal ends
 * of both keep their order. spare is as long as at; returns which of the two holds the result. */
static struct end *sort_ends(struct end *at, struct end *spare, uint32_t n)
{
    uint64_t differ = 0;
    for (uint32_t i = 1; i < n; i++) differ |= at[i].op ^ at[0].op;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!(differ >> shift & 0xff)) continue;
        uint32_t to[256] = {0};
        for (uint32_t i = 0; i < n; i++) to[at[i].op >> shift & 0xff]++;
        for (uint32_t k = 0, sum = 0; k < 256; k++) {
            uint32_t count = to[k];
            to[k] = sum;
            sum += count;
        }
        for (uint32_t i = 0; i < n; i++) spare[to[at[i].op >> shift & 0xff]++] = at[i];
        struct end *other = at;
        at = spare;
        spare = other;
    }
    return at;
}

static int by_order(const void *a, const void *b)
{
    const struct end *x = a, *y = b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    /* of two processes the one that was seen first, whatever else is open */
    if (x->proc != y->proc) return x->proc < y->proc ? -1 : 1;
    return x->call < y->call ? -1 : x->call > y->call;
}

static bool same_host(const struct ls_scan *scan, int32_t a, int32_t b)
{
    return scan->states.at[a].host_id == scan->states.at[b].host_id;
}

/* Whether the host of a process has new answers without a service: others wait until it has, whatever hosts without any
 * relation to it print. */
static bool answers_on(const struct ls_scan *scan, int32_t proc)
{
    const struct ls_rpc *r = scan->rpc;
    uint32_t host = scan->states.at[proc].host_id;
    return host < r->answered.n && r->answered.at[host];
}

/* Pairs answers without a service with served calls that nobody in their own process received. */
void ls_rpc_pair(struct ls_scan *scan, bool last)
{
    struct ls_rpc *r = scan->rpc;
    LS_VEC(struct end) ends = {0};
    ls_rpc_count_generations(r);
    for (uint32_t i = 0; i < r->calls.n; i++) {
        struct call *c = &r->calls.at[i];
        if (c->flags & FREE) continue;
        if (!last && !answers_on(scan, c->key_proc)) continue;
        bool served = c->flags & SERVED;
        if (served && (c->flags & RECEIVED)) continue;
        const ls_ref *ref = served ? &c->served : c->received.line ? &c->received : &c->matched;
        if (served && !last && !(c->flags & SUPERSEDED) &&
            scan->streams.at[ls_call_stream(scan, ref)].seq - ref->seq < PATIENCE)
            continue;
        *ls_push(&ends) = (struct end){.op = c->op, .order = ref->seq, .proc = (uint32_t)c->key_proc, .call = i};
    }
    struct end *spare = ls_realloc(NULL, ends.n * sizeof *spare), *end = sort_ends(ends.at, spare, ends.n);
    for (uint32_t i = 0, k; i < ends.n; i = k) {
        for (k = i + 1; k < ends.n && end[k].op == end[i].op;) k++;
        if (k - i > 1) qsort(end + i, k - i, sizeof *end, by_order);
    }
    /* an answer that follows one with the same opId may be a repeated line, so others come first */
    for (uint32_t n = 0; n < (last ? 2 : 1) * ends.n; n++) {
        uint32_t i = n % ends.n;
        struct call *answer = &r->calls.at[end[i].call];
        if (answer->flags & (SERVED | FREE) || answer->expected || !answer->again != (n < ends.n)) continue;
        uint32_t low = i, high = i;
        while (low && end[low - 1].op == end[i].op) low--;
        while (high < ends.n && end[high].op == end[i].op) high++;
        for (uint32_t k = low; k < high; k++) {
            struct call *s = &r->calls.at[end[k].call];
            if (!(s->flags & SERVED) || (s->flags & (FREE | RECEIVED)) || s->service == answer->caller ||
                !same_host(scan, s->service, answer->caller))
                continue;
            s->flags |= RECEIVED | (answer->flags & (MATCHED | QUEUED));
            s->caller = answer->caller;
            s->caller_thread = answer->caller_thread;
            s->received = answer->received;
            s->matched = answer->matched;
            s->ended = answer->ended;
            s->generation = answer->generation;
            uint32_t hash = answer->hash;
            ls_call_drop(r, answer);
            if (s->flags & MATCHED) {
                ls_call_complete(scan, s);
                break;
            }
            /* The caller's next line about it is still to come: it will be found there. */
            ls_index_del(&r->index, s->hash, end[k].call);
            s->hash = hash;
            s->key_proc = s->caller;
            ls_index_add(&r->index, hash, end[k].call);
            break;
        }
    }
    free(spare);
    free(ends.at);
    r->orphans = 0;
    if (r->answered.n) memset(r->answered.at, 0, r->answered.n * sizeof *r->answered.at);
}
