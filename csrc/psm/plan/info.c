/* Public description of a plan, for display and engines. */
#include "plan/plan.h"

void psmPlanInfoOf(const psmPlan *plan, struct psmPlanInfo *info)
{
    const struct plan_work_table *table = plan->works;
    *info = (struct psmPlanInfo){.id = plan->id,
                                 .channelMask = plan->channelMask,
                                 .channelUbound = plan->channelUbound,
                                 .channelCount = plan->channelCount,
                                 .hasProxyOps = plan->hasProxyOps,
                                 .persistent = plan->persistent,
                                 .kernel = plan->kernel,
                                 .ncolls = plan->ncolls,
                                 .np2ps = plan->np2ps,
                                 .syncCount = plan->syncCount,
                                 .storage = plan->storage,
                                 .nbatches = plan->nbatches,
                                 .workBytes = plan->workBytes,
                                 .ops = table ? table->ops : NULL,
                                 .works = table ? table->works : NULL,
                                 .nops = plan->nops,
                                 .nworks = table ? table->nworks : 0,
                                 .ntasks = plan->ntasks};
}

psmPlanComm *psmPlanCommOf(const psmPlan *plan)
{
    return plan->comm;
}
