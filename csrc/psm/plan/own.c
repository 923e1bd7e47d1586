/* The plans of one rank of a communicator, cut by the scheduler and dropped again: psmkit plan what-if. */
#include <stdlib.h>
#include <string.h>

#include "plan/schedule.h"

struct own {
    psmPlanComm *comm;
    struct psmPlanOwn *out;
    size_t capacity, n;
    int32_t group;
};

static void note(struct own *own, const psmPlan *plan)
{
    struct psmPlanInfo info;
    psmPlanInfoOf(plan, &info);
    if (own->n < own->capacity)
        own->out[own->n] = (struct psmPlanOwn){.group = own->group,
                                               .ncolls = info.ncolls,
                                               .np2ps = info.np2ps,
                                               .storage = info.storage,
                                               .kernel = info.kernel,
                                               .nops = (uint32_t)info.nops,
                                               .id = info.id,
                                               .channelMask = info.channelMask,
                                               .workBytes = info.workBytes,
                                               .ntasks = info.ntasks};
    own->n++;
}

static psm_status end_group(struct own *own)
{
    psmPlanComm *comm = own->comm;
    if (comm->ntasksColl + comm->ntasksP2p == 0) return PSM_OK;
    PSM_TRY(psm_plan_stack_push(&comm->scoped));
    psm_status status = psm_plan_schedule(comm, false);
    for (const psmPlan *plan = comm->planHead; plan && status >= 0; plan = plan->next) note(own, plan);
    psm_plan_plans_drop(comm);
    psm_plan_stack_pop(&comm->scoped);
    own->group++;
    return status;
}

static psm_status obey(struct own *own, const struct psmPlanStep *step)
{
    if (step->kind == PSM_PLAN_STEP_TASK) return psm_plan_task_add(own->comm, &step->task);
    if (step->kind == PSM_PLAN_STEP_GROUP_END) return end_group(own);
    return psm_fail(PSM_ERR_INVALID, "plan", own->comm->config.rank, -1, 0,
                    "psmPlanOfRank: a step of kind %d; expected tasks and ends of groups", step->kind);
}

psm_status psmPlanOfRank(const struct psmPlanSimulation *what, struct psmPlanOwn *plans, size_t capacity,
                         size_t *nplans, struct psmPlanOwnMemory *memory)
{
    if (!what || !nplans || (capacity && !plans) || (what->nsteps && !what->steps))
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "psmPlanOfRank: an argument is NULL");
    psmPlanComm *comm = aligned_alloc(64, (sizeof *comm + 63) / 64 * 64);
    if (!comm) return psm_fail(PSM_ERR_NO_MEMORY, "plan", what->config.rank, -1, 0, "no memory for a communicator");
    memset(comm, 0, sizeof *comm);
    comm->config = what->config;
    comm->variant = psm_plan_find_variant(NULL);
    struct own own = {.comm = comm, .out = plans, .capacity = capacity};
    psm_status status = psm_plan_scheduler_open(comm);
    bool open = status >= 0;
    for (uint64_t i = 0; i < what->nsteps && status >= 0; i++)
        if (what->steps[i].rank == -1 || what->steps[i].rank == comm->config.rank) status = obey(&own, &what->steps[i]);
    if (status >= 0) status = end_group(&own);
    *nplans = own.n;
    if (memory) *memory = (struct psmPlanOwnMemory){.permanent = comm->permanent.bytes, .scoped = comm->scoped.bytes};
    if (open) psm_plan_scheduler_close(comm);
    free(comm);
    return status;
}
