/* The simulation: its world, the main threads, who runs next, and the result. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plan/simulate.h"
#include "planrules.h"

enum { RANKS = 256 }; /* each pair of them has an entry per channel */

bool psm_sim_room(struct world *world, void **list, size_t n, size_t *room, size_t size)
{
    if (n < *room) return true;
    size_t wide = *room ? *room * 2 : 16;
    void *more = realloc(*list, wide * size);
    if (!more) {
        world->no_memory = true;
        return false;
    }
    *list = more;
    *room = wide;
    return true;
}

uint64_t psm_sim_random(struct world *world)
{
    uint64_t z = (world->random += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- who may be able to run ---- */

void psm_sim_wake(struct sim_rank *rank, int agent)
{
    struct world *world = rank->world;
    uint32_t id = (uint32_t)(rank->rank * AGENTS + agent);
    if (world->place[id]) return;
    world->ready[world->nready++] = id;
    world->place[id] = world->nready;
}

static void put_to_sleep(struct world *world, uint32_t id)
{
    if (!world->place[id]) return;
    uint32_t last = world->ready[--world->nready], at = world->place[id] - 1;
    world->ready[at] = last;
    world->place[last] = at + 1;
    world->place[id] = 0;
}

static void wake_all(struct world *world)
{
    for (int r = 0; r < world->nranks; r++)
        for (int agent = 0; agent < AGENTS; agent++) psm_sim_wake(&world->ranks[r], agent);
}

/* ---- recording ---- */

static void on_event(void *self, const struct psmPlanEvent *event)
{
    struct sim_rank *rank = self;
    struct world *world = rank->world;
    struct psmPlanResult *result = world->result;
    world->changes++;
    if (event->what == PSM_PLAN_PREPARE) rank->group++;
    if (!psm_sim_room(world, (void **)&rank->events, rank->nevents, &rank->events_room, sizeof *event)) return;
    if (!psm_sim_room(world, (void **)&result->order, result->norder, &result->order_room, sizeof *result->order))
        return;
    rank->events[rank->nevents++] = *event;
    result->order[result->norder++] = rank->rank;
}

static bool is_coll(int func)
{
    return func != PSM_PLAN_SEND && func != PSM_PLAN_RECV;
}

static void *copy_of(struct psmPlanResult *result, const void *from, size_t bytes)
{
    void *to = bytes ? psm_plan_stack_alloc(&result->memory, bytes) : NULL;
    if (to) memcpy(to, from, bytes);
    return to;
}

/* The collectives of a plan: channels by its works, opCounts by its ops. */
static void describe(struct sim_rank *rank, struct sim_plan *plan)
{
    struct psmPlanInfo *info = &plan->info;
    uint64_t n = 0, p2p = UINT64_MAX;
    plan->colls = psm_plan_stack_alloc(&rank->world->result->memory, ((size_t)info->ncolls + 1) * sizeof *plan->colls);
    if (!plan->colls) return;
    for (uint64_t i = 0; i < info->nworks; i++) {
        const struct psmPlanWorkInfo *work = &info->works[i];
        if (i == 0 || work->channel != work[-1].channel) p2p = UINT64_MAX;
        if (!is_coll(work->func)) {
            if (p2p == UINT64_MAX) p2p = work->task;
            continue;
        }
        if (p2p != UINT64_MAX && !plan->p2pFirst) {
            plan->p2pFirst = 1;
            plan->p2pTask = p2p;
            plan->collTask = work->task;
        }
        uint64_t coll = rank->colls[work->task], k = 0;
        while (k < n && plan->colls[k].coll != coll) k++;
        if (k == n && n < (uint64_t)info->ncolls)
            plan->colls[n++] = (struct plan_rules_coll){.coll = coll, .opCount = UINT64_MAX};
        if (k < n) plan->colls[k].channels |= 1ull << work->channel;
    }
    for (uint64_t i = 0; i < info->nops; i++) {
        const struct psmPlanOpInfo *op = &info->ops[i];
        for (uint64_t k = 0; is_coll(op->func) && k < n; k++)
            if (plan->colls[k].coll == rank->colls[op->task])
                plan->colls[k].opCount = op->opCount + (rank->collOpCount << 1);
    }
}

static void on_made(void *self, const psmPlan *made)
{
    struct sim_rank *rank = self;
    struct world *world = rank->world;
    if (!psm_sim_room(world, (void **)&rank->plans, rank->nplans, &rank->plans_room, sizeof *rank->plans)) return;
    struct sim_plan *plan = &rank->plans[rank->nplans];
    *plan = (struct sim_plan){.group = rank->group};
    psmPlanInfoOf(made, &plan->info);
    plan->info.ops = copy_of(world->result, plan->info.ops, plan->info.nops * sizeof *plan->info.ops);
    plan->info.works = copy_of(world->result, plan->info.works, plan->info.nworks * sizeof *plan->info.works);
    if ((plan->info.nops && !plan->info.ops) || (plan->info.nworks && !plan->info.works)) {
        world->no_memory = true;
        return;
    }
    describe(rank, plan);
    rank->collOpCount += made->collOpCount;
    rank->nplans++;
}

/* ---- the main thread of a rank ---- */

static void note(struct sim_rank *rank, psm_status status)
{
    if (status >= 0 || status == PSM_ERR_ABORTED || rank->status < 0) return;
    rank->status = status;
    rank->error = *psm_last_error();
}

static void enqueue(struct sim_rank *rank, uint64_t step, const struct psmPlanTask *task)
{
    struct world *world = rank->world;
    /* Occasionally on another stream of the application. */
    uint64_t hash = (world->what.seed ^ step * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    void *stream = &rank->streams[hash >> 61 == 0 ? USER2 : USER];
    uint64_t number = rank->comm->taskNumber;
    psm_status status = psmPlanEnqueue(rank->comm, task, stream);
    note(rank, status);
    if (rank->comm->taskNumber == number) return;
    if (!psm_sim_room(world, (void **)&rank->colls, rank->ntasks, &rank->tasks_room, sizeof *rank->colls)) return;
    rank->colls[rank->ntasks++] = is_coll(task->func) ? rank->ncolls++ : UINT64_MAX;
}

static void take_step(struct sim_rank *rank, uint64_t i)
{
    const struct psmPlanStep *step = &rank->world->what.steps[i];
    if (rank->world->no_memory) return;
    switch (step->kind) {
    case PSM_PLAN_STEP_TASK:
        enqueue(rank, i, &step->task);
        break;
    case PSM_PLAN_STEP_GROUP_END:
        note(rank, psmPlanGroupEnd(&rank->comm, 1));
        break;
    case PSM_PLAN_STEP_CAPTURE:
        psm_sim_capture(rank);
        break;
    case PSM_PLAN_STEP_CAPTURED:
        psm_sim_captured(rank);
        break;
    case PSM_PLAN_STEP_REPLAY:
        for (uint64_t k = 0; k < step->task.count && !psmPlanAborted(rank->comm); k++) psm_sim_replay(rank);
        break;
    case PSM_PLAN_STEP_DROP_GRAPH:
        psm_sim_drop_graph(rank);
        break;
    case PSM_PLAN_STEP_POLL:
        note(rank, psmPlanPoll(rank->comm, step->task.count != 0, NULL));
        break;
    default:
        if (step->rank != -1) {
            psmPlanAbort(rank->comm);
            break;
        }
        rank->world->abort = true;
        for (int r = 0; r < rank->world->nranks; r++) psm_sim_wake(&rank->world->ranks[r], WATCHDOG);
    }
}

static void main_thread(void *arg)
{
    struct sim_rank *rank = arg;
    const struct psmPlanSimulation *what = &rank->world->what;
    for (uint64_t i = 0; i < what->nsteps; i++)
        if (what->steps[i].rank == -1 || what->steps[i].rank == rank->rank) {
            take_step(rank, i);
            rank->comm->engine.meet(rank, 0);
        }
    psm_sim_captured(rank);
    for (struct sim_graph *graph = rank->graphs; graph; graph = graph->next) graph->dropped = true;
    psm_sim_wake(rank, DESTROYER);
    psm_plan_comm_close(rank->comm);
}

static bool step_main(struct sim_rank *rank)
{
    if (rank->ended) return false;
    if (psm_fiber_resume(rank->main)) {
        rank->ended = true;
        rank->main = NULL;
        return false;
    }
    return rank->why == 0;
}

/* ---- deadlock ---- */

static void tell_stream(struct sim_rank *rank, const struct stream *stream)
{
    if (stream->fiber && stream->waits)
        psm_plan_event(rank->comm, PSM_PLAN_STUCK, stream->waits, PSM_PLAN_WAIT_COUNT,
                       stream->waits->sync ? stream->waits->sync->proxyOpCount : 0, 0);
    if (stream->kernel && stream->kernel->runs)
        psm_plan_event(rank->comm, PSM_PLAN_STUCK, stream->items[stream->done].plan, PSM_PLAN_WAIT_CHANNEL,
                       (int64_t)stream->kernel->open, 0);
}

static void tell_stuck(struct sim_rank *rank)
{
    for (int i = 0; i < CHAINS; i++) {
        tell_stream(rank, &rank->streams[i]);
        if (rank->running) tell_stream(rank, &rank->running->streams[i]);
    }
    for (const struct sim_op *op = rank->posted, *from = op; op; op = op->next) {
        if (op->next && op->next->plan == op->plan) continue;
        int64_t n = 1;
        for (; from != op; from = from->next) n++;
        from = op->next;
        psm_plan_event(rank->comm, PSM_PLAN_STUCK, op->plan, PSM_PLAN_WAIT_PEER, n, 0);
    }
    if (!rank->ended) psm_plan_event(rank->comm, PSM_PLAN_STUCK, rank->whom, rank->why, 0, 0);
}

static bool step_watchdog(struct sim_rank *rank)
{
    if (!rank->world->abort || rank->ended) return false;
    psmPlanAbort(rank->comm);
    return false;
}

static bool all_ended(const struct world *world)
{
    for (int r = 0; r < world->nranks; r++)
        if (!world->ranks[r].ended) return false;
    return true;
}

static bool step(struct world *world, uint32_t id)
{
    struct sim_rank *rank = &world->ranks[id / AGENTS];
    int agent = (int)(id % AGENTS);
    switch (agent) {
    case MAIN:
        return step_main(rank);
    case PROXY:
        return psm_sim_step_proxy(rank);
    case DESTROYER:
        return psm_sim_step_destroyer(rank);
    case WATCHDOG:
        return step_watchdog(rank);
    default:
        return psm_sim_step_stream(rank, agent);
    }
}

/* Until all main threads have ended. A hang is reported and aborted; whatever still hangs then stays as it is. */
static void run(struct world *world)
{
    uint64_t swept = UINT64_MAX;
    wake_all(world);
    while (!all_ended(world) && !world->no_memory) {
        if (world->nready == 0) {
            if (swept != world->changes) { /* no wake was forgotten: all of them check again */
                swept = world->changes;
                wake_all(world);
                continue;
            }
            if (world->result->stuck++) return;
            for (int r = 0; r < world->nranks; r++) tell_stuck(&world->ranks[r]);
            for (int r = 0; r < world->nranks; r++) psmPlanAbort(world->ranks[r].comm);
            continue;
        }
        uint32_t id = world->ready[psm_sim_random(world) % world->nready];
        uint64_t before = world->changes;
        world->yielded = false;
        if ((!step(world, id) || before == world->changes) && !world->yielded) put_to_sleep(world, id);
    }
}

/* ---- the result ---- */

static bool add_breach(struct world *world, const struct psmPlanBreach *breach)
{
    struct psmPlanResult *result = world->result;
    for (size_t i = 0; i < result->nbreaches; i++) { /* p2p.first is also checked on a trace */
        const struct psmPlanBreach *known = &result->breaches[i];
        if (known->rank == breach->rank && known->plan == breach->plan && breach->order == UINT64_MAX &&
            strcmp(known->rule, breach->rule) == 0)
            return true;
    }
    if (!psm_sim_room(world, (void **)&result->breaches, result->nbreaches, &result->breaches_room, sizeof *breach))
        return false;
    result->breaches[result->nbreaches++] = *breach;
    return true;
}

static void judge_traces(struct world *world)
{
    struct psmPlanBreach breaches[64];
    for (int r = 0; r < world->nranks; r++) {
        size_t n = psmPlanBreaches(world->ranks[r].comm, breaches, 64);
        for (size_t i = 0; i < n && i < 64; i++) add_breach(world, &breaches[i]);
    }
}

/* An abort stops ranks at different points: do not compare what only some of them have planned. */
static void cut_to_common(struct plan_rules_rank *ranks, size_t n)
{
    size_t common = SIZE_MAX;
    for (size_t r = 0; r < n; r++) {
        size_t colls = 0;
        for (size_t i = 0; i < ranks[r].nplans; i++) colls += ranks[r].plans[i].ncolls != 0;
        if (colls < common) common = colls;
    }
    for (size_t r = 0; r < n; r++) {
        size_t i = 0;
        for (size_t colls = 0; i < ranks[r].nplans; i++)
            if (ranks[r].plans[i].ncolls != 0 && ++colls > common) break;
        ranks[r].nplans = i;
    }
}

static bool judge_ranks(struct world *world)
{
    size_t nplans = 0, n = (size_t)world->nranks;
    bool aborted = false;
    for (size_t r = 0; r < n; r++) nplans += world->ranks[r].nplans;
    struct plan_rules_rank *ranks = calloc(n, sizeof *ranks);
    struct plan_rules_plan *plans = calloc(nplans + 1, sizeof *plans), *at = plans;
    struct psmPlanBreach *breaches = calloc(3 * n, sizeof *breaches);
    bool good = ranks && plans && breaches;
    for (size_t r = 0; r < n && good; r++) {
        const struct sim_rank *rank = &world->ranks[r];
        aborted |= psmPlanAborted(rank->comm) != 0;
        ranks[r] = (struct plan_rules_rank){.rank = (int32_t)r, .plans = at, .nplans = rank->nplans};
        for (size_t i = 0; i < rank->nplans; i++) {
            const struct sim_plan *plan = &rank->plans[i];
            *at++ = (struct plan_rules_plan){.plan = plan->info.id,
                                             .group = plan->group,
                                             .channelMask = plan->info.channelMask,
                                             .ncolls = (uint64_t)plan->info.ncolls,
                                             .np2ps = (uint64_t)plan->info.np2ps,
                                             .colls = plan->colls,
                                             .p2pFirst = plan->p2pFirst,
                                             .p2pTask = plan->p2pTask,
                                             .collTask = plan->collTask};
        }
    }
    if (good && aborted) {
        /* Compare the channels of a collective that two ranks have planned, wherever it was split. */
        size_t found = plan_rules_compare(ranks, n, breaches, 3 * n);
        for (size_t i = 0; i < found && good; i++)
            if (strcmp(breaches[i].rule, "channel.differs") == 0) good = add_breach(world, &breaches[i]);
        cut_to_common(ranks, n);
    }
    size_t found = good ? plan_rules_compare(ranks, n, breaches, 3 * n) : 0;
    for (size_t i = 0; i < found && good; i++)
        if (!aborted || strcmp(breaches[i].rule, "channel.differs") != 0) good = add_breach(world, &breaches[i]);
    free(ranks);
    free(plans);
    free(breaches);
    return good;
}

/* ---- life ---- */

static psm_status no_memory(void)
{
    return psm_fail(PSM_ERR_NO_MEMORY, "plan", -1, -1, 0, "no memory for a simulation: simulate fewer ranks");
}

static psm_status check(const struct psmPlanSimulation *s)
{
    if (s->nsteps > 0 && !s->steps) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "simulate: steps is NULL");
    if (s->config.nRanks < 1 || s->config.nRanks > RANKS)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "simulate: %d ranks; expected 1 to %d", s->config.nRanks,
                        RANKS);
    for (uint64_t i = 0; i < s->nsteps; i++) {
        const struct psmPlanStep *step = &s->steps[i];
        if (step->kind < PSM_PLAN_STEP_TASK || step->kind > PSM_PLAN_STEP_ABORT || step->rank < -1 ||
            step->rank >= s->config.nRanks)
            return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0,
                            "simulate: step %" PRIu64 " has kind %d (0 to %d) and rank %d (-1 to %d)", i, step->kind,
                            PSM_PLAN_STEP_ABORT, step->rank, s->config.nRanks - 1);
    }
    return PSM_OK;
}

static psm_status make_rank(struct world *world, int r)
{
    struct sim_rank *rank = &world->ranks[r];
    struct psmPlanConfig config = world->what.config;
    struct psmPlanEngine engine = psm_sim_engine;
    uint64_t colls = 0;
    rank->world = world;
    rank->rank = r;
    rank->saved_end = &rank->saved;
    rank->posted_end = &rank->posted;
    rank->watch = (struct plan_watch){rank, on_event, on_made};
    for (uint64_t i = 0; i < world->what.nsteps; i++) {
        const struct psmPlanStep *step = &world->what.steps[i];
        colls += step->kind == PSM_PLAN_STEP_TASK && is_coll(step->task.func) && (step->rank == -1 || step->rank == r);
    }
    rank->passed = calloc(colls * (uint64_t)world->nchannels + 1, sizeof *rank->passed);
    rank->ended_ops = calloc(colls * (uint64_t)world->nchannels + 1, sizeof *rank->ended_ops);
    rank->main = psm_fiber_new(world->home, main_thread, rank);
    if (!rank->passed || !rank->ended_ops || !rank->main) return no_memory();
    config.size = sizeof config;
    config.rank = r;
    engine.self = rank;
    return psm_plan_comm_create(&config, &engine, &rank->watch, &rank->comm);
}

static psm_status make(struct world *world)
{
    struct psmPlanResult *result = world->result;
    size_t n = (size_t)world->nranks;
    int p2p = world->what.config.p2pnChannels, coll = world->what.config.nChannels;
    world->nchannels = p2p > coll ? p2p : coll;
    if (world->nchannels < 1 || world->nchannels > MAXCHANNELS) world->nchannels = MAXCHANNELS;
    world->ranks = result->ranks = calloc(n, sizeof *world->ranks);
    world->home = psm_fiber_home_new();
    world->ready = calloc(n * AGENTS, sizeof *world->ready);
    world->place = calloc(n * AGENTS, sizeof *world->place);
    world->pairs = calloc(n * n * (size_t)world->nchannels, sizeof *world->pairs);
    if (!world->ranks || !world->home || !world->ready || !world->place || !world->pairs) return no_memory();
    result->nranks = world->nranks;
    for (int r = 0; r < world->nranks; r++) PSM_TRY(make_rank(world, r));
    return PSM_OK;
}

/* Frees what the result does not need. */
static void tear_down(struct world *world)
{
    for (int r = 0; world->ranks && r < world->nranks; r++) {
        struct sim_rank *rank = &world->ranks[r];
        psm_sim_free_ops(rank);
        psm_sim_free_streams(rank);
        if (rank->comm) psm_plan_comm_free(rank->comm);
        rank->comm = NULL;
        free(rank->colls);
        free(rank->passed);
        free(rank->ended_ops);
    }
    psm_fiber_home_free(world->home);
    free(world->ready);
    free(world->place);
    free(world->pairs);
}

static psm_status first_failure(const struct world *world)
{
    for (int r = 0; r < world->nranks; r++)
        if (world->ranks[r].status == PSM_ERR_INVALID) return psm_fail_again(&world->ranks[r].error);
    return PSM_OK;
}

psm_status psmPlanSimulate(const struct psmPlanSimulation *simulation, psmPlanResult **out)
{
    if (!simulation || !out) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "simulate: an argument is NULL");
    struct world world = {0};
    memcpy(&world.what, simulation, simulation->size < sizeof world.what ? simulation->size : sizeof world.what);
    PSM_TRY(check(&world.what));
    world.nranks = world.what.config.nRanks;
    world.random = world.what.seed;
    world.result = calloc(1, sizeof *world.result);
    if (!world.result) return no_memory();
    psm_status status = psm_plan_stack_push(&world.result->memory);
    if (status >= 0) status = make(&world);
    if (status >= 0) {
        run(&world);
        judge_traces(&world);
        if (!judge_ranks(&world) || world.no_memory) status = no_memory();
    }
    if (status >= 0) status = first_failure(&world);
    struct psm_error kept = *psm_last_error();
    tear_down(&world);
    if (status < 0) {
        psmPlanResultFree(world.result);
        return psm_fail_again(&kept);
    }
    for (int r = 0; r < world.nranks; r++) world.ranks[r].world = NULL;
    *out = world.result;
    return PSM_OK;
}

void psmPlanResultFree(psmPlanResult *result)
{
    if (!result) return;
    for (int r = 0; result->ranks && r < result->nranks; r++) {
        free(result->ranks[r].events);
        free(result->ranks[r].plans);
    }
    psm_plan_stack_free(&result->memory);
    free(result->ranks);
    free(result->order);
    free(result->breaches);
    free(result);
}

static const struct sim_rank *rank_of(const psmPlanResult *result, int rank)
{
    return result && rank >= 0 && rank < result->nranks ? &result->ranks[rank] : NULL;
}

size_t psmPlanResultPlans(const psmPlanResult *result, int rank)
{
    const struct sim_rank *of = rank_of(result, rank);
    return of ? of->nplans : 0;
}

psm_status psmPlanResultPlan(const psmPlanResult *result, int rank, size_t i, struct psmPlanInfo *info)
{
    const struct sim_rank *of = rank_of(result, rank);
    if (!of || i >= of->nplans || !info)
        return psm_fail(PSM_ERR_NOT_FOUND, "plan", rank, -1, 0, "the result has no plan %zu of rank %d", i, rank);
    *info = of->plans[i].info;
    return PSM_OK;
}

size_t psmPlanResultEvents(const psmPlanResult *result, int rank, const struct psmPlanEvent **events)
{
    const struct sim_rank *of = rank_of(result, rank);
    *events = of ? of->events : NULL;
    return of ? of->nevents : 0;
}

size_t psmPlanResultOrder(const psmPlanResult *result, const int32_t **ranks)
{
    *ranks = result ? result->order : NULL;
    return result ? result->norder : 0;
}

size_t psmPlanResultBreaches(const psmPlanResult *result, const struct psmPlanBreach **breaches)
{
    *breaches = result ? result->breaches : NULL;
    return result ? result->nbreaches : 0;
}

int psmPlanResultStuck(const psmPlanResult *result)
{
    return result && result->stuck != 0;
}
