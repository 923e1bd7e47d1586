/* Compiled rules: what is known at init is evaluated then, and a collective finds its rule by its size. */
#include <stdlib.h>
#include <string.h>

#include "rules.h"

static bool within(const struct tuner_range *r, uint64_t value)
{
    return value >= r->low && value <= r->high;
}

static bool everything(const struct tuner_range *r)
{
    return r->low == 0 && r->high == UINT64_MAX;
}

static bool fits(const struct tuner_range *r, int64_t value)
{
    return value < 0 ? everything(r) : within(r, (uint64_t)value);
}

const char *tuner_unmet(const struct tuner_rule *rule, const struct tuner_shape *shape, int version)
{
    if (shape->ranks < 0 && !everything(&rule->ranks)) return "ranks";
    if (shape->nodes < 0 && !everything(&rule->nodes)) return "nodes";
    if (shape->domains < 0 && !everything(&rule->domains)) return "nvl_domains";
    return version < 4 && rule->registered >= 0 ? "registered" : NULL;
}

/* ---- compile ---- */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Whether b can never be chosen if a comes first: a matches whenever b does, and is available whenever b is. */
static bool hides(const struct tuner_candidate *a, const struct tuner_candidate *b)
{
    bool matches = a->pipe_ops.low <= b->pipe_ops.low && a->pipe_ops.high >= b->pipe_ops.high &&
                   (a->registered < 0 || a->registered == b->registered);
    bool nothing = a->algorithm < 0 && a->protocol < 0;
    return matches && (nothing || (a->algorithm == b->algorithm && a->protocol == b->protocol));
}

/* The candidates of the interval that starts at size; only counts if out is NULL. */
static uint32_t candidates(const struct tuner_table *t, const uint32_t *live, uint32_t n, uint64_t size,
                           struct tuner_candidate *out)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct tuner_rule *r = &t->rule[live[i]];
        if (!within(&r->bytes, size)) continue;
        struct tuner_candidate c = {r->pipe_ops, live[i], r->registered, r->algorithm, r->protocol};
        bool hidden = false;
        for (uint32_t k = 0; k < found && !hidden; k++)
            hidden = hides(&out[k], &c) && r->chunk == t->rule[out[k].rule].chunk;
        if (!hidden) out[found++] = c;
    }
    return found;
}

static bool compile(struct tuner_table *t, int op, const struct tuner_shape *shape)
{
    struct tuner_intervals *out = &t->op[op];
    uint32_t n = 0, used = 0, room = 0;
    uint32_t *live = malloc(sizeof *live * (t->nrules + 1));
    uint64_t *cut = malloc(sizeof *cut * (2 * (size_t)t->nrules + 1));
    struct tuner_candidate *here = malloc(sizeof *here * (t->nrules + 1));
    bool good = live && cut && here;
    uint32_t ncuts = 0;
    if (good) cut[ncuts++] = 0;
    for (uint32_t i = 0; good && i < t->nrules; i++) {
        const struct tuner_rule *r = &t->rule[i];
        if (!(r->ops >> op & 1) || !fits(&r->ranks, shape->ranks) || !fits(&r->nodes, shape->nodes) ||
            !fits(&r->domains, shape->domains))
            continue;
        live[n++] = i;
        cut[ncuts++] = r->bytes.low;
        if (r->bytes.high != UINT64_MAX) cut[ncuts++] = r->bytes.high + 1;
    }
    if (good) {
        qsort(cut, ncuts, sizeof *cut, by_value);
        out->start = malloc(sizeof *out->start * ncuts);
        out->first = malloc(sizeof *out->first * (ncuts + 1));
        good = out->start && out->first;
    }
    for (uint32_t i = 0; good && i < ncuts; i++) {
        if (i && cut[i] == cut[i - 1]) continue;
        uint32_t found = candidates(t, live, n, cut[i], here);
        if (used + found > room) {
            room = 2 * (used + found);
            struct tuner_candidate *more = realloc(out->candidate, sizeof *more * room);
            if (!more) {
                good = false;
                break;
            }
            out->candidate = more;
        }
        if (found) memcpy(out->candidate + used, here, sizeof *here * found);
        out->start[out->n] = cut[i];
        out->first[out->n++] = used;
        used += found;
    }
    if (good) out->first[out->n] = used;
    free(live);
    free(cut);
    free(here);
    return good;
}

struct tuner_table *tuner_table_make(const struct tuner_rules *rules, const struct tuner_shape *shape)
{
    struct tuner_table *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->from_call = rules->from_call;
    t->nrules = rules->n;
    t->rule = malloc(sizeof *t->rule * (rules->n + 1));
    t->said = calloc((size_t)TUNER_OPS * (rules->n + 1), 1);
    bool good = t->rule && t->said;
    if (good && rules->n) memcpy(t->rule, rules->rule, sizeof *t->rule * rules->n);
    for (int op = 0; good && op < TUNER_OPS; op++) good = compile(t, op, shape);
    if (good) return t;
    tuner_table_free(t);
    return NULL;
}

void tuner_table_free(struct tuner_table *t)
{
    if (!t) return;
    for (int op = 0; op < TUNER_OPS; op++) {
        free(t->op[op].start);
        free(t->op[op].first);
        free(t->op[op].candidate);
    }
    free(t->rule);
    free((void *)t->said);
    free(t);
}

/* ---- decide ---- */

static uint32_t interval(const struct tuner_intervals *s, uint64_t bytes)
{
    uint32_t low = 0, n = s->n;
    while (n > 1) {
        uint32_t half = n / 2;
        low = s->start[low + half] <= bytes ? low + half : low;
        n -= half;
    }
    return low;
}

static bool offered(const struct tuner_query *q, int algorithm, int protocol)
{
    if (q->costs)
        return algorithm < q->algorithms && protocol < q->protocols &&
               q->costs[algorithm * q->protocols + protocol] >= 0;
    if (!q->by_support) return true;
    switch (algorithm) {
    case NCCL_ALGO_TREE:
    case NCCL_ALGO_RING:
        return true;
    case NCCL_ALGO_COLLNET_DIRECT:
    case NCCL_ALGO_COLLNET_CHAIN:
        return q->collnet;
    case NCCL_ALGO_NVLS:
        return q->nvls && q->collnet;
    case NCCL_ALGO_NVLS_TREE:
        return q->nvls;
    default:
        return false; /* v1 and v2 are older than PAT */
    }
}

/* Completes half of a choice from the costs. Without costs NCCL ignores half of a choice, so it counts as none. */
static bool choose(const struct tuner_query *q, const struct tuner_candidate *c, struct tuner_choice *out)
{
    out->algorithm = out->protocol = -1;
    if (c->algorithm >= 0 && c->protocol >= 0) {
        if (!offered(q, c->algorithm, c->protocol)) return false;
        out->algorithm = c->algorithm;
        out->protocol = c->protocol;
        return true;
    }
    if ((c->algorithm < 0 && c->protocol < 0) || !q->costs) return true;
    float best = 0;
    for (int a = 0; a < q->algorithms && a < NCCL_NUM_ALGORITHMS; a++)
        for (int p = 0; p < q->protocols && p < NCCL_NUM_PROTOCOLS; p++) {
            float cost = q->costs[a * q->protocols + p];
            if ((c->algorithm >= 0 && a != c->algorithm) || (c->protocol >= 0 && p != c->protocol) || !(cost >= 0))
                continue;
            if (out->algorithm >= 0 && cost >= best) continue;
            best = cost;
            out->algorithm = a;
            out->protocol = p;
        }
    return out->algorithm >= 0;
}

void tuner_decide(const struct tuner_table *t, const struct tuner_query *q, struct tuner_choice *out)
{
    *out = (struct tuner_choice){NULL, -1, -1, NULL};
    if (q->op < 0 || q->op >= TUNER_OPS) return;
    const struct tuner_intervals *s = &t->op[q->op];
    uint32_t i = interval(s, q->bytes);
    const struct tuner_candidate *c = s->candidate + s->first[i], *end = s->candidate + s->first[i + 1];
    for (; c < end; c++) {
        if (q->pipe_ops < 0 ? !everything(&c->pipe_ops) : !within(&c->pipe_ops, (uint64_t)q->pipe_ops)) continue;
        if (c->registered >= 0 && c->registered != q->registered) continue;
        if (choose(q, c, out)) {
            out->rule = &t->rule[c->rule];
            return;
        }
        if (!out->passed) out->passed = &t->rule[c->rule];
    }
    out->algorithm = out->protocol = -1;
}

uint64_t tuner_chunk(const struct tuner_table *t, int op, uint64_t bytes, int algorithm, int protocol,
                     const struct tuner_rule **rule)
{
    *rule = NULL;
    if (op < 0 || op >= TUNER_OPS) return 0;
    const struct tuner_intervals *s = &t->op[op];
    uint32_t i = interval(s, bytes);
    for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++) {
        const struct tuner_candidate *c = &s->candidate[k];
        const struct tuner_rule *r = &t->rule[c->rule];
        if (!r->chunk || !everything(&c->pipe_ops) || c->registered >= 0) continue;
        if ((c->algorithm >= 0 && c->algorithm != algorithm) || (c->protocol >= 0 && c->protocol != protocol)) continue;
        return (*rule = r)->chunk;
    }
    return 0;
}
