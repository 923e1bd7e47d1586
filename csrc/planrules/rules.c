/* The checker of one communicator's trace. Its memory grows with the plans that are not reclaimed, not with the trace:
 * ids are serial, so a made plan that is not in the table was reclaimed. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rule_table.h"

struct plan_rules *plan_rules_new(int scheduler)
{
    (void)scheduler; /* so far all rules of a trace apply to both schedulers */
    struct plan_rules *rules = calloc(1, sizeof *rules);
    if (!rules) return NULL;
    rules->room = START;
    rules->states = calloc(rules->room, sizeof *rules->states);
    if (!rules->states) {
        free(rules);
        return NULL;
    }
    for (int i = 0; i < 2; i++)
        for (int c = 0; c < CHANNELS; c++) rules->last[i][c].opCount = -1;
    return rules;
}

void plan_rules_free(struct plan_rules *rules)
{
    if (!rules) return;
    free(rules->states);
    free(rules);
}

size_t plan_rules_breaches(const struct plan_rules *rules, const struct psmPlanBreach **breaches, size_t *kept)
{
    *breaches = rules->breaches;
    *kept = rules->nbreaches < KEPT ? rules->nbreaches : KEPT;
    return rules->nbreaches;
}

/* ---- plans ---- */

static struct state *find(const struct plan_rules *rules, uint64_t id)
{
    size_t mask = rules->room - 1;
    for (size_t i = id & mask; rules->states[i].id; i = (i + 1) & mask)
        if (rules->states[i].id == id) return &rules->states[i];
    return NULL;
}

static struct state *add(struct plan_rules *rules, uint64_t id)
{
    if (rules->nstates * 2 >= rules->room) {
        struct plan_rules wide = {.room = rules->room * 2, .states = calloc(rules->room * 2, sizeof *wide.states)};
        if (!wide.states) return NULL; /* that plan is not judged */
        for (size_t i = 0; i < rules->room; i++)
            if (rules->states[i].id) *add(&wide, rules->states[i].id) = rules->states[i];
        free(rules->states);
        rules->states = wide.states;
        rules->room = wide.room;
    }
    size_t mask = rules->room - 1, i = id & mask;
    while (rules->states[i].id) i = (i + 1) & mask;
    rules->nstates++;
    rules->states[i] = (struct state){.id = id};
    return &rules->states[i];
}

static void take_out(struct plan_rules *rules, struct state *state)
{
    size_t mask = rules->room - 1, hole = (size_t)(state - rules->states);
    rules->nstates--;
    rules->states[hole].id = 0;
    for (size_t i = (hole + 1) & mask; rules->states[i].id; i = (i + 1) & mask) {
        size_t home = rules->states[i].id & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        rules->states[hole] = rules->states[i];
        rules->states[i].id = 0;
        hole = i;
    }
}

static bool is_freed(const struct plan_rules *rules, uint64_t id)
{
    return rules->firstMade && id >= rules->firstMade && id <= rules->lastMade && !find(rules, id);
}

/* ---- breaches ---- */

void plan_rules_broken(struct plan_rules *rules, enum plan_rule rule, const struct psmPlanEvent *event,
                       const char *format, ...)
{
    if (event->plan && rules->lastPlan[rule] == event->plan) return;
    rules->lastPlan[rule] = event->plan;
    size_t n = rules->nbreaches++;
    if (n >= KEPT) return;
    struct psmPlanBreach *breach = &rules->breaches[n];
    *breach = (struct psmPlanBreach){.rank = event->rank, .other = -1, .plan = event->plan, .order = event->order};
    snprintf(breach->rule, sizeof breach->rule, "%s", plan_rule_table[rule].name);
    va_list list;
    va_start(list, format);
    vsnprintf(breach->text, sizeof breach->text, format, list);
    va_end(list);
}

static const char *enqueuer(int64_t by)
{
    return by == PSM_PLAN_BY_HOST_TASK      ? "hostStreamPlanTask"
           : by == PSM_PLAN_BY_LAUNCH_AFTER ? "LaunchKernelAfter"
           : by == PSM_PLAN_BY_DESTRUCTOR   ? "the graph's destructor"
           : by == PSM_PLAN_BY_CANCEL       ? "the failed launch"
                                            : "nobody that may";
}
static const char *toucher(int64_t who)
{
    return who == PSM_PLAN_MAIN     ? "the main thread"
           : who == PSM_PLAN_PROXY  ? "the proxy"
           : who == PSM_PLAN_HOST   ? "a host function"
           : who == PSM_PLAN_KERNEL ? "its kernel"
                                    : "a thread";
}
static const char *what_name(int32_t what)
{
    switch (what) {
    case PSM_PLAN_ARMED:
        return "its sync condition is armed";
    case PSM_PLAN_LAUNCHED:
        return "it is launched";
    case PSM_PLAN_KERNEL_DONE:
        return "its kernel ends";
    case PSM_PLAN_HOST_TASK:
        return "hostStreamPlanTask runs for it";
    case PSM_PLAN_OP_POSTED:
        return "an op of it is posted";
    case PSM_PLAN_OP_DONE:
        return "an op of it ends";
    case PSM_PLAN_COUNTED_OFF:
        return "its sync condition is counted off";
    case PSM_PLAN_CALLBACK:
        return "its host function begins";
    case PSM_PLAN_CALLBACK_OVER:
        return "its host function ends";
    default:
        return "it is used";
    }
}

/* ---- events of a plan ---- */

static void made(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    if (!rules->firstMade) rules->firstMade = e->plan;
    if (e->plan > rules->lastMade) rules->lastMade = e->plan;
    struct state *state = add(rules, e->plan);
    if (state) state->persistent = rules->graph != 0;
    if (rules->p2pPlan && e->b > 0)
        plan_rules_broken(
            rules, P2P_FIRST, e,
            "plan %" PRIu64 " of the group has %" PRId64 " collectives, and plan %" PRIu64
            " before it has p2p: where p2p is cut differs between ranks, so where collectives begin does, too",
            e->plan, e->b, rules->p2pPlan);
    if (!rules->p2pPlan && e->c > 0) rules->p2pPlan = e->plan;
}

static void posted(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e)
{
    s->posted++;
    if (!(e->c & PSM_PLAN_OP_COPIED)) s->open++;
    if (s->after)
        plan_rules_broken(rules, RECLAIM_ENQUEUER, e,
                          "LaunchKernelAfter has enqueued the reclaimer of plan %" PRIu64 ", which has proxy ops",
                          e->plan);
    if (e->b < 0 || e->b >= CHANNELS) return;
    struct last *last = &rules->last[e->a & 1][e->b];
    bool same = last->plan == e->plan && last->launch == s->hostTasks;
    if (last->opCount >= 0 && (same ? e->a < last->opCount : e->a <= last->opCount))
        plan_rules_broken(
            rules, OP_ORDER, e,
            "plan %" PRIu64 " posts %s opCount %" PRId64 " on channel %" PRId64 " behind %" PRId64 " of plan %" PRIu64,
            e->plan, e->a & 1 ? "p2p" : "a collective's", e->a >> 1, e->b, last->opCount >> 1, last->plan);
    *last = (struct last){.opCount = e->a, .plan = e->plan, .launch = s->hostTasks};
}

static void reclaimer(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e)
{
    if (++s->reclaimers > 1) {
        plan_rules_broken(rules, RECLAIM_TWICE, e, "the reclaimer of plan %" PRIu64 " is enqueued a second time, by %s",
                          e->plan, enqueuer(e->a));
        return;
    }
    s->reclaimer = ++rules->reclaimers;
    bool good = e->a == PSM_PLAN_BY_CANCEL         ? s->cancelled
                : s->persistent                    ? e->a == PSM_PLAN_BY_DESTRUCTOR
                : e->a == PSM_PLAN_BY_LAUNCH_AFTER ? s->posted == 0 && s->hostTasks == 0
                                                   : e->a == PSM_PLAN_BY_HOST_TASK && s->hostTasks > 0;
    if (!good)
        plan_rules_broken(rules, RECLAIM_ENQUEUER, e,
                          "%s has enqueued the reclaimer of plan %" PRIu64
                          ", which is %spersistent and has posted %" PRIu64 " proxy ops in %" PRIu64 " host tasks",
                          enqueuer(e->a), e->plan, s->persistent ? "" : "not ", s->posted, s->hostTasks);
    s->after = e->a == PSM_PLAN_BY_LAUNCH_AFTER;
}

/* Checks at the end of a plan, or of the trace. */
static void lost(struct plan_rules *rules, const struct state *s, const struct psmPlanEvent *e)
{
    uint64_t expected = s->persistent ? s->hostTasks : 1;
    if (!s->cancelled && (s->launched & 2) && s->called < expected)
        plan_rules_broken(rules, CALLBACK_LOST, e,
                          "the host function of plan %" PRIu64 " was launched %" PRIu64 " times and ran %" PRIu64
                          " times",
                          s->id, expected, s->called);
}

static void reclaim(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e)
{
    bool early = s->open > 0 || s->callbacks > 0 || e->a > 0 || e->b > 0 || e->c > 0;
    if (early)
        plan_rules_broken(rules, RECLAIM_EARLY, e,
                          "plan %" PRIu64 " is freed with %" PRId64 " proxy ops, %" PRId64 " kernels and %" PRId64
                          " host functions that have not ended",
                          e->plan, e->a > s->open ? e->a : s->open, e->b, e->c > s->callbacks ? e->c : s->callbacks);
    else
        lost(rules, s, e);
    if (s->holds > 0)
        plan_rules_broken(rules, HOLD_LOST, e,
                          "plan %" PRIu64 " is freed, and %" PRId64 " registrations that it holds are not given back",
                          e->plan, s->holds);
    if (!s->reclaimer)
        plan_rules_broken(rules, RECLAIM_ENQUEUER, e,
                          "plan %" PRIu64 " is freed, and nobody has enqueued its reclaimer", e->plan);
    else if (s->reclaimer < rules->reclaimed)
        plan_rules_broken(rules, FIFO_ORDER, e,
                          "plan %" PRIu64 " is freed behind one whose reclaimer was enqueued later (%" PRIu64
                          ". and %" PRIu64 ".)",
                          e->plan, s->reclaimer, rules->reclaimed);
    else
        rules->reclaimed = s->reclaimer;
    take_out(rules, s);
}

/* An event of a plan that is not there: it was freed, or is from before the start of the trace. */
static void of_no_plan(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    if (!is_freed(rules, e->plan)) return;
    if (e->what == PSM_PLAN_RECLAIM || e->what == PSM_PLAN_RECLAIMER)
        plan_rules_broken(rules, RECLAIM_TWICE, e, "plan %" PRIu64 " %s, and it was freed before", e->plan,
                          e->what == PSM_PLAN_RECLAIM ? "is freed" : "gets its reclaimer enqueued");
    else if (e->what == PSM_PLAN_TOUCHED)
        plan_rules_broken(rules, FREED_TOUCHED, e, "%s uses plan %" PRIu64 ", which was freed", toucher(e->a), e->plan);
    else
        plan_rules_broken(rules, FREED_TOUCHED, e, "%s, and plan %" PRIu64 " was freed", what_name(e->what), e->plan);
}

static void armed(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    if (e->a != e->b)
        plan_rules_broken(rules, COUNT_MISMATCH, e,
                          "the sync condition of plan %" PRIu64 " is armed with %" PRId64 ", and %" PRId64
                          " ops count it off: %s",
                          e->plan, e->a, e->b, e->a > e->b ? "it never gets to 0" : "it gets to 0 too early");
}

static void callback_over(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e)
{
    s->callbacks--;
    s->syncFreed = e->c != 0;
    if (e->a == 0 && e->b != 0)
        plan_rules_broken(rules, COUNT_LEFT, e,
                          "the host function of plan %" PRIu64 " comes back with a count of %" PRId64
                          ", and nobody has aborted",
                          e->plan, e->b);
}

static void host_task(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e)
{
    s->hostTasks++;
    s->onHost |= e->a == 1;
    plan_rules_host_stream(rules, s, e);
    if (s->after)
        plan_rules_broken(
            rules, RECLAIM_ENQUEUER, e,
            "hostStreamPlanTask runs for plan %" PRIu64 ", whose reclaimer LaunchKernelAfter has enqueued", e->plan);
}

static void counted_off(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    if (e->a < 0)
        plan_rules_broken(rules, COUNT_BELOW, e, "the sync condition of plan %" PRIu64 " is counted off to %" PRId64,
                          e->plan, e->a);
}

static void of_plan(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    if (e->what == PSM_PLAN_MADE) {
        made(rules, e);
        return;
    }
    struct state *s = find(rules, e->plan);
    if (!s) {
        of_no_plan(rules, e);
        return;
    }
    if (s->syncFreed && (e->what == PSM_PLAN_ARMED || e->what == PSM_PLAN_CALLBACK || e->what == PSM_PLAN_TOUCHED ||
                         e->what == PSM_PLAN_COUNTED_OFF))
        plan_rules_broken(rules, FREED_TOUCHED, e,
                          "%s of plan %" PRIu64
                          ": its sync condition was freed by the host function of an earlier launch",
                          e->what == PSM_PLAN_TOUCHED ? toucher(e->a) : what_name(e->what), e->plan);
    switch (e->what) {
    case PSM_PLAN_ARMED:
        armed(rules, e);
        break;
    case PSM_PLAN_LAUNCHED:
        plan_rules_launched(rules, s, e);
        break;
    case PSM_PLAN_UPLOADED:
        plan_rules_uploaded(rules, e);
        break;
    case PSM_PLAN_HOST_TASK:
        host_task(rules, s, e);
        break;
    case PSM_PLAN_OP_POSTED:
        posted(rules, s, e);
        break;
    case PSM_PLAN_OP_DONE:
        if (!(e->c & PSM_PLAN_OP_COPIED)) s->open--;
        break;
    case PSM_PLAN_COUNTED_OFF:
        counted_off(rules, e);
        break;
    case PSM_PLAN_CALLBACK:
        s->called++;
        s->callbacks++;
        break;
    case PSM_PLAN_CALLBACK_OVER:
        callback_over(rules, s, e);
        break;
    case PSM_PLAN_RECLAIMER:
        reclaimer(rules, s, e);
        break;
    case PSM_PLAN_RECLAIM:
        reclaim(rules, s, e);
        break;
    case PSM_PLAN_REGISTERED:
        s->holds++;
        break;
    case PSM_PLAN_DEREGISTERED:
        if (--s->holds < 0)
            plan_rules_broken(rules, HOLD_LOST, e, "plan %" PRIu64 " gives back a registration that it does not hold",
                              e->plan);
        break;
    case PSM_PLAN_CANCELLED:
        s->cancelled = true;
        break;
    default:
        break;
    }
}

/* ---- events of the communicator ---- */

static void stuck(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    uint64_t n = (uint64_t)e->b;
    switch (e->a) {
    case PSM_PLAN_WAIT_FIFO:
        plan_rules_broken(rules, STUCK, e, "the main thread waits for room in the work FIFO");
        break;
    case PSM_PLAN_WAIT_RECLAIM:
        plan_rules_broken(rules, STUCK, e, "the main thread waits for a plan to be reclaimed (first: %" PRIu64 ")",
                          e->plan);
        break;
    case PSM_PLAN_WAIT_COUNT:
        plan_rules_broken(rules, STUCK, e, "the host function of plan %" PRIu64 " waits: %" PRIu64 " left of the count",
                          e->plan, n);
        break;
    case PSM_PLAN_WAIT_PEER:
        plan_rules_broken(rules, STUCK, e,
                          "the proxy waits: %" PRIu64 " ops of plan %" PRIu64
                          " have no other end, or an end is not ready",
                          n, e->plan);
        break;
    case PSM_PLAN_WAIT_CHANNEL:
        plan_rules_broken(rules, STUCK, e,
                          "the kernel of plan %" PRIu64 " waits on channels 0x%" PRIx64 ": other ranks are elsewhere",
                          e->plan, n);
        break;
    default:
        plan_rules_broken(rules, STUCK, e, "plan %" PRIu64 " waits", e->plan);
    }
}

static void scope(struct plan_rules *rules, const struct psmPlanEvent *e, const char *after)
{
    if (rules->prepared && e->a != rules->depth)
        plan_rules_broken(rules, SCOPE_KEPT, e,
                          "the scoped stack has %" PRId64 " frames after %s, and had %" PRId64 " before", e->a, after,
                          rules->depth);
    rules->prepared = false;
    rules->barrier = false;
    rules->graph = 0;
}

static void of_comm(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    switch (e->what) {
    case PSM_PLAN_PREPARE:
        rules->depth = e->a;
        rules->graph = e->c;
        rules->p2pPlan = 0;
        rules->prepared = true;
        rules->barrier = false;
        plan_rules_group_begins(rules);
        break;
    case PSM_PLAN_PREPARED:
        if (rules->prepared) plan_rules_group_has(rules, e->c);
        break;
    case PSM_PLAN_ORDERED:
        plan_rules_ordered(rules, e);
        break;
    case PSM_PLAN_PREPARE_FAILED:
        scope(rules, e, "a failed prepare");
        plan_rules_group_begins(rules);
        break;
    case PSM_PLAN_FINISH:
        scope(rules, e, "launch finish");
        plan_rules_group_ends(rules, e);
        break;
    case PSM_PLAN_BARRIER:
        rules->barrier = true;
        break;
    case PSM_PLAN_CUDA:
        if (rules->barrier)
            plan_rules_broken(rules, BARRIER_CUDA, e,
                              "CUDA was called (call %" PRId64
                              ") behind the barrier and before the launch: it may wait for a "
                              "kernel that waits for this launch",
                              e->a);
        rules->barrier = rules->barrier && e->a == 0; /* once per launch */
        break;
    case PSM_PLAN_REFS:
        rules->refs = e->a;
        if (e->a < 0) plan_rules_broken(rules, REFS_UNBALANCED, e, "persistentRefs is %" PRId64, e->a);
        break;
    case PSM_PLAN_DESTROY:
        if (rules->refs != 0)
            plan_rules_broken(rules, REFS_UNBALANCED, e,
                              "persistentRefs is %" PRId64
                              " when the communicator is destroyed: the host stream is used for ever",
                              rules->refs);
        if (e->a || e->b || e->c)
            plan_rules_broken(rules, POOL_LOST, e,
                              "the pools miss %" PRId64 " plans, %" PRId64 " ops and %" PRId64
                              " tasks when the communicator is "
                              "destroyed",
                              e->a, e->b, e->c);
        break;
    case PSM_PLAN_STUCK:
        stuck(rules, e);
        break;
    default:
        break;
    }
}

size_t plan_rules_feed(struct plan_rules *rules, const struct psmPlanEvent *event)
{
    size_t before = rules->nbreaches;
    rules->rank = event->rank;
    /* From here on the launch has either happened, or will not happen. */
    if (event->what == PSM_PLAN_LAUNCHED || event->what == PSM_PLAN_CANCELLED) rules->barrier = false;
    if (event->plan && event->what != PSM_PLAN_STUCK)
        of_plan(rules, event);
    else
        of_comm(rules, event);
    return rules->nbreaches - before;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct state *)a)->id, y = ((const struct state *)b)->id;
    return x < y ? -1 : x > y;
}

size_t plan_rules_end(struct plan_rules *rules)
{
    size_t before = rules->nbreaches;
    struct state *left = malloc((rules->nstates + 1) * sizeof *left);
    size_t n = 0;
    if (!left) return 0;
    for (size_t i = 0; i < rules->room; i++)
        if (rules->states[i].id) left[n++] = rules->states[i];
    qsort(left, n, sizeof *left, by_id);
    for (size_t i = 0; i < n; i++) {
        const struct state *s = &left[i];
        struct psmPlanEvent end = {.rank = rules->rank, .plan = s->id, .order = UINT64_MAX};
        lost(rules, s, &end);
        if (!s->persistent && !s->cancelled && s->launched && s->hostTasks == 0 && !s->reclaimers)
            plan_rules_broken(rules, CALLBACK_LOST, &end, "hostStreamPlanTask never ran for plan %" PRIu64, s->id);
        if (s->callbacks > 0)
            plan_rules_broken(rules, COUNT_LEFT, &end, "the host function of plan %" PRIu64 " has not come back",
                              s->id);
        plan_rules_broken(rules, RECLAIM_NEVER, &end,
                          s->reclaimers ? "the reclaimer of plan %" PRIu64 " was enqueued and did not run"
                          : s->launched ? "plan %" PRIu64 " was launched, and nobody enqueued its reclaimer"
                                        : "plan %" PRIu64 " was made and not launched, and nobody took it back",
                          s->id);
    }
    free(left);
    return rules->nbreaches - before;
}
