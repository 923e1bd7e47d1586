/* What the interpreter uses of NCCL 2.26's declarations, written down as facts: sizes, offsets, numbers. Tests compile
 * against it where there is no tree; with one, facts_check.cc holds it against the real declarations. */
#include <cstddef>
#include <cstdint>
#include <sys/types.h>

#include "facts_numbers.h"

#define NCCL_VERSION(x, y, z)       ((x) * 10000 + (y) * 100 + (z))
#define NCCL_VERSION_CODE           NCCL_VERSION(2, 26, 6)
#define PSM_FACT_NCCL_NVLS_MIN_POLL 0x80
#define PSM_FACT_MAXCHANNELS        64

#include "facts_connections.h"

struct alignas(16) ncclDevChannel {
    ncclDevChannelPeer **peers;
    ncclRing ring;
    ncclTree tree;
    char others[300];
    uint64_t workCounter;
};
struct ncclDevComm {
    int rank, nRanks, node, nNodes, buffSizes[3], p2pChunkSize, isAllNvlink;
    uint32_t *workConsumed;
    int *collNetDenseToUserRank;
    volatile uint32_t *abortFlag;
    ncclDevChannel *channels;
    int *rankToLocalRank;
    uint64_t *workStarted, *workCompleted; /* of each channel, where a profiler waits */
};
enum ncclDevWorkStorageType : uint8_t {
    ncclDevWorkStorageTypeArgs,
    ncclDevWorkStorageTypeFifo,
    ncclDevWorkStorageTypePersistent
};
struct alignas(16) ncclDevKernelArgs {
    ncclDevComm *comm;
    uint64_t channelMask;
    ncclDevWorkStorageType workStorageType;
    uint32_t workMask;
    void *workBuf;
};
enum ncclDevWorkType : uint8_t { ncclDevWorkTypeP2p, ncclDevWorkTypeColl, ncclDevWorkTypeCollReg };
struct alignas(16) ncclDevWorkBatch {
    uint32_t nextJump : 14, nextExtends : 1, workType : 2, funcId : 15;
    uint32_t offsetBase;
    uint64_t offsetBitset;
};
struct alignas(16) ncclDevWorkP2p {
    void *sendAddr, *recvAddr;
    size_t sendBytes, recvBytes;
    int sendRank, recvRank;
    uint8_t nP2pChannels, channelBase, nSendChannels, nRecvChannels, sendChunkSize_u32fp8, recvChunkSize_u32fp8;
    uint8_t sendProtoLL : 1, recvProtoLL : 1, sendNetReg : 1, recvNetReg : 1, sendIpcReg : 1, recvIpcReg : 1,
        profilerEnabled : 1;
};
struct alignas(16) ncclDevWorkColl {
    uint32_t channelLo : 8, channelHi : 8, nWarps : 8;
    uint32_t redOpArgIsPtr : 1, regUsed : 1, netRegUsed : 1, oneNode : 1, direct : 2, isOneRPN : 1, profilerEnabled : 1;
    uint32_t root;
    void *recvbuff, *sendbuff;
    uintptr_t others[4];
    struct {
        size_t countLo, countMid, countHi;
        uint64_t chunkGrainsLo : 21, chunkGrainsMid : 21, chunkGrainsHi : 21;
    } cbd;
    uint64_t redOpArg;
};

/* Parts of a transfer are dealt out to channels by the reversed bits of their distance, and are whole pages. */
inline int ncclP2pChannelToPart(int channels, int base, int channel)
{
    unsigned part = 0, last = static_cast<unsigned>(channels) - 1, delta = static_cast<unsigned>(channel - base) & last;
    for (; last; last >>= 1, delta >>= 1) part = part << 1 | (delta & 1);
    return static_cast<int>(part); /* negative where there are no channels */
}
inline void ncclP2pPartBounds(int parts, int part, size_t bytes, size_t *begin, size_t *end)
{
    const size_t page = 4096, n = (bytes + parts - 1) / parts, each = (n + page - 1) / page * page;
    *begin = part * each < bytes ? part * each : bytes;
    *end = (part + 1) * each < bytes ? (part + 1) * each : bytes;
}
/* Three bits below the leading one. */
inline uint32_t u32fp8Decode(uint8_t x)
{
    return x >> 3 ? ((x & 7u) | 8u) << ((x >> 3) - 1) : x & 7u;
}
/* A chunk is so many grains: 16 bytes for LL, 1920 for LL128, 512 for Simple. */
template <typename Int>
void ncclCollCbdPart(ncclDevWorkColl *work, uint32_t channel, int protocol, int element, Int *count, Int *offset,
                     Int *n, Int *chunk)
{
    const int grain = (protocol == NCCL_PROTO_LL ? 16 : protocol == NCCL_PROTO_LL128 ? 1920 : 512) / element;
    const Int between = work->channelHi > work->channelLo ? work->channelHi - work->channelLo - 1 : 0;
    const auto &cbd = work->cbd;
    *count = cbd.countLo + between * cbd.countMid + cbd.countHi;
    if (channel == work->channelLo) {
        *offset = 0;
        *n = cbd.countLo;
        *chunk = cbd.chunkGrainsLo * grain;
    } else if (channel == work->channelHi) {
        *offset = cbd.countLo + between * cbd.countMid;
        *n = cbd.countHi;
        *chunk = cbd.chunkGrainsHi * grain;
    } else {
        *offset = cbd.countLo + (channel - work->channelLo - 1) * cbd.countMid;
        *n = cbd.countMid;
        *chunk = cbd.chunkGrainsMid * grain;
    }
}
