/* What the interpreter uses of NCCL 2.21.5's declarations, written down as facts: for the binary of that release, which
 * comes without headers. Its effect is the test: every byte of what its ranks send and reduce
 * (tests/lab/test_nccl_stock.py). */
#include <cstddef>
#include <cstdint>
#include <sys/types.h>

#include "../facts_numbers.h"

#define NCCL_VERSION(x, y, z)       ((x) * 10000 + (y) * 100 + (z))
#define NCCL_VERSION_CODE           NCCL_VERSION(2, 21, 5)
#define PSM_FACT_NCCL_NVLS_MIN_POLL 0x20
#define PSM_FACT_MAXCHANNELS        32

#include "../facts_connections.h"

struct alignas(16) ncclDevChannel {
    ncclDevChannelPeer **peers;
    ncclRing ring;
    ncclTree tree;
    char others[296];
    uint32_t *workFifoDone;
};
struct ncclDevComm {
    int rank, nRanks, node, nNodes, buffSizes[3], p2pChunkSize, workFifoDepth;
    void *workFifoHeap;
    int *collNetDenseToUserRank;
    volatile uint32_t *abortFlag;
    ncclDevChannel *channels;
};

enum ncclWorkType : uint8_t { ncclWorkTypeUnused, ncclWorkTypeColl, ncclWorkTypeP2p, ncclWorkTypeRegColl };
enum ncclWorkP2PType : uint8_t { ncclWorkP2pTypeUnused, ncclWorkP2pTypeSend, ncclWorkP2pTypeRecv };
struct ncclWorkHeader {
    union {
        int32_t workNext;  /* from the list that the launch names, in works */
        uint32_t doneAcks; /* of the last work */
    };
    uint16_t funcIndex;
    uint8_t isLast : 1, inFifo : 1;
    ncclWorkType type;
};
struct ncclWorkElem {
    uint8_t isUsed : 1, redOpArgIsPtr : 1, oneNode : 1;
    uint8_t regUsed, nWarps, direct;
    uint32_t root;
    const void *sendbuff;
    void *recvbuff;
    size_t count;
    uint64_t redOpArg;
    uint64_t chunkCount : 25, workCount : 39;
    uint64_t lastChunkCount : 25, workOffset : 39;
};
struct ncclWorkElemP2p {
    int peer : 30, proto : 2;
    ncclWorkP2PType p2pType;
    uint8_t reg : 1, nWarps : 5;
    uint8_t warpStart, ngroups;
    uint32_t buffHi32, buffLo32, countHi32, countLo32;
    int chunkSize;
};
struct alignas(8) ncclWork {
    ncclWorkHeader header;
    union {
        char whole[504];
        ncclWorkElem elems[9];
        ncclWorkElemP2p p2pElems[16];
    };
};
static_assert(sizeof(ncclConnInfo) == 152 && sizeof(ncclDevChannel) == 368 && sizeof(ncclDevComm) == 72, "a layout");
static_assert(sizeof(ncclWorkElem) == 56 && sizeof(ncclWorkElemP2p) == 28 && sizeof(ncclWork) == 512, "a layout");

/* The parameters of every kernel. */
struct ncclDevKernelArgs {
    ncclDevComm *comm;
    uint64_t channelMask;
    ncclWork *workHead;
};
