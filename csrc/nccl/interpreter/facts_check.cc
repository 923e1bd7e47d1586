/* The facts that tests are compiled against, held against the declarations of a tree of that release. */
#include "facts_numbers.h"
#include "layouts.h"

#include <algorithm>

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)

/* Numbers that are macros in the tree: their values are compared, and the names are the facts' from here on. */
namespace tree
{
#define NAME(name, value) name,
constexpr int numbers[] = {PSM_FACT_NUMBERS(NAME)};
} // namespace tree
#undef NCCL_VERSION
#undef NCCL_VERSION_CODE
#undef NCCL_STEPS
#undef NCCL_MODE_NORMAL
#undef NCCL_MODE_OFFSET
#undef NCCL_LL_CLEAN_MASK
#undef NCCL_NVLS_MIN_POLL
#undef NCCL_PROTO_LL
#undef NCCL_PROTO_LL128
#undef NCCL_PROTO_SIMPLE
#undef MAXCHANNELS
#undef ALLREDUCE_CHUNKSTEPS
#undef ALLREDUCE_SLICESTEPS
#undef ALLGATHER_CHUNKSTEPS
#undef ALLGATHER_SLICESTEPS
#undef REDUCESCATTER_CHUNKSTEPS
#undef REDUCESCATTER_SLICESTEPS
#undef BROADCAST_CHUNKSTEPS
#undef BROADCAST_SLICESTEPS
#undef REDUCE_CHUNKSTEPS
#undef REDUCE_SLICESTEPS

namespace facts
{
#include "facts_2_26.h"

constexpr int numbers[] = {PSM_FACT_NUMBERS(NAME)};
} // namespace facts

constexpr bool same_numbers()
{
    for (unsigned i = 0; i < sizeof facts::numbers / sizeof *facts::numbers; i++)
        if (facts::numbers[i] != tree::numbers[i]) return false;
    return true;
}
static_assert(same_numbers(), "facts_2_26.h: a number");

#define SIZE(type) static_assert(sizeof(facts::type) == sizeof(::type), "facts_2_26.h: size of " #type)
#define PLACE(type, field)                                                                                             \
    static_assert(offsetof(facts::type, field) == offsetof(::type, field), "facts_2_26.h: " #type "." #field)

SIZE(ncclConnFifo);
PLACE(ncclConnFifo, offset);
PLACE(ncclConnFifo, size);
SIZE(ncclConnInfo);
PLACE(ncclConnInfo, tail);
PLACE(ncclConnInfo, head);
PLACE(ncclConnInfo, flags);
PLACE(ncclConnInfo, stepSize);
PLACE(ncclConnInfo, connFifo);
PLACE(ncclConnInfo, step);
PLACE(ncclConnInfo, netDeviceHandle);
SIZE(ncclDevChannelPeer);
PLACE(ncclDevChannelPeer, recv);
SIZE(ncclRing);
PLACE(ncclRing, userRanks);
PLACE(ncclRing, index);
SIZE(ncclTree);
PLACE(ncclTree, down);
SIZE(ncclDevChannel);
PLACE(ncclDevChannel, ring);
PLACE(ncclDevChannel, tree);
PLACE(ncclDevChannel, workCounter);
SIZE(ncclDevComm);
PLACE(ncclDevComm, buffSizes);
PLACE(ncclDevComm, p2pChunkSize);
PLACE(ncclDevComm, workConsumed);
PLACE(ncclDevComm, abortFlag);
PLACE(ncclDevComm, channels);
PLACE(ncclDevComm, workStarted);
PLACE(ncclDevComm, workCompleted);
SIZE(ncclDevKernelArgs);
PLACE(ncclDevKernelArgs, workStorageType);
PLACE(ncclDevKernelArgs, workMask);
PLACE(ncclDevKernelArgs, workBuf);
SIZE(ncclDevWorkBatch);
PLACE(ncclDevWorkBatch, offsetBase);
PLACE(ncclDevWorkBatch, offsetBitset);
SIZE(ncclDevWorkP2p);
PLACE(ncclDevWorkP2p, sendBytes);
PLACE(ncclDevWorkP2p, sendRank);
PLACE(ncclDevWorkP2p, nP2pChannels);
PLACE(ncclDevWorkP2p, recvChunkSize_u32fp8);
SIZE(ncclDevWorkColl);
PLACE(ncclDevWorkColl, root);
PLACE(ncclDevWorkColl, recvbuff);
PLACE(ncclDevWorkColl, sendbuff);
PLACE(ncclDevWorkColl, cbd);
PLACE(ncclDevWorkColl, redOpArg);

#endif
