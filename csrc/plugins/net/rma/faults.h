/* Faults of one-sided operations. */
#ifndef PSM_NET_RMA_FAULTS_H
#define PSM_NET_RMA_FAULTS_H

#include "net_faults.h"
#include "rma/rma_comm.h"

/* As net_fault_before, for what concerns a peer. */
static inline ncclResult_t rma_fault_before(struct psm_site *site, const struct rma_comm *c, int peer,
                                            struct psm_fault *fault)
{
    fault->action = PSM_FAULT_NONE;
    if (!psm_fault_any()) return ncclSuccess;
    struct psm_fault_args args = {.rank = PSM_FAULT_UNKNOWN, .peer = peer, .comm = c->number};
    if (!psm_fault_hit(site, &args, fault)) {
        fault->action = PSM_FAULT_NONE;
        return ncclSuccess;
    }
    if (psm_fault_act_before(fault)) return ncclInternalError;
    if (fault->action != PSM_FAULT_ERROR) return ncclSuccess;
    return fault->value > 0 && fault->value < ncclNumResults ? (ncclResult_t)fault->value : ncclSystemError;
}

#endif
