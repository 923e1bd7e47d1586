/* Collectives: rings over p2p connectors, on host memory. A ring is a chain of steps. Each step posts a send to the
 * next rank and a recv from the previous one to the proxy; when both have ended, the next step starts, on the progress
 * thread. All ranks run the rings of a channel in the same order, one at a time. */
#include <stdlib.h>
#include <string.h>

#include "plan/engine.h"

struct step {
    const char *send;
    char *recv;
    uint64_t nsend, nrecv;
    bool sends, recvs; /* an operation may have no bytes */
    /* what follows when both have ended: combine elements, or copy bytes */
    char *to;
    const char *from, *with; /* with NULL: a copy */
    uint64_t n;
};

struct ring {
    struct ring *next; /* on its channel */
    struct engine_run *run;
    void *cookie;
    struct psmPlanOpInfo op;
    uint64_t count, first, part; /* elements: of a rank's block, and of this channel's part of it */
    uint64_t at, number;         /* elements of part that are done; the step of the current round */
    uint32_t bytes, chunk;       /* bytes of an element; elements in RING_CHUNK */
    bool begun;
    struct step step;
    _Atomic uint32_t left; /* unfinished operations of the step, and its poster */
    _Atomic int failed;    /* first error: a psm_status */
};

/* ---- combining ---- */

#define COMBINE(name, type, expression)                                                                                \
    static void name(char *to_, const char *left_, const char *right_, uint64_t n)                                     \
    {                                                                                                                  \
        type *to = (type *)(void *)to_;                                                                                \
        const type *left = (const type *)(const void *)left_, *right = (const type *)(const void *)right_;             \
        for (uint64_t i = 0; i < n; i++) {                                                                             \
            type a = left[i], b = right[i];                                                                            \
            to[i] = (type)(expression);                                                                                \
        }                                                                                                              \
    }
/* wide: unsigned and of the same size, so that nothing overflows. */
#define COMBINE_ALL(name, type, wide)                                                                                  \
    COMBINE(name##_sum, type, (wide)a + (wide)b)                                                                       \
    COMBINE(name##_prod, type, (wide)a *(wide)b)                                                                       \
    COMBINE(name##_max, type, a > b ? a : b)                                                                           \
    COMBINE(name##_min, type, a < b ? a : b)
COMBINE_ALL(i8, int8_t, uint32_t)
COMBINE_ALL(u8, uint8_t, uint32_t)
COMBINE_ALL(i32, int32_t, uint32_t)
COMBINE_ALL(u32, uint32_t, uint32_t)
COMBINE_ALL(i64, int64_t, uint64_t)
COMBINE_ALL(u64, uint64_t, uint64_t)
COMBINE_ALL(f32, float, float)
COMBINE_ALL(f64, double, double)

/* By ncclRedOp_t and ncclDataType_t. */
enum { OPERATIONS = 4, TYPES = 10 };
typedef void combine(char *to, const char *left, const char *right, uint64_t n);
#define ROW(name) {name##_sum, name##_prod, name##_max, name##_min}
static combine *const combiners[TYPES][OPERATIONS] = {[0] = ROW(i8),  [1] = ROW(u8),  [2] = ROW(i32), [3] = ROW(u32),
                                                      [4] = ROW(i64), [5] = ROW(u64), [7] = ROW(f32), [8] = ROW(f64)};

static psm_status check(const struct psmPlanOpInfo *op, int rank)
{
    if (op->func == PSM_PLAN_BROADCAST || op->func == PSM_PLAN_ALLGATHER) return PSM_OK;
    if (op->datatype >= 0 && op->datatype < TYPES && op->redop >= 0 && op->redop < OPERATIONS &&
        combiners[op->datatype][op->redop])
        return PSM_OK;
    return psm_fail(PSM_ERR_UNSUPPORTED, "plan", rank, -1, 0,
                    "reduction %d of data type %d: rings on the host support sum, product, maximum and minimum of "
                    "integers, float32 and float64",
                    op->redop, op->datatype);
}

/* ---- steps ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int modulo(int value, int n)
{
    value %= n;
    return value < 0 ? value + n : value;
}

/* Of the task's buffers: element `i`. */
static const char *send_at(const struct ring *ring, uint64_t i)
{
    return (const char *)ring->op.sendbuff + i * ring->bytes;
}
static char *recv_at(const struct ring *ring, uint64_t i)
{
    return (char *)ring->op.recvbuff + i * ring->bytes;
}

static void sends(struct ring *ring, const char *from, uint64_t n)
{
    ring->step.send = from;
    ring->step.nsend = n * ring->bytes;
    ring->step.sends = true;
}
static void recvs(struct ring *ring, char *to, uint64_t n)
{
    ring->step.recv = to;
    ring->step.nrecv = n * ring->bytes;
    ring->step.recvs = true;
}
static void combines(struct ring *ring, char *to, const char *left, const char *right, uint64_t n)
{
    ring->step.to = to;
    ring->step.from = left;
    ring->step.with = right;
    ring->step.n = n;
}
static void copies(struct ring *ring, char *to, const char *from, uint64_t n)
{
    combines(ring, to, from, NULL, to == from ? 0 : n);
}

static char *scratch_of(const struct ring *ring, uint64_t side)
{
    return ring->run->engine->rings[ring->op.channel].scratch[side & 1];
}

/* If the steps of the current round are done, moves on to the next part of the data, if there is more. */
static bool turn(struct ring *ring, uint64_t steps, uint64_t n)
{
    if (ring->number < steps) return true;
    ring->number = 0;
    ring->at += n;
    return ring->at < ring->part;
}

/* Reduce-scatter and all-gather over n slices of up to n chunks. */
static bool all_reduce(struct ring *ring, int rank, int n)
{
    uint64_t all = least(ring->part - ring->at, (uint64_t)n * ring->chunk), k = (uint64_t)n - 1;
    if (!turn(ring, 2 * k, all)) return false;
    all = least(ring->part - ring->at, (uint64_t)n * ring->chunk);
    uint64_t slice = (all + (uint64_t)n - 1) / (uint64_t)n, base = ring->first + ring->at;
    bool gathers = ring->number >= k;
    int step = (int)(gathers ? ring->number - k : ring->number), from = gathers ? rank + 1 : rank;
    uint64_t out = (uint64_t)modulo(from - step, n) * slice, in = (uint64_t)modulo(from - step - 1, n) * slice;
    uint64_t nout = out < all ? least(slice, all - out) : 0, nin = in < all ? least(slice, all - in) : 0;
    const char *own = ring->number == 0 ? send_at(ring, base + out) : recv_at(ring, base + out);
    sends(ring, own, nout);
    if (gathers) {
        recvs(ring, recv_at(ring, base + in), nin);
    } else {
        recvs(ring, scratch_of(ring, 0), nin);
        combines(ring, recv_at(ring, base + in), scratch_of(ring, 0), send_at(ring, base + in), nin);
    }
    return true;
}

static bool all_gather(struct ring *ring, int rank, int n)
{
    if (!turn(ring, (uint64_t)n - 1, least(ring->part - ring->at, ring->chunk))) return false;
    uint64_t elements = least(ring->part - ring->at, ring->chunk), base = ring->first + ring->at;
    int step = (int)ring->number;
    uint64_t out = (uint64_t)modulo(rank - step, n) * ring->count,
             in = (uint64_t)modulo(rank - step - 1, n) * ring->count;
    sends(ring, step == 0 ? send_at(ring, base) : recv_at(ring, out + base), elements);
    recvs(ring, recv_at(ring, in + base), elements);
    if (step == 0) copies(ring, recv_at(ring, out + base), send_at(ring, base), elements);
    return true;
}

static bool reduce_scatter(struct ring *ring, int rank, int n)
{
    if (!turn(ring, (uint64_t)n - 1, least(ring->part - ring->at, ring->chunk))) return false;
    uint64_t elements = least(ring->part - ring->at, ring->chunk), base = ring->first + ring->at, k = ring->number;
    uint64_t out = (uint64_t)modulo(rank - 1 - (int)k, n) * ring->count;
    uint64_t in = (uint64_t)modulo(rank - 2 - (int)k, n) * ring->count;
    char *here = scratch_of(ring, k);
    sends(ring, k == 0 ? send_at(ring, out + base) : scratch_of(ring, k - 1), elements);
    recvs(ring, here, elements);
    combines(ring, k + 2 == (uint64_t)n ? recv_at(ring, base) : here, here, send_at(ring, in + base), elements);
    return true;
}

/* Broadcast and reduce are chains: a rank sends one chunk while it receives the next one. */
static bool chain(struct ring *ring, bool receives, bool passes_on, uint64_t *in, uint64_t *out)
{
    uint64_t chunks = ring->part ? (ring->part + ring->chunk - 1) / ring->chunk : 1, k = ring->number;
    uint64_t lag = receives && passes_on;
    if (k >= chunks + lag) return false;
    *in = receives && k < chunks ? k : UINT64_MAX;
    *out = passes_on && k >= lag ? k - lag : UINT64_MAX;
    return true;
}

static uint64_t chunk_of(const struct ring *ring, uint64_t k, uint64_t *elements)
{
    *elements = least(ring->part - k * ring->chunk, ring->chunk);
    return ring->first + k * ring->chunk;
}

static bool broadcast(struct ring *ring, int rank, int n)
{
    int root = ring->op.peer;
    uint64_t in, out, elements, base;
    if (!chain(ring, rank != root, modulo(rank + 1, n) != root, &in, &out)) return false;
    if (in != UINT64_MAX) {
        base = chunk_of(ring, in, &elements);
        recvs(ring, recv_at(ring, base), elements);
    }
    if (out != UINT64_MAX) {
        base = chunk_of(ring, out, &elements);
        sends(ring, rank == root ? send_at(ring, base) : recv_at(ring, base), elements);
        if (rank == root) copies(ring, recv_at(ring, base), send_at(ring, base), elements);
    }
    return true;
}

/* It starts after the root and ends there. */
static bool reduce(struct ring *ring, int rank, int n)
{
    int root = ring->op.peer;
    bool begins = modulo(root + 1, n) == rank;
    uint64_t in, out, elements, base;
    if (!chain(ring, !begins, rank != root, &in, &out)) return false;
    if (in != UINT64_MAX) {
        char *here = scratch_of(ring, in);
        base = chunk_of(ring, in, &elements);
        recvs(ring, here, elements);
        combines(ring, rank == root ? recv_at(ring, base) : here, here, send_at(ring, base), elements);
    }
    if (out != UINT64_MAX) {
        base = chunk_of(ring, out, &elements);
        sends(ring, begins ? send_at(ring, base) : scratch_of(ring, out), elements);
    }
    return true;
}

/* False: no memory. */
static bool next_step(struct ring *ring)
{
    int rank = ring->run->engine->rank, n = ring->run->engine->nranks;
    ring->step = (struct step){0};
    switch (ring->op.func) {
    case PSM_PLAN_ALLREDUCE:
        return all_reduce(ring, rank, n);
    case PSM_PLAN_ALLGATHER:
        return all_gather(ring, rank, n);
    case PSM_PLAN_REDUCESCATTER:
        return reduce_scatter(ring, rank, n);
    case PSM_PLAN_REDUCE:
        return reduce(ring, rank, n);
    default:
        return broadcast(ring, rank, n);
    }
}

static void finish_step(struct ring *ring)
{
    const struct step *step = &ring->step;
    if (step->n > 0) {
        if (step->with)
            combiners[ring->op.datatype][ring->op.redop](step->to, step->from, step->with, step->n);
        else
            memmove(step->to, step->from, step->n * ring->bytes);
    }
    ring->number++;
}

/* ---- the chain ---- */

static void ended(void *cookie, psm_status status);

static void fail(struct ring *ring, psm_status status)
{
    int none = PSM_OK;
    atomic_compare_exchange_strong(&ring->failed, &none, (int)status);
}

static void save(struct ring *ring, int send)
{
    struct engine *engine = ring->run->engine;
    int peer = modulo(engine->rank + (send ? 1 : -1), engine->nranks);
    struct psmProxyOp op = {.opCount = ring->op.opCount,
                            .nbytes = send ? ring->step.nsend : ring->step.nrecv,
                            .sendbuff = ring->step.send,
                            .recvbuff = ring->step.recv,
                            .peer = peer,
                            .channel = ring->op.channel,
                            .ready = ring->begun ? NULL : &ring->run->gate,
                            .ended = ended,
                            .cookie = ring};
    op.connection = psm_engine_connection(engine, ring->op.channel, peer, send, 0);
    atomic_fetch_add(&ring->left, 1);
    psm_status status = op.connection ? psmProxySaveOp(engine->state, &op) : PSM_ERR_NOT_FOUND;
    if (status == PSM_OK) return;
    fail(ring, status);
    atomic_fetch_sub(&ring->left, 1);
}

/* Drops one reference of the step. True: it was the last, and the step has ended. */
static bool drop(struct ring *ring)
{
    return atomic_fetch_sub(&ring->left, 1) == 1;
}

/* Runs the first ring of its channel until a step waits for its operations. */
static void go_on(struct ring *ring, bool step_ended)
{
    struct engine *engine = ring->run->engine;
    while (ring) {
        if (step_ended && atomic_load(&ring->failed) == PSM_OK) finish_step(ring);
        if (atomic_load(&engine->stopped)) fail(ring, PSM_ERR_ABORTED);
        if (atomic_load(&ring->failed) == PSM_OK && next_step(ring)) {
            atomic_store(&ring->left, 1);
            /* Start with the one that others wait for. */
            if (ring->step.sends) save(ring, 1);
            if (ring->step.recvs) save(ring, 0);
            ring->begun = true;
            psmProxyStart(engine->state);
            if (!drop(ring)) return;
            step_ended = true;
            continue;
        }
        psm_status status = (psm_status)atomic_load(&ring->failed);
        if (status < 0) atomic_store(&engine->stopped, 1);
        if (status < 0 && status != PSM_ERR_ABORTED)
            psmProxyFail(engine->state, status, NULL); /* the reason, if it is the first */
        pthread_mutex_lock(&engine->lock);
        struct ring_channel *channel = &engine->rings[ring->op.channel];
        struct ring *next = channel->first = ring->next;
        if (!next) channel->last = NULL;
        pthread_mutex_unlock(&engine->lock);
        psm_engine_run_ended(ring->run, ring->cookie, status);
        free(ring);
        ring = next;
        step_ended = false;
    }
}

static void ended(void *cookie, psm_status status)
{
    struct ring *ring = cookie;
    struct engine *engine = ring->run->engine;
    if (status < 0) fail(ring, status);
    if (!drop(ring)) return;
    atomic_fetch_add(&engine->inside, 1);
    go_on(ring, true);
    atomic_fetch_sub(&engine->inside, 1);
}

/* Bytes of a rank's block; a channel handles a part of it. */
static uint64_t block_of(const psmPlan *plan, const struct psmPlanOpInfo *op)
{
    for (const struct plan_task *task = plan->tasks.head; task; task = task->next)
        if (task->number == op->task) return task->task.count * psm_plan_type_size(task->task.datatype);
    return op->nbytes;
}

psm_status psm_ring_save(struct engine_run *run, const struct psmPlanOpInfo *op, void *cookie)
{
    struct engine *engine = run->engine;
    struct ring_channel *channel = &engine->rings[op->channel];
    if (!channel->scratch[0])
        return psm_fail(PSM_ERR_NOT_FOUND, "plan", engine->rank, -1, 0,
                        "channel %d has no ring: connect channels 0 to n for collectives before you create the engine",
                        op->channel);
    PSM_TRY(check(op, engine->rank));
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring) return psm_fail(PSM_ERR_NO_MEMORY, "plan", engine->rank, -1, 0, "no memory for a collective");
    ring->run = run;
    ring->cookie = cookie;
    ring->op = *op;
    ring->bytes = (uint32_t)psm_plan_type_size(op->datatype);
    ring->chunk = RING_CHUNK / ring->bytes;
    ring->count = block_of(run->plan, op) / ring->bytes;
    ring->first = op->offset / ring->bytes;
    ring->part = op->nbytes / ring->bytes;
    atomic_fetch_add(&run->refs, 1);
    pthread_mutex_lock(&engine->lock);
    bool first = !channel->first;
    *(first ? &channel->first : &channel->last->next) = ring;
    channel->last = ring;
    pthread_mutex_unlock(&engine->lock);
    if (first) go_on(ring, false);
    return PSM_OK;
}
