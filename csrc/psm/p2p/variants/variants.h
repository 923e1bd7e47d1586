/* Broken variants of the transport: each is the right one with one mistake, and declares its symptoms. Tests, the lab
 * and the analysis are checked against them. A variant is used only where its name is given. */
#ifndef PSM_P2P_VARIANTS_H
#define PSM_P2P_VARIANTS_H

#include "p2p/p2p.h"

/* The handlers of one direction. */
#define PSM_COMM(setup, connect, free, progress)                                                                       \
    {.proxySetup = (setup),                                                                                            \
     .proxyConnect = (connect),                                                                                        \
     .proxyFree = (free),                                                                                              \
     .proxyProgress = (progress),                                                                                      \
     .proxyRegister = psm_p2p_proxy_register,                                                                          \
     .proxyDeregister = psm_p2p_proxy_deregister}
/* Both directions with the same setup, connect and free. */
#define PSM_COMMS(name, setup, connect, free)                                                                          \
    static const struct psmTransportComm name##_send = PSM_COMM(setup, connect, free, psm_p2p_send_progress);          \
    static const struct psmTransportComm name##_recv = PSM_COMM(setup, connect, free, psm_p2p_recv_progress)

/* The variants of a file are registered when the library is loaded. */
#define PSM_VARIANTS(table)                                                                                            \
    __attribute__((constructor)) static void register_variants(void)                                                   \
    {                                                                                                                  \
        for (size_t i = 0; i < sizeof(table) / sizeof *(table); i++) psmP2pRegisterVariant(&(table)[i]);               \
    }

#endif
