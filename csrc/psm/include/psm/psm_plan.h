/* Plans: how the tasks of a group are split into kernel plans, how plans are launched over streams and the proxy, and
 * when they are reclaimed. This code depends on neither CUDA nor a proxy: an engine provides both. Engines: the
 * simulator of psmPlanSimulate, and CUDA with libpsm's proxy (psm_plan_cuda.h). */
#ifndef PSM_PLAN_H
#define PSM_PLAN_H

#include "psm_launch.h"
#include "psm_plan_events.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PSM_PLAN_MAXCHANNELS 64

/* NCCL's numbers. */
enum psm_plan_func {
    PSM_PLAN_BROADCAST = 0,
    PSM_PLAN_REDUCE = 1,
    PSM_PLAN_ALLGATHER = 2,
    PSM_PLAN_REDUCESCATTER = 3,
    PSM_PLAN_ALLREDUCE = 4,
    PSM_PLAN_SEND = 6,
    PSM_PLAN_RECV = 7
};

/* A task as the application enqueues it. */
struct psmPlanTask {
    int32_t func;     /* enum psm_plan_func */
    int32_t peer;     /* send, recv: the other rank; broadcast, reduce: the root; else 0 */
    int32_t datatype; /* ncclDataType_t's number: sizes are NCCL's */
    int32_t redop;    /* ncclRedOp_t's number */
    uint64_t count;   /* elements, as in NCCL's call */
    const void *sendbuff;
    void *recvbuff;
};

struct psmPlanConfig {
    uint32_t size;
    int32_t rank, nRanks, nNodes;
    int32_t scheduler;                         /* enum psm_plan_scheduler */
    int32_t nChannels;                         /* of collectives, 1..PSM_PLAN_MAXCHANNELS */
    int32_t p2pnChannels, p2pnChannelsPerPeer; /* powers of two */
    int32_t passSm;                            /* p2p runs without a kernel: copies, driven by the proxy */
    int32_t launchBlocking;  /* as with CUDA_LAUNCH_BLOCKING: proxy ops are posted from the host stream */
    uint32_t workFifoDepth;  /* legacy: slots, a power of two; 0: 65536 */
    uint32_t workFifoBytes;  /* planner: a power of two; 0: 1 MiB */
    uint32_t workArgsBytes;  /* planner: of kernel arguments; 0: 4096 */
    uint32_t p2pChunkSize;   /* bytes; 0: 131072 */
    const char *variant;     /* NULL: coll-first */
    int32_t compCap;         /* compute capability of the GPU, 90 for 9.0: attributes of launches; 0: unknown */
    int32_t cgaClusterSize;  /* blocks of a cluster on 9.0 and later, 0: no clusters; NCCL's default is 4 */
    int32_t release;         /* planner: NCCL's version code, 22907 for 2.29.7: see psmPlanReleases; 0: 2.26.6 */
    int32_t mixEpochs;       /* planner: NCCL_P2P_EPOCH_ENABLE=0, for releases that have it */
    uint32_t p2pLLThreshold; /* planner: NCCL_P2P_LL_THRESHOLD, bytes of a channel; 0: protocol Simple alone */
};

/* What the planner does in a range of NCCL's releases: facts about send and recv, one row for each change. */
struct psmPlanRelease {
    const char *name;     /* of the scheduler: planner-2.29.7 */
    const char *last;     /* the last release that was checked: 2.30.7 */
    int32_t since, until; /* version codes of the first and of the last */
    /* Rounds: each pairs a rank that is sent to with one that is received from. 0: node by node, on each rank by rank,
     * distances 0, 1, 3, 6, ...; 1: groups of ranks so, in a group (one node: all ranks) distances 0, 1, 2, ... */
    int32_t groupedRounds;
    /* 0: a round begins at the channel of its number, parts at its number plus their own with its bits reversed; 1: a
     * round at its number with its bits reversed, parts on adjacent channels. */
    int32_t reversedRounds;
    int32_t roundGroups; /* 1: the rounds of a batch are of one group of 8 */
    int32_t epochs;      /* 1: a batch is of one pass over the rounds, unless mixEpochs is set */
    int32_t carries;     /* where the plan after a cut goes on: 0: at round 0; 1: at the round of the cut */
    int32_t simpleParts; /* channels of a p2p: 0: by the chunk of its protocol, Simple or LL; 1: by that of Simple */
    /* Who gives room in the work FIFO back. 0: the kernels, by a counter for each channel; NCCL keeps no record of
     * what a channel was sent, and takes one that has reported nothing for one without work. 1: an event behind the
     * last plan of a group, if the work since the last such event exceeds an eighth of the FIFO. */
    int32_t eventRoom;
    int32_t abortable; /* 1: the wait for room ends by an abort */
};

typedef struct psmPlanComm psmPlanComm;
typedef struct psmPlan psmPlan;

/* Public description of a plan, for display, comparison and engines; pointers are valid until the plan is reclaimed.
 * offset, nbytes: for a p2p, its part of the buffer; for a collective, the part of each rank's block. The parts of all
 * channels add up to count elements. */
struct psmPlanOpInfo { /* a proxy op */
    uint64_t opCount;  /* zero-based within the plan; bit 0: p2p */
    int32_t channel, func, peer,
        decrements; /* peer: -1: a ring's; decrements: its completion decrements the sync condition */
    uint64_t offset, nbytes;
    uint64_t task; /* index of its task in the communicator's order of tasks */
    const void *sendbuff;
    void *recvbuff;
    int32_t datatype, redop;
};
struct psmPlanWorkInfo {         /* work of a channel, in the order in which the kernel runs it */
    int32_t channel, func, peer; /* peer: -1: a ring's */
    int32_t first;  /* 1: starts a slot (legacy) or a batch (planner); 2: a batch that extends the previous one */
    int32_t last;   /* last of its channel in this plan: the kernel releases the channel's FIFO space after it */
    int32_t kernel; /* 0: no kernel runs it (PassSM: its ops move the data) */
    int32_t datatype, redop;
    uint64_t offset, nbytes, task;
    const void *sendbuff;
    void *recvbuff;
    uint32_t place; /* legacy: its slot, planner: its byte; after the upload an offset in the work FIFO, if the plan's
                       storage is there */
    /* legacy: the header of the slot that it starts (first), after the upload */
    int32_t workNext; /* of all but the last slot of a channel: the next one, from the first slot of the kernel on */
    int32_t isLast;   /* the kernel ends here */
    int32_t inFifo;   /* then it sets the channel's counter to doneAcks, which gives its slots back */
    uint32_t doneAcks;
    int32_t roundTo, roundFrom; /* planner, p2p: the ranks that its round sends to and receives from */
};
enum psm_plan_storage { PSM_PLAN_ARGS = 0, PSM_PLAN_FIFO = 1, PSM_PLAN_PERSISTENT = 2 }; /* where works are stored */
struct psmPlanInfo {
    uint64_t id; /* serial number in its communicator, from 1 */
    uint64_t channelMask;
    int32_t channelUbound, channelCount, hasProxyOps, persistent, kernel /* 0: no kernel */, ncolls, np2ps;
    int32_t syncCount; /* of the sync condition at its launch; -1: none */
    int32_t storage;   /* enum psm_plan_storage */
    uint32_t nbatches; /* legacy: slots */
    uint64_t workBytes;
    const struct psmPlanOpInfo *ops;
    const struct psmPlanWorkInfo *works; /* channel by channel */
    uint64_t nops, nworks,
        ntasks; /* ntasks: number of tasks that end in it; legacy may split a p2p over several plans */
};

/* ---- what happens, in order: psm_plan_events.h ---- */

PSM_SHAREABLE(psmPlanEvent, 48);

/* ---- the engine ---- */

/* Points where threads can interleave: the engine's meet is called there. */
enum psm_plan_point {
    PSM_PLAN_POINT_POLL = 1,  /* main: before it takes the queued callbacks */
    PSM_PLAN_POINT_RECLAIM,   /* main: a plan has ended and is about to be freed */
    PSM_PLAN_POINT_COMMIT,    /* main: from here on streams or a graph refer to the plans */
    PSM_PLAN_POINT_LAUNCH,    /* main: a plan is on the launch stream */
    PSM_PLAN_POINT_HOST_TASK, /* hostStreamPlanTask: before it arms and posts */
    PSM_PLAN_POINT_POSTED,    /* hostStreamPlanTask: ops are posted, the reclaimer is not enqueued yet */
    PSM_PLAN_POINT_CALLBACK,  /* host function: before it sets the ready event */
    PSM_PLAN_POINT_OVER,      /* host function: the count is 0, or the communicator was aborted */
    PSM_PLAN_POINT_OP_DONE,   /* proxy: an op has ended; the count is not decremented yet */
    PSM_PLAN_POINT_DESTRUCTOR /* destructor of a graph: before each reclaimer */
};

enum psm_plan_stream { PSM_PLAN_DEVICE_STREAM = 0, PSM_PLAN_HOST_STREAM = 1 };

struct psmPlanEngine {
    uint32_t size;
    void *self;
    /* 0: not captured, else the number of the graph. */
    psm_status (*capturing)(void *self, void *stream, uint64_t *graph);
    psm_status (*acquire)(void *self, int which, uint64_t graph, void **stream);
    psm_status (*release)(void *self, int which, uint64_t graph);
    psm_status (*wait)(void *self, void *stream, void *on); /* `stream` waits for what is on `on` now */
    psm_status (*host_func)(void *self, void *stream, void (*fn)(void *), void *arg);
    psm_status (*copy)(void *self, void *stream, void *to, const void *from, uint64_t nbytes);
    /* Runs the plan's works in stream order. Ends with psmPlanKernelDone, at each launch of a graph and also when the
     * kernel was aborted. */
    psm_status (*kernel)(void *self, void *stream, psmPlan *plan);
    psm_status (*on_destroy)(void *self, uint64_t graph, void (*fn)(void *), void *arg);
    psm_status (*alloc)(void *self, uint64_t graph, uint64_t nbytes, void **memory); /* of persistent work */
    psm_status (*free)(void *self, void *memory);
    /* The proxy keeps a copy of *op, whose opCount counts within the history. The op ends with one call of
     * psmPlanOpDone(cookie, ...) on the proxy's thread. sync: NULL, or the op must not start before
     * sync->proxyReadyEvent is set (the engine's wake is called then). The engine reads sync and does not change it:
     * psmPlanOpDone decrements it. start: posts what was saved. An op whose save failed does not exist. */
    psm_status (*save)(void *self, psmPlan *plan, const struct psmPlanOpInfo *op, struct psmSyncCondition *sync,
                       void *cookie);
    psm_status (*start)(void *self);
    /* Intra-process barrier, called by each communicator of a thread in each round of launches; NULL: the only
     * communicator. */
    psm_status (*barrier)(void *self);
    void (*pause)(void *self, int why, psmPlan *plan); /* called in each round of a wait; why: enum psm_plan_wait */
    void (*wake)(void *self); /* called when a wait condition has changed; NULL: nothing to do */
    void (*meet)(void *self,
                 int point); /* called where threads can interleave: a test permutes them; NULL: nothing to do */
};

/* ---- the communicator ---- */

/* The creating thread is the communicator's main thread: use it from one thread at a time. INVALID, NO_MEMORY,
 * NOT_FOUND (no such variant). */
PSM_API psm_status psmPlanCommCreate(const struct psmPlanConfig *config, const struct psmPlanEngine *engine,
                                     psmPlanComm **comm);
/* Waits for launched work (after an abort: until the proxy has dropped its ops) and for the destructors of the graphs
 * that hold its plans, runs the last callbacks and frees it. Objects that its pools still miss are reported as an event
 * (PSM_PLAN_DESTROY) and a broken rule. Accepts NULL. */
PSM_API psm_status psmPlanCommDestroy(psmPlanComm *comm);
/* Does all of that except for freeing, so that the final trace and breaches can be read. After it call only
 * psmPlanBreaches, psmPlanTrace, psmPlanCount and Destroy. */
PSM_API psm_status psmPlanCommFinish(psmPlanComm *comm);
/* INVALID (rank, count, func, or the stream is captured into another graph than the group's), NO_MEMORY. */
PSM_API psm_status psmPlanEnqueue(psmPlanComm *comm, const struct psmPlanTask *task, void *stream);
/* Drops what was enqueued since the last group. Accepts NULL. */
PSM_API void psmPlanGroupDrop(psmPlanComm *comm);
/* Ends a group over the communicators of this thread: prepare for each; then, plan by plan, barrier, before, launch,
 * after; then finish. After a failure the tasks of the group are dropped and all memory is freed; plans that a stream
 * or a graph already refers to post nothing and are reclaimed as usual. */
PSM_API psm_status psmPlanGroupEnd(psmPlanComm *const *comms, size_t ncomms);
/* Runs the callbacks that other threads have queued; wait: until at least one has run, or an abort. ran: NULL, or
 * receives their number. */
PSM_API psm_status psmPlanPoll(psmPlanComm *comm, int wait, uint64_t *ran);
/* Any thread. Host functions and waits return; plans are reclaimed after their proxy has dropped their ops. */
PSM_API void psmPlanAbort(psmPlanComm *comm);
PSM_API int psmPlanAborted(const psmPlanComm *comm);

/* For engines. Any thread. */
PSM_API void psmPlanInfoOf(const psmPlan *plan, struct psmPlanInfo *info);
PSM_API psmPlanComm *psmPlanCommOf(const psmPlan *plan);
/* Main thread, in kernel(): the plan's launches need this registration of a buffer while the plan lives. fn releases
 * it, once, on the main thread when the plan is reclaimed: IPC mappings first, then NVLS and CollNet. On NO_MEMORY or
 * INVALID the plan does not hold it. */
PSM_API psm_status psmPlanHold(psmPlan *plan, int what, psm_status (*fn)(void *arg), void *arg);
PSM_API void psmPlanKernelDone(psmPlan *plan);
PSM_API void psmPlanOpDone(void *cookie, psm_status status);

struct psmPlanCounters {
    uint32_t size;
    uint64_t plans, ops, tasks;             /* created so far */
    uint64_t plansLive, opsLive, tasksLive; /* currently taken from their pools */
    uint64_t plansPool, opsPool, tasksPool; /* objects that the pools hold, in use and free */
    uint64_t scopedBytes, permanentBytes;   /* of the two memory stacks */
    int64_t persistentRefs;
    uint64_t callbacksQueued;
};
PSM_API psm_status psmPlanCount(const psmPlanComm *comm, struct psmPlanCounters *counters);

/* ---- rules ---- */

PSM_API size_t psmPlanRules(const struct psmPlanRule **rules);

/* The checker of one communicator's trace; it belongs to the communicator and sees every event as it happens.
 * PSM_PLAN_CHECK=0 turns it off. Writes the first breaches, at most capacity; returns their total number. */
PSM_API size_t psmPlanBreaches(const psmPlanComm *comm, struct psmPlanBreach *out, size_t capacity);
/* The last events of the trace, oldest first; the record file has them in the ring psm.plan. Returns their number. */
PSM_API size_t psmPlanTrace(const psmPlanComm *comm, struct psmPlanEvent *out, size_t capacity);
/* Checks a stored trace, in the order of `order`. */
PSM_API size_t psmPlanCheckTrace(const struct psmPlanEvent *events, size_t nevents, int scheduler, int ended,
                                 struct psmPlanBreach *out, size_t capacity);

/* ---- variants ---- */

struct psmPlanVariant {
    const char *name, *summary;
    const char *outcome; /* the rule that it breaks; "" for correct variants */
    int32_t wrong;
    int32_t schedulers; /* 1: legacy, 2: planner, 3: both */
};
PSM_API size_t psmPlanVariants(const struct psmPlanVariant **variants);

/* ---- simulation: N ranks, their streams and proxies in one thread, interleaved by a seed ---- */

struct psmPlanStep { /* what the main thread of a rank does, in order */
    int32_t kind;    /* enum psm_plan_step */
    int32_t rank;    /* -1: every rank (a collective) */
    struct psmPlanTask task;
};
enum psm_plan_step {
    PSM_PLAN_STEP_TASK = 0,
    PSM_PLAN_STEP_GROUP_END, /* launches what was enqueued */
    PSM_PLAN_STEP_CAPTURE,   /* until CAPTURED, groups go into a graph */
    PSM_PLAN_STEP_CAPTURED,
    PSM_PLAN_STEP_REPLAY,     /* task.count times */
    PSM_PLAN_STEP_DROP_GRAPH, /* destroys the graph */
    PSM_PLAN_STEP_POLL,       /* task.count != 0: waits for at least one callback */
    PSM_PLAN_STEP_ABORT /* of a rank: by its main thread; of every rank: by another thread of each, at some point */
};
struct psmPlanSimulation {
    uint32_t size;
    struct psmPlanConfig config; /* rank is not used */
    uint64_t seed;               /* seed of the order in which agents run */
    const struct psmPlanStep *steps;
    uint64_t nsteps;
};
typedef struct psmPlanResult psmPlanResult;
/* Any thread; needs neither CUDA nor a proxy. INVALID, NOT_FOUND, NO_MEMORY. A run that hangs is a valid result. */
PSM_API psm_status psmPlanSimulate(const struct psmPlanSimulation *simulation, psmPlanResult **result);
PSM_API void psmPlanResultFree(psmPlanResult *result); /* accepts NULL */
PSM_API size_t psmPlanResultPlans(const psmPlanResult *result, int rank);
PSM_API psm_status psmPlanResultPlan(const psmPlanResult *result, int rank, size_t i, struct psmPlanInfo *info);
PSM_API size_t psmPlanResultEvents(const psmPlanResult *result, int rank, const struct psmPlanEvent **events);
/* The global order of events: the rank of each, in the order in which they happened. */
PSM_API size_t psmPlanResultOrder(const psmPlanResult *result, const int32_t **ranks);
PSM_API size_t psmPlanResultBreaches(const psmPlanResult *result, const struct psmPlanBreach **breaches);
PSM_API int psmPlanResultStuck(const psmPlanResult *result); /* 1: it hung */

/* ---- releases ---- */

PSM_API size_t psmPlanReleases(const struct psmPlanRelease **releases); /* oldest first */

/* ---- lint: do the groups of these ranks end? ----
 *
 * Cuts all groups as the ranks do, and runs the plans of all ranks: kernels in the order of the stream, batches of a
 * channel one after the other, works of a batch at the same time. No step takes another one's chance away, so one run
 * decides for all orders. p2p is run by kernels; graphs and their launches once for each line. */

struct psmPlanLintRun { /* what is assumed */
    uint32_t size;
    uint32_t steps;      /* that a connection buffers; 0: a send ends only if its recv has begun */
    uint32_t unrecorded; /* bytes of earlier groups in the work FIFO that no event gives back yet */
};
struct psmPlanLintPlan {
    int32_t rank, group; /* group: of the rank, from 0 */
    uint64_t id;
    int32_t storage; /* enum psm_plan_storage */
    int32_t ncolls, np2ps;
    uint32_t nbatches;
    uint64_t workBytes;
    uint64_t firstTask, lastTask; /* of its p2p, in the order of the plan; UINT64_MAX: none */
};
struct psmPlanLintWait { /* of a rank, in a run that stands still */
    int32_t rank;
    int32_t kind;        /* enum psm_plan_wait: FIFO, PEER, CHANNEL */
    uint64_t plan;       /* id */
    int32_t group;       /* of the rank */
    int32_t channel;     /* -1: FIFO */
    int32_t func, peer;  /* PEER: what waits, and for whom; CHANNEL: func */
    uint64_t task;       /* in the rank's order of tasks */
    uint64_t matePlan;   /* PEER: id of the peer's plan with the other end; 0: it has no such task */
    uint64_t mateTask;   /* PEER: the peer's task; UINT64_MAX: none */
    uint64_t needs, has; /* FIFO: bytes of work, and of room */
};
typedef struct psmPlanLint psmPlanLint;
/* Any thread. INVALID, NO_MEMORY. Of the simulation size, config, steps and nsteps are used. */
PSM_API psm_status psmPlanLintOpen(const struct psmPlanSimulation *simulation, psmPlanLint **lint);
PSM_API void psmPlanLintFree(psmPlanLint *lint);                                                /* accepts NULL */
PSM_API size_t psmPlanLintPlans(const psmPlanLint *lint, const struct psmPlanLintPlan **plans); /* rank by rank */
/* waits: NULL, or receives what the ranks wait for, at most one for each rank and channel, rank by rank; valid until
 * the next run. ended: 1: all plans have ended. NO_MEMORY. */
PSM_API psm_status psmPlanLintRunOnce(psmPlanLint *lint, const struct psmPlanLintRun *run, int *ended,
                                      const struct psmPlanLintWait **waits, size_t *nwaits);

/* ---- the plans of one rank: what it would launch, without the others ----
 *
 * A rank cuts its groups by its own tasks and by the size of its communicator: a rank of 10,240 costs what its own
 * tasks cost. Nothing is launched. */

struct psmPlanOwn {
    int32_t group; /* from 0 */
    int32_t ncolls, np2ps;
    int32_t storage, kernel; /* enum psm_plan_storage; 0: no kernel */
    uint32_t nops;           /* of the proxy */
    uint64_t id, channelMask, workBytes, ntasks;
};
struct psmPlanOwnMemory { /* bytes that the communicator's plans hold */
    uint64_t permanent;   /* pools and the schedule of peers */
    uint64_t scoped;      /* of the largest group */
};
/* Of the simulation size, config with its rank, steps and nsteps are used; steps are tasks and ends of groups, those of
 * other ranks are skipped. Writes the first `capacity` plans; *nplans is how many there are. Any thread. INVALID,
 * NO_MEMORY. */
PSM_API psm_status psmPlanOfRank(const struct psmPlanSimulation *simulation, struct psmPlanOwn *plans, size_t capacity,
                                 size_t *nplans, struct psmPlanOwnMemory *memory);

#ifdef __cplusplus
}
#endif
#endif
