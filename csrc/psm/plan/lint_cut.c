/* The lint of groups, first half: each rank's plans, cut by the scheduler, as short as a run needs them. */
#include <stdlib.h>
#include <string.h>

#include "plan/lint.h"

/* A connection buffers 8 steps, of at most the largest chunk of NCCL's defaults: fewer steps than there may be, so that
 * a run that buffers them waits for no more than NCCL does. */
enum { LARGEST_CHUNK = 512 << 10, RANKS = 1024 };

bool psm_lint_room(void **list, size_t n, size_t *room, size_t size)
{
    if (n < *room) return true;
    size_t wide = *room ? *room * 2 : 64;
    void *more = realloc(*list, wide * size);
    if (!more) return false;
    *list = more;
    *room = wide;
    return true;
}

psm_status psm_lint_no_memory(void)
{
    return psm_fail(PSM_ERR_NO_MEMORY, "plan", -1, -1, 0, "no memory for the plans of all ranks: check fewer tasks");
}

/* ---- connections ---- */

static size_t place_of(const struct psmPlanLint *lint, uint32_t sender, uint32_t receiver, uint32_t channel)
{
    uint64_t hash = (((uint64_t)sender << 32 | receiver) * 64 + channel) * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(hash >> 20) & (lint->table_room - 1);
    for (; lint->table[i]; i = (i + 1) & (lint->table_room - 1)) {
        const struct lint_connection *found = &lint->connections[lint->table[i] - 1];
        if (found->sender == sender && found->receiver == receiver && found->channel == channel) break;
    }
    return i;
}

static bool grow_table(struct psmPlanLint *lint)
{
    if (lint->nconnections * 2 < lint->table_room) return true;
    size_t room = lint->table_room ? lint->table_room * 2 : 1024;
    uint32_t *table = calloc(room, sizeof *table);
    if (!table) return false;
    free(lint->table);
    lint->table = table;
    lint->table_room = room;
    for (size_t i = 0; i < lint->nconnections; i++) {
        const struct lint_connection *one = &lint->connections[i];
        lint->table[place_of(lint, one->sender, one->receiver, one->channel)] = (uint32_t)i + 1;
    }
    return true;
}

uint32_t psm_lint_connection(struct psmPlanLint *lint, uint32_t sender, uint32_t receiver, uint32_t channel)
{
    if (!grow_table(lint)) return UINT32_MAX;
    size_t i = place_of(lint, sender, receiver, channel);
    if (lint->table[i]) return lint->table[i] - 1;
    if (!psm_lint_room((void **)&lint->connections, lint->nconnections, &lint->connections_room,
                       sizeof *lint->connections))
        return UINT32_MAX;
    lint->connections[lint->nconnections] =
        (struct lint_connection){.sender = sender, .receiver = receiver, .channel = channel};
    lint->table[i] = (uint32_t)++lint->nconnections;
    return lint->table[i] - 1;
}

/* ---- the plans of a rank ---- */

struct cutting {
    struct psmPlanLint *lint;
    psmPlanComm *comm;
    struct lint_rank *rank;
    uint32_t *colls; /* by task: which collective of the rank it is */
    size_t colls_room;
    int32_t group;
    bool capturing;
    size_t graph, graph_end; /* plans of the graph */
};

static psm_status add_entry(struct cutting *cut, const struct psmPlanWorkInfo *work, bool begins)
{
    struct psmPlanLint *lint = cut->lint;
    uint32_t rank = (uint32_t)cut->comm->config.rank, peer = (uint32_t)work->peer, channel = (uint32_t)work->channel;
    struct lint_entry entry = {
        .task = (uint32_t)work->task, .peer = peer, .func = (uint8_t)work->func, .begins = begins};
    if (psm_plan_is_p2p(work->func)) {
        bool send = work->func == PSM_PLAN_SEND;
        uint64_t chunk = psm_plan_max(LARGEST_CHUNK, cut->comm->config.p2pChunkSize);
        entry.link = psm_lint_connection(lint, send ? rank : peer, send ? peer : rank, channel);
        entry.steps = (uint32_t)psm_plan_max(1, psm_plan_min(psm_plan_div_up(work->nbytes, chunk), 1u << 30));
    } else
        entry.link = cut->colls[work->task];
    if (entry.link == UINT32_MAX || lint->nentries == UINT32_MAX ||
        !psm_lint_room((void **)&lint->entries, lint->nentries, &lint->entries_room, sizeof entry))
        return psm_lint_no_memory();
    lint->entries[lint->nentries++] = entry;
    return PSM_OK;
}

/* A send to the own rank is a copy, which waits for nobody. */
static bool waits(const struct cutting *cut, const struct psmPlanWorkInfo *work)
{
    return !psm_plan_is_p2p(work->func) || work->peer != cut->comm->config.rank;
}

static psm_status add_works(struct cutting *cut, const struct psmPlanInfo *info)
{
    struct psmPlanLint *lint = cut->lint;
    for (uint64_t i = 0; i < info->nworks;) {
        uint32_t channel = (uint32_t)info->works[i].channel, from = (uint32_t)lint->nentries;
        bool begins = true;
        for (; i < info->nworks && info->works[i].channel == (int32_t)channel; i++) {
            begins |= info->works[i].first == 1;
            if (!waits(cut, &info->works[i])) continue;
            PSM_TRY(add_entry(cut, &info->works[i], begins));
            begins = !psm_plan_is_p2p(info->works[i].func);
        }
        if (from == lint->nentries) continue;
        if (!psm_lint_room((void **)&lint->ranges, lint->nranges, &lint->ranges_room, sizeof *lint->ranges))
            return psm_lint_no_memory();
        lint->ranges[lint->nranges++] =
            (struct lint_range){.channel = channel, .from = from, .to = (uint32_t)lint->nentries};
    }
    return PSM_OK;
}

static psm_status launch(struct cutting *cut, size_t plan)
{
    struct lint_rank *rank = cut->rank;
    if (!psm_lint_room((void **)&rank->order, rank->norder, &rank->room, sizeof *rank->order))
        return psm_lint_no_memory();
    rank->order[rank->norder++] = (uint32_t)plan;
    return PSM_OK;
}

static psm_status add_plan(struct cutting *cut, const psmPlan *plan)
{
    struct psmPlanLint *lint = cut->lint;
    struct psmPlanInfo info;
    psmPlanInfoOf(plan, &info);
    if (!psm_lint_room((void **)&lint->plans, lint->nplans, &lint->plans_room, sizeof *lint->plans) ||
        !psm_lint_room((void **)&lint->infos, lint->nplans, &lint->infos_room, sizeof *lint->infos))
        return psm_lint_no_memory();
    struct lint_plan *mine = &lint->plans[lint->nplans];
    struct psmPlanLintPlan *told = &lint->infos[lint->nplans];
    *told = (struct psmPlanLintPlan){.rank = cut->comm->config.rank,
                                     .group = cut->group,
                                     .id = info.id,
                                     .storage = info.storage,
                                     .ncolls = info.ncolls,
                                     .np2ps = info.np2ps,
                                     .nbatches = info.nbatches,
                                     .workBytes = info.workBytes,
                                     .firstTask = UINT64_MAX,
                                     .lastTask = UINT64_MAX};
    for (const struct plan_task *task = plan->tasks.head; task; task = task->next) {
        if (!psm_plan_is_p2p(task->task.func)) continue;
        if (told->firstTask == UINT64_MAX) told->firstTask = task->number;
        told->lastTask = task->number;
    }
    *mine = (struct lint_plan){.from = (uint32_t)lint->nranges, .captured = cut->capturing, .closes = !plan->next};
    PSM_TRY(add_works(cut, &info));
    lint->plans[lint->nplans].to = (uint32_t)lint->nranges;
    lint->nplans++;
    return cut->capturing ? PSM_OK : launch(cut, lint->nplans - 1);
}

static psm_status end_group(struct cutting *cut)
{
    psmPlanComm *comm = cut->comm;
    if (comm->ntasksColl + comm->ntasksP2p == 0) return PSM_OK;
    comm->graph = cut->capturing;
    PSM_TRY(psm_plan_stack_push(&comm->scoped));
    psm_status status = psm_plan_schedule(comm, cut->capturing);
    for (psmPlan *plan = comm->planHead; plan && status >= 0; plan = plan->next) status = add_plan(cut, plan);
    psm_plan_plans_drop(comm);
    psm_plan_stack_pop(&comm->scoped);
    cut->group++;
    return status;
}

static psm_status add_task(struct cutting *cut, const struct psmPlanTask *task)
{
    uint64_t number = cut->comm->taskNumber;
    PSM_TRY(psm_plan_task_add(cut->comm, task));
    if (number >= UINT32_MAX) return psm_lint_no_memory();
    if (psm_plan_is_p2p(task->func)) return PSM_OK;
    while (number >= cut->colls_room) {
        if (!psm_lint_room((void **)&cut->colls, cut->colls_room, &cut->colls_room, sizeof *cut->colls))
            return psm_lint_no_memory();
    }
    cut->colls[number] = cut->rank->colls++;
    return PSM_OK;
}

static psm_status obey(struct cutting *cut, const struct psmPlanStep *step)
{
    switch (step->kind) {
    case PSM_PLAN_STEP_TASK:
        return add_task(cut, &step->task);
    case PSM_PLAN_STEP_GROUP_END:
        return end_group(cut);
    case PSM_PLAN_STEP_CAPTURE:
        cut->capturing = true;
        cut->graph = cut->lint->nplans;
        return PSM_OK;
    case PSM_PLAN_STEP_CAPTURED:
        PSM_TRY(end_group(cut));
        cut->capturing = false;
        cut->graph_end = cut->lint->nplans;
        return PSM_OK;
    case PSM_PLAN_STEP_REPLAY: /* the same again each time */
        for (size_t i = cut->graph; i < cut->graph_end; i++) PSM_TRY(launch(cut, i));
        return PSM_OK;
    case PSM_PLAN_STEP_ABORT:
        return psm_fail(PSM_ERR_INVALID, "plan", cut->comm->config.rank, -1, 0,
                        "lint: an abort ends every wait: remove it");
    default: /* frees what has ended, or a graph */
        return PSM_OK;
    }
}

static psm_status cut_rank(struct psmPlanLint *lint, const struct psmPlanSimulation *what, int r)
{
    psmPlanComm *comm = aligned_alloc(64, (sizeof *comm + 63) / 64 * 64);
    struct cutting cut = {.lint = lint, .comm = comm, .rank = &lint->ranks[r], .graph = 0};
    if (!comm) return psm_lint_no_memory();
    memset(comm, 0, sizeof *comm);
    comm->config = lint->config;
    comm->config.rank = r;
    comm->variant = psm_plan_find_variant(NULL);
    psm_status status = psm_plan_scheduler_open(comm);
    for (uint64_t i = 0; i < what->nsteps && status >= 0; i++)
        if (what->steps[i].rank == -1 || what->steps[i].rank == r) status = obey(&cut, &what->steps[i]);
    if (status >= 0) status = end_group(&cut);
    psm_plan_scheduler_close(comm);
    if (lint->colls < cut.rank->colls) lint->colls = cut.rank->colls;
    free(cut.colls);
    free(comm);
    return status;
}

/* ---- from outside ---- */

static psm_status check(const struct psmPlanSimulation *what)
{
    if (what->nsteps > 0 && !what->steps) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "lint: steps is NULL");
    if (what->config.nRanks < 1 || what->config.nRanks > RANKS)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "lint: %d ranks; expected 1 to %d", what->config.nRanks,
                        RANKS);
    if (what->config.scheduler != PSM_PLAN_PLANNER)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0,
                        "lint: scheduler %d; expected 1: plans of NCCL 2.22 and later are checked",
                        what->config.scheduler);
    for (uint64_t i = 0; i < what->nsteps; i++)
        if (what->steps[i].rank < -1 || what->steps[i].rank >= what->config.nRanks)
            return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "lint: step %llu has rank %d; expected -1 to %d",
                            (unsigned long long)i, what->steps[i].rank, what->config.nRanks - 1);
    return PSM_OK;
}

psm_status psmPlanLintOpen(const struct psmPlanSimulation *what, psmPlanLint **out)
{
    if (!what || !out) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "psmPlanLintOpen: an argument is NULL");
    *out = NULL;
    PSM_TRY(check(what));
    psmPlanLint *lint = calloc(1, sizeof *lint);
    if (!lint) return psm_lint_no_memory();
    lint->config = what->config;
    lint->config.passSm = 0;
    lint->release = psm_plan_release(lint->config.release);
    lint->ranks = calloc((size_t)lint->config.nRanks, sizeof *lint->ranks);
    psm_status status = lint->ranks ? PSM_OK : psm_lint_no_memory();
    for (int r = 0; r < lint->config.nRanks && status >= 0; r++) status = cut_rank(lint, what, r);
    if (status < 0) {
        psmPlanLintFree(lint);
        return status;
    }
    if (lint->config.workFifoBytes == 0) lint->config.workFifoBytes = 1 << 20;
    *out = lint;
    return PSM_OK;
}

void psmPlanLintFree(psmPlanLint *lint)
{
    if (!lint) return;
    for (int r = 0; lint->ranks && r < lint->config.nRanks; r++) {
        free(lint->ranks[r].order);
        free(lint->ranks[r].gives);
    }
    void *parts[] = {lint->ranks,       lint->infos, lint->plans,    lint->ranges, lint->entries,
                     lint->connections, lint->table, lint->arrivals, lint->waits,  lint->queue};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) free(parts[i]);
    free(lint);
}

size_t psmPlanLintPlans(const psmPlanLint *lint, const struct psmPlanLintPlan **plans)
{
    *plans = lint->infos;
    return lint->nplans;
}
