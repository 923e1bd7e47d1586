/* Shared by the two schedulers: the plan under construction, channel by channel. */
#ifndef PSM_PLAN_SCHEDULE_H
#define PSM_PLAN_SCHEDULE_H

#include "plan/plan.h"

enum { P2P_OF_BATCH = 8 }; /* of one direction in a slot (legacy), or rounds in a batch (planner) */

/* Works of a channel, and their ops, in chunks from the scoped stack: a plan is written task by task and read channel
 * by channel, and both should access adjacent memory. */
struct wip_work {
    struct psmPlanWorkInfo info;
    uint64_t opCount;
    bool op;
};
struct wip_chunk {
    struct wip_chunk *next;
    uint32_t n, room;
    struct wip_work works[];
};
struct wip_channel {
    struct wip_chunk *first, *last;
    uint64_t load;  /* legacy: collBytes */
    uint32_t nwork; /* legacy: slots; planner: batches of p2p */
    /* the last slot or batch: who may be added to it */
    uint32_t kind;                /* 0: none */
    uint32_t nelem;               /* legacy: collectives; planner: p2p */
    uint32_t npeers[2];           /* legacy: p2p, by direction */
    int32_t ids[2][P2P_OF_BATCH]; /* legacy: their peers; planner: [0]: rounds of the p2p schedule */
    uint32_t bytes, base;         /* planner */
    uint32_t epoch;               /* planner: of its last work of p2p */
};
struct wip { /* comm->scheduling */
    uint64_t nworks, nops;
    uint64_t used; /* channels in use */
    bool prescheduling;
    struct wip_channel channels[MAXCHANNELS];
};
static inline struct wip_channel *wip_channel(psmPlanComm *comm, int channel)
{
    struct wip *wip = comm->scheduling;
    wip->used |= 1ull << channel;
    return &wip->channels[channel];
}

/* A piece of a task on a channel. */
struct plan_part {
    int channel;
    int first; /* as in psmPlanWorkInfo */
    uint64_t offset, nbytes;
    uint32_t place;
    bool op; /* needs a proxy op */
    uint64_t opCount;
    int32_t to, from; /* planner, p2p: as in psmPlanWorkInfo */
};
psm_status psm_plan_part(psmPlanComm *comm, psmPlan *plan, const struct plan_task *task, const struct plan_part *part);
psm_status psm_plan_self_copy(psmPlanComm *comm, psmPlan *plan, const struct plan_task *send,
                              const struct plan_task *recv);
/* Moves the head of the queue to the plan. */
void psm_plan_take(psmPlanComm *comm, psmPlan *plan, struct plan_task_queue *queue);
/* Both or none: INVALID. */
psm_status psm_plan_self_check(const psmPlanComm *comm, const struct plan_task *send, const struct plan_task *recv);
/* Tasks whose works one kernel function runs; never 0. */
uint32_t psm_plan_kind(const struct psmPlanTask *task);
/* Tuning of a ring with protocol Simple: channels and warps for that many bytes. */
void psm_plan_tune(uint64_t bytes, int nchannels, int *channels, int *warps);
/* The number with its bits reversed within those of p2p channels: spreads adjacent numbers. */
int psm_plan_mirror(const psmPlanComm *comm, int number);

/* releases.c: the row of a version code, 0 for the first; NULL: older than the planner. */
const struct psmPlanRelease *psm_plan_release(int32_t version);

/* fifo.c: waits until the FIFO may be filled up to `until`, and acquires it. ABORTED. */
psm_status psm_plan_fifo_wait(psmPlanComm *comm, psmPlan *plan, uint32_t until);

static inline bool psm_plan_is_p2p(int func)
{
    return func == PSM_PLAN_SEND || func == PSM_PLAN_RECV;
}
/* A send and a recv of one rank. A simulation has no buffers. */
static inline bool psm_plan_in_place(const struct plan_task *send, const struct plan_task *recv)
{
    return send->task.sendbuff && send->task.sendbuff == recv->task.recvbuff;
}
static inline uint64_t psm_plan_div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}
static inline uint64_t psm_plan_align_up(uint64_t a, uint64_t b)
{
    return psm_plan_div_up(a, b) * b;
}
static inline uint64_t psm_plan_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t psm_plan_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
