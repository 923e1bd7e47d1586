/* The calls of an iteration: a group of sends and recvs, puts and signals, or a collective; and their capture. */
#include <stdlib.h>

#include "nccl_run.h"

enum lab_skip nccl_skipped(const struct nccl_work *run, uint64_t iter)
{
    return iter + 1 == run->c->task.iters ? run->c->task.skip : SKIP_NONE;
}

uint64_t nccl_shortened(const struct nccl_case *c, uint64_t bytes)
{
    return bytes - (c->task.shorter < bytes ? c->task.shorter : bytes);
}

static bool send_and_recv(struct nccl_work *run, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    enum lab_skip skip = nccl_skipped(run, iter);
    size_t each = nccl_type_size(c->type);
    if (!NCCL(ncclGroupStart)) return false;
    for (int r = 0; r < run->ranks; r++) {
        uint64_t at = (uint64_t)r * run->stride, bytes = nccl_message(c, run->rank, r, iter);
        if (lab_sends(&c->task, run->rank, r, run->ranks) && !(skip == SKIP_SEND && r != run->rank)) {
            if (r != run->rank) bytes = nccl_shortened(c, bytes);
            if (!NCCL(ncclSend, run->out + at, bytes / each, (ncclDataType_t)c->type, r, run->comm, run->stream))
                return false;
        }
        bytes = nccl_message(c, r, run->rank, iter);
        if (lab_sends(&c->task, r, run->rank, run->ranks) && !(skip == SKIP_RECV && r != run->rank))
            if (!NCCL(ncclRecv, run->in + at, bytes / each, (ncclDataType_t)c->type, r, run->comm, run->stream))
                return false;
    }
    return NCCL(ncclGroupEnd);
}

/* ---- one-sided ---- */

static bool signal_peers(struct nccl_work *run)
{
    if (!NCCL(ncclGroupStart)) return false;
    for (int r = 0; r < run->ranks; r++)
        if (r != run->rank && !NCCL(ncclSignal, r, 0, 0, 0, run->comm, run->stream)) return false;
    return NCCL(ncclGroupEnd);
}

static bool put_to_peers(struct nccl_work *run, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    if (!NCCL(ncclGroupStart)) return false;
    for (int r = 0; r < run->ranks; r++) {
        uint64_t to = (uint64_t)run->rank * run->stride, bytes = nccl_shortened(c, nccl_message(c, run->rank, r, iter));
        if (r != run->rank &&
            !NCCL(ncclPutSignal, run->out + (uint64_t)r * run->stride, bytes / nccl_type_size(c->type),
                  (ncclDataType_t)c->type, r, run->in_window, to, 0, 0, 0, run->comm, run->stream))
            return false;
    }
    return NCCL(ncclGroupEnd);
}

static bool wait_for_peers(struct nccl_work *run)
{
    ncclWaitSignalDesc_t *from = calloc((unsigned)run->ranks, sizeof *from);
    int n = 0;
    for (int r = 0; from && r < run->ranks; r++)
        if (r != run->rank) from[n++] = (ncclWaitSignalDesc_t){.count = 1, .peer = r};
    bool good = from ? n == 0 || NCCL(ncclWaitSignal, n, from, run->comm, run->stream)
                     : nccl_fail(run, "lab", "no memory", "no memory for signals");
    free(from);
    return good;
}

/* A put needs no call of its target, so the ranks signal first that their buffers may be written. */
static bool put_and_signal(struct nccl_work *run, uint64_t iter)
{
    enum lab_skip skip = nccl_skipped(run, iter);
    const struct nccl_api *api = run->api;
    if (!api->ncclPutSignal || !api->ncclSignal || !api->ncclWaitSignal)
        return nccl_fail(run, "lab", "too old", "there is no ncclPutSignal");
    if (!run->in_window)
        return nccl_fail(
            run, "lab", "no window",
            "ncclCommWindowRegister made no window: this communicator has no symmetric memory; over several nodes "
            "NCCL needs an RMA plugin (--rma)");
    return signal_peers(run) && wait_for_peers(run) && (skip == SKIP_SEND || put_to_peers(run, iter)) &&
           (skip == SKIP_RECV || wait_for_peers(run));
}

/* ---- collectives ---- */

static bool collective(struct nccl_work *run)
{
    const struct nccl_case *c = run->c;
    const struct nccl_api *api = run->api;
    size_t count = nccl_shortened(c, c->task.size) / nccl_type_size(c->type);
    /* The library's numbers: sum 0, prod 1, max 2, min 3, avg 4. */
    int type = (int)c->type, op = (int)c->op, root = (int)c->root;
    switch (c->task.pattern) {
    case PATTERN_ALLREDUCE:
        return NCCL(ncclAllReduce, run->out, run->in, count, type, op, run->comm, run->stream);
    case PATTERN_ALLGATHER:
        return NCCL(ncclAllGather, run->out, run->in, count, type, run->comm, run->stream);
    case PATTERN_REDUCESCATTER:
        return NCCL(ncclReduceScatter, run->out, run->in, count, type, op, run->comm, run->stream);
    case PATTERN_BROADCAST:
        return NCCL(ncclBroadcast, run->out, run->in, count, type, root, run->comm, run->stream);
    case PATTERN_REDUCE:
        return NCCL(ncclReduce, run->out, run->in, count, type, op, root, run->comm, run->stream);
    default:
        break;
    }
    if (!api->ncclAlltoAll || !api->ncclGather || !api->ncclScatter)
        return nccl_fail(run, "lab", "too old", "there is no ncclAlltoAll, ncclGather and ncclScatter before 2.28");
    if (c->task.pattern == PATTERN_GATHER)
        return NCCL(ncclGather, run->out, run->in, count, type, root, run->comm, run->stream);
    if (c->task.pattern == PATTERN_SCATTER)
        return NCCL(ncclScatter, run->out, run->in, count, type, root, run->comm, run->stream);
    return NCCL(ncclAlltoAll, run->out, run->in, count, type, run->comm, run->stream);
}

bool nccl_launch(struct nccl_work *run, uint64_t iter)
{
    if (run->c->task.pattern == PATTERN_TASKS) return nccl_tasks_launch(run, iter);
    if (run->c->task.pattern == PATTERN_PUT_SIGNAL) return put_and_signal(run, iter);
    if (run->c->task.pattern < PATTERN_ALLREDUCE) return send_and_recv(run, iter);
    return nccl_skipped(run, iter) != SKIP_NONE || collective(run);
}

/* ---- graphs ---- */

bool nccl_capture(struct nccl_work *run, uint64_t iter, cudaGraphExec_t *exec)
{
    const struct nccl_api *api = run->api;
    cudaGraph_t graph = NULL;
    if (!api->cudaStreamBeginCapture || !api->cudaStreamEndCapture || !api->cudaGraphInstantiateWithFlags ||
        !api->cudaGraphLaunch || !api->cudaGraphExecDestroy || !api->cudaGraphDestroy)
        return nccl_fail(run, "lab", "too old", "the CUDA runtime has no cudaGraphInstantiateWithFlags");
    if (!CUDA(cudaStreamBeginCapture, run->stream, cudaStreamCaptureModeThreadLocal)) return false;
    bool launched = nccl_launch(run, iter);
    cudaError_t code =
        api->cudaStreamEndCapture(run->stream, &graph); /* also of what failed: the stream is free again */
    if (!launched || !nccl_cuda_ok(run, code, "cudaStreamEndCapture")) return false;
    bool made = CUDA(cudaGraphInstantiateWithFlags, exec, graph, 0);
    return CUDA(cudaGraphDestroy, graph) && made;
}
