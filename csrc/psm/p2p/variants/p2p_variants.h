/* Broken variants of the transport: each is the right one with one mistake, and declares its symptoms. Tests, the lab
 * and the analysis are checked against them. A variant is used only where its name is given. */
#ifndef PSM_P2P_VARIANTS_H
#define PSM_P2P_VARIANTS_H

#include "conn/wrong.h"
#include "p2p/p2p.h"

/* Both directions with the same setup, connect and free. */
#define PSM_COMMS(name, setup, connect, free)                                                                          \
    static const struct psmTransportComm name##_send = PSM_P2P_COMM(setup, connect, free, psm_p2p_send_progress);      \
    static const struct psmTransportComm name##_recv = PSM_P2P_COMM(setup, connect, free, psm_p2p_recv_progress)

/* The variants of a file are registered when the library is loaded. */
#define PSM_VARIANTS(table) PSM_CONN_VARIANTS(table, psmP2pRegisterVariant)

#endif
