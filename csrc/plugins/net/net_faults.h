/* Faults of the calls of the plugin. */
#ifndef PSM_NET_FAULTS_H
#define PSM_NET_FAULTS_H

#include "fault.h"
#include "net_plugin.h"

/* The number behind the name of a result (net sites) or of an error of the system. */
bool net_fault_number(const char *site, const char *name, int64_t *value);
/* The part of net_fault_before that runs while faults are set. */
ncclResult_t net_fault_perform(struct psm_site *site, struct net_comm *c, struct psm_fault *fault);

/* Performs what a fault demands before the work, including an error. *fault: what is left to do. */
static inline ncclResult_t net_fault_before(struct psm_site *site, struct net_comm *c, struct psm_fault *fault)
{
    fault->action = PSM_FAULT_NONE;
    return psm_fault_any() ? net_fault_perform(site, c, fault) : ncclSuccess;
}

static inline void net_fault_after(const struct psm_fault *fault)
{
    if (__builtin_expect(fault->action != PSM_FAULT_NONE, 0)) psm_fault_act_after(fault);
}

#endif
