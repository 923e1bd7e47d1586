/* Internals of the simulation: N ranks in one thread. Agents run one at a time, and a seed chooses the next one among
 * those that may be able to run: of each rank the main thread, its streams, those of a running graph, the proxy, the
 * thread that destroys graphs, and one that aborts. */
#ifndef PSM_PLAN_SIMULATE_H
#define PSM_PLAN_SIMULATE_H

#include "plan/launch.h"

/* ---- simulate_fiber.c: code that can stop within a call ---- */

struct fiber;
struct fiber_home; /* the thread that runs them */
struct fiber_home *psm_fiber_home_new(void);
void psm_fiber_home_free(struct fiber_home *home); /* frees all fibers, whatever their state */
/* NULL: no memory. It does not run yet. */
struct fiber *psm_fiber_new(struct fiber_home *home, void (*fn)(void *), void *arg);
bool psm_fiber_resume(struct fiber *fiber);    /* runs it until it yields or ends; true: it has ended and is freed */
void psm_fiber_yield(struct fiber_home *home); /* called by the running one */
bool psm_fiber_inside(const struct fiber_home *home); /* whether one is running */

/* ---- the world ---- */

enum chain { USER, USER2, DEVICE, HOST, CHAINS };
enum agent { MAIN, LIVE, GRAPH = LIVE + CHAINS, PROXY = GRAPH + CHAINS, DESTROYER, WATCHDOG, AGENTS };

struct item { /* of a stream */
    enum item_kind { ITEM_KERNEL, ITEM_FUNCTION, ITEM_WAIT, ITEM_GRAPH } kind;
    psmPlan *plan;
    void (*fn)(void *);
    void *arg;
    struct sim_graph *graph;
    int on;       /* a wait: the other stream, */
    size_t until; /* and how many of its items have to be done */
};

struct cursor {           /* of a kernel on a channel */
    size_t at, end, slot; /* works; the p2p of a slot or batch run at the same time: at..slot */
    bool entered;
};
struct kernel { /* the current one */
    bool runs;
    struct psmPlanInfo info;
    uint64_t open; /* mask of channels that have not ended */
    struct cursor cursors[MAXCHANNELS];
    uint32_t *numbers; /* p2p works that have started, counted per pair and channel */
    size_t room;
};
struct stream {
    struct item *items;
    size_t n, room, done;
    struct fiber *fiber; /* of the running host function */
    psmPlan *waits;      /* the plan whose count it waits for */
    struct kernel *kernel;
};
struct sim_graph {
    struct sim_graph *next;
    uint64_t id;
    struct stream streams[CHAINS];
    void (*fn)(void *);
    void *arg;
    uint32_t launches; /* that have not ended */
    bool dropped, destroyed;
};

struct sim_op { /* of the proxy */
    struct sim_op *next;
    struct sim_op *mate;   /* its other end, while both are posted */
    struct sim_op *behind; /* in the queue of those without one */
    psmPlan *plan;
    struct psmPlanOpInfo info;
    struct psmSyncCondition *sync;
    void *cookie;
    bool queued, met; /* met: its other end has ended successfully */
};
struct pair {                    /* of ranks, on a channel */
    struct sim_op *first, *last; /* posted ops without another end: of one side */
    uint32_t sends, recvs;       /* works that kernels have started */
};

struct sim_rank {
    struct world *world;
    int rank;
    psmPlanComm *comm;
    struct plan_watch watch;
    struct fiber *main;
    bool ended;
    int why; /* enum psm_plan_wait that main is waiting for; 0: none */
    psmPlan *whom;
    psm_status status; /* the first failure of a call */
    struct psm_error error;
    struct stream streams[CHAINS];
    struct sim_graph *graphs, *capturing, *running;
    uint64_t ngraphs;
    int64_t registered; /* buffers */
    struct sim_op *saved, **saved_end, *posted, **posted_end;
    size_t nposted;
    uint64_t at[MAXCHANNELS]; /* the collective that its kernel is running, from 1; 0: none */
    uint64_t *colls;          /* by task: index of the collective; UINT64_MAX: a p2p */
    size_t ntasks, tasks_room;
    uint64_t ncolls;
    uint32_t *passed, *ended_ops; /* by collective and channel */
    /* the result */
    struct psmPlanEvent *events;
    size_t nevents, events_room;
    struct sim_plan *plans;
    size_t nplans, plans_room;
    uint64_t group, collOpCount;
};
struct sim_plan {
    struct psmPlanInfo info;
    uint64_t group;
    struct plan_rules_coll *colls;
    uint64_t p2pFirst, p2pTask, collTask;
};

struct world {
    struct psmPlanSimulation what;
    struct psmPlanResult *result;
    int nranks, nchannels;
    struct sim_rank *ranks;
    struct fiber_home *home;
    uint64_t random, changes; /* changes with any wait condition */
    uint32_t *ready, *place;  /* agents that may be able to run; position of each among them, from 1 */
    uint32_t nready;
    struct pair *pairs;
    bool abort;              /* an abort was requested: the watchdog of each rank performs it at some point */
    bool no_memory, yielded; /* yielded: the agent could continue at once */
};

struct psmPlanResult {
    int nranks, stuck;
    struct sim_rank *ranks;
    struct plan_stack memory;
    int32_t *order;
    size_t norder, order_room;
    struct psmPlanBreach *breaches;
    size_t nbreaches, breaches_room;
};

/* Room for one more in a list; false: no memory (recorded in the world). */
bool psm_sim_room(struct world *world, void **list, size_t n, size_t *room, size_t size);
uint64_t psm_sim_random(struct world *world);
void psm_sim_wake(struct sim_rank *rank, int agent);
static inline struct pair *psm_sim_pair(struct world *world, int from, int to, int channel)
{
    return &world->pairs[((size_t)from * (size_t)world->nranks + (size_t)to) * (size_t)world->nchannels +
                         (size_t)channel];
}

/* ---- simulate_engine.c: streams and graphs ---- */

extern const struct psmPlanEngine psm_sim_engine;
/* One step of an agent. false: it cannot run now. */
bool psm_sim_step_stream(struct sim_rank *rank, int agent);
bool psm_sim_step_destroyer(struct sim_rank *rank);
void psm_sim_capture(struct sim_rank *rank);
void psm_sim_captured(struct sim_rank *rank);
void psm_sim_replay(struct sim_rank *rank);
void psm_sim_drop_graph(struct sim_rank *rank);
void psm_sim_free_streams(struct sim_rank *rank);

/* ---- simulate_match.c: kernels and the proxy, whose ends must match ---- */

bool psm_sim_kernel_begin(struct sim_rank *rank, struct stream *stream, psmPlan *plan);
/* true: it has ended. *moved: something has changed. */
bool psm_sim_kernel_step(struct sim_rank *rank, struct kernel *kernel, bool *moved);
psm_status psm_sim_save(void *self, psmPlan *plan, const struct psmPlanOpInfo *op, struct psmSyncCondition *sync,
                        void *cookie);
psm_status psm_sim_start(void *self);
bool psm_sim_step_proxy(struct sim_rank *rank);
void psm_sim_free_ops(struct sim_rank *rank);

#endif
