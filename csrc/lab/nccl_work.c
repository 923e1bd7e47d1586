/* One case: a communicator, buffers, groups of sends and recvs or collectives, a look at every byte, the end. Nothing
 * of the lab stands between the ranks but at the beginning and at the end: they meet in NCCL, as an application's do. A
 * rank that has failed aborts its communicator and ends, as an application with an uncaught exception does. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fault.h"
#include "nccl_run.h"
#include "psm_abi_versions.h"

PSM_FAULT_SITE_OF(site_stage, "lab.stage", "a rank of the lab enters a stage: op is init, buffers, setup, move, end",
                  PSM_FAULT_CAN_CALL);
PSM_FAULT_SITE_OF(site_iteration, "lab.iteration", "a rank of the lab begins an iteration: nth=1 is the first",
                  PSM_FAULT_CAN_CALL);
PSM_FAULT_SITE_OF(site_data, "lab.data", "a rank of the lab has written what it will send: op is the stage",
                  PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

enum { ALIGN = 512, NOT_READY = 600 };

bool nccl_fail(struct nccl_work *run, const char *by, const char *status, const char *format, ...)
{
    if (run->failed) return false; /* the first thing counts */
    run->failed = true;
    va_list rest;
    va_start(rest, format);
    vsnprintf(run->result->text, sizeof run->result->text, format, rest);
    va_end(rest);
    snprintf(run->result->status, sizeof run->result->status, "%s", status);
    snprintf(run->result->o.by, sizeof run->result->o.by, "%s", by);
    nccl_trouble(run->result); /* now: what follows may not come to an end */
    return false;
}

static const char *result_name(ncclResult_t code)
{
    static const char *const names[] = {PSM_ABI_RESULT_NAMES};
    static _Thread_local char other[32];
    if (code >= 0 && (size_t)code < sizeof names / sizeof *names) return names[code];
    snprintf(other, sizeof other, "ncclResult_t %d", code);
    return other;
}

static bool nccl_failed(struct nccl_work *run, ncclResult_t code, const char *what)
{
    const char *last = run->api->ncclGetLastError ? run->api->ncclGetLastError(run->comm) : NULL;
    return nccl_fail(run, "nccl", result_name(code), "%s: %s (%s)%s%.300s", what, result_name(code),
                     run->api->ncclGetErrorString(code), last && *last ? "; last error: " : "", last ? last : "");
}

/* Waits while a communicator that does not block says so. */
bool nccl_settle(struct nccl_work *run, ncclResult_t code, const char *what)
{
    while (code == NCCL_IN_PROGRESS) {
        struct timespec moment = {0, 200000};
        nanosleep(&moment, NULL);
        ncclResult_t rc = run->api->ncclCommGetAsyncError(run->comm, &code);
        if (rc != NCCL_SUCCESS) code = rc;
    }
    return code == NCCL_SUCCESS || nccl_failed(run, code, what);
}

bool nccl_cuda_ok(struct nccl_work *run, cudaError_t code, const char *call)
{
    return code == 0 || nccl_fail(run, "cuda", run->api->cudaGetErrorName(code), "the rank's own %s returned %s", call,
                                  run->api->cudaGetErrorName(code));
}

static void strike(struct nccl_work *run, struct psm_site *site, const char *op)
{
    struct psm_fault fault;
    if (!psm_fault_hit(site, &(struct psm_fault_args){.rank = run->rank, .peer = -1, .op = op}, &fault)) return;
    psm_fault_act_before(&fault);
    if (fault.action == PSM_FAULT_ERROR) {
        nccl_fail(run, "lab", "exit", "a fault asked for the end of this process, status %d", (int)fault.value);
        nccl_report(run->result);
        _Exit((int)fault.value); /* without a word to NCCL */
    }
    psm_fault_act_after(&fault);
}

static void enter(struct nccl_work *run, const char *stage)
{
    if (!run->failed) snprintf(run->result->o.stage, sizeof run->result->o.stage, "%s", stage);
    lab_stage(stage);
    strike(run, &site_stage, stage);
}

/* ---- stages ---- */

static bool make_communicator(struct nccl_work *run, ncclUniqueId id)
{
    enum { OLDEST = 21400, POLICIES = 22700 }; /* with a config, with a policy in it */
    const struct nccl_case *c = run->c;
    bool policy = c->policy != POLICY_DEFAULT;
    if (c->blocking && !policy) return NCCL(ncclCommInitRank, &run->comm, run->ranks, id, run->rank);
    if (!run->api->ncclCommInitRankConfig || (policy && run->api->version < POLICIES))
        return nccl_fail(run, "lab", "too old", "this release has no %s",
                         policy ? "CTA policy" : "ncclCommInitRankConfig");
    struct nccl_config config = {.size = policy ? sizeof config : offsetof(struct nccl_config, fewest),
                                 .magic = NCCL_CONFIG_MAGIC,
                                 .version = policy ? POLICIES : OLDEST,
                                 .blocking = c->blocking,
                                 .cluster = NCCL_UNDEFINED,
                                 .fewest = NCCL_UNDEFINED,
                                 .most = NCCL_UNDEFINED,
                                 .split_share = NCCL_UNDEFINED,
                                 .traffic_class = NCCL_UNDEFINED,
                                 .collnet = NCCL_UNDEFINED,
                                 .policy = (int)c->policy,
                                 .shrink_share = NCCL_UNDEFINED,
                                 .nvls = NCCL_UNDEFINED};
    return NCCL(ncclCommInitRankConfig, &run->comm, run->ranks, id, run->rank, &config);
}

/* A communicator that the case before left for this one. */
static ncclComm_t kept;

static bool begin(struct nccl_work *run)
{
    const struct nccl_api *api = run->api;
    if (kept) {
        run->comm = kept;
        kept = NULL;
        return true;
    }
    ncclUniqueId *ids = calloc((unsigned)run->ranks, sizeof *ids), id;
    bool *present = calloc((unsigned)run->ranks, sizeof *present);
    int devices = 0;
    bool mine = run->rank == 0 && NCCL(ncclGetUniqueId, &id);
    lab_gather("id", mine ? &id : NULL, sizeof id, ids, present);
    if (present[0])
        id = ids[0];
    else
        nccl_fail(run, "lab", "no unique id", "rank 0 sent no ncclUniqueId");
    free(ids);
    free(present);
    if (run->failed || !CUDA(cudaGetDeviceCount, &devices)) return false;
    if (run->c->task.device >= (uint64_t)devices)
        return nccl_fail(run, "lab", "no device", "the case needs device %llu, and there are %d",
                         (unsigned long long)run->c->task.device, devices);
    if (!CUDA(cudaSetDevice, (int)run->c->task.device)) return false;
    return make_communicator(run, id);
}

static bool allocate(struct nccl_work *run, uint8_t **memory, uint64_t bytes)
{
    if (run->c->memory == MEMORY_CUDA) return CUDA(cudaMalloc, (void **)memory, bytes + GUARD);
    if (!run->api->ncclMemAlloc) return nccl_fail(run, "lab", "too old", "there is no ncclMemAlloc");
    return NCCL(ncclMemAlloc, (void **)memory, bytes + GUARD);
}

static bool get_windows(struct nccl_work *run)
{
    if (!run->api->ncclCommWindowRegister || !run->api->ncclCommWindowDeregister)
        return nccl_fail(run, "lab", "too old", "there is no ncclCommWindowRegister");
    return NCCL(ncclCommWindowRegister, run->comm, run->out, run->out_bytes + GUARD, &run->out_window,
                NCCL_WINDOW_SYMMETRIC) &&
           NCCL(ncclCommWindowRegister, run->comm, run->in, run->in_bytes + GUARD, &run->in_window,
                NCCL_WINDOW_SYMMETRIC);
}

static bool get_buffers(struct nccl_work *run)
{
    const struct nccl_case *c = run->c;
    uint64_t n = (uint64_t)run->ranks;
    run->stride = (c->task.size + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    switch (c->task.pattern) {
    case PATTERN_ALLREDUCE:
    case PATTERN_BROADCAST:
    case PATTERN_REDUCE:
        run->out_bytes = run->in_bytes = c->task.size;
        break;
    case PATTERN_ALLGATHER:
    case PATTERN_GATHER: /* windows have one size on all ranks, so that others than the root have it, too */
        run->out_bytes = c->task.size;
        run->in_bytes = c->task.size * n;
        break;
    case PATTERN_REDUCESCATTER:
    case PATTERN_SCATTER:
        run->out_bytes = c->task.size * n;
        run->in_bytes = c->task.size;
        break;
    case PATTERN_ALLTOALL_COLL:
        run->out_bytes = run->in_bytes = c->task.size * n;
        break;
    case PATTERN_TASKS:
        run->out_bytes = c->tasks.bytes[1] + ALIGN; /* a file may have no data of this rank */
        run->in_bytes = c->tasks.bytes[0] + ALIGN;
        break;
    default:
        run->out_bytes = run->in_bytes = run->stride * n;
    }
    unsigned flags = c->task.stream == STREAM_NONBLOCKING ? cudaStreamNonBlocking : cudaStreamDefault;
    cudaStream_t stream = NULL; /* a runtime that fails leaves a number that is no stream here */
    if (c->task.stream != STREAM_LEGACY && !CUDA(cudaStreamCreateWithFlags, &stream, flags)) return false;
    run->stream = stream;
    if (!nccl_tasks_streams(run, flags)) return false;
    run->piece = malloc(PIECE + 8);
    run->meant = malloc(PIECE + 8);
    if (!run->piece || !run->meant) return nccl_fail(run, "lab", "no memory", "no memory for data");
    if (!allocate(run, &run->out, run->out_bytes) || !allocate(run, &run->in, run->in_bytes)) return false;
    if (c->windows && !get_windows(run)) return false;
    if (!c->task.registered) return true;
    if (!run->api->ncclCommRegister) return nccl_fail(run, "lab", "too old", "there is no ncclCommRegister");
    return NCCL(ncclCommRegister, run->comm, run->out, run->out_bytes + GUARD, &run->out_handle) &&
           NCCL(ncclCommRegister, run->comm, run->in, run->in_bytes + GUARD, &run->in_handle);
}

static void fill(struct nccl_work *run, uint8_t *out, uint64_t n, uint64_t at, int from, int to, uint64_t iter)
{
    switch (run->c->task.pattern) {
    case PATTERN_ALLREDUCE:
    case PATTERN_REDUCE:
    case PATTERN_REDUCESCATTER:
        nccl_fill_part(out, n, at, run->c, from, run->ranks, iter);
        break;
    case PATTERN_TASKS:
        nccl_tasks_fill(run, out, n, at, iter);
        break;
    case PATTERN_ALLGATHER:
    case PATTERN_BROADCAST:
        to = 0;
        __attribute__((fallthrough));
    default:
        lab_fill(out, n, at, run->c->task.seed, from, to, iter);
    }
}

bool nccl_write_out(struct nccl_work *run, uint8_t *to_memory, uint64_t bytes, int to, uint64_t iter)
{
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        fill(run, run->piece, n, at, run->rank, to, iter);
        struct psm_fault_args args = {.rank = run->rank, .peer = to, .op = run->result->o.stage};
        struct psm_fault fault;
        if (psm_fault_hit(&site_data, &args, &fault)) run->piece[n / 2] ^= 0x40;
        if (!CUDA(cudaMemcpy, to_memory + at, run->piece, n, cudaMemcpyHostToDevice)) return false;
    }
    return true;
}

static bool prepare(struct nccl_work *run, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    switch (c->task.pattern) {
    case PATTERN_ALLREDUCE:
    case PATTERN_ALLGATHER:
    case PATTERN_REDUCESCATTER:
    case PATTERN_BROADCAST:
    case PATTERN_REDUCE:
        if (!nccl_write_out(run, run->out, run->out_bytes, -1, iter)) return false;
        break;
    case PATTERN_GATHER:
        if (!nccl_write_out(run, run->out, run->out_bytes, (int)c->root, iter)) return false;
        break;
    case PATTERN_ALLTOALL_COLL:
    case PATTERN_SCATTER:
        for (int r = 0; r < run->ranks && (c->task.pattern != PATTERN_SCATTER || run->rank == (int)c->root); r++)
            if (!nccl_write_out(run, run->out + (uint64_t)r * c->task.size, c->task.size, r, iter)) return false;
        break;
    case PATTERN_TASKS:
        if (!nccl_tasks_write(run, iter)) return false;
        break;
    default:
        for (int r = 0; r < run->ranks; r++)
            if (lab_sends(&c->task, run->rank, r, run->ranks) &&
                !nccl_write_out(run, run->out + (uint64_t)r * run->stride, nccl_message(c, run->rank, r, iter), r,
                                iter))
                return false;
    }
    if (!CUDA(cudaMemset, run->in, UNTOUCHED, run->in_bytes + GUARD)) return false;
    /* cudaMemset does not wait, and a non-blocking stream does not wait for it. */
    return CUDA(cudaStreamSynchronize, NULL);
}

/* Of all streams: the first error, else whether one has work. */
static cudaError_t query(const struct nccl_work *run)
{
    cudaError_t code = run->api->cudaStreamQuery(run->stream);
    for (unsigned i = 0; run->streams && i < run->c->tasks.streams && (code == 0 || code == NOT_READY); i++) {
        cudaError_t one = run->api->cudaStreamQuery(run->streams[i]);
        if (one != 0) code = one;
    }
    return code;
}

static bool all_well(struct nccl_work *run)
{
    for (size_t i = 0; i <= run->c->tasks.n_members; i++) {
        ncclComm_t comm = i ? nccl_tasks_comm(run, i - 1) : run->comm;
        if (!comm) continue;
        ncclResult_t state = NCCL_SUCCESS, rc = run->api->ncclCommGetAsyncError(comm, &state);
        if (rc != NCCL_SUCCESS) return nccl_failed(run, rc, "ncclCommGetAsyncError");
        if (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS)
            return nccl_failed(run, state, "the communicator's asynchronous error");
    }
    return true;
}

/* As applications wait: until the streams are done, or a communicator says that they will not be. */
static bool wait_for_it(struct nccl_work *run)
{
    for (unsigned round = 0;; round++) {
        cudaError_t code = query(run);
        if (code != NOT_READY) return nccl_cuda_ok(run, code, "cudaStreamQuery");
        if (!all_well(run)) return false;
        struct timespec moment = {0, round < 100 ? 50000 : 1000000};
        nanosleep(&moment, NULL);
    }
}

/* ---- a look at every byte ---- */

static void meant(struct nccl_work *run, uint64_t n, uint64_t at, int from, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    if (c->task.pattern == PATTERN_TASKS)
        nccl_tasks_meant(run, n, at, iter);
    else if (c->task.pattern == PATTERN_REDUCESCATTER)
        nccl_fill_result(run->meant, n, (uint64_t)run->rank * c->task.size + at, c, run->ranks, iter);
    else if (c->task.pattern == PATTERN_ALLREDUCE || c->task.pattern == PATTERN_REDUCE)
        nccl_fill_result(run->meant, n, at, c, run->ranks, iter);
    else
        fill(run, run->meant, n, at, from, run->rank, iter);
}

/* [memory, memory + bytes) is what came from `from`, what follows up to `all` is untouched. */
bool nccl_compare(struct nccl_work *run, const uint8_t *memory, uint64_t bytes, uint64_t all, int from, uint64_t iter)
{
    for (uint64_t at = 0; at < all; at += PIECE) {
        uint64_t n = all - at < PIECE ? all - at : PIECE, data = bytes <= at ? 0 : bytes - at < n ? bytes - at : n;
        if (!CUDA(cudaMemcpy, run->piece, memory + at, n, cudaMemcpyDeviceToHost)) return false;
        meant(run, data, at, from, iter);
        lab_compare(&run->result->o.check, run->piece, run->meant, n, data, from, iter, at);
    }
    run->result->o.check.bytes += bytes;
    return true;
}

static bool compare_all(struct nccl_work *run, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    uint64_t end = run->in_bytes + GUARD;
    switch (c->task.pattern) {
    case PATTERN_ALLREDUCE:
    case PATTERN_REDUCESCATTER:
        return nccl_compare(run, run->in, c->task.size, end, -1, iter);
    case PATTERN_REDUCE:
        return nccl_compare(run, run->in, run->rank == (int)c->root ? c->task.size : 0, end, -1, iter);
    case PATTERN_BROADCAST:
    case PATTERN_SCATTER:
        return nccl_compare(run, run->in, c->task.size, end, (int)c->root, iter);
    case PATTERN_GATHER:
        if (run->rank != (int)c->root) return nccl_compare(run, run->in, 0, end, -1, iter);
        __attribute__((fallthrough));
    case PATTERN_ALLGATHER:
    case PATTERN_ALLTOALL_COLL:
        for (int r = 0; r < run->ranks; r++) {
            uint64_t all = c->task.size + (r + 1 == run->ranks ? GUARD : 0);
            if (!nccl_compare(run, run->in + (uint64_t)r * c->task.size, c->task.size, all, r, iter)) return false;
        }
        return true;
    case PATTERN_TASKS:
        return nccl_tasks_compare(run, iter);
    default:
        for (int r = 0; r < run->ranks; r++) {
            bool came = lab_sends(&c->task, r, run->rank, run->ranks);
            uint64_t bytes = came ? nccl_message(c, r, run->rank, iter) : 0;
            if (!nccl_compare(run, run->in + (uint64_t)r * run->stride, bytes, run->stride, r, iter)) return false;
        }
        return true;
    }
}

static bool leaves_out(const struct nccl_work *run, uint64_t iter)
{
    return run->c->task.skip != SKIP_NONE && iter + 1 == run->c->task.iters;
}

/* One launch of the call, or of its graph; `data` is the number of the data. */
static bool move_data(struct nccl_work *run, uint64_t iter, cudaGraphExec_t graph, uint64_t data)
{
    if (!prepare(run, data)) return false;
    double begun = lab_now();
    bool launched = graph ? CUDA(cudaGraphLaunch, graph, run->stream) : nccl_launch(run, iter);
    if (!launched || !wait_for_it(run)) return false;
    *(data == 0 ? &run->result->o.setup_seconds : &run->result->o.move_seconds) += lab_now() - begun;
    run->result->o.groups += run->c->task.pattern != PATTERN_TASKS || graph; /* `tasks` counts its calls */
    /* Who has left something out has nothing to compare. */
    return leaves_out(run, iter) || compare_all(run, data);
}

static bool once(struct nccl_work *run, uint64_t iter)
{
    const struct nccl_case *c = run->c;
    cudaGraphExec_t graph;
    strike(run, &site_iteration, run->result->o.stage);
    if (!c->graph || leaves_out(run, iter)) return move_data(run, iter, NULL, iter);
    if (!nccl_capture(run, iter, &graph)) return false;
    for (uint64_t i = 0; i < c->graph; i++)
        if (!move_data(run, iter, graph, iter * c->graph + i)) return false; /* it may still run */
    return CUDA(cudaGraphExecDestroy, graph);
}

static bool move_all(struct nccl_work *run)
{
    /* What is not waited for in between, has no set-up of its own. */
    bool whole = run->c->task.pattern == PATTERN_TASKS && run->c->tasks.iterations == 1;
    if (whole) enter(run, "move");
    for (uint64_t iter = 0; iter < run->c->task.iters; iter++) {
        if (iter == 1) enter(run, "move");
        if (!once(run, iter)) return false;
    }
    char text[200];
    if (run->result->o.check.wrong == 0) return true;
    lab_wrong(&run->result->o.check, text, sizeof text);
    return nccl_fail(run, "data", "wrong data", "%s", text);
}

static void give_back(struct nccl_work *run)
{
    const struct nccl_api *api = run->api;
    if (run->out_handle) NCCL(ncclCommDeregister, run->comm, run->out_handle);
    if (run->in_handle) NCCL(ncclCommDeregister, run->comm, run->in_handle);
    if (run->out_window) NCCL(ncclCommWindowDeregister, run->comm, run->out_window);
    if (run->in_window) NCCL(ncclCommWindowDeregister, run->comm, run->in_window);
    for (size_t i = run->c->tasks.n_members; i-- > 0 && !run->failed;)
        if (nccl_tasks_comm(run, i) && NCCL(ncclCommDestroy, run->comms[i])) run->comms[i] = NULL;
    if (run->c->keep && !run->failed) {
        kept = run->comm;
    } else {
        if (!run->c->blocking && api->ncclCommFinalize) NCCL(ncclCommFinalize, run->comm);
        if (!run->failed && NCCL(ncclCommDestroy, run->comm)) run->comm = NULL;
    }
}

static void free_memory(struct nccl_work *run)
{
    uint8_t *const memory[] = {run->out, run->in};
    for (int i = 0; i < 2; i++)
        if (memory[i] && run->c->memory == MEMORY_CUDA)
            CUDA(cudaFree, memory[i]);
        else if (memory[i])
            NCCL(ncclMemFree, memory[i]);
    if (run->stream) CUDA(cudaStreamDestroy, run->stream);
    for (unsigned i = 0; run->streams && i < run->c->tasks.streams; i++)
        if (run->streams[i]) CUDA(cudaStreamDestroy, run->streams[i]);
}

void nccl_run(const struct nccl_api *api, const struct nccl_case *c, int rank, int ranks, struct nccl_outcome *outcome)
{
    struct nccl_work all = {.api = api, .c = c, .result = outcome, .rank = rank, .ranks = ranks}, *run = &all;
    double begun = lab_now();
    *outcome = (struct nccl_outcome){.o = {.task = &c->task, .rank = rank, .check.from = -1}, .status = "PSM_OK"};
    enter(run, "init");
    if (begin(run) && nccl_tasks_begin(run)) {
        enter(run, "buffers");
        if (get_buffers(run)) {
            enter(run, "setup");
            move_all(run);
        }
    }
    /* Who has failed goes, and does not keep the others waiting. */
    if (!run->failed) {
        int others = lab_meet("moved", false);
        if (others > 0)
            nccl_fail(run, "lab", "others failed", "%d other rank%s failed or died before the end", others,
                      others == 1 ? "" : "s");
    }
    if (!run->failed) {
        enter(run, "end");
        give_back(run);
    }
    if (run->failed && run->comm) {
        lab_stage("abort");
        for (size_t i = c->tasks.n_members; i-- > 0;)
            if (nccl_tasks_comm(run, i)) (void)api->ncclCommAbort(run->comms[i]);
        (void)api->ncclCommAbort(run->comm);
    }
    /* To free memory is to wait for the work that uses it. */
    outcome->stuck = run->failed && query(run) == NOT_READY;
    if (!outcome->stuck) free_memory(run);
    free(run->comms);
    free(run->streams);
    free(run->piece);
    free(run->meant);
    outcome->o.seconds = lab_now() - begun;
}
