/* NCCL's headers of the tree that this is compiled against. A release that we have not looked at stops here. */
#ifndef PSM_NCCL_TREE_H
#define PSM_NCCL_TREE_H

#include "comm.h"
#include "graph.h"
#include "proxy.h"
#include "register.h"
#include "shmutils.h"
#include "transport.h"
#include "utils.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#elif NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 31, 0)
#else
#error "psmkit knows the layouts of NCCL 2.26 and 2.30, and this tree is of another release: see docs/linking.md"
#endif

#ifndef TRANSPORT_PSM_P2P
#error "this NCCL tree has no PassSM hooks (TRANSPORT_PSM_P2P, syncCond): docs/linking.md shows the lines that it needs"
#endif
static_assert(TRANSPORT_PSM_P2P == 5, "libpsm's requests name transport 5");

#endif
