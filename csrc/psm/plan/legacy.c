/* The scheduler of NCCL up to 2.21, with the constants of 2.19 (2.20 lays out collectives differently): a work FIFO of
 * slots, each with up to nine elements of a collective function or sixteen of p2p, and the least loaded channels for
 * each collective. Collectives are rings with protocol Simple. */
#include "plan/schedule.h"

enum {
    COLLS_OF_SLOT = 9,
    SLOT_BYTES = 512,
    AGGREGATE = 1 << 21,   /* bytes of a channel of adjacent collectives, for each rank, 16 ranks at most */
    LEAST_OF_CHANNEL = 512 /* minimum bytes for another channel */
};

/* Rounds of a node: eight are fused into a slot, so a node has a multiple or a divisor of eight. */
static int steps(const psmPlanComm *comm)
{
    int locals = comm->config.nRanks / comm->config.nNodes;
    return locals > P2P_OF_BATCH ? (int)psm_plan_align_up((uint64_t)locals, P2P_OF_BATCH)
                                 : P2P_OF_BATCH / (P2P_OF_BATCH / locals);
}
static int32_t rounds(const psmPlanComm *comm)
{
    return comm->config.nNodes * steps(comm);
}

/* Node by node (0, 1, -1, ... and from the far half), and the ranks of each around a ring, which may have gaps. */
static void order(psmPlanComm *comm)
{
    int nodes = comm->config.nNodes, locals = comm->config.nRanks / nodes, nsteps = steps(comm);
    int node = comm->config.rank / locals, local = comm->config.rank % locals, round = 0;
    for (int d = 0; d <= nodes / 4; d++) {
        int deltas[4] = {d, (nodes - d) % nodes, nodes / 2 - d, (nodes - (nodes / 2 - d)) % nodes};
        for (int i = 0; i < 4; i++) {
            bool seen = false;
            for (int k = 0; k < i; k++) seen |= deltas[k] == deltas[i];
            if (seen) continue;
            int to = (node + deltas[i]) % nodes, from = (node + nodes - deltas[i]) % nodes;
            for (int step = 0; step < nsteps && round < comm->nrounds; step++, round++) {
                int send = (local + step) % nsteps, recv = (local - step + nsteps) % nsteps;
                comm->sendOrder[round] = send < locals ? to * locals + send : -1;
                comm->recvOrder[round] = recv < locals ? from * locals + recv : -1;
            }
        }
    }
}

static psm_status prepare(psmPlanComm *comm)
{
    (void)comm;
    return PSM_OK;
}

static void budget(const psmPlanComm *comm, const psmPlan *plan, struct plan_budget *out)
{
    *out = (struct plan_budget){.slots = plan->persistent ? INT32_MAX : comm->config.workFifoDepth / 2};
}

static psm_status nothing(const psmPlanComm *comm, const psmPlan *plan)
{
    (void)plan;
    return psm_fail(PSM_ERR_INVALID, "plan", comm->config.rank, -1, 0,
                    "a plan may fill half of the work FIFO, %u of %u slots, and the next task needs more: set "
                    "workFifoDepth (NCCL_WORK_FIFO_DEPTH) to at least %d",
                    comm->config.workFifoDepth / 2, comm->config.workFifoDepth, 2 * MAXCHANNELS);
}

/* ---- collectives ---- */

/* The n channels with the fewest bytes; ties go to the lower numbers. Found as in NCCL: parts of a collective are
 * numbered in this order. */
static void least_loaded(psmPlanComm *comm, int n, int *least)
{
    int worst = 0;
    for (int b = 0; b < n; b++) {
        least[b] = b;
        if (wip_channel(comm, b)->load > wip_channel(comm, worst)->load) worst = b;
    }
    for (int c = n; c < comm->config.nChannels; c++) {
        if (wip_channel(comm, c)->load >= wip_channel(comm, least[worst])->load) continue;
        least[worst] = c;
        worst = 0;
        for (int b = 1; b < n; b++)
            if (wip_channel(comm, least[b])->load > wip_channel(comm, least[worst])->load) worst = b;
    }
}

static psm_status add_coll(psmPlanComm *comm, psmPlan *plan, const struct plan_task *task, int nchannels, int warps,
                           struct plan_budget *left)
{
    int least[MAXCHANNELS];
    least_loaded(comm, nchannels, least);
    uint64_t op_count = plan->collOpCount++ << 1;
    uint64_t size = psm_plan_type_size(task->task.datatype), count = task->task.count, n = (uint64_t)nchannels;
    /* Tasks to which the tuner gives different numbers of warps are of different kinds. */
    uint32_t kind = psm_plan_kind(&task->task) << 6 | (uint32_t)warps;
    for (uint64_t bid = 0; bid < n; bid++) {
        struct wip_channel *channel = wip_channel(comm, least[bid]);
        channel->load += task->nbytes / n;
        bool joins = channel->kind == kind && channel->nelem < COLLS_OF_SLOT;
        if (!joins) {
            channel->kind = kind;
            channel->nelem = 0;
            channel->nwork++;
            left->slots--;
        }
        channel->nelem++;
        uint64_t from = count / n * bid + psm_plan_min(bid, count % n), to = from + count / n + (bid < count % n);
        /* An empty collective synchronises nobody, unlike p2p, and a ring of one rank has no neighbour. */
        struct plan_part part = {.channel = least[bid],
                                 .first = !joins,
                                 .offset = from * size,
                                 .nbytes = (to - from) * size,
                                 .place = channel->nwork - 1,
                                 .op = task->nbytes != 0 && comm->config.nRanks > 1,
                                 .opCount = op_count};
        PSM_TRY(psm_plan_part(comm, plan, task, &part));
    }
    return PSM_OK;
}

static psm_status colls(psmPlanComm *comm, psmPlan *plan, struct plan_budget *left)
{
    uint64_t channels = (uint64_t)comm->config.nChannels;
    uint64_t per_channel = AGGREGATE * psm_plan_min(16, (uint64_t)comm->config.nRanks);
    while (comm->collBytes < per_channel * channels && per_channel > LEAST_OF_CHANNEL) per_channel /= 2;
    while (comm->ntasksColl != 0) {
        struct plan_task *head = comm->collQueue.head, *end = head->next;
        uint32_t kind = psm_plan_kind(&head->task);
        uint64_t bytes = head->nbytes, wanted = 0, size = psm_plan_type_size(head->task.datatype);
        for (; end && psm_plan_kind(&end->task) == kind; end = end->next) {
            bytes += end->nbytes;
            uint64_t n = psm_plan_div_up(end->task.count * size, per_channel);
            wanted += psm_plan_max(1, psm_plan_min(n, channels));
        }
        bool joined = end != head->next;
        int nchannels, warps;
        psm_plan_tune(bytes, (int)(joined ? psm_plan_min(channels, wanted) : channels), &nchannels, &warps);
        for (; head != end; head = comm->collQueue.head) {
            if (joined) {
                uint64_t n = psm_plan_div_up(head->nbytes, per_channel);
                nchannels = (int)psm_plan_max(1, psm_plan_min(n, channels));
            }
            if (left->slots < nchannels) return PSM_OK;
            PSM_TRY(add_coll(comm, plan, head, nchannels, warps, left));
            psm_plan_take(comm, plan, &comm->collQueue);
        }
    }
    return PSM_OK;
}

/* ---- p2p ---- */

/* Steps from peer to peer around the ring; sender and receiver use the same channel. Between nodes, eight peers share
 * one: they are in one slot. */
static int base_channel(const psmPlanComm *comm, int peer, bool send)
{
    int nodes = comm->config.nNodes, locals = comm->config.nRanks / nodes, rank = comm->config.rank;
    int to = send ? peer : rank, from = send ? rank : peer;
    int step = (locals + to % locals - from % locals) % locals;
    int delta = (nodes + to / locals - from / locals) % nodes;
    return nodes > 1 ? delta + step / P2P_OF_BATCH : step;
}

/* Whether the last slot takes one more: it holds p2p, has room in the direction, and does not contain this peer yet,
 * whose connection two elements of a slot would use at the same time. */
static bool joins_p2p(const struct wip_channel *channel, int peer, bool send, bool fuse)
{
    if (channel->kind != 1 || !fuse || channel->npeers[send] == P2P_OF_BATCH) return false;
    for (uint32_t i = 0; i < channel->npeers[send]; i++)
        if (channel->ids[send][i] == peer) return false;
    return true;
}

struct direction { /* a p2p that is being split into chunks */
    struct plan_task_queue *queue;
    struct plan_task *task;
    bool send;
    uint64_t chunk, left; /* bytes */
    bool open;
};

static void begin(const psmPlanComm *comm, struct direction *at, int peer, bool send, int min, int max)
{
    *at = (struct direction){.send = send};
    if (peer < 0) return;
    at->queue = send ? &comm->peers[peer].send : &comm->peers[peer].recv;
    at->task = at->queue->head;
    at->open = at->task != NULL;
    if (!at->open) return;
    uint64_t least = comm->config.p2pChunkSize / 8;
    uint64_t most = (uint64_t)comm->config.p2pChunkSize * (comm->config.nNodes > 1 ? 1 : 32);
    uint64_t bytes = at->task->nbytes, chunk = psm_plan_max(least, psm_plan_div_up(bytes, (uint64_t)min));
    for (int n = min; chunk > most && n <= max / 2;) {
        n *= 2;
        chunk = psm_plan_div_up(bytes, (uint64_t)n);
    }
    at->chunk = psm_plan_align_up(chunk, least);
    at->left = bytes - at->task->done;
}

/* The next chunk; a task without bytes is one, too: it synchronises. */
static psm_status next_chunk(psmPlanComm *comm, psmPlan *plan, struct direction *at, bool fuse,
                             struct plan_budget *left)
{
    struct plan_task *task = at->task;
    int peer = task->task.peer;
    int part = (int)(task->chunk % (uint32_t)comm->config.p2pnChannelsPerPeer);
    int c = (psm_plan_mirror(comm, base_channel(comm, peer, at->send)) + part) & (comm->config.p2pnChannels - 1);
    struct wip_channel *channel = wip_channel(comm, c);
    bool joins = joins_p2p(channel, peer, at->send, fuse);
    if (!joins) {
        channel->kind = 1;
        channel->npeers[0] = channel->npeers[1] = 0;
        channel->nwork++;
        left->slots--;
    }
    channel->ids[at->send][channel->npeers[at->send]++] = peer;
    struct plan_part piece = {.channel = c,
                              .first = !joins,
                              .offset = task->done,
                              .nbytes = psm_plan_min(at->left, at->chunk),
                              .place = channel->nwork - 1,
                              .op = peer != comm->config.rank,
                              .opCount = (uint64_t)channel->nwork << 1 | 1};
    PSM_TRY(psm_plan_part(comm, plan, task, &piece));
    task->done += piece.nbytes;
    task->chunk++;
    at->left -= piece.nbytes;
    if (at->left != 0) return PSM_OK;
    at->open = false;
    psm_plan_take(comm, plan, at->queue);
    return PSM_OK;
}

/* With PassSM no kernel moves a rank's data to itself: a copy on the launch stream does, which is never split. */
static psm_status self_copy(psmPlanComm *comm, psmPlan *plan, struct direction *recv, struct direction *send, bool fuse,
                            struct plan_budget *left)
{
    recv->chunk = send->chunk = psm_plan_max(1, send->task->nbytes);
    PSM_TRY(psm_plan_self_copy(comm, plan, send->task, recv->task));
    PSM_TRY(next_chunk(comm, plan, recv, fuse, left));
    return next_chunk(comm, plan, send, true, left);
}

static psm_status p2ps(psmPlanComm *comm, psmPlan *plan, struct plan_budget *left)
{
    int nranks = comm->config.nRanks, rank = comm->config.rank;
    int max = comm->config.p2pnChannelsPerPeer, min = max;
    if (comm->config.nNodes == 1) {
        /* All channels, but one per operation, and at most eight operations per channel. */
        while (min * nranks > comm->config.p2pnChannels && min > 1) min /= 2;
        while (max * nranks > comm->config.p2pnChannels * 4 && max > 1) max /= 2;
    }
    bool fuse = false;
    while (comm->ntasksP2p != 0) {
        for (int i = 0; i < comm->nrounds; i++) {
            struct direction recv, send;
            begin(comm, &send, comm->sendOrder[i], true, min, max);
            begin(comm, &recv, comm->recvOrder[i], false, min, max);
            if (!recv.open && !send.open) continue;
            if (comm->sendOrder[i] == rank) {
                PSM_TRY(psm_plan_self_check(comm, send.task, recv.task));
                if (comm->config.passSm) {
                    if (left->slots < 1) return PSM_OK;
                    PSM_TRY(self_copy(comm, plan, &recv, &send, fuse && i % P2P_OF_BATCH != 0, left));
                    fuse = true;
                    continue;
                }
            }
            while (recv.open || send.open) {
                if (i % P2P_OF_BATCH == 0) fuse = false;
                struct direction *both[] = {&recv, &send};
                for (int d = 0; d < 2; d++) {
                    if (!both[d]->open) continue;
                    if (left->slots < 1) return PSM_OK;
                    PSM_TRY(next_chunk(comm, plan, both[d], fuse, left));
                    fuse = true;
                }
            }
        }
    }
    return PSM_OK;
}

/* ---- the end of a plan ---- */

static void finish(psmPlanComm *comm, psmPlan *plan)
{
    struct wip *wip = comm->scheduling;
    for (uint64_t mask = wip->used; mask; mask &= mask - 1) {
        const struct wip_channel *channel = &wip->channels[__builtin_ctzll(mask)];
        if (channel->first) plan->nbatches += channel->nwork;
    }
    plan->workBytes = (uint64_t)plan->nbatches * SLOT_BYTES;
}

/* Slots that a kernel reads: p2p without a kernel takes none. The first slot of each channel is stored in channel
 * order, where each block looks for its own; the others follow, channel by channel. */
static void place(psmPlan *plan, uint32_t head, uint32_t mask)
{
    struct plan_work_table *table = plan->works;
    uint32_t next = head + (uint32_t)__builtin_popcountll(plan->kernelMask), slot = 0;
    int channel = -1;
    for (uint64_t i = 0; i < table->nworks; i++) {
        struct psmPlanWorkInfo *work = &table->works[i];
        if (!work->kernel) continue;
        if (work->channel != channel) {
            channel = work->channel;
            slot = head++;
        } else if (work->first)
            slot = next++;
        work->place = slot & mask;
        plan->acks[channel] = slot + 1;
    }
}

/* The headers of the slots: how a kernel, whose blocks know where their first slot is, finds the others and gives all
 * back. */
static void write_headers(psmPlanComm *comm, psmPlan *plan, uint32_t head, uint32_t mask)
{
    struct psmPlanWorkInfo *slot = NULL;
    plan->fifoMask = 0;
    for (uint64_t i = 0; i <= plan->works->nworks; i++) {
        struct psmPlanWorkInfo *work = i < plan->works->nworks ? &plan->works->works[i] : NULL;
        if (work && (!work->kernel || !work->first)) continue;
        if (slot && work && work->channel == slot->channel)
            slot->workNext = (int32_t)(work->place & mask) - (int32_t)(head & mask);
        else if (slot) {
            slot->isLast = !comm->variant->no_last;
            slot->inFifo = !plan->persistent && !comm->variant->no_in_fifo;
            slot->doneAcks = plan->acks[slot->channel];
            if (slot->isLast && slot->inFifo) plan->fifoMask |= UINT64_C(1) << slot->channel;
        }
        slot = work;
    }
}

static void lay_out(psmPlanComm *comm, psmPlan *plan, uint32_t head, uint32_t mask)
{
    place(plan, head, mask);
    write_headers(comm, plan, head, mask);
}

static psm_status upload(psmPlanComm *comm, psmPlan *plan)
{
    if (!plan->kernel) return PSM_OK;
    uint32_t slots = plan->kernelBatches, firsts = (uint32_t)__builtin_popcountll(plan->kernelMask);
    if (plan->persistent) {
        lay_out(comm, plan, 0, UINT32_MAX);
        return comm->engine.alloc(comm->engine.self, plan->graph, (uint64_t)slots * SLOT_BYTES, &plan->persistentWork);
    }
    struct plan_fifo *fifo = &comm->fifo;
    uint32_t mask = fifo->depth - 1, sent = fifo->sent;
    /* The first slots are contiguous: they must not wrap around the end. Skipped slots count as sent. */
    if (((sent + firsts - 1) & mask) < (sent & mask)) fifo->sent = sent = (sent + mask) & ~mask;
    PSM_TRY(psm_plan_fifo_wait(comm, plan, sent + slots));
    lay_out(comm, plan, sent, mask);
    fifo->sent = sent + slots;
    for (uint64_t channels = plan->kernelMask; channels; channels &= channels - 1) {
        int c = __builtin_ctzll(channels);
        fifo->channelSent[c] = plan->acks[c];
    }
    return PSM_OK;
}

PLAN_SCHEDULER(legacy, .merges = false, .direct = false, .headers = true, .clusters_until = 90);
