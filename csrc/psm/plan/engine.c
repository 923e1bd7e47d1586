/* The CUDA engine: streams, their order by events, captures. Functions for graphs are looked up when they are used: an
 * old libcuda may lack them. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "plan/engine.h"
#include "proxy/proxy.h"

enum { CUDA_INVALID_VALUE = 1, CAPTURE_IMPLICIT = 906 /* cudaErrorStreamCaptureImplicit */ };

#define CUDA(engine, call) PSM_CUDA((engine)->cuda, "plan", (engine)->rank, -1, call)

/* ---- graphs ---- */

struct engine_graph *psm_engine_graph_find(struct engine *engine, uint64_t id)
{
    struct engine_graph *graph = engine->graphs;
    while (graph && graph->id != id) graph = graph->next;
    return graph;
}

static psm_status graph_seen(struct engine *engine, uint64_t id, cudaGraph_t handle, cudaStream_t origin)
{
    pthread_mutex_lock(&engine->lock);
    struct engine_graph *graph = psm_engine_graph_find(engine, id);
    if (!graph && (graph = calloc(1, sizeof *graph))) {
        *graph = (struct engine_graph){
            .next = engine->graphs, .engine = engine, .id = id, .graph = handle, .origin = origin};
        engine->graphs = graph;
    }
    pthread_mutex_unlock(&engine->lock);
    if (graph) return PSM_OK;
    return psm_fail(PSM_ERR_NO_MEMORY, "plan", engine->rank, -1, 0, "no memory for the state of a graph");
}

static psm_status capturing(void *self, void *stream, uint64_t *out)
{
    struct engine *engine = self;
    const struct psm_cuda *cuda = engine->cuda;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    int code = cuda->cuStreamGetCaptureInfo_v2
                   ? (int)cuda->cuStreamGetCaptureInfo_v2((CUstream)stream, &status, &id, &graph, NULL, NULL)
                   : (int)cuda->cudaStreamIsCapturing((cudaStream_t)stream, &status);
    *out = 0;
    if (code == CAPTURE_IMPLICIT)
        return psm_fail(PSM_ERR_UNSUPPORTED, "plan", engine->rank, -1, 0,
                        "a group on the legacy stream while a blocking stream of this device is being captured into a "
                        "graph: end the capture first, or use a non-blocking stream");
    if (code != 0)
        return psm_cuda_fail(code, "plan", engine->rank, -1, "querying whether stream %p is being captured", stream);
    if (status == cudaStreamCaptureStatusNone) return PSM_OK;
    if (status == cudaStreamCaptureStatusInvalidated)
        return psm_fail(PSM_ERR_INVALID, "plan", engine->rank, -1, 0,
                        "a group on stream %p, whose capture has failed: call cudaStreamEndCapture first", stream);
    if (!cuda->cuStreamGetCaptureInfo_v2 || !cuda->cudaUserObjectCreate || !cuda->cudaUserObjectRelease ||
        !cuda->cudaGraphRetainUserObject)
        return psm_fail(PSM_ERR_UNSUPPORTED, "plan", engine->rank, -1, 0,
                        "a group on stream %p, which is being captured into a graph: this CUDA lacks "
                        "cuStreamGetCaptureInfo_v2 (11.3) or user objects; launch the group outside of the capture",
                        stream);
    PSM_TRY(graph_seen(engine, id, graph, stream));
    *out = id;
    return PSM_OK;
}

/* Runs on a CUDA thread, which must not call CUDA. */
static void destroyed(void *arg)
{
    struct engine_destructor destructor = *(struct engine_destructor *)arg;
    struct engine_graph *graph = destructor.graph;
    free(arg);
    if (!destructor.fn) return;
    struct engine *engine = graph->engine;
    atomic_fetch_add(&engine->inside, 1);
    pthread_mutex_lock(&engine->lock);
    bool last = --graph->destructors == 0;
    struct engine_graph **at = &engine->graphs;
    while (last && *at != graph) at = &(*at)->next;
    if (last) *at = graph->next;
    pthread_mutex_unlock(&engine->lock);
    if (last) {
        while (graph->runs) {
            struct engine_run *run = graph->runs;
            graph->runs = run->next;
            psm_engine_run_drop(run);
        }
        free(graph);
    }
    destructor.fn(destructor.arg);
    atomic_fetch_sub(&engine->inside, 1);
}

static psm_status on_destroy(void *self, uint64_t id, void (*fn)(void *), void *arg)
{
    struct engine *engine = self;
    const struct psm_cuda *cuda = engine->cuda;
    struct engine_destructor *destructor = malloc(sizeof *destructor);
    if (!destructor)
        return psm_fail(PSM_ERR_NO_MEMORY, "plan", engine->rank, -1, 0, "no memory for the destructor of a graph");
    pthread_mutex_lock(&engine->lock);
    struct engine_graph *graph = psm_engine_graph_find(engine, id);
    if (graph) graph->destructors++;
    pthread_mutex_unlock(&engine->lock);
    *destructor = (struct engine_destructor){graph, fn, arg};
    cudaUserObject_t object;
    int code = !graph
                   ? CUDA_INVALID_VALUE
                   : (int)cuda->cudaUserObjectCreate(&object, destructor, destroyed, 1, cudaUserObjectNoDestructorSync);
    bool made = code == 0;
    if (made) code = (int)cuda->cudaGraphRetainUserObject(graph->graph, object, 1, cudaGraphUserObjectMove);
    if (code == 0) return PSM_OK;
    destructor->fn = NULL;
    pthread_mutex_lock(&engine->lock);
    if (graph) graph->destructors--;
    pthread_mutex_unlock(&engine->lock);
    if (made)
        cuda->cudaUserObjectRelease(object, 1); /* frees it */
    else
        free(destructor);
    return psm_cuda_fail(code, "plan", engine->rank, -1, "adding a destructor to graph %" PRIu64, id);
}

/* ---- streams ---- */

static psm_status wait_for(void *self, void *stream, void *on)
{
    struct engine *engine = self;
    if (stream == on) return PSM_OK;
    CUDA(engine, cudaEventRecord(engine->between, (cudaStream_t)on));
    CUDA(engine, cudaStreamWaitEvent((cudaStream_t)stream, engine->between, 0));
    return PSM_OK;
}

/* From now on captured and uncaptured work must wait for each other. */
static psm_status begin_serial(struct engine *engine)
{
    if (engine->captured || !engine->cuda->cudaEventRecordWithFlags) return PSM_OK;
    for (int which = 0; which < 2; which++)
        CUDA(engine, cudaEventRecord(engine->streams[which].serial, engine->streams[which].live));
    engine->captured = true;
    return PSM_OK;
}

static psm_status spare_for(struct engine *engine, uint64_t graph, struct engine_spare **out)
{
    for (struct engine_spare *spare = engine->spares; spare; spare = spare->next) {
        enum cudaStreamCaptureStatus status;
        if (spare->graph == graph) continue;
        CUDA(engine, cudaStreamIsCapturing(spare->stream, &status));
        if (status != cudaStreamCaptureStatusNone) continue;
        spare->graph = graph;
        *out = spare;
        return PSM_OK;
    }
    struct engine_spare *spare = calloc(1, sizeof *spare);
    if (!spare) return psm_fail(PSM_ERR_NO_MEMORY, "plan", engine->rank, -1, 0, "no memory for a stream");
    int code = (int)engine->cuda->cudaStreamCreateWithFlags(&spare->stream, cudaStreamNonBlocking);
    if (code != 0) {
        free(spare);
        return psm_cuda_fail(code, "plan", engine->rank, -1, "cudaStreamCreateWithFlags");
    }
    spare->graph = graph;
    spare->next = engine->spares;
    engine->spares = spare;
    *out = spare;
    return PSM_OK;
}

static psm_status acquire_captured(struct engine *engine, int which, uint64_t id, void **stream)
{
    pthread_mutex_lock(&engine->lock);
    struct engine_graph *graph = psm_engine_graph_find(engine, id);
    pthread_mutex_unlock(&engine->lock);
    if (!graph)
        return psm_fail(PSM_ERR_INVALID, "plan", engine->rank, -1, 0, "graph %" PRIu64 " is not known to the engine",
                        id);
    if (!graph->streams[which]) {
        struct engine_spare *spare = NULL;
        PSM_TRY(begin_serial(engine));
        PSM_TRY(spare_for(engine, id, &spare));
        /* A stream joins a capture by waiting for a stream in it. */
        PSM_TRY(wait_for(engine, spare->stream, graph->origin));
        if (engine->captured)
            CUDA(engine, cudaStreamWaitEvent(spare->stream, engine->streams[which].serial, cudaEventWaitExternal));
        graph->streams[which] = spare;
    }
    *stream = graph->streams[which]->stream;
    return PSM_OK;
}

static psm_status acquire(void *self, int which, uint64_t graph, void **stream)
{
    struct engine *engine = self;
    if (which < 0 || which > 1)
        return psm_fail(PSM_ERR_INVALID, "plan", engine->rank, -1, 0, "there is no stream %d", which);
    if (graph) return acquire_captured(engine, which, graph, stream);
    const struct engine_stream *of = &engine->streams[which];
    if (engine->captured) CUDA(engine, cudaStreamWaitEvent(of->live, of->serial, 0));
    *stream = of->live;
    return PSM_OK;
}

static psm_status release(void *self, int which, uint64_t id)
{
    struct engine *engine = self;
    const struct engine_stream *of = &engine->streams[which];
    if (!id) {
        if (engine->captured) CUDA(engine, cudaEventRecord(of->serial, of->live));
        return PSM_OK;
    }
    pthread_mutex_lock(&engine->lock);
    struct engine_graph *graph = psm_engine_graph_find(engine, id);
    pthread_mutex_unlock(&engine->lock);
    if (!graph || !graph->streams[which]) return PSM_OK;
    cudaStream_t stream = graph->streams[which]->stream;
    if (engine->captured) CUDA(engine, cudaEventRecordWithFlags(of->serial, stream, cudaEventRecordExternal));
    return wait_for(engine, graph->origin, stream);
}

static psm_status host_func(void *self, void *stream, void (*fn)(void *), void *arg)
{
    CUDA(psm_engine_of(self), cudaLaunchHostFunc((cudaStream_t)stream, fn, arg));
    return PSM_OK;
}

static psm_status copy(void *self, void *stream, void *to, const void *from, uint64_t nbytes)
{
    if (nbytes > 0 && to != from)
        CUDA(psm_engine_of(self), cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDefault, (cudaStream_t)stream));
    return PSM_OK;
}

/* Persistent work. Its kernels are host functions, so it is stored in host memory. */
static psm_status alloc(void *self, uint64_t graph, uint64_t nbytes, void **memory)
{
    (void)graph;
    *memory = calloc(1, nbytes ? nbytes : 1);
    if (*memory) return PSM_OK;
    return psm_fail(PSM_ERR_NO_MEMORY, "plan", psm_engine_of(self)->rank, -1, 0,
                    "no memory for %" PRIu64 " bytes of persistent work", nbytes);
}
static psm_status give_back(void *self, void *memory)
{
    (void)self;
    free(memory);
    return PSM_OK;
}

/* ---- life ---- */

static void engine_wake(void *self)
{
    struct engine *engine = self;
    psmPlanComm *comm = atomic_load(&engine->comm);
    if (comm && psmPlanAborted(comm) && !psmProxyAborted(engine->state))
        psmProxyAbort(engine->state, "the communicator of its plans was aborted");
    psmProxyWake(engine->state); /* operations may have become ready */
    atomic_fetch_add(&engine->changes, 1);
    if (atomic_load(&engine->sleepers)) psm_futex_wake(&engine->changes);
}

static psm_status make(struct engine *engine)
{
    cudaStream_t stream; /* a runtime that fails leaves numbers that are no handles in these two */
    cudaEvent_t event;
    for (int which = 0; which < 2; which++) {
        CUDA(engine, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        engine->streams[which].live = stream;
        CUDA(engine, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        engine->streams[which].serial = event;
    }
    CUDA(engine, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    engine->between = event;
    size_t channels = 0;
    const struct psmPlanConnectors *c = &engine->connectors;
    int next = (engine->rank + 1) % engine->nranks;
    while (channels < MAXCHANNELS && engine->nranks > 1 && c->find(c->context, (int)channels, next, 1, 0)) channels++;
    if (!channels) return PSM_OK;
    void *scratch;
    CUDA(engine, cudaHostAlloc(&scratch, channels * 2 * RING_CHUNK, 0));
    engine->scratch = scratch;
    for (size_t i = 0; i < channels; i++)
        for (size_t side = 0; side < 2; side++)
            engine->rings[i].scratch[side] = engine->scratch + (2 * i + side) * RING_CHUNK;
    return PSM_OK;
}

psmP2pConnector *psmPlanFindConnector(void *context, int channel, int peer, int send, int connIndex)
{
    const struct psmPlanConnectorTable *table = context;
    if (channel < 0 || channel >= table->nChannels || peer < 0 || peer >= table->nRanks) return NULL;
    return table->connectors[((channel * table->nRanks + peer) * 2 + !!send) * 2 + !!connIndex];
}

psm_status psmPlanCudaEngine(psmProxyState *state, const struct psmPlanConnectors *connectors,
                             const struct psmPlanEngine **out)
{
    if (!state || !connectors || !connectors->find || !out)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "psmPlanCudaEngine: an argument is NULL");
    const struct psm_cuda *cuda = psm_cuda_get();
    if (!cuda) return psm_fail_at("plan", state->rank, -1, 0);
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) return psm_fail(PSM_ERR_NO_MEMORY, "plan", state->rank, -1, 0, "no memory for an engine");
    *engine = (struct engine){.pub = {.size = sizeof engine->pub,
                                      .self = engine,
                                      .capturing = capturing,
                                      .acquire = acquire,
                                      .release = release,
                                      .wait = wait_for,
                                      .host_func = host_func,
                                      .copy = copy,
                                      .kernel = psm_engine_kernel,
                                      .on_destroy = on_destroy,
                                      .alloc = alloc,
                                      .free = give_back,
                                      .save = psm_engine_save,
                                      .start = psm_engine_start,
                                      .pause = psm_engine_pause,
                                      .wake = engine_wake},
                              .state = state,
                              .cuda = cuda,
                              .connectors = *connectors,
                              .rank = state->rank,
                              .nranks = state->nranks,
                              .device = state->device,
                              .spin_us = state->settings.spin_us};
    pthread_mutex_init(&engine->lock, NULL);
    psm_status status = make(engine);
    if (status < 0) {
        struct psm_error kept = *psm_last_error();
        psmPlanCudaEngineFree(&engine->pub);
        return psm_fail_again(&kept);
    }
    *out = &engine->pub;
    return PSM_OK;
}

void psmPlanCudaEngineFree(const struct psmPlanEngine *pub)
{
    if (!pub) return;
    struct engine *engine = pub->self;
    const struct psm_cuda *cuda = engine->cuda;
    /* The thread that ended last may still be returning from this code. */
    while (atomic_load(&engine->inside)) sched_yield();
    while (engine->graphs) { /* of a capture that was discarded */
        struct engine_graph *graph = engine->graphs;
        engine->graphs = graph->next;
        free(graph);
    }
    while (engine->runs) { /* of launches that were aborted, or never happened */
        struct engine_run *run = engine->runs;
        engine->runs = run->after;
        free(run);
    }
    while (engine->spares) {
        struct engine_spare *spare = engine->spares;
        engine->spares = spare->next;
        cuda->cudaStreamDestroy(spare->stream);
        free(spare);
    }
    for (int which = 0; which < 2; which++) {
        if (engine->streams[which].serial) cuda->cudaEventDestroy(engine->streams[which].serial);
        if (engine->streams[which].live) cuda->cudaStreamDestroy(engine->streams[which].live);
    }
    if (engine->between) cuda->cudaEventDestroy(engine->between);
    if (engine->scratch) cuda->cudaFreeHost(engine->scratch);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}
