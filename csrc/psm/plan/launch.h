/* Internals of launch and reclaim: comm.c, launch.c, reclaim.c, mpsc.c, trace.c, and the parts that the simulation
 * uses. */
#ifndef PSM_PLAN_LAUNCH_H
#define PSM_PLAN_LAUNCH_H

#include "plan/plan.h"

/* ---- mpsc.c ---- */

void psm_plan_mpsc_push(struct plan_mpsc *queue, struct plan_callback *callback); /* any thread */
/* Takes all of them, in order of arrival. */
struct plan_callback *psm_plan_mpsc_take(struct plan_mpsc *queue);

/* ---- trace.c ---- */

/* Observer of every event: the simulation. It is called with the trace locked. */
struct plan_watch {
    void *self;
    void (*event)(void *self, const struct psmPlanEvent *event);
    void (*made)(void *self, const psmPlan *plan); /* before its MADE */
};
/* watch: NULL, or events go there instead of the record and the log. */
psm_status psm_plan_trace_open(psmPlanComm *comm, const struct plan_watch *watch);
void psm_plan_trace_end(psmPlanComm *comm); /* no more events follow */
void psm_plan_trace_close(psmPlanComm *comm);
bool psm_plan_trace_quiet(const psmPlanComm *comm);
void psm_plan_trace_made(psmPlan *plan);
void psm_plan_trace_touched(const psmPlan *plan, enum psm_plan_toucher who);
/* Records an event and its effect atomically: others see neither or both. */
void psm_plan_trace_lock(psmPlanComm *comm);
void psm_plan_trace_unlock(psmPlanComm *comm);
void psm_plan_event_locked(psmPlanComm *comm, enum psm_plan_what what, const psmPlan *plan, int64_t a, int64_t b,
                           int64_t c);
/* Ops enter the communicator's history one plan at a time. */
void psm_plan_history_lock(psmPlanComm *comm);
void psm_plan_history_unlock(psmPlanComm *comm);

/* ---- reclaim.c ---- */

psm_status psm_plan_reclaim(psmPlanComm *comm, struct plan_callback *callback);
psm_status psm_plan_reclaim_second(psmPlanComm *comm, struct plan_callback *callback); /* variant reclaim-twice */
void psm_plan_enqueue_reclaimer(psmPlan *plan, struct plan_callback *callback, enum psm_plan_enqueuer by);
/* wait: until at least one callback has run, no more can arrive, or abort. */
psmPlan *
psm_plan_waiting(psmPlanComm *comm); /* the first that was taken from the queue and has not ended; NULL: none */
psm_status psm_plan_poll(psmPlanComm *comm, bool wait, uint64_t *ran);
void psm_plan_destructor(void *arg); /* of a graph: the first of its plans */
/* The plan is not launched: it posts nothing more, and is reclaimed as others of its kind. */
void psm_plan_cancel(psmPlan *plan);
/* For variants where nothing is freed before the communicator. */
void psm_plan_keep_sync(psmPlan *plan);
void psm_plan_free_sync(psmPlan *plan);
void psm_plan_graveyard_free(psmPlanComm *comm);

/* ---- launch.c ---- */

/* The end of work that may still use the communicator: the last access of a thread. */
void psm_plan_work_over(psmPlanComm *comm);

/* ---- comm.c ---- */

psm_status psm_plan_comm_create(const struct psmPlanConfig *config, const struct psmPlanEngine *engine,
                                const struct plan_watch *watch, psmPlanComm **out);
void psm_plan_comm_close(psmPlanComm *comm); /* waits, and reports what is missing */
void psm_plan_comm_free(psmPlanComm *comm);

static inline void psm_plan_pause(psmPlanComm *comm, enum psm_plan_wait why, psmPlan *plan)
{
    comm->engine.pause(comm->engine.self, why, plan);
}

#endif
