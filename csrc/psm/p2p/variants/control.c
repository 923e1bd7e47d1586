/* Variants of the control plane: ranks that choose a mode alone, and a proxy that loses or delays answers. */
#include <stddef.h>

#include "p2p/variants/p2p_variants.h"

/* The receiver decides from its own view, not from what it has published. */
static psm_status setup_split(const struct psm_host *host, const struct psm_peer_info *me,
                              const struct psm_peer_info *peer, int channel, int connIndex,
                              struct psm_p2p_connect *info, psmP2pConnector **recv)
{
    if (!me) return psmP2pRecvSetup(host, me, peer, channel, connIndex, info, recv);
    struct psm_peer_info own = *me;
    own.capabilities &= ~(uint32_t)(PSM_CAN_CUMEM_FD | PSM_CAN_DIRECT);
    own.capabilities |= PSM_CAN_MEMFD;
    return psmP2pRecvSetup(host, &own, peer, channel, connIndex, info, recv);
}

static const struct psmP2pVariant variants[] = {
    {.size = sizeof(struct psmP2pVariant),
     .name = "mode-split",
     .summary = "the receiver chooses the mode from capabilities that it has not published",
     .outcome = "PSM401: Connect fails, with the modes of both sides",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM401", .status = PSM_ERR_MISMATCH),
     .wrong = 1,
     .send = &psm_p2p_split_send,
     .recv = &psm_p2p_split_recv,
     .recvSetup = setup_split},
    {.size = sizeof(struct psmP2pVariant),
     .name = "lost-fd-reply",
     .summary = "the proxy drops requests for a descriptor",
     .outcome = "PSM102: Connect ends at its deadline, which names the proxy and GetFd",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM102", .status = PSM_ERR_TIMEOUT),
     .wrong = 1,
     .send = &psm_p2p_split_send,
     .recv = &psm_p2p_split_recv,
     .faults = "proxy.getfd:drop"},
    {.size = sizeof(struct psmP2pVariant),
     .name = "late-response",
     .summary = "an answer arrives after its call has ended",
     .outcome = "PSM101: the call ends at its deadline; the late answer is dropped",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM101", .status = PSM_ERR_TIMEOUT),
     .wrong = 1,
     .send = &psm_p2p_split_send,
     .recv = &psm_p2p_split_recv,
     .faults = "proxy.response:slow=3s,op=Setup,nth=1"},
    {.size = sizeof(struct psmP2pVariant),
     .name = "dup-response",
     .summary =
         "the proxy answers a request twice: a caller whose opIds have no generation takes it for that of a later call",
     .outcome = "PSM104: passes; the second answer is refused by the generation of its opId, and reported",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = "PSM104"),
     .wrong = 1,
     .send = &psm_p2p_split_send,
     .recv = &psm_p2p_split_recv,
     .faults = "proxy.response:duplicate,nth=1"},
};
PSM_VARIANTS(variants)
