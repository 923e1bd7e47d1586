/* What the proxy refuses is counted, and logged at a limited rate. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <unistd.h>

#include "proxy/proxy.h"
#include "psm_lib_messages.h"

void psm_refused_rest(struct psm_limit *limit)
{
    uint64_t skipped = psm_limit_take_skipped(limit);
    if (skipped) psm_msg_libpsm_proxy_refused_more(skipped);
}

void psm_refused(psmProxyState *state, struct psm_limit *limit, const char *what, const struct ucred *user,
                 const char *why)
{
    PSM_COUNT(state, refused);
    if (!psm_limit_pass(limit, psm_clock_ns())) return;
    psm_refused_rest(limit);
    if (user->uid != geteuid())
        psm_msg_libpsm_stranger(what, (uint32_t)user->pid, user->uid, geteuid());
    else
        psm_msg_libpsm_proxy_refused((uint32_t)user->pid, why);
}
