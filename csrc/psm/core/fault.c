/* Fault sites of libpsm. error=NAME accepts a status (TIMEOUT, PSM_ERR_TIMEOUT) or an errno name (ENOSPC). */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "core/internal.h"
#include "libc.h"

static bool number_of(const char *site, const char *name, int64_t *value)
{
    (void)site;
    for (int status = -1; status >= -64; status--) {
        const char *known = psm_status_name((psm_status)status);
        if (strcmp(known, name) == 0 || (strncmp(known, "PSM_ERR_", 8) == 0 && strcmp(known + 8, name) == 0)) {
            *value = status;
            return true;
        }
    }
    for (int number = 1; number < 134; number++) {
        const char *known = psm_errno_name(number);
        if (known && strcmp(known, name) == 0) {
            *value = number;
            return true;
        }
    }
    return false;
}

__attribute__((constructor)) static void set_resolver(void)
{
    psm_fault_set_resolver(number_of);
}

psm_status psm_fault_strike(struct psm_site *site, const struct psm_fault_args *args, const char *stage,
                            struct psm_fault *fault)
{
    int rank = args ? args->rank : -1, peer = args ? args->peer : -1;
    if (psm_fault_act_before(fault))
        return psm_fail(PSM_ERR_ABORTED, stage, rank, peer, 0, "%s: aborted during an injected hang", site->name);
    if (fault->action != PSM_FAULT_ERROR) return PSM_OK;
    if (fault->value > 0) return psm_fail_errno((int)fault->value, stage, rank, peer, "%s: injected fault", site->name);
    /* A injected TIMEOUT is not a deadline that passed. */
    return psm_because(psm_fail(fault->value < 0 ? (psm_status)fault->value : PSM_ERR_INTERNAL, stage, rank, peer, 0,
                                "%s: injected fault", site->name),
                       PSM_CAUSE_OTHER, -1);
}
