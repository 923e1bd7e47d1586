/* Internals of the CUDA engine: streams and graphs (engine.c), launches and operations (engine_run.c), rings (coll.c).
 */
#ifndef PSM_PLAN_ENGINE_H
#define PSM_PLAN_ENGINE_H

#include <pthread.h>

#include "plan/plan.h"
#include "psm/psm_plan_cuda.h"
#include "psm_cuda.h"

enum { RING_CHUNK = 128 << 10 }; /* maximum bytes that a step of a ring moves; size of a scratch buffer */

/* A device or host stream: one for uncaptured work, and one more for each running capture. */
struct engine_stream {
    cudaStream_t live;
    /* Recorded after the last work on it, captured or not, so that launches of graphs and other launches keep the order
     * of the calls. Recorded from the first capture on. */
    cudaEvent_t serial;
};

struct engine_graph {
    struct engine_graph *next;
    struct engine *engine;
    uint64_t id;
    cudaGraph_t graph;
    cudaStream_t origin; /* of the capture: what is captured on other streams must join it */
    struct engine_spare *streams[2];
    struct engine_run *runs; /* of its plans */
    uint32_t destructors;
};
struct engine_destructor { /* the last work of a graph: one for each group in it */
    struct engine_graph *graph;
    void (*fn)(void *arg); /* NULL: the graph did not accept it */
    void *arg;
};

struct engine_spare { /* a stream that takes part in a capture, or has done so */
    struct engine_spare *next;
    cudaStream_t stream;
    uint64_t graph;
};

/* The launches of a plan that has a kernel. Held by its kernel (until it has run, or the graph is destroyed) and by
 * each of its posted operations. */
struct engine_run {
    struct engine_run *next;        /* of its graph */
    struct engine_run *after, **at; /* position among all runs of the engine */
    struct engine *engine;
    psmPlan *plan;
    uint64_t graph; /* 0: launched once */
    _Atomic uint32_t refs;
    uint32_t gate;     /* 1: the kernel is running, and its operations may move. Others load it atomically */
    uint32_t expected; /* operations in a launch */
    _Atomic uint32_t ended;
};

struct ring_channel {
    struct ring *first, *last; /* in the order in which kernels run them; only the first one moves */
    char *scratch[2];
};

struct engine {
    struct psmPlanEngine pub; /* first */
    psmProxyState *state;
    const struct psm_cuda *cuda;
    struct psmPlanConnectors connectors;
    int rank, nranks, device;
    uint32_t spin_us;
    /* main thread */
    struct engine_stream streams[2];
    cudaEvent_t between; /* for a wait of one stream for another; reused at once */
    bool captured;       /* something has been captured */
    struct engine_spare *spares;
    char *scratch;
    /* any thread */
    _Atomic(psmPlanComm *) comm; /* whose plans it runs; NULL: none yet */
    _Atomic uint32_t changes;    /* a futex: changes with any wait condition */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t inside;  /* other threads inside the engine */
    _Atomic uint32_t stopped; /* an operation has failed: no more are posted */
    pthread_mutex_t lock;     /* graphs, runs of plans, rings */
    struct engine_graph *graphs;
    struct engine_run *runs;
    struct ring_channel rings[MAXCHANNELS];
};

static inline struct engine *psm_engine_of(void *self)
{
    return self;
}

/* ---- engine.c ---- */

struct engine_graph *psm_engine_graph_find(struct engine *engine, uint64_t id); /* the lock is held */

/* ---- engine_run.c ---- */

psm_status psm_engine_kernel(void *self, void *stream, psmPlan *plan);
psm_status psm_engine_save(void *self, psmPlan *plan, const struct psmPlanOpInfo *op, struct psmSyncCondition *sync,
                           void *cookie);
psm_status psm_engine_start(void *self);
void psm_engine_pause(void *self, int why, psmPlan *plan);
/* The connection of a connector, for psmProxyOp; 0: none, and the failure is recorded. */
uint64_t psm_engine_connection(struct engine *engine, int channel, int peer, int send, int connIndex);
void psm_engine_run_ended(struct engine_run *run, void *cookie,
                          psm_status status); /* one of its operations has ended */
void psm_engine_run_drop(struct engine_run *run);

/* ---- coll.c ---- */

/* Queues it. It moves when earlier ones on the channel have ended and the kernel of its run is running. UNSUPPORTED: a
 * type or a reduction that rings do not support. */
psm_status psm_ring_save(struct engine_run *run, const struct psmPlanOpInfo *op, void *cookie);

#endif
