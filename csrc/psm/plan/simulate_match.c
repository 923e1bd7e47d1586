/* Work that needs another rank to end: kernels, whose collectives meet on a channel and whose p2p needs its other end,
 * and the proxy's ops. */
#include <stdlib.h>
#include <string.h>

#include "plan/simulate.h"

static bool is_p2p(int func)
{
    return func == PSM_PLAN_SEND || func == PSM_PLAN_RECV;
}

/* ---- kernels ---- */

bool psm_sim_kernel_begin(struct sim_rank *rank, struct stream *stream, psmPlan *plan)
{
    if (!stream->kernel) stream->kernel = calloc(1, sizeof *stream->kernel);
    struct kernel *kernel = stream->kernel;
    if (!kernel) {
        rank->world->no_memory = true;
        return false;
    }
    psmPlanInfoOf(plan, &kernel->info);
    if (kernel->room < kernel->info.nworks) {
        free(kernel->numbers);
        kernel->room = kernel->info.nworks;
        kernel->numbers = calloc(kernel->room, sizeof *kernel->numbers);
        if (!kernel->numbers) {
            kernel->room = 0;
            rank->world->no_memory = true;
            return false;
        }
    }
    kernel->runs = true;
    kernel->open = 0;
    for (size_t i = 0; i < kernel->info.nworks; i++) {
        const struct psmPlanWorkInfo *work = &kernel->info.works[i];
        if (!work->kernel) continue;
        struct cursor *cursor = &kernel->cursors[work->channel];
        if (!(kernel->open >> work->channel & 1)) *cursor = (struct cursor){.at = i};
        cursor->end = i + 1;
        kernel->open |= 1ull << work->channel;
    }
    return true;
}

/* All ranks have reached the same collective of the channel: it ends for all. */
static void try_collective(struct world *world, int channel, uint64_t coll)
{
    for (int r = 0; r < world->nranks; r++)
        if (world->ranks[r].at[channel] != coll) return;
    for (int r = 0; r < world->nranks; r++) {
        struct sim_rank *rank = &world->ranks[r];
        rank->at[channel] = 0;
        rank->passed[(coll - 1) * (uint64_t)world->nchannels + (uint64_t)channel]++;
        for (int i = 0; i < CHAINS; i++) {
            if (rank->streams[i].kernel && rank->streams[i].kernel->runs) psm_sim_wake(rank, LIVE + i);
            if (rank->running && rank->running->streams[i].kernel) psm_sim_wake(rank, GRAPH + i);
        }
        if (rank->posted) psm_sim_wake(rank, PROXY);
    }
}

static bool step_collective(struct sim_rank *rank, struct cursor *cursor, const struct psmPlanWorkInfo *work)
{
    uint64_t coll = rank->colls[work->task] + 1;
    if (!cursor->entered) {
        if (rank->at[work->channel]) return false; /* another kernel occupies it */
        cursor->entered = true;
        rank->at[work->channel] = coll;
        rank->world->changes++;
        try_collective(rank->world, work->channel, coll);
    }
    if (rank->at[work->channel] == coll) return false;
    cursor->entered = false;
    cursor->at++;
    return true;
}

static void wake_peer(struct world *world, int r)
{
    struct sim_rank *peer = &world->ranks[r];
    for (int i = 0; i < CHAINS; i++) {
        if (peer->streams[i].kernel && peer->streams[i].kernel->runs) psm_sim_wake(peer, LIVE + i);
        if (peer->running && peer->running->streams[i].kernel) psm_sim_wake(peer, GRAPH + i);
    }
}

/* The p2p of a slot or batch run at the same time; each ends when its other end has started. */
static bool step_p2p(struct sim_rank *rank, struct kernel *kernel, struct cursor *cursor)
{
    struct world *world = rank->world;
    const struct psmPlanWorkInfo *works = kernel->info.works;
    if (!cursor->entered) {
        cursor->entered = true;
        cursor->slot = cursor->at;
        do {
            const struct psmPlanWorkInfo *work = &works[cursor->slot];
            bool send = work->func == PSM_PLAN_SEND;
            struct pair *pair = send ? psm_sim_pair(world, rank->rank, work->peer, work->channel)
                                     : psm_sim_pair(world, work->peer, rank->rank, work->channel);
            if (work->kernel) {
                kernel->numbers[cursor->slot] = send ? pair->sends++ : pair->recvs++;
                world->changes++;
                wake_peer(world, work->peer);
            }
            cursor->slot++;
        } while (cursor->slot < cursor->end && works[cursor->slot].first != 1 && is_p2p(works[cursor->slot].func));
    }
    for (size_t i = cursor->at; i < cursor->slot; i++) {
        const struct psmPlanWorkInfo *work = &works[i];
        bool send = work->func == PSM_PLAN_SEND;
        const struct pair *pair = send ? psm_sim_pair(world, rank->rank, work->peer, work->channel)
                                       : psm_sim_pair(world, work->peer, rank->rank, work->channel);
        if (work->kernel && (send ? pair->recvs : pair->sends) <= kernel->numbers[i]) return false;
    }
    cursor->at = cursor->slot;
    cursor->entered = false;
    return true;
}

static void leave_channel(struct sim_rank *rank, const struct kernel *kernel, int channel)
{
    const struct cursor *cursor = &kernel->cursors[channel];
    if (cursor->entered && !is_p2p(kernel->info.works[cursor->at].func)) rank->at[channel] = 0;
}

bool psm_sim_kernel_step(struct sim_rank *rank, struct kernel *kernel, bool *moved)
{
    uint64_t mask = kernel->open;
    bool aborted = psmPlanAborted(rank->comm);
    for (; mask; mask &= mask - 1) {
        int c = __builtin_ctzll(mask);
        struct cursor *cursor = &kernel->cursors[c];
        if (aborted) leave_channel(rank, kernel, c);
        while (!aborted && cursor->at < cursor->end) {
            const struct psmPlanWorkInfo *work = &kernel->info.works[cursor->at];
            if (!work->kernel)
                cursor->at++;
            else if (is_p2p(work->func) ? !step_p2p(rank, kernel, cursor) : !step_collective(rank, cursor, work))
                break;
            *moved = true;
        }
        if (!aborted && cursor->at < cursor->end) continue;
        kernel->open &= ~(1ull << c);
        *moved = true;
    }
    if (*moved) rank->world->changes++;
    return kernel->open == 0;
}

/* ---- the proxy ---- */

psm_status psm_sim_save(void *self, psmPlan *plan, const struct psmPlanOpInfo *info, struct psmSyncCondition *sync,
                        void *cookie)
{
    struct sim_rank *rank = self;
    struct sim_op *op = malloc(sizeof *op);
    if (!op) return psm_fail(PSM_ERR_NO_MEMORY, "plan", rank->rank, -1, 0, "no memory for an op");
    *op = (struct sim_op){.plan = plan, .info = *info, .sync = sync, .cookie = cookie};
    *rank->saved_end = op;
    rank->saved_end = &op->next;
    return PSM_OK;
}

static struct pair *pair_of(const struct sim_rank *rank, const struct sim_op *op)
{
    return op->info.func == PSM_PLAN_SEND ? psm_sim_pair(rank->world, rank->rank, op->info.peer, op->info.channel)
                                          : psm_sim_pair(rank->world, op->info.peer, rank->rank, op->info.channel);
}

/* The n-th send of a pair on a channel matches the n-th recv. */
static void find_mate(struct sim_rank *rank, struct sim_op *op)
{
    if (!is_p2p(op->info.func)) return;
    struct pair *pair = pair_of(rank, op);
    struct sim_op *first = pair->first;
    if (first && first->info.func != op->info.func) {
        pair->first = first->behind;
        first->queued = false;
        first->mate = op;
        op->mate = first;
        psm_sim_wake(&rank->world->ranks[op->info.peer], PROXY);
        return;
    }
    if (first)
        pair->last->behind = op;
    else
        pair->first = op;
    pair->last = op;
    op->queued = true;
}

psm_status psm_sim_start(void *self)
{
    struct sim_rank *rank = self;
    for (struct sim_op *op = rank->saved, *next; op; op = next) {
        next = op->next;
        op->next = NULL;
        *rank->posted_end = op;
        rank->posted_end = &op->next;
        rank->nposted++;
        find_mate(rank, op);
    }
    rank->saved = NULL;
    rank->saved_end = &rank->saved;
    rank->world->changes++;
    psm_sim_wake(rank, PROXY);
    return PSM_OK;
}

static bool is_ready(const struct sim_op *op)
{
    return !op->sync || __atomic_load_n(&op->sync->proxyReadyEvent, __ATOMIC_ACQUIRE) != 0;
}

static bool can_end(const struct sim_rank *rank, const struct sim_op *op)
{
    const struct world *world = rank->world;
    if (!is_p2p(op->info.func)) {
        uint64_t i = rank->colls[op->info.task] * (uint64_t)world->nchannels + (uint64_t)op->info.channel;
        return rank->ended_ops[i] < rank->passed[i];
    }
    if (!is_ready(op)) return false;
    if (op->met) return true;
    return op->mate && is_ready(op->mate);
}

static void take_from_queue(struct sim_rank *rank, struct sim_op *op)
{
    struct pair *pair = pair_of(rank, op);
    struct sim_op **at = &pair->first, *before = NULL;
    while (*at != op) {
        before = *at;
        at = &(*at)->behind;
    }
    *at = op->behind;
    if (pair->last == op) pair->last = before;
}

static void end(struct sim_rank *rank, struct sim_op **at, psm_status status)
{
    struct world *world = rank->world;
    struct sim_op *op = *at;
    *at = op->next;
    if (!*at) rank->posted_end = at;
    rank->nposted--;
    if (!is_p2p(op->info.func))
        rank->ended_ops[rank->colls[op->info.task] * (uint64_t)world->nchannels + (uint64_t)op->info.channel] +=
            status >= 0;
    else if (op->queued)
        take_from_queue(rank, op);
    else if (op->mate) {
        op->mate->mate = NULL;
        op->mate->met = status >= 0;
        psm_sim_wake(&world->ranks[op->info.peer], PROXY);
    }
    void *cookie = op->cookie;
    free(op);
    world->changes++;
    psmPlanOpDone(cookie, status);
}

bool psm_sim_step_proxy(struct sim_rank *rank)
{
    if (!rank->posted) return false;
    bool aborted = psmPlanAborted(rank->comm);
    size_t skip = psm_sim_random(rank->world) % rank->nposted;
    for (int round = 0; round < 2; round++) { /* from a random position on, then from the first */
        struct sim_op **at = &rank->posted;
        for (size_t i = 0; *at; i++, at = &(*at)->next) {
            if (round == 0 && i < skip) continue;
            if (!aborted && !can_end(rank, *at)) continue;
            end(rank, at, aborted ? PSM_ERR_ABORTED : PSM_OK);
            return true;
        }
    }
    return false;
}

void psm_sim_free_ops(struct sim_rank *rank)
{
    struct sim_op *lists[] = {rank->saved, rank->posted};
    for (int i = 0; i < 2; i++)
        for (struct sim_op *op = lists[i], *next; op; op = next) {
            next = op->next;
            free(op);
        }
}
