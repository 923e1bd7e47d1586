/* The lint of groups, second half: a run of all ranks' plans. What has begun stays begun and what has ended stays
 * ended, and each step waits for such facts only: if one order of steps gets to the end, all do. */
#include <stdlib.h>
#include <string.h>

#include "plan/lint.h"

enum { NOWHERE = UINT32_MAX }; /* positions in the FIFO are multiples of 16 */

static struct psmPlanLintPlan *info_of(struct psmPlanLint *lint, const struct lint_rank *rank, uint32_t launch)
{
    return &lint->infos[rank->order[launch]];
}

static void ended(struct psmPlanLint *lint, uint32_t r, uint32_t channel)
{
    struct lint_channel *on = &lint->ranks[r].channels[channel];
    if (--on->waits != 0 || on->queued) return;
    on->queued = true;
    lint->queue[lint->nqueue++] = r * MAXCHANNELS + channel;
}

/* ---- p2p ---- */

/* A recv ends when its send has begun, too; a send, when its recv has begun, or the connection buffers it. */
static void look(struct psmPlanLint *lint, struct lint_connection *link)
{
    if (link->open[TO] && link->end[TO] <= link->end[FROM] + lint->steps) {
        link->open[TO] = false;
        ended(lint, link->sender, link->channel);
    }
    if (link->open[FROM] && link->end[FROM] <= link->end[TO]) {
        link->open[FROM] = false;
        ended(lint, link->receiver, link->channel);
    }
}

/* ---- collectives ---- */

static void arrive(struct psmPlanLint *lint, uint32_t coll, uint32_t channel)
{
    struct lint_arrivals *arrivals = &lint->arrivals[(size_t)coll * MAXCHANNELS + channel];
    if (++arrivals->n != (uint32_t)lint->config.nRanks) return;
    for (uint32_t r = 0; r < (uint32_t)lint->config.nRanks; r++) ended(lint, r, channel);
    arrivals->n = 0; /* a graph's come again */
}

/* ---- batches and plans ---- */

static void begin_batch(struct psmPlanLint *lint, uint32_t r, uint32_t channel)
{
    struct lint_channel *on = &lint->ranks[r].channels[channel];
    on->end = on->at;
    do on->end++;
    while (on->end < on->to && !lint->entries[on->end].begins);
    on->waits = on->end - on->at;
    for (uint32_t i = on->at; i < on->end; i++) {
        const struct lint_entry *entry = &lint->entries[i];
        if (!lint_p2p(entry)) {
            arrive(lint, entry->link, channel);
            continue;
        }
        struct lint_connection *link = &lint->connections[entry->link];
        link->end[lint_side(entry)] += entry->steps;
        link->open[lint_side(entry)] = true;
        look(lint, link);
    }
}

static bool has_room(const struct psmPlanLint *lint, const struct lint_rank *rank, const struct psmPlanLintPlan *plan)
{
    return plan->storage != PSM_PLAN_FIFO ||
           rank->sent + (uint32_t)plan->workBytes - rank->given <= lint->config.workFifoBytes;
}

/* The host launches while there is room. */
static void launch(struct psmPlanLint *lint, struct lint_rank *rank)
{
    for (; rank->launched < rank->norder; rank->launched++) {
        const struct psmPlanLintPlan *plan = info_of(lint, rank, rank->launched);
        if (!has_room(lint, rank, plan)) return;
        rank->gives[rank->launched] = NOWHERE;
        if (plan->storage == PSM_PLAN_FIFO) rank->sent += (uint32_t)plan->workBytes;
        if (!lint->release->eventRoom) {
            rank->gives[rank->launched] = rank->sent;
            continue;
        }
        if (!lint->plans[rank->order[rank->launched]].closes) continue;
        if (rank->sent - rank->recorded <= lint->config.workFifoBytes / 8) continue;
        rank->recorded = rank->gives[rank->launched] = rank->sent;
    }
}

/* Begins the plan at rank->at, and those behind it while they have nothing that waits. */
static void begin_plans(struct psmPlanLint *lint, uint32_t r)
{
    struct lint_rank *rank = &lint->ranks[r];
    for (; rank->at < rank->launched; rank->at++) {
        const struct lint_plan *plan = &lint->plans[rank->order[rank->at]];
        rank->open = plan->to - plan->from;
        for (uint32_t i = plan->from; i < plan->to; i++) {
            const struct lint_range *range = &lint->ranges[i];
            rank->channels[range->channel] = (struct lint_channel){.at = range->from, .to = range->to};
        }
        /* What begins here may end others' batches: only the queue goes on with them. */
        for (uint32_t i = plan->from; i < plan->to; i++) begin_batch(lint, r, lint->ranges[i].channel);
        if (rank->open != 0) return;
        if (rank->gives[rank->at] != NOWHERE) rank->given = rank->gives[rank->at];
        launch(lint, rank);
    }
}

static void step(struct psmPlanLint *lint, uint32_t r, uint32_t channel)
{
    struct lint_rank *rank = &lint->ranks[r];
    struct lint_channel *on = &rank->channels[channel];
    on->queued = false;
    on->at = on->end;
    if (on->at < on->to) {
        begin_batch(lint, r, channel);
        return;
    }
    if (--rank->open != 0) return;
    if (rank->gives[rank->at] != NOWHERE) rank->given = rank->gives[rank->at];
    rank->at++;
    launch(lint, rank);
    begin_plans(lint, r);
}

/* ---- what it waits for ---- */

static struct psmPlanLintWait *new_wait(struct psmPlanLint *lint, uint32_t r, int kind, int32_t channel)
{
    struct lint_rank *rank = &lint->ranks[r];
    const struct psmPlanLintPlan *plan = info_of(lint, rank, rank->at);
    if (!psm_lint_room((void **)&lint->waits, lint->nwaits, &lint->waits_room, sizeof *lint->waits)) return NULL;
    struct psmPlanLintWait *wait = &lint->waits[lint->nwaits++];
    *wait = (struct psmPlanLintWait){.rank = (int32_t)r,
                                     .kind = kind,
                                     .plan = plan->id,
                                     .group = plan->group,
                                     .channel = channel,
                                     .func = -1,
                                     .peer = -1,
                                     .mateTask = UINT64_MAX};
    return wait;
}

/* The other end of an entry that has begun: the peer's piece of the same steps of the connection, which has not. It
 * lies behind what the peer has begun. */
static void find_mate(struct psmPlanLint *lint, const struct lint_entry *entry, struct psmPlanLintWait *wait)
{
    const struct lint_connection *link = &lint->connections[entry->link];
    struct lint_rank *peer = &lint->ranks[entry->peer];
    int side = 1 - lint_side(entry);
    uint64_t end = link->end[side], wanted = link->end[1 - side];
    for (uint32_t k = peer->at; k < peer->norder && end < wanted; k++) {
        const struct lint_plan *plan = &lint->plans[peer->order[k]];
        for (uint32_t i = plan->from; i < plan->to; i++) {
            const struct lint_range *range = &lint->ranges[i];
            if (range->channel != link->channel) continue;
            uint32_t from = k == peer->at && k < peer->launched ? peer->channels[range->channel].end : range->from;
            for (uint32_t j = from; j < range->to && end < wanted; j++) {
                const struct lint_entry *other = &lint->entries[j];
                if (!lint_p2p(other) || other->link != entry->link || lint_side(other) != side) continue;
                end += other->steps;
                wait->matePlan = lint->infos[peer->order[k]].id;
                wait->mateTask = other->task;
            }
        }
    }
    if (end < wanted) {
        wait->matePlan = 0;
        wait->mateTask = UINT64_MAX;
    }
}

static psm_status tell_channel(struct psmPlanLint *lint, uint32_t r, uint32_t channel)
{
    const struct lint_channel *on = &lint->ranks[r].channels[channel];
    for (uint32_t i = on->at; i < on->end; i++) {
        const struct lint_entry *entry = &lint->entries[i];
        bool p2p = lint_p2p(entry);
        if (p2p && !lint->connections[entry->link].open[lint_side(entry)]) continue;
        struct psmPlanLintWait *wait =
            new_wait(lint, r, p2p ? PSM_PLAN_WAIT_PEER : PSM_PLAN_WAIT_CHANNEL, (int32_t)channel);
        if (!wait) return psm_lint_no_memory();
        wait->func = entry->func;
        wait->task = entry->task;
        if (!p2p) continue;
        wait->peer = (int32_t)entry->peer;
        find_mate(lint, entry, wait);
    }
    return PSM_OK;
}

static psm_status tell(struct psmPlanLint *lint, uint32_t r)
{
    struct lint_rank *rank = &lint->ranks[r];
    if (rank->launched < rank->norder) {
        const struct psmPlanLintPlan *plan = info_of(lint, rank, rank->launched);
        uint32_t at = rank->at;
        rank->at = rank->launched;
        struct psmPlanLintWait *wait = new_wait(lint, r, PSM_PLAN_WAIT_FIFO, -1);
        rank->at = at;
        if (!wait) return psm_lint_no_memory();
        wait->needs = plan->workBytes;
        wait->has = lint->config.workFifoBytes - (rank->sent - rank->given);
    }
    if (rank->at >= rank->launched) return PSM_OK;
    const struct lint_plan *plan = &lint->plans[rank->order[rank->at]];
    for (uint32_t i = plan->from; i < plan->to; i++) PSM_TRY(tell_channel(lint, r, lint->ranges[i].channel));
    return PSM_OK;
}

/* ---- from outside ---- */

static psm_status prepare(struct psmPlanLint *lint, const struct psmPlanLintRun *run)
{
    size_t n = (size_t)lint->config.nRanks;
    lint->steps = run->steps;
    lint->nqueue = lint->nwaits = 0;
    if (!lint->queue) lint->queue = malloc(n * MAXCHANNELS * sizeof *lint->queue);
    if (!lint->arrivals) lint->arrivals = malloc(((size_t)lint->colls + 1) * MAXCHANNELS * sizeof *lint->arrivals);
    if (!lint->queue || !lint->arrivals) return psm_lint_no_memory();
    memset(lint->arrivals, 0, ((size_t)lint->colls + 1) * MAXCHANNELS * sizeof *lint->arrivals);
    for (size_t i = 0; i < lint->nconnections; i++) {
        struct lint_connection *link = &lint->connections[i];
        memset(link->end, 0, sizeof link->end);
        memset(link->open, 0, sizeof link->open);
    }
    for (size_t r = 0; r < n; r++) {
        struct lint_rank *rank = &lint->ranks[r];
        if (!rank->gives) rank->gives = malloc(((size_t)rank->norder + 1) * sizeof *rank->gives);
        if (!rank->gives) return psm_lint_no_memory();
        rank->launched = rank->at = rank->open = 0;
        rank->given = rank->recorded = 0;
        rank->sent = run->unrecorded;
        memset(rank->channels, 0, sizeof rank->channels);
        launch(lint, rank);
    }
    return PSM_OK;
}

psm_status psmPlanLintRunOnce(psmPlanLint *lint, const struct psmPlanLintRun *what, int *done,
                              const struct psmPlanLintWait **waits, size_t *nwaits)
{
    struct psmPlanLintRun run = {0};
    if (!lint || !what || !done)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "psmPlanLintRunOnce: an argument is NULL");
    memcpy(&run, what, what->size < sizeof run ? what->size : sizeof run);
    PSM_TRY(prepare(lint, &run));
    for (uint32_t r = 0; r < (uint32_t)lint->config.nRanks; r++) begin_plans(lint, r);
    while (lint->nqueue != 0) {
        uint32_t next = lint->queue[--lint->nqueue];
        step(lint, next / MAXCHANNELS, next % MAXCHANNELS);
    }
    *done = 1;
    for (uint32_t r = 0; r < (uint32_t)lint->config.nRanks; r++) *done &= lint->ranks[r].at == lint->ranks[r].norder;
    for (uint32_t r = 0; r < (uint32_t)lint->config.nRanks && !*done && waits; r++) PSM_TRY(tell(lint, r));
    if (waits) *waits = lint->waits;
    if (nwaits) *nwaits = lint->nwaits;
    return PSM_OK;
}
