/* The events of a plan's life, in order: a trace that the rules are checked on. Does not include libpsm headers, so
 * that the rules (csrc/planrules) build without it. */
#ifndef PSM_PLAN_EVENTS_H
#define PSM_PLAN_EVENTS_H

#include <stdint.h>

enum psm_plan_scheduler {
    PSM_PLAN_LEGACY = 0, /* up to NCCL 2.21: work FIFO in slots, least loaded channels, isLast and doneAcks */
    PSM_PLAN_PLANNER = 1 /* from 2.22: task planner, budgets in bytes, work batches, proxy ops merged by opCount */
};

enum psm_plan_what {
    PSM_PLAN_TASK = 1,       /* a: func, b: task number */
    PSM_PLAN_PREPARE,        /* start of launch prepare: a: depth of the scoped stack, b: tasks, c: graph or 0 */
    PSM_PLAN_MADE,           /* plan; a: channelMask, b: ncolls, c: np2ps (one for each finished plan) */
    PSM_PLAN_PREPARED,       /* a: depth of the scoped stack, b: plans, c: user streams of the group; 0: no plan */
    PSM_PLAN_PREPARE_FAILED, /* a: depth of the scoped stack, b: psm_status */
    PSM_PLAN_ARMED,          /* plan; its sync condition, at each launch: a: count, b: ops that decrement it */
    PSM_PLAN_BARRIER,        /* the intra-process barrier was passed */
    PSM_PLAN_CUDA,           /* an uncaptured CUDA call of the main thread: a: enum psm_plan_call */
    PSM_PLAN_LAUNCHED,       /* plan: it is on the launch stream; a: 1: a kernel, 2: a host function, 3: both, 4: other
                                work; b: 1: into a graph; c: enum psm_plan_attribute; 0: unknown */
    PSM_PLAN_KERNEL_DONE,    /* plan */
    PSM_PLAN_HOST_TASK,      /* plan: hostStreamPlanTask starts; a: 1: on the host stream's thread */
    PSM_PLAN_OP_POSTED,   /* plan; a: opCount within the history of the communicator, b: channel, c: enum psm_plan_op */
    PSM_PLAN_OP_DONE,     /* plan; a, b, c: as above */
    PSM_PLAN_COUNTED_OFF, /* plan; a: remaining count of the sync condition */
    PSM_PLAN_CALLBACK,    /* plan: its host function runs (PassSM); a: count */
    PSM_PLAN_CALLBACK_OVER, /* plan; a: 1: by abort, b: count, c: 1: it freed the sync condition (a broken variant) */
    PSM_PLAN_RECLAIMER,     /* plan: its reclaimer was enqueued; a: enum psm_plan_enqueuer */
    PSM_PLAN_RECLAIM, /* plan: it is being freed; a: unfinished ops, b: unfinished kernels, c: unfinished host functions
                       */
    PSM_PLAN_TOUCHED, /* plan: a thread used freed memory of it; a: enum psm_plan_toucher */
    PSM_PLAN_REPLAY,  /* a: graph; its plans are launched again. Only if the engine can tell (simulation) */
    PSM_PLAN_DESTRUCTOR, /* a: graph; its destructor runs, b: plans */
    PSM_PLAN_REFS,       /* a: persistentRefs, b: change */
    PSM_PLAN_ABORT,
    PSM_PLAN_FINISH,  /* launch finish: a: depth of the scoped stack, b: 1: a call of CUDA failed */
    PSM_PLAN_DESTROY, /* of the communicator: a: plans, b: ops, c: tasks that its pools miss */
    PSM_PLAN_STUCK,   /* simulation: nobody can proceed; plan: whom it waits for; a: enum psm_plan_wait, b: ops (count,
                       * peer) or mask of channels (channel) that it waits for */
    PSM_PLAN_CANCELLED,    /* plan: it was made, but the group failed before its launch; it posts nothing more */
    PSM_PLAN_REGISTERED,   /* plan: it holds a registration; a: enum psm_plan_holds, b: how many it holds now */
    PSM_PLAN_DEREGISTERED, /* plan: it released one, before its RECLAIM; a: enum psm_plan_holds, b: how many are left */
    PSM_PLAN_ORDERED, /* a stream waits for what is on another now; a: who waits, b: for whom: enum psm_plan_place */
    PSM_PLAN_UPLOADED /* legacy: plan; a kernel finds its works; a: channel, b: its slots, c: enum psm_plan_header */
};
enum psm_plan_enqueuer {
    PSM_PLAN_BY_HOST_TASK = 1,
    PSM_PLAN_BY_LAUNCH_AFTER = 2,
    PSM_PLAN_BY_DESTRUCTOR = 3,
    PSM_PLAN_BY_CANCEL = 4
};
enum psm_plan_op {                             /* of an op, one bit each */
                   PSM_PLAN_OP_DECREMENTS = 1, /* the count of the plan's sync condition */
                   PSM_PLAN_OP_COPIED = 2      /* the proxy got a copy: the plan may be freed before the op ends */
};
enum psm_plan_toucher { PSM_PLAN_MAIN = 1, PSM_PLAN_PROXY = 2, PSM_PLAN_HOST = 3, PSM_PLAN_KERNEL = 4 };
enum psm_plan_holds {
    PSM_PLAN_HOLDS_IPC = 0,
    PSM_PLAN_HOLDS_NVLS = 1,
    PSM_PLAN_HOLDS_COLLNET = 2,
    PSM_PLAN_HOLDS_OTHER = 3
};
enum psm_plan_place { /* a stream of a group */
                      PSM_PLAN_ON_DEVICE = 0,
                      PSM_PLAN_ON_HOST = 1,
                      PSM_PLAN_ON_LAUNCH = 2 /* the first user stream; the others follow: 3, 4, ... */
};
enum psm_plan_attribute { /* of a kernel's launch; the lowest 8 bits: blocks of a cluster, 0: no clusters */
                          PSM_PLAN_ATTR_SPREAD = 256,   /* the scheduling policy of clusters */
                          PSM_PLAN_ATTR_REMOTE = 512,   /* in the remote domain of memory synchronisation */
                          PSM_PLAN_ATTR_GRID = 16,      /* shift: blocks */
                          PSM_PLAN_ATTR_CAPABILITY = 32 /* shift: of the GPU, 90 for 9.0 */
};
enum psm_plan_header { /* what a kernel finds that follows the headers of a channel's slots from the first on */
                       PSM_PLAN_HEADER_LAST = 1, /* a slot with isLast; else workNext led to no slot of the channel */
                       PSM_PLAN_HEADER_IN_FIFO = 2, /* the last slot has inFifo */
                       PSM_PLAN_HEADER_ACKS = 4,    /* its doneAcks is the number behind it */
                       PSM_PLAN_HEADER_STORED = 8,  /* the works are in the FIFO; else in memory of their own */
                       PSM_PLAN_HEADER_SLOTS = 8    /* shift: slots that it comes to */
};
enum psm_plan_call {
    PSM_PLAN_CALL_ACQUIRE = 1,
    PSM_PLAN_CALL_WAIT,
    PSM_PLAN_CALL_HOST_FUNC,
    PSM_PLAN_CALL_COPY,
    PSM_PLAN_CALL_UPLOAD,
    PSM_PLAN_CALL_DESTRUCTOR
};
enum psm_plan_wait {
    PSM_PLAN_WAIT_FIFO = 1, /* main: for room in the work FIFO */
    PSM_PLAN_WAIT_RECLAIM,  /* main: poll with waiting */
    PSM_PLAN_WAIT_COUNT,    /* host function: for the sync condition's count */
    PSM_PLAN_WAIT_PEER,     /* proxy: the op's other end is missing or not ready */
    PSM_PLAN_WAIT_CHANNEL   /* kernel: not all ranks have entered a collective's channel */
};

struct psmPlanEvent {
    uint64_t order; /* of a communicator's trace, from 0 without a gap */
    uint64_t plan;  /* 0: none */
    int64_t a, b, c;
    int32_t what, rank;
};

/* Every rule has a name and one entry in the table of csrc/planrules. It is checked on a live trace, on a trace from a
 * record file or a log, or on the trace of a simulation. */
struct psmPlanRule {
    const char *name;   /* reclaim.early */
    const char *text;   /* what must hold, one sentence */
    int32_t schedulers; /* 1: legacy, 2: planner, 3: both */
};
struct psmPlanBreach {
    char rule[32];
    int32_t rank, other;  /* other: the rank that it differs from; -1: none */
    uint64_t plan, order; /* of the event that breaks it; order: UINT64_MAX: no event, found by comparing ranks */
    char text[256];
};

#endif
