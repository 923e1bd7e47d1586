/* NCCL's headers of the tree that this is compiled against, and what differs between trees: read from their
 * declarations, not from their release. */
#ifndef PSM_NCCL_TREE_H
#define PSM_NCCL_TREE_H

#include <atomic>

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

#include "psm/psm_proxy.h"

#include "releases.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(PSM_NCCL_OLDEST_MAJOR, PSM_NCCL_OLDEST_MINOR, 0)
#error "psmkit supports NCCL 2.26 and newer, but this tree is of an older release: see docs/linking.md"
#endif

#ifdef TRANSPORT_PSM_P2P
#define PSM_TREE_HOOKED 1 /* a fork: its operations have syncCond, its plans call the host function */
#else
#include "psm_hooks.h" /* a plain tree: it calls our hooks */
#endif
static_assert(TRANSPORT_PSM_P2P == 5, "libpsm's requests use transport 5");
/* Up to 2.31.0 the profiler's transport has the index between. */
static_assert(TRANSPORT_PSM_P2P == NTRANSPORTS + 1, "this tree's table of transports has another length");
static_assert(static_cast<int>(ncclProxyMsgSetup) == psmProxyMsgSetup &&
                  static_cast<int>(ncclProxyMsgConnect) == psmProxyMsgConnect,
              "this tree's proxy messages have other numbers");

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

/* A counter of a psmSyncCondition: forks whose plans wait in a kernel have plain numbers, which kernels can read. */
inline int *cell_of(std::atomic<int> &counter)
{
    static_assert(sizeof counter == sizeof(int) && std::atomic<int>::is_always_lock_free, "a counter is a number");
    return reinterpret_cast<int *>(&counter);
}
inline int *cell_of(int &counter)
{
    return &counter;
}

/* The declaration of the tree selects one of these. None fits: the tree has a signature that is not known. */
inline ncclResult_t call_check_p2p(ncclResult_t (*check)(struct ncclComm *, struct ncclTopoSystem *, int, int, int *,
                                                         int *, int *),
                                   struct ncclComm *comm, int one, int other, int *p2p, int *intermediate)
{
    return check(comm, comm->topo, one, other, p2p, nullptr, intermediate);
}
inline ncclResult_t call_check_p2p(ncclResult_t (*check)(struct ncclComm *, struct ncclTopoSystem *, int, int, int *,
                                                         int *, int *, int *),
                                   struct ncclComm *comm, int one, int other, int *p2p, int *intermediate)
{
    return check(comm, comm->topo, one, other, p2p, nullptr, intermediate, nullptr);
}
inline ncclResult_t call_check_p2p(ncclResult_t (*check)(struct ncclComm *, struct ncclTopoSystem *, int, int, int *,
                                                         int *, int *, int *, int *),
                                   struct ncclComm *comm, int one, int other, int *p2p, int *intermediate)
{
    return check(comm, comm->topo, one, other, p2p, nullptr, intermediate, nullptr, nullptr);
}
inline ncclResult_t check_p2p(struct ncclComm *comm, int one, int other, int *p2p, int *intermediate)
{
    return call_check_p2p(ncclTopoCheckP2p, comm, one, other, p2p, intermediate);
}

/* What NCCL has registered: whole pages. Up to 2.26 a record has an address and a number of pages. */
template <typename Record> auto begin_of(const Record *record) -> decltype(record->begAddr)
{
    return record->begAddr;
}
template <typename Record> auto begin_of(const Record *record) -> decltype(record->addr)
{
    return record->addr;
}
template <typename Record> auto end_of(const struct ncclComm *, const Record *record) -> decltype(record->endAddr)
{
    return record->endAddr;
}
template <typename Record>
auto end_of(const struct ncclComm *comm, const Record *record) -> decltype(record->addr + record->pages)
{
    return record->addr + record->pages * comm->regCache.pageSize;
}

} // namespace psm

#endif
