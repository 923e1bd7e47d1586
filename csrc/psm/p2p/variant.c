/* The variants of the transport by name. */
#include "conn/conn_variants.h"
#include "p2p/p2p.h"

PSM_VARIANTS_OF(struct psmP2pVariant, "variant", offsetof(struct psmP2pVariant, sendConnect),
                "share info and local info apart; each process makes its own stream and events", &psm_p2p_split_send,
                &psm_p2p_split_recv, psmP2pRegisterVariant, psmP2pFindVariant, psmP2pVariants)
