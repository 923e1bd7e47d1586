/* Rules that compare ranks. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rule_table.h"

struct found {
    struct psmPlanBreach *out;
    size_t capacity, n;
};

__attribute__((format(printf, 6, 7))) static void broken(struct found *found, enum plan_rule rule, int32_t rank,
                                                         int32_t other, uint64_t plan, const char *format, ...)
{
    if (found->n++ >= found->capacity) return;
    struct psmPlanBreach *breach = &found->out[found->n - 1];
    *breach = (struct psmPlanBreach){.rank = rank, .other = other, .plan = plan, .order = UINT64_MAX};
    snprintf(breach->rule, sizeof breach->rule, "%s", plan_rule_table[rule].name);
    va_list list;
    va_start(list, format);
    vsnprintf(breach->text, sizeof breach->text, format, list);
    va_end(list);
}

/* The next plan with collectives, from i on. */
static size_t next_coll(const struct plan_rules_rank *rank, size_t i)
{
    while (i < rank->nplans && rank->plans[i].ncolls == 0) i++;
    return i;
}

static bool has_coll(const struct plan_rules_plan *plan, uint64_t coll)
{
    for (uint64_t i = 0; i < plan->ncolls; i++)
        if (plan->colls[i].coll == coll) return true;
    return false;
}

static void compare_cuts(struct found *found, const struct plan_rules_rank *a, const struct plan_rules_rank *b)
{
    size_t i = next_coll(a, 0), j = next_coll(b, 0);
    for (size_t k = 1; i < a->nplans || j < b->nplans; k++, i = next_coll(a, i + 1), j = next_coll(b, j + 1)) {
        if (i >= a->nplans || j >= b->nplans) {
            const struct plan_rules_rank *more = i < a->nplans ? a : b, *less = i < a->nplans ? b : a;
            const struct plan_rules_plan *plan = &more->plans[i < a->nplans ? i : j];
            broken(found, CUT_DIFFERS, b->rank, a->rank, plan->plan,
                   "rank %d has %zu plans with collectives and rank %d has more: its plan %" PRIu64 " has %" PRIu64,
                   less->rank, k - 1, more->rank, plan->plan, plan->ncolls);
            return;
        }
        const struct plan_rules_plan *x = &a->plans[i], *y = &b->plans[j];
        if (x->ncolls != y->ncolls) {
            broken(found, CUT_DIFFERS, b->rank, a->rank, y->plan,
                   "plan %zu with collectives (%" PRIu64 " on rank %d, %" PRIu64 " on rank %d) has %" PRIu64
                   " of them on rank %d and %" PRIu64 " on rank %d",
                   k, x->plan, a->rank, y->plan, b->rank, x->ncolls, a->rank, y->ncolls, b->rank);
            return;
        }
        if (!x->colls || !y->colls) continue;
        for (uint64_t m = 0; m < y->ncolls; m++)
            if (!has_coll(x, y->colls[m].coll)) {
                broken(found, CUT_DIFFERS, b->rank, a->rank, y->plan,
                       "plan %zu with collectives has collective %" PRIu64 " on rank %d and not on rank %d", k,
                       y->colls[m].coll, b->rank, a->rank);
                return;
            }
    }
}

static const struct plan_rules_coll *find_coll(const struct plan_rules_rank *rank, uint64_t coll, uint64_t *plan)
{
    for (size_t i = 0; i < rank->nplans; i++)
        for (uint64_t k = 0; rank->plans[i].colls && k < rank->plans[i].ncolls; k++)
            if (rank->plans[i].colls[k].coll == coll) {
                *plan = rank->plans[i].plan;
                return &rank->plans[i].colls[k];
            }
    return NULL;
}

static bool same_coll(struct found *found, const struct plan_rules_rank *a, const struct plan_rules_rank *b,
                      const struct plan_rules_coll *y, uint64_t plan)
{
    uint64_t other;
    const struct plan_rules_coll *x = find_coll(a, y->coll, &other);
    if (!x) return true; /* reported by cut.differs */
    if (x->channels != y->channels)
        broken(found, CHANNEL_DIFFERS, b->rank, a->rank, plan,
               "collective %" PRIu64 " goes over channels 0x%" PRIx64 " on rank %d (plan %" PRIu64 ") and 0x%" PRIx64
               " on rank %d (plan %" PRIu64 ")",
               y->coll, x->channels, a->rank, other, y->channels, b->rank, plan);
    else if (x->opCount != UINT64_MAX && y->opCount != UINT64_MAX && x->opCount != y->opCount)
        broken(found, CHANNEL_DIFFERS, b->rank, a->rank, plan,
               "the ops of collective %" PRIu64 " have opCount %" PRIu64 " on rank %d and %" PRIu64 " on rank %d",
               y->coll, x->opCount >> 1, a->rank, y->opCount >> 1, b->rank);
    else
        return true;
    return false;
}

static void compare_channels(struct found *found, const struct plan_rules_rank *a, const struct plan_rules_rank *b)
{
    size_t i = next_coll(a, 0), j = next_coll(b, 0);
    for (; j < b->nplans; i = next_coll(a, i + 1), j = next_coll(b, j + 1)) {
        const struct plan_rules_plan *y = &b->plans[j];
        for (uint64_t m = 0; y->colls && m < y->ncolls; m++)
            if (!same_coll(found, a, b, &y->colls[m], y->plan)) return;
        if (y->colls || i >= a->nplans) continue;
        const struct plan_rules_plan *x = &a->plans[i];
        if (x->np2ps || y->np2ps || x->ncolls != y->ncolls || x->channelMask == y->channelMask) continue;
        broken(found, CHANNEL_DIFFERS, b->rank, a->rank, y->plan,
               "the %" PRIu64 " collectives of plan %" PRIu64 " go over channels 0x%" PRIx64
               " on rank %d, those of plan %" PRIu64 " over 0x%" PRIx64 " on rank %d",
               x->ncolls, x->plan, x->channelMask, a->rank, y->plan, y->channelMask, b->rank);
        return;
    }
}

static void check_order(struct found *found, const struct plan_rules_rank *rank)
{
    const struct plan_rules_plan *p2p = NULL;
    for (size_t i = 0; i < rank->nplans; i++) {
        const struct plan_rules_plan *plan = &rank->plans[i];
        if (plan->p2pFirst) {
            broken(found, P2P_FIRST, rank->rank, -1, plan->plan,
                   "plan %" PRIu64 " has p2p of task %" PRIu64 " before the collective of task %" PRIu64, plan->plan,
                   plan->p2pTask, plan->collTask);
            return;
        }
        if (!plan->group) continue;
        if (p2p && p2p->group == plan->group && plan->ncolls) {
            broken(found, P2P_FIRST, rank->rank, -1, plan->plan,
                   "plan %" PRIu64 " has %" PRIu64 " collectives, and plan %" PRIu64
                   " of the same group, before it, has "
                   "p2p",
                   plan->plan, plan->ncolls, p2p->plan);
            return;
        }
        if (plan->np2ps && (!p2p || p2p->group != plan->group)) p2p = plan;
    }
}

size_t plan_rules_compare(const struct plan_rules_rank *ranks, size_t nranks, struct psmPlanBreach *out,
                          size_t capacity)
{
    struct found found = {.out = out, .capacity = out ? capacity : 0};
    for (size_t r = 1; r < nranks; r++) {
        compare_cuts(&found, &ranks[0], &ranks[r]);
        compare_channels(&found, &ranks[0], &ranks[r]);
    }
    for (size_t r = 0; r < nranks; r++) check_order(&found, &ranks[r]);
    return found.n;
}
