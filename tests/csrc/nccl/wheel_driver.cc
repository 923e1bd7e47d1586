/* The plan for NCCL 2.21.5, given lists of work that a test describes, in a process where device memory is the host's.
 */
#include "connections.h"

#include <cstdio>
#include <cstring>

namespace
{
psm_kernel_fn run;
char pattern[64];
size_t sizes[8];
unsigned parameters;
} // namespace

extern "C" {

int psm_hostcuda_register_kernel(const char *name_pattern, psm_kernel_fn fn, void *)
{
    run = fn;
    snprintf(pattern, sizeof pattern, "%s", name_pattern);
    return 0;
}

int psm_hostcuda_kernel_parameters(const char *, unsigned n, const size_t *given)
{
    parameters = n;
    memcpy(sizes, given, n * sizeof *given);
    return 0;
}

int psm_hostcuda_map(const psm_kernel_launch *, const void *address, size_t n, int, psm_kernel_span *span)
{
    span->host = const_cast<void *>(address);
    span->n = n;
    return 0;
}

void psm_hostcuda_unmap(psm_kernel_span *) {}

int psm_hostcuda_kernels(void);

/* Asked where the file has the name of NCCL. */
__attribute__((visibility("default"))) int ncclGetVersion(int *version)
{
    *version = PSM_TEST_VERSION;
    return 0;
}

/* 0: all three are 8 bytes. */
__attribute__((visibility("default"))) int begin(void)
{
    return psm_hostcuda_kernels() || parameters != 3 || sizes[0] != 8 || sizes[1] != 8 || sizes[2] != 8;
}

/* One launch on one channel of rank 1 of 2: a message of n bytes to itself, in the second of two works, changed as
 * `twist` says. */
__attribute__((visibility("default"))) int launch(const char *kernel, unsigned function, const char *twist, char *to,
                                                  const char *from, size_t n, uint32_t *done)
{
    static int ring[2] = {1, 0};
    static uint32_t abort_flag;
    ncclWork works[2] = {};
    ncclDevChannel channel = {};
    ncclDevComm comm = {};
    const auto twisted = [twist](const char *word) { return strcmp(twist, word) == 0; };
    const auto message = [&](ncclWorkElemP2p &e, const void *at, ncclWorkP2PType type) {
        e.peer = 1;
        e.proto = NCCL_PROTO_SIMPLE;
        e.p2pType = type;
        e.buffHi32 = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) >> 32);
        e.buffLo32 = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at));
        e.countHi32 = static_cast<uint32_t>(n >> 32);
        e.countLo32 = static_cast<uint32_t>(n);
        e.chunkSize = 4096;
    };
    *done = 0;
    channel.ring.userRanks = ring;
    channel.workFifoDone = done;
    comm.rank = twisted("rank") ? 2 : 1;
    comm.nRanks = 2;
    comm.abortFlag = &abort_flag;
    comm.channels = &channel;
    for (ncclWork &work : works) {
        work.header.funcIndex = static_cast<uint16_t>(function);
        work.header.type = twisted("type") ? ncclWorkTypeUnused : twisted("coll") ? ncclWorkTypeColl : ncclWorkTypeP2p;
        work.header.inFifo = 1;
        work.p2pElems[0].ngroups = twisted("groups") ? 17 : 2;
    }
    works[0].header.workNext = twisted("endless") ? 0 : 1;
    works[1].header.isLast = 1;
    works[1].header.doneAcks = 77;
    message(works[1].p2pElems[0], to, ncclWorkP2pTypeRecv);
    works[1].p2pElems[0].ngroups = works[0].p2pElems[0].ngroups;
    message(works[1].p2pElems[1], from, twisted("side") ? ncclWorkP2pTypeRecv : ncclWorkP2pTypeSend);
    if (twisted("registered")) works[1].p2pElems[1].reg = 1;
    if (twisted("unequal")) works[1].p2pElems[0].countLo32--;
    if (twisted("peer")) works[1].p2pElems[1].peer = works[1].p2pElems[0].peer = 2;
    ncclDevComm *address = &comm;
    uint64_t mask = 1;
    const ncclWork *head = works;
    const void *const arguments[] = {&address, &mask, &head};
    psm_kernel_launch l = {};
    l.size = sizeof l;
    l.name = kernel;
    l.grid[0] = twisted("blocks") ? 2 : 1;
    l.parameters = twisted("parameters") ? 0 : 3;
    l.arguments = arguments;
    return run(&l, nullptr);
}
}
