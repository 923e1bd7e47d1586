/* NCCL's headers of the tree that this is compiled against. Compilation stops for a release that we have not checked.
 */
#ifndef PSM_NCCL_TREE_H
#define PSM_NCCL_TREE_H

#include "comm.h"
#include "graph.h"
#include "proxy.h"
#include "register.h"
#if __has_include("register_inline.h")
#include "register_inline.h"
#endif
#include "shmutils.h"
#include "transport.h"
#include "utils.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#elif NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 31, 0)
#define PSM_TREE_2_30 1
#else
#error "psmkit supports the layouts of NCCL 2.26 and 2.30, but this tree is of another release: see docs/linking.md"
#endif

#ifdef TRANSPORT_PSM_P2P
#define PSM_TREE_HOOKED 1 /* a fork: its operations have syncCond, its plans call the host function */
#else
#include "psm_hooks.h" /* a plain tree: it calls our hooks */
#endif
static_assert(TRANSPORT_PSM_P2P == 5, "libpsm's requests use transport 5");

namespace psm
{

/* Differences between the trees. */

inline struct psmSyncCondition *sync_of(const struct ncclProxyArgs *args)
{
#ifdef PSM_TREE_HOOKED
    return args->syncCond;
#else
    /* The transport's own data: set by psmTakePart. */
    const struct ncclProxySubArgs *sub = &args->subs[0];
    return static_cast<struct psmSyncCondition *>(sub->connection->send ? sub->sendMhandle : sub->recvMhandle);
#endif
}

inline bool wants_zero_copy(const struct ncclProxyArgs *args)
{
#ifdef PSM_TREE_HOOKED
    return args->reg != 0;
#else
    (void)args;
    return true; /* where the buffer is registered */
#endif
}

inline ncclResult_t check_p2p(struct ncclComm *comm, int one, int other, int *p2p, int *intermediate)
{
#ifdef PSM_TREE_2_30
    return ncclTopoCheckP2p(comm, comm->topo, one, other, p2p, nullptr, intermediate, nullptr);
#else
    return ncclTopoCheckP2p(comm, comm->topo, one, other, p2p, nullptr, intermediate);
#endif
}

/* What NCCL has registered: whole pages. */
inline uintptr_t begin_of(const struct ncclReg *record)
{
#ifdef PSM_TREE_2_30
    return record->begAddr;
#else
    return record->addr;
#endif
}
inline uintptr_t end_of(const struct ncclComm *comm, const struct ncclReg *record)
{
#ifdef PSM_TREE_2_30
    (void)comm;
    return record->endAddr;
#else
    return record->addr + record->pages * comm->regCache.pageSize;
#endif
}

} // namespace psm

#endif
