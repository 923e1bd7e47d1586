/* The scheduler of NCCL from 2.22: collectives sorted by size and laid one after the other over the channels, works of
 * bytes in batches, send and recv of a round in one work, budgets in bytes. Constants are those of 2.26, and of 2.30 as
 * far as p2p goes; releases.c has what differs between them. Collectives are rings with protocol Simple, p2p has
 * protocol Simple. */
#include "plan/schedule.h"

enum {
    ARGS_BYTES = 32, /* what precedes the batches in a kernel's arguments */
    BATCH_BYTES = 16,
    COLL_BYTES = 96,
    P2P_BYTES = 48,
    WORKS_OF_BATCH = 1024, /* bytes */
    OFFSETS_OF_BATCH = 64, /* works of a batch are bits of a word, relative to the first */
    LEAST_TRAFFIC = 16 << 10,
    GRAIN = 16,        /* bytes of a cell are a multiple of this */
    PART = 4096,       /* bytes of a part of a p2p are a multiple of this */
    LL_STEP = 64 << 10 /* bytes of a step of protocol LL */
};

static uint32_t round_up_to_power(uint32_t n)
{
    uint32_t power = 1;
    while (power < n) power *= 2;
    return power;
}

static int32_t rounds(const psmPlanComm *comm)
{
    return comm->config.nRanks;
}

static uint32_t divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Distances 0, 1, 3, 6, 10, ... modulo the next power of two, which reach each once; those out of range are skipped.
 * Groups of ranks so, and in a group distances 0, 1, 2, ... All ranks of a single node are a group; of more, 8 ranks,
 * or as many as divide a node. */
static void order_by_groups(psmPlanComm *comm)
{
    uint32_t nodes = (uint32_t)comm->config.nNodes, locals = (uint32_t)comm->config.nRanks / nodes;
    uint32_t size = nodes > 1 ? P2P_OF_BATCH : locals;
    if (locals % size != 0 || locals < size) size = divisor(size, locals);
    uint32_t groups = (uint32_t)comm->config.nRanks / size, far_groups = round_up_to_power(groups), round = 0;
    uint32_t group = (uint32_t)comm->config.rank / size, member = (uint32_t)comm->config.rank % size;
    comm->groupRanks = (int32_t)size;
    for (uint32_t i = 0, far = 0; i < far_groups; i++, far = (far + i) & (far_groups - 1)) {
        if (far >= groups) continue;
        uint32_t to = (group + far) % groups, from = (group + groups - far) % groups;
        for (uint32_t near = 0; near < size; near++) {
            comm->sendOrder[round] = (int32_t)(to * size + (member + near) % size);
            comm->recvOrder[round++] = (int32_t)(from * size + (member + size - near) % size);
        }
    }
}

/* Node by node, and rank by rank on each. */
static void order(psmPlanComm *comm)
{
    if (comm->release->groupedRounds) {
        order_by_groups(comm);
        return;
    }
    comm->groupRanks = comm->config.nRanks / comm->config.nNodes;
    uint32_t nodes = (uint32_t)comm->config.nNodes, locals = (uint32_t)comm->config.nRanks / nodes;
    uint32_t node = (uint32_t)comm->config.rank / locals, local = (uint32_t)comm->config.rank % locals;
    uint32_t far_nodes = round_up_to_power(nodes), far_locals = round_up_to_power(locals), round = 0;
    for (uint32_t i = 0, far = 0; i < far_nodes; i++, far = (far + i) & (far_nodes - 1)) {
        if (far >= nodes) continue;
        uint32_t to = (node + far) % nodes, from = (node + nodes - far) % nodes;
        for (uint32_t k = 0, near = 0; k < far_locals; k++, near = (near + k) & (far_locals - 1)) {
            if (near >= locals) continue;
            comm->sendOrder[round] = (int32_t)(to * locals + (local + near) % locals);
            comm->recvOrder[round++] = (int32_t)(from * locals + (local + locals - near) % locals);
        }
    }
}

/* ---- once a group ---- */

/* Bytes that a channel carries for each byte of count. */
static uint64_t traffic_per_byte(const psmPlanComm *comm, int func)
{
    if (func == PSM_PLAN_ALLREDUCE) return 2;
    if (func == PSM_PLAN_ALLGATHER || func == PSM_PLAN_REDUCESCATTER) return (uint64_t)comm->config.nRanks;
    return 1;
}
static uint64_t traffic(const psmPlanComm *comm, const struct plan_task *task)
{
    uint64_t bytes = task->task.count * psm_plan_type_size(task->task.datatype);
    return bytes * traffic_per_byte(comm, task->task.func);
}

/* Bins of similar size: KiB, up to 1 GiB, by the leading bit and two more. */
enum { BINS = 1 + (30 - 10) * 4 };
static uint32_t bin_of(uint64_t bytes)
{
    uint32_t kib = (uint32_t)(psm_plan_min(bytes, 1 << 30) >> 10), log = 31 - (uint32_t)__builtin_clz(kib | 1);
    uint32_t mantissa = log >= 2 ? kib >> (log - 2) & 3 : kib & 3, exponent = log >= 2 ? log - 1 : 0;
    return exponent << 2 | mantissa;
}

/* Groups tasks by function, operation and type: first the group of the largest task; within each, small tasks come
 * first, and tasks of one bin in the order of the application. */
static psm_status prepare(psmPlanComm *comm)
{
    enum { KINDS = 2 + 5 * 5 * 12 };
    struct plan_task *bins[BINS] = {0}, *kinds[KINDS] = {0};
    uint32_t seen[KINDS], nseen = 0;
    for (struct plan_task *task = comm->collQueue.head, *next; task; task = next) {
        next = task->next;
        uint32_t bin = bin_of(traffic(comm, task));
        task->next = bins[bin];
        bins[bin] = task;
    }
    for (int bin = BINS - 1; bin >= 0; bin--)
        for (struct plan_task *task = bins[bin], *next; task; task = next) {
            next = task->next;
            uint32_t kind = psm_plan_kind(&task->task);
            if (!kinds[kind]) seen[nseen++] = kind;
            task->next = kinds[kind];
            kinds[kind] = task;
        }
    struct plan_task **end = &comm->collQueue.head, *last = NULL;
    for (uint32_t i = 0; i < nseen; i++) {
        *end = kinds[seen[i]];
        while (*end) {
            last = *end;
            end = &last->next;
        }
    }
    *end = NULL;
    comm->collQueue.tail = last;
    /* Tasks of up to four times the smallest size are tuned as one. */
    for (struct plan_task *task = comm->collQueue.head; task;) {
        uint32_t kind = psm_plan_kind(&task->task);
        uint64_t least = traffic(comm, task), bytes = 0;
        struct plan_task *over = task;
        do {
            bytes += over->nbytes;
            over = over->next;
        } while (over && psm_plan_kind(&over->task) == kind && traffic(comm, over) < 4 * least);
        int channels, warps;
        psm_plan_tune(bytes, comm->config.nChannels, &channels, &warps);
        for (; task != over; task = task->next) {
            task->channels = (uint8_t)channels;
            task->warps = (uint8_t)warps;
        }
    }
    return PSM_OK;
}

/* ---- budgets and batches ---- */

static void budget(const psmPlanComm *comm, const psmPlan *plan, struct plan_budget *out)
{
    *out = (struct plan_budget){.args_bytes = (int64_t)comm->config.workArgsBytes - ARGS_BYTES,
                                .out_bytes = plan->persistent ? 1 << 30 : (int64_t)comm->config.workFifoBytes / 2};
}

static bool fits(const struct plan_budget *left, uint64_t batches, uint64_t bytes)
{
    int64_t args = (int64_t)(batches * BATCH_BYTES), works = (int64_t)bytes;
    return args + works <= left->args_bytes || (args <= left->args_bytes && works <= left->out_bytes);
}

static psm_status nothing(const psmPlanComm *comm, const psmPlan *plan)
{
    (void)plan;
    return psm_fail(
        PSM_ERR_INVALID, "plan", comm->config.rank, -1, 0,
        "a plan may have %u bytes of kernel arguments and half of a work FIFO of %u bytes, and the next task does not "
        "fit: set workArgsBytes to at least %d (32, and 16 for each channel), and workFifoBytes to at least %d",
        comm->config.workArgsBytes, comm->config.workFifoBytes, ARGS_BYTES + MAXCHANNELS * BATCH_BYTES,
        2 * COLL_BYTES * 4 / 3);
}

/* Puts the work at `offset` into the channel's last batch, or starts another. 1: a new one, 2: one that extends the
 * last, because its bits do not reach that far; 0: the last one has room. */
static int batch(psmPlanComm *comm, psmPlan *plan, int c, const struct plan_task *task, uint32_t offset, int round)
{
    struct wip_channel *channel = wip_channel(comm, c);
    uint32_t size = round >= 0 ? P2P_BYTES : COLL_BYTES, kind = round >= 0 ? 1 : psm_plan_kind(&task->task);
    bool begins = channel->kind != kind || channel->bytes + size > WORKS_OF_BATCH;
    if (round >= 0 && !begins) {
        /* Works of one round use the same connections. */
        begins = channel->nelem == P2P_OF_BATCH;
        if (comm->release->epochs && !comm->config.mixEpochs) begins |= channel->epoch != comm->p2pEpoch;
        for (uint32_t i = 0; i < channel->nelem; i++) {
            begins |= channel->ids[0][i] == round;
            if (comm->release->roundGroups) begins |= channel->ids[0][i] / P2P_OF_BATCH != round / P2P_OF_BATCH;
        }
    }
    uint32_t from = offset - channel->base;
    bool extends = !begins && (from > (OFFSETS_OF_BATCH - 1) * size || from % size != 0);
    if (begins || extends) {
        channel->base = offset;
        plan->nbatches++;
    }
    if (begins) {
        channel->kind = kind;
        channel->bytes = channel->nelem = 0;
        channel->nwork += round >= 0;
    }
    channel->bytes += size;
    if (round >= 0) {
        channel->ids[0][channel->nelem++] = round;
        channel->epoch = comm->p2pEpoch;
    }
    return begins ? 1 : extends ? 2 : 0;
}

/* ---- collectives ---- */

struct layout { /* how a collective is laid out over channels lo..lo+n-1 */
    int lo, n;
    uint64_t count_lo, count_mid, count_hi;
    /* for the next one */
    int channel;
    uint64_t current;
};

/* A cell is the smallest unit that a channel moves; a channel takes cells until it has its share of the plan's traffic.
 */
static struct layout lay(const psmPlanComm *comm, const struct plan_task *task, int channel, uint64_t current,
                         uint64_t share)
{
    uint64_t size = psm_plan_type_size(task->task.datatype), per_byte = traffic_per_byte(comm, task->task.func);
    uint64_t cell = psm_plan_align_up(psm_plan_div_up(LEAST_TRAFFIC, per_byte), GRAIN), elements = cell / size;
    uint64_t cells = psm_plan_div_up(task->task.count * size, cell), cell_traffic = cell * per_byte;
    uint64_t of_channel = psm_plan_min(cells, psm_plan_div_up(share, cell_traffic)), lo = cells;
    int channels = comm->config.nChannels;
    if (channel + 1 != channels) lo = psm_plan_min(cells, psm_plan_div_up(share - current, cell_traffic));
    int mids = (int)((cells - lo) / of_channel);
    uint64_t hi = (cells - lo) % of_channel;
    if (channel + (lo != 0) + mids + (hi != 0) > channels) { /* the last channels take what is left */
        mids = channels - channel - 2;
        of_channel = (cells - lo) / (uint64_t)(mids + 1);
        hi = of_channel + (cells - lo) % (uint64_t)(mids + 1);
    }
    if (hi == 0 && mids != 0) {
        hi = of_channel;
        mids--;
    }
    if (lo == 0) { /* this channel is full */
        channel++;
        if (mids == 0) {
            lo = hi;
            hi = 0;
        } else {
            lo = of_channel;
            mids--;
        }
    }
    struct layout out = {.lo = channel,
                         .n = 1 + mids + (hi != 0),
                         .count_lo = lo * elements,
                         .count_mid = mids != 0 ? of_channel * elements : 0,
                         .count_hi = hi * elements};
    /* The last cell may not be full. */
    *(out.count_hi != 0 ? &out.count_hi : &out.count_lo) -= cells * elements - task->task.count;
    out.channel = hi != 0 ? channel + out.n - 1 : channel;
    out.current = hi != 0 ? hi * elements * size * per_byte : current + lo * elements * size * per_byte;
    if (out.current >= share && out.channel + 1 != channels) {
        out.channel++;
        out.current = 0;
    }
    return out;
}

static psm_status add_coll(psmPlanComm *comm, psmPlan *plan, const struct plan_task *task, const struct layout *at)
{
    uint64_t op_count = plan->collOpCount++ << 1, size = psm_plan_type_size(task->task.datatype), offset = 0;
    for (int i = 0; i < at->n; i++) {
        uint64_t count = i == 0 ? at->count_lo : i + 1 == at->n ? at->count_hi : at->count_mid;
        struct plan_part part = {.channel = at->lo + i,
                                 .first = batch(comm, plan, at->lo + i, task, (uint32_t)plan->workBytes, -1),
                                 .offset = offset,
                                 .nbytes = count * size,
                                 .place = (uint32_t)plan->workBytes,
                                 .op = comm->config.nRanks > 1,
                                 .opCount = op_count};
        PSM_TRY(psm_plan_part(comm, plan, task, &part));
        offset += part.nbytes;
    }
    plan->workBytes += COLL_BYTES;
    return PSM_OK;
}

static psm_status colls(psmPlanComm *comm, psmPlan *plan, struct plan_budget *left)
{
    /* How many would fit into an empty plan, and their traffic. */
    uint64_t n = 0, bytes = 0, all = 0, channels = 0, limit = (uint64_t)comm->config.nChannels;
    for (struct plan_task *task = comm->collQueue.head; task; task = task->next) {
        if (!fits(left, psm_plan_div_up(n, 4), bytes + COLL_BYTES)) break; /* a guess: four in a batch */
        n++;
        bytes += COLL_BYTES;
        all += psm_plan_max(LEAST_TRAFFIC, traffic(comm, task));
        channels = psm_plan_min(channels + task->channels, limit);
    }
    if (n == 0) return PSM_OK;
    uint64_t share = psm_plan_max(LEAST_TRAFFIC, all / channels), current = 0;
    int channel = 0;
    for (struct plan_task *task; n != 0 && (task = comm->collQueue.head); n--) {
        struct layout at = lay(comm, task, channel, current, share);
        if (!fits(left, plan->nbatches + (uint64_t)at.n, plan->workBytes + COLL_BYTES)) return PSM_OK;
        PSM_TRY(add_coll(comm, plan, task, &at));
        psm_plan_take(comm, plan, &comm->collQueue);
        channel = at.channel;
        current = at.current;
    }
    return PSM_OK;
}

/* ---- p2p ---- */

static int base_channel(const psmPlanComm *comm, int round)
{
    int group = comm->groupRanks, base = round;
    if (comm->config.nNodes > 1)
        base = round / group * (int)psm_plan_div_up((uint64_t)group, P2P_OF_BATCH) + round % group / P2P_OF_BATCH;
    return comm->release->reversedRounds ? psm_plan_mirror(comm, base) : base & 0xff;
}

static int channel_of(const psmPlanComm *comm, int round, int part)
{
    int from_base = comm->release->reversedRounds ? part : psm_plan_mirror(comm, part);
    return (base_channel(comm, round) + from_base) & (comm->config.p2pnChannels - 1);
}

static int parts_of(const psmPlanComm *comm, const struct plan_task *task, int min, int max)
{
    if (!task) return 0;
    if (task->nbytes == 0) return 1;
    uint64_t step = comm->config.p2pChunkSize, bytes = task->nbytes;
    bool ll = bytes <= (uint64_t)max * comm->config.p2pLLThreshold && task->task.peer != comm->config.rank;
    if (ll && !comm->release->simpleParts) step = LL_STEP;
    uint64_t least = comm->config.nNodes > 1 ? step / 2 : step / 8, most = comm->config.nNodes > 1 ? step : step * 32;
    int parts = (int)psm_plan_min((uint64_t)min, psm_plan_div_up(bytes, least));
    uint64_t part = psm_plan_max(least, psm_plan_div_up(bytes, (uint64_t)parts));
    while (part > most && parts <= max / 2) {
        parts *= 2;
        part = psm_plan_div_up(bytes, (uint64_t)parts);
    }
    return parts;
}

/* One work for both; either may be NULL. */
static psm_status add_p2p(psmPlanComm *comm, psmPlan *plan, int round, int min, int max, const struct plan_task *send,
                          const struct plan_task *recv)
{
    const struct plan_task *tasks[] = {recv, send};
    int parts[] = {parts_of(comm, recv, min, max), parts_of(comm, send, min, max)};
    uint32_t offset = (uint32_t)plan->workBytes;
    plan->workBytes += P2P_BYTES;
    for (int part = 0; part < parts[0] || part < parts[1]; part++) {
        int c = channel_of(comm, round, part);
        int first = batch(comm, plan, c, NULL, offset, round);
        for (int d = 0; d < 2; d++) {
            if (part >= parts[d]) continue;
            const struct plan_task *task = tasks[d];
            uint64_t bytes = psm_plan_align_up(psm_plan_div_up(task->nbytes, (uint64_t)parts[d]), PART);
            uint64_t from = psm_plan_min((uint64_t)part * bytes, task->nbytes);
            uint64_t to = psm_plan_min(from + bytes, task->nbytes);
            /* A task without bytes synchronises; a part that is empty only because others were rounded up does not. */
            struct plan_part piece = {.channel = c,
                                      .first = first,
                                      .offset = from,
                                      .nbytes = to - from,
                                      .place = offset,
                                      .op = task->task.peer != comm->config.rank && (to != from || task->nbytes == 0),
                                      .opCount = (uint64_t)wip_channel(comm, c)->nwork << 1 | 1,
                                      .to = comm->sendOrder[round],
                                      .from = comm->recvOrder[round]};
            PSM_TRY(psm_plan_part(comm, plan, task, &piece));
            first = 0;
        }
    }
    return PSM_OK;
}

static psm_status p2ps(psmPlanComm *comm, psmPlan *plan, struct plan_budget *left)
{
    int nranks = comm->config.nRanks, rank = comm->config.rank;
    int max = comm->config.p2pnChannelsPerPeer, min = max;
    while (min * nranks > comm->config.p2pnChannels && min > 1) min /= 2;
    if (!comm->release->carries) comm->p2pRound = 0;
    for (; comm->ntasksP2p != 0; comm->p2pRound = 0, comm->p2pEpoch++) {
        for (; comm->p2pRound < nranks; comm->p2pRound++) {
            int round = comm->p2pRound;
            struct plan_task_queue *sends = &comm->peers[comm->sendOrder[round]].send;
            struct plan_task_queue *recvs = &comm->peers[comm->recvOrder[round]].recv;
            const struct plan_task *send = sends->head, *recv = recvs->head;
            if (!send && !recv) continue;
            bool self = comm->sendOrder[round] == rank, in_place = false;
            if (self) {
                PSM_TRY(psm_plan_self_check(comm, send, recv));
                in_place = psm_plan_in_place(send, recv);
            }
            if (!in_place) {
                /* Each channel may need another batch. */
                if (!fits(left, plan->nbatches + (uint64_t)max, plan->workBytes + P2P_BYTES)) return PSM_OK;
                if (self && comm->config.passSm) PSM_TRY(psm_plan_self_copy(comm, plan, send, recv));
                PSM_TRY(add_p2p(comm, plan, round, min, max, send, recv));
            }
            if (send) psm_plan_take(comm, plan, sends);
            if (recv) psm_plan_take(comm, plan, recvs);
        }
    }
    return PSM_OK;
}

/* ---- the end of a plan ---- */

static void finish(psmPlanComm *comm, psmPlan *plan)
{
    if (ARGS_BYTES + (uint64_t)plan->nbatches * BATCH_BYTES + plan->workBytes <= comm->config.workArgsBytes)
        plan->storage = PSM_PLAN_ARGS;
}

static psm_status upload(psmPlanComm *comm, psmPlan *plan)
{
    if (!plan->kernel || plan->storage == PSM_PLAN_ARGS) return PSM_OK;
    if (plan->storage == PSM_PLAN_PERSISTENT)
        return comm->engine.alloc(comm->engine.self, plan->graph, plan->workBytes, &plan->persistentWork);
    struct plan_fifo *fifo = &comm->fifo;
    uint32_t from = fifo->sent;
    PSM_TRY(psm_plan_fifo_wait(comm, plan, from + (uint32_t)plan->workBytes));
    fifo->sent = from + (uint32_t)plan->workBytes;
    for (uint64_t i = 0; i < plan->works->nworks; i++) {
        struct psmPlanWorkInfo *work = &plan->works->works[i];
        uint32_t bytes = psm_plan_is_p2p(work->func) ? P2P_BYTES : COLL_BYTES, at = from + work->place;
        work->place = at & (fifo->depth - 1);
        if (!work->kernel) continue;
        plan->fifoMask |= 1ull << work->channel;
        /* NCCL 2.22 to 2.26 does not record what each channel was sent: a channel that has run once and then idles
         * seems to be behind for ever, and after 1 MiB nobody gets room. */
        plan->acks[work->channel] = fifo->channelSent[work->channel] = at + bytes;
    }
    return PSM_OK;
}

PLAN_SCHEDULER(planner, .merges = true, .direct = true, .headers = false, .clusters_until = 0);
