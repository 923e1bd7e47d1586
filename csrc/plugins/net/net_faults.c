/* What a fault does to a call of the plugin, besides what the front does itself. */
#define _GNU_SOURCE
#include "net_faults.h"
#include "libc.h"

#include <string.h>

#include "front.h"
#include "psm_abi_versions.h"

static const char *const result_names[] = {PSM_ABI_RESULT_NAMES};

bool net_fault_number(const char *site, const char *name, int64_t *value)
{
    bool ours = strncmp(site, "net.", 4) == 0;
    for (int i = 1; ours && i < (int)(sizeof result_names / sizeof *result_names); i++)
        if (strcmp(name, result_names[i]) == 0) return *value = i, true;
    for (int i = 1; !ours && i < 134; i++) {
        const char *known = psm_errno_name(i);
        if (known && strcmp(known, name) == 0) return *value = i, true;
    }
    return false;
}

static void break_off(struct net_comm *c, const char *call)
{
    net_record_error(c, call, "fault", ncclRemoteError);
    c->backend->cut(c);
}

ncclResult_t net_fault_perform(struct psm_site *site, struct net_comm *c, struct psm_fault *fault)
{
    struct psm_fault_args args = {
        .rank = PSM_FAULT_UNKNOWN, .peer = c ? c->peer_rank : PSM_FAULT_UNKNOWN, .op = c ? net_role(c) : NULL};
    args.comm = c ? c->number : 0;
    const char *call = strchr(site->name, '.') + 1;
    if (!psm_fault_hit(site, &args, fault)) {
        bool stalled = c && c->stalled_until && psm_clock_ns() < c->stalled_until;
        fault->action = stalled ? PSM_FAULT_STALL : PSM_FAULT_NONE;
        return ncclSuccess;
    }
    if (psm_fault_act_before(fault)) return ncclInternalError;
    if (c && (fault->action == PSM_FAULT_CLOSE || (fault->action == PSM_FAULT_DROP && strcmp(call, "connection") == 0)))
        break_off(c, call);
    if (c && fault->action == PSM_FAULT_STALL)
        c->stalled_until = fault->value ? psm_clock_ns() + (uint64_t)fault->value : UINT64_MAX;
    if (fault->action != PSM_FAULT_ERROR) return ncclSuccess;
    bool known = fault->value > 0 && fault->value < ncclNumResults;
    ncclResult_t result = known ? (ncclResult_t)fault->value : ncclSystemError;
    if (c) net_record_error(c, call, "fault", result);
    return result;
}
