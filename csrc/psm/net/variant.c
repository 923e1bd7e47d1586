/* The variants of the transport by name. */
#include "conn/conn_variants.h"
#include "net/net_conn.h"

PSM_VARIANTS_OF(struct psmNetVariant, "net variant", offsetof(struct psmNetVariant, declared),
                "a slot is sent when its copy is done, and used again when the network is done with it",
                &psm_net_split_send, &psm_net_split_recv, psmNetRegisterVariant, psmNetFindVariant, psmNetVariants)
