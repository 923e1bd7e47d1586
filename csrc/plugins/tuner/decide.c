/* What NCCL calls for each collective: 200 ns, no lock, no allocation, and never an error, which would fail the
 * collective. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "tuner.h"
#include "tuner_say.h"

/* Tables of a context; only readers call it. */
static struct tuner_table *tuner_enter(struct tuner_context *c, uint64_t call)
{
    atomic_fetch_add(&c->readers, 1);
    /* In this order: when a pending table becomes the current one, pending is cleared afterwards. */
    struct tuner_table *coming = atomic_load(&c->coming);
    return coming && call >= coming->from_call ? coming : atomic_load(&c->current);
}

static __attribute__((noinline, cold)) void say_decision(const struct tuner_context *c, const struct tuner_query *q,
                                                         const struct tuner_choice *choice)
{
    const struct tuner_rule *rule = choice->rule;
    char why[TUNER_NOTE + 80];
    const char *op = tuner_ops[q->op];
    if (rule)
        snprintf(why, sizeof why, "line %u%s%s", rule->line, *rule->note ? ", " : "", rule->note);
    else if (choice->passed)
        snprintf(why, sizeof why, "line %u is not available here", choice->passed->line);
    else
        snprintf(why, sizeof why, "no rule");
    TUNER_SAY(c->logger, PSM_TUNER_DECIDED, psm_tuner_decided, op, q->bytes, c->ranks, c->nodes,
              tuner_algorithm_name(choice->algorithm), tuner_protocol_name(choice->protocol), rule ? rule->channels : 0,
              why);
}

void tuner_collective(struct tuner_context *c, struct tuner_query *q, float *costs, int *algorithm, int *protocol,
                      int *channels)
{
    uint64_t call = atomic_fetch_add_explicit(&c->calls, 1, memory_order_relaxed);
    struct tuner_table *t = tuner_enter(c, call);
    struct tuner_choice choice;
    q->costs = costs;
    tuner_decide(t, q, &choice);
    if (choice.rule && choice.rule->channels && channels) *channels = choice.rule->channels;
    if (choice.algorithm >= 0) {
        if (costs) {
            /* NCCL takes the first of the lowest: raise the cost of an entry that already costs nothing. */
            int at = choice.algorithm * q->protocols + choice.protocol;
            for (int i = 0; i < at; i++)
                if (costs[i] == 0) costs[i] = 1e-6f;
            costs[at] = 0;
        } else {
            if (algorithm) *algorithm = choice.algorithm;
            if (protocol) *protocol = choice.protocol;
        }
    }
    if (q->op >= 0 && q->op < TUNER_OPS) {
        size_t rule = choice.rule ? (size_t)(choice.rule - t->rule) : t->nrules;
        _Atomic unsigned char *said = &t->said[rule * TUNER_OPS + (size_t)q->op];
        if (__builtin_expect(!atomic_load_explicit(said, memory_order_relaxed), 0) &&
            !atomic_exchange_explicit(said, 1, memory_order_relaxed))
            say_decision(c, q, &choice);
    }
    tuner_record_decision(c, call, q, &choice);
    tuner_leave(c);
}

void tuner_chunk_size(struct tuner_context *c, int op, uint64_t bytes, int algorithm, int protocol, size_t *chunk)
{
    const struct tuner_rule *rule;
    /* It belongs to the previous decision. */
    uint64_t calls = atomic_load_explicit(&c->calls, memory_order_relaxed);
    struct tuner_table *t = tuner_enter(c, calls ? calls - 1 : 0);
    uint64_t size = tuner_chunk(t, op, bytes, algorithm, protocol, &rule);
    if (size && chunk) *chunk = size;
    tuner_leave(c);
}
