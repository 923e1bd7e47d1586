/* Internals of plans, shared by schedulers (legacy.c, planner.c), launch and reclaim. Main thread unless stated
 * otherwise. Names follow NCCL's where it has one. */
#ifndef PSM_PLAN_PLAN_H
#define PSM_PLAN_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "core/alive.h"
#include "core/internal.h"
#include "psm/psm_plan.h"

enum { MAXCHANNELS = PSM_PLAN_MAXCHANNELS };

/* ---- memory (memory.c) ---- */

/* A stack of frames: a pop frees everything allocated since its push. Grows by blocks, which it keeps. */
struct plan_stack {
    struct plan_block *blocks, *top;
    struct plan_frame *frame;
    uint64_t bytes; /* bytes held, used or free */
    int depth;
};
psm_status psm_plan_stack_push(struct plan_stack *stack);
void psm_plan_stack_pop(struct plan_stack *stack);
void *psm_plan_stack_alloc(struct plan_stack *stack, size_t bytes);     /* zeroed, aligned to 16; NULL: no memory */
void *psm_plan_stack_alloc_raw(struct plan_stack *stack, size_t bytes); /* not zeroed */
void psm_plan_stack_free(struct plan_stack *stack);                     /* frees everything, and all frames */

/* Objects of one size, from a stack that lives as long as the communicator; with a free list. */
struct plan_pool {
    struct plan_stack *stack;
    size_t size;
    void *free;
    uint64_t live, total;
};
void *psm_plan_pool_alloc(struct plan_pool *pool);     /* zeroed; NULL: no memory */
void *psm_plan_pool_alloc_raw(struct plan_pool *pool); /* not zeroed */
/* Under ASan, freed objects are poisoned. */
void psm_plan_pool_free(struct plan_pool *pool, void *object);

/* ---- queues ---- */

/* First member of everything that is queued for the main thread. */
struct plan_callback {
    struct plan_callback *next;
    psm_status (*fn)(psmPlanComm *comm, struct plan_callback *callback);
};
/* Many producers (host functions, destructors of graphs, the main thread), one consumer: in the order of enqueueing. */
struct plan_mpsc {
    _Atomic(struct plan_callback *) head; /* newest first; the consumer reverses it */
    _Atomic uint64_t enqueued;
};

/* ---- tasks ---- */

struct plan_task {
    struct plan_task *next;
    struct psmPlanTask task;
    uint64_t number; /* position among the communicator's tasks, from 0 */
    uint64_t nbytes; /* of a p2p; of a collective: size of a rank's larger buffer */
    uint64_t done;   /* legacy: p2p bytes that are in plans; chunk: how many pieces */
    uint32_t chunk;
    uint8_t channels, warps; /* planner: bytes that it is tuned for */
};
struct plan_task_queue {
    struct plan_task *head, *tail;
};
struct plan_streams { /* streams of the group, each once, the launch stream first */
    void **stream;
    uint32_t n, room;
};

/* ---- plans ---- */

struct plan_op { /* a proxy op, from the op pool */
    struct plan_op *next;
    psmPlan *plan;
    struct psmPlanOpInfo info;
    uint64_t posted;       /* opCount in the communicator's history, of the last launch */
    _Atomic uint32_t open; /* launches of it that were posted and have not ended */
};
/* Copies of a plan's contents, for kernels and people; live as long as the plan. In pools by size: 2^order bytes. */
struct plan_work_table {
    struct psmPlanWorkInfo *works;
    struct psmPlanOpInfo *ops;
    uint64_t nworks;
    int order;
};
enum { PLAN_TABLE_MIN = 10, PLAN_TABLES = 30 }; /* 1 KiB and up */

struct psmPlan {
    struct plan_callback reclaimer; /* first member: a reclaimer is a pointer to its plan */
    psmPlanComm *comm;
    psmPlan *next; /* of the group */
    uint64_t id, channelMask, workBytes, graph /* 0: not persistent */;
    int32_t channelUbound, channelCount, ncolls, np2ps;
    int32_t syncCount;   /* value that its sync condition is armed with; -1: it has none */
    int32_t storage;     /* enum psm_plan_storage */
    uint32_t nbatches;   /* legacy: slots */
    uint64_t kernelMask; /* channels and batches that a kernel runs */
    uint32_t kernelBatches;
    bool hasProxyOps, persistent, kernel, hostCbEnq;
    uint64_t collOpCount;         /* number of collectives in it */
    struct plan_op *ops, *lastop; /* planner: merged by opCount; legacy: channel by channel */
    uint64_t nops, ndecrement;
    struct plan_task_queue tasks; /* tasks that it has taken: freed with it */
    uint64_t ntasks;
    struct plan_work_table *works;
    void *persistentWork; /* owned by the engine */
    void *run;            /* owned by the engine, for its launches; initially NULL */
    /* PassSM: in its own allocation, so that a free too early or twice can be detected */
    struct psmSyncCondition *sync;
    struct plan_copy {
        struct plan_copy *next;
        void *to;
        const void *from;
        uint64_t nbytes;
    } *selfCopies;
    struct plan_hold { /* a registration, by enum psm_plan_holds */
        struct plan_hold *next;
        psm_status (*fn)(void *arg);
        void *arg;
    } *holds[3];
    int64_t nholds;
    /* Set when it is uploaded into the FIFO: the value of the counter of each of these channels after the kernel has
     * run the plan. */
    uint64_t fifoMask;
    uint32_t acks[MAXCHANNELS];
    _Atomic uint64_t room; /* planner-2.27.3 and later: what an event behind it gives back, and whether it has run */
    /* any thread */
    _Atomic int64_t open; /* kernels launched and not ended, ops posted and not ended, running host functions */
    _Atomic uint32_t kernelRuns, launches;
    _Atomic uint32_t enqueued; /* how often its reclaimer was enqueued */
    _Atomic uint32_t reclaimed;
    _Atomic uint32_t cancelled; /* its launch failed: the host task posts nothing */
    _Atomic uint32_t syncFreed; /* free-in-callback */
    _Atomic uint32_t callbacks; /* host functions launched and not over */
    bool made, committed,
        hostFunc;                /* traced as MADE; a stream or a graph refers to it; its launch has a host function */
    int onStream;                /* what was put on the launch stream: 1: kernel, 2: host function */
    struct plan_callback second; /* reclaim-twice: an intrusive node can be in the queue once */
};

/* ---- variants ---- */

enum plan_order { /* which kind of task is taken first */
                  PLAN_COLL_FIRST = 0,
                  PLAN_P2P_FIRST,
                  PLAN_P2P_PRESCHEDULED /* p2p before the first plan, without a kernel: the old
                                         * preScheduleP2pUseNokernel */
};
struct plan_variant {
    struct psmPlanVariant name;
    enum plan_order order;
    bool reclaim_early, reclaim_twice, lose_callback, count_all_ops, free_in_callback, cuda_in_barrier, keep_scope,
        unbalanced_refs, lose_ops;
    bool lose_reclaimer, after_enqueues, leave_early, count_twice, newest_first, keep_opcount, keep_holds;
    bool no_device_wait, no_user_wait, no_host_wait, no_wait_after, odd_cluster, no_last, no_in_fifo;
};
const struct plan_variant *psm_plan_find_variant(const char *name); /* NULL: coll-first */

/* A scheduler: one for each generation of NCCL. */
struct plan_budget {
    int64_t slots;                 /* legacy */
    int64_t args_bytes, out_bytes; /* planner */
};
struct plan_scheduler {
    const char *name;
    /* At creation: rounds of p2p, and who sends to whom in each. */
    int32_t (*rounds)(const psmPlanComm *comm);
    void (*order)(psmPlanComm *comm);
    /* Once per group, before the first plan: sorts and joins tasks (planner). */
    psm_status (*prepare)(psmPlanComm *comm);
    void (*budget)(const psmPlanComm *comm, const psmPlan *plan, struct plan_budget *budget);
    /* Moves tasks into the plan until no task or no budget is left. */
    psm_status (*colls)(psmPlanComm *comm, psmPlan *plan, struct plan_budget *budget);
    psm_status (*p2ps)(psmPlanComm *comm, psmPlan *plan, struct plan_budget *budget);
    void (*finish)(psmPlanComm *comm,
                   psmPlan *plan); /* before the plan is closed: chooses where its works are stored */
    bool merges;                   /* ops: collectives before p2p, each by opCount; else channel by channel */
    /* The other user streams and the launch stream wait for each other; else each of them and the device stream. */
    bool direct;
    bool headers;       /* slots of works lead to each other: workNext, isLast, inFifo, doneAcks */
    int clusters_until; /* the last compute capability with clusters; 0: all from 9.0 on */
    /* Puts its works into the FIFO (waits for room with engine->pause) or, persistent, into memory of its own. ABORTED.
     */
    psm_status (*upload)(psmPlanComm *comm, psmPlan *plan);
    psm_status (*nothing)(const psmPlanComm *comm, const psmPlan *plan); /* the error of a plan that accepts no task */
};
extern const struct plan_scheduler psm_plan_legacy, psm_plan_planner;
/* The table of a scheduler: the functions of its file have the names of the members. */
#define PLAN_SCHEDULER(id, ...)                                                                                        \
    const struct plan_scheduler psm_plan_##id = {.name = #id,                                                          \
                                                 .rounds = rounds,                                                     \
                                                 .order = order,                                                       \
                                                 .prepare = prepare,                                                   \
                                                 .budget = budget,                                                     \
                                                 .colls = colls,                                                       \
                                                 .p2ps = p2ps,                                                         \
                                                 .finish = finish,                                                     \
                                                 .upload = upload,                                                     \
                                                 .nothing = nothing,                                                   \
                                                 __VA_ARGS__}

/* The work FIFO: NCCL's counters, in slots (legacy) or bytes (planner). */
struct plan_fifo {
    uint32_t depth, sent, acked; /* acked: the minimum over all channels, at the last look */
    uint32_t channelSent[MAXCHANNELS];
    uint32_t recorded;                  /* planner-2.27.3 and later: up to here an event gives room back */
    _Atomic uint32_t given;             /* those events have given it back up to here */
    _Atomic uint32_t done[MAXCHANNELS]; /* written by kernels */
};

struct psmPlanComm {
    struct psm_alive alive;
    struct psmPlanConfig config;
    struct psmPlanEngine engine;
    const struct plan_scheduler *scheduler;
    const struct psmPlanRelease *release; /* planner; legacy: NULL */
    const struct plan_variant *variant;
    struct plan_stack permanent, scoped;
    struct plan_pool plans, ops, tasks, copies, holds;
    struct plan_pool tables[PLAN_TABLES];
    /* tasks of the group */
    struct plan_task_queue collQueue;
    struct plan_peer {
        struct plan_task_queue send, recv;
    } *peers;
    int32_t *sendOrder, *recvOrder; /* p2p schedule: round -> rank; -1: nobody */
    int32_t nrounds;
    uint64_t ntasksColl, ntasksP2p, collBytes, taskNumber;
    int32_t p2pRound;   /* planner: of the group: where the next plan goes on */
    uint32_t p2pEpoch;  /* planner: of the group: passes over the rounds so far */
    int32_t groupRanks; /* planner: ranks of a group of the p2p schedule */
    struct plan_streams streams;
    uint64_t graph; /* that the group is captured into */
    /* plans of the group */
    psmPlan *planHead, *planTail, *unlaunched;
    psmPlan *prescheduled; /* variant prescheduled-p2p: it took the p2p of a mixed group, and is in no queue */
    uint64_t planId, nplans;
    struct plan_fifo fifo;
    uint64_t collOpCount, p2pOpCount[MAXCHANNELS]; /* history, as counted by uploadProxyOps */
    int64_t persistentRefs;
    struct plan_mpsc callbacks;
    struct plan_callback *waiting, *waitingTail; /* dequeued callbacks whose plans have not ended: in order */
    _Atomic uint64_t openPlans;                  /* launched and not reclaimed */
    _Atomic uint32_t aborted;
    _Atomic uint64_t openWork;  /* kernels, ops, host tasks and functions, and destructors that may still use it */
    _Atomic uint64_t hostTasks; /* plans that are not persistent, on the host stream and not run yet */
    bool finished;              /* its trace has ended */
    bool prepared, acquired;    /* a frame of the scoped stack is pushed; the device stream is acquired */
    void *deviceStream;
    bool hostPath;            /* of the group: proxy ops are posted from the host stream */
    bool quarantine;          /* broken variants: keeps what is freed, so that a later use can be detected */
    void *graveyard;          /* sync conditions that are kept */
    struct plan_trace *trace; /* trace.c: numbers events, keeps the last, passes them to the rules and the record */
    struct psmPlanCounters counted;
    void *scheduling; /* the scheduler's own state for a group, on the scoped stack */
};

/* Any thread. */
void psm_plan_event(psmPlanComm *comm, enum psm_plan_what what, const psmPlan *plan, int64_t a, int64_t b, int64_t c);
static inline void psm_plan_meet(psmPlanComm *comm, int point)
{
    if (comm->engine.meet) comm->engine.meet(comm->engine.self, point);
}
static inline void psm_plan_wake(psmPlanComm *comm)
{
    if (comm->engine.wake) comm->engine.wake(comm->engine.self);
}

/* schedule.c */
/* Checks comm->config, fills in its defaults, sets comm->scheduler, and creates the stacks, the pools and the order of
 * p2p. comm->config, engine and variant are set, the rest is zero. INVALID, NO_MEMORY. */
psm_status psm_plan_scheduler_open(psmPlanComm *comm);
void psm_plan_scheduler_close(
    psmPlanComm *comm); /* frees the stacks, and with them all objects; accepts a zeroed one */
/* Splits all tasks of the group into plans, in the order of the variant: comm->planHead is the first, linked by next;
 * may also set comm->prescheduled. The caller has pushed a scoped frame, and may pop it afterwards: plans do not use
 * it. The caller sets reclaimer.fn and the sync conditions; no events are traced. After a failure neither tasks nor
 * plans of the group are left. INVALID, NO_MEMORY. */
psm_status psm_plan_schedule(psmPlanComm *comm, bool persistent);
void psm_plan_plans_drop(
    psmPlanComm *comm); /* releases planHead... and prescheduled: for a prepare that failed later */
/* Releases the plan's ops, tasks, copies, table and itself; the caller has released its persistentWork and sync. */
void psm_plan_give_back(psmPlanComm *comm, psmPlan *plan);
/* A kernel has run the plan: its space in the FIFO is free. Any thread; once. */
void psm_plan_fifo_done(psmPlan *plan);
/* The plans of a group are launched: where a release has such an event, it is recorded behind the last one. */
void psm_plan_fifo_group(psmPlanComm *comm);

/* task.c */
psm_status psm_plan_task_check(const psmPlanComm *comm, const struct psmPlanTask *task);
/* Also validates it. Planner: drops a collective of no elements. */
psm_status psm_plan_task_add(psmPlanComm *comm, const struct psmPlanTask *task);
void psm_plan_tasks_drop(psmPlanComm *comm); /* tasks left by a failed group */
uint64_t psm_plan_type_size(int datatype);   /* 0: no such type */

#endif
