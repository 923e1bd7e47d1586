/* Launches of the interpreter for all ranks of a communicator that exists only here: structs as NCCL's host code leaves
 * them, made from facts_2_26.h, connections in plain memory, a thread a rank. */
#include "arithmetic.h"
#include "functions.h"
#include "layouts.h"
#include "psm_hostcuda.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/* ---- what hostcuda and the log give in a process of the lab ---- */

static std::mutex lock;
static std::map<uintptr_t, size_t> memory; /* what a device may touch */
static std::string said;
static psm_kernel_fn registered;

extern "C" {
int psm_hostcuda_kernels(void);

int psm_hostcuda_register_kernel(const char *, psm_kernel_fn fn, void *)
{
    registered = fn;
    return 0;
}

int psm_hostcuda_map(const psm_kernel_launch *, const void *address, size_t n, int, psm_kernel_span *span)
{
    std::lock_guard<std::mutex> guard(lock);
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    auto after = memory.upper_bound(at);
    if (after == memory.begin()) return 700;
    --after;
    if (at >= after->first + after->second) return 700;
    span->host = const_cast<void *>(address);
    span->n = std::min(n, after->first + after->second - at);
    return 0;
}

void psm_hostcuda_unmap(psm_kernel_span *) {}

#include "log.h"

void psm_log_set_device(int) {}
void psm_log_write(enum psm_level level, const char *text, size_t n)
{
    std::lock_guard<std::mutex> guard(lock);
    if (level == PSM_LEVEL_WARN) said.assign(text, n);
}
bool psm_log_enabled(enum psm_level level)
{
    return level == PSM_LEVEL_WARN;
}
int psm_log_device(void)
{
    return 0;
}
}

/* ---- a communicator ---- */

struct spec {
    int ranks, channels, root;
    unsigned function, protocol; /* id in the table; 0 LL, 1 LL128, 2 Simple */
    int p2p;
    size_t count, element; /* of a rank's part; of a message to each peer */
    unsigned grains;       /* of a chunk */
    uint64_t argument;
    const char *twist;
    const int *order; /* of ranks in the ring */
};

static const int sizes[3] = {8 * 16 * 64, 8 * 128 * 32, 8 * 8192};

class World
{
  public:
    explicit World(const spec &s) : s_(s)
    {
        comms_ = make<ncclDevComm>(s.ranks);
        abort_ = make<uint32_t>(1);
        for (int r = 0; r < s.ranks; r++) {
            ncclDevComm &c = comms_[r];
            c.rank = r;
            c.nRanks = s.ranks;
            memcpy(c.buffSizes, sizes, sizeof sizes);
            c.p2pChunkSize = 4096;
            c.workConsumed = make<uint32_t>(MAXCHANNELS);
            c.workStarted = make<uint64_t>(MAXCHANNELS);
            c.workCompleted = make<uint64_t>(MAXCHANNELS);
            c.abortFlag = abort_;
            c.channels = make<ncclDevChannel>(MAXCHANNELS);
            for (int i = 0; i < s.channels; i++) {
                ncclDevChannel &channel = c.channels[i];
                channel.peers = make<ncclDevChannelPeer *>(s.ranks);
                for (int p = 0; p < s.ranks; p++) channel.peers[p] = make<ncclDevChannelPeer>(1);
                int at = 0;
                while (s.order[at] != r) at++;
                channel.ring.index = at;
                channel.ring.userRanks = make<int>(s.ranks);
                for (int k = 0; k < s.ranks; k++) channel.ring.userRanks[k] = s.order[(at + k) % s.ranks];
                channel.ring.next = s.order[(at + 1) % s.ranks];
                channel.ring.prev = s.order[(at + s.ranks - 1) % s.ranks];
                channel.tree.up = r ? (r - 1) / 2 : -1;
                for (int k = 0; k < 3; k++)
                    channel.tree.down[k] = k < 2 && 2 * r + 1 + k < s.ranks ? 2 * r + 1 + k : -1;
            }
        }
        for (int i = 0; i < s.channels; i++)
            for (int from = 0; from < s.ranks; from++)
                for (int to = 0; to < s.ranks; to++)
                    for (int k = 0; k < 2; k++) connect(i, from, to, k);
    }
    ~World()
    {
        for (void *block : blocks_) free(block);
        std::lock_guard<std::mutex> guard(lock);
        memory.clear();
    }

    template <typename T> T *make(size_t n)
    {
        const size_t bytes = (n * sizeof(T) + 63) / 64 * 64;
        void *block = aligned_alloc(64, bytes);
        memset(block, 0, bytes);
        std::lock_guard<std::mutex> guard(lock); /* ranks make their launches at the same time */
        blocks_.push_back(block);
        memory[reinterpret_cast<uintptr_t>(block)] = n * sizeof(T);
        return static_cast<T *>(block);
    }
    void know(void *block, size_t n)
    {
        std::lock_guard<std::mutex> guard(lock);
        memory[reinterpret_cast<uintptr_t>(block)] = n;
    }
    bool twisted(const char *what) const { return strcmp(s_.twist, what) == 0; }
    /* Whether no step was taken. */
    bool untouched() const
    {
        for (const uint64_t *counter : counters_)
            if (*counter) return false;
        return true;
    }
    int launch(int rank, char *send, char *recv);
    uint32_t *abort_flag() { return abort_; }
    uint64_t works(int rank) const { return comms_[rank].channels[0].workCounter; }
    uint64_t begun(int rank) const { return comms_[rank].workStarted[0]; }
    uint64_t ended(int rank) const { return comms_[rank].workCompleted[0]; }
    uint32_t consumed(int rank) const { return comms_[rank].workConsumed[0]; }

  private:
    void connect(int channel, int from, int to, int index)
    {
        ncclConnInfo &send = comms_[from].channels[channel].peers[to]->send[index];
        ncclConnInfo &recv = comms_[to].channels[channel].peers[from]->recv[index];
        for (int p = 0; p < 3; p++) send.buffs[p] = recv.buffs[p] = make<char>(static_cast<size_t>(sizes[p]));
        send.head = recv.head = make<uint64_t>(1);
        send.tail = recv.tail = make<uint64_t>(1);
        counters_.push_back(send.head);
        counters_.push_back(send.tail);
        send.stepSize = recv.stepSize = sizes[2] / 8;
        if (twisted("fifo of a proxy") || twisted("shared buffer")) {
            send.connFifo = make<ncclConnFifo>(NCCL_STEPS);
            recv.connFifo = make<ncclConnFifo>(NCCL_STEPS);
            for (int i = 0; twisted("shared buffer") && i < NCCL_STEPS; i++) {
                send.connFifo[i].mode = recv.connFifo[i].mode = NCCL_MODE_OFFSET;
                send.connFifo[i].offset = recv.connFifo[i].offset = (i * 3) % 8 * (sizes[2] / 8);
            }
        }
        if (twisted("proxy by address")) {
            send.connFifo = make<ncclConnFifo>(NCCL_STEPS);
            send.connFifo[0].mode = 2;
        }
        if (twisted("NVLS")) send.flags = NCCL_NVLS_MIN_POLL;
        if (twisted("unpack")) recv.netDeviceHandle.netDeviceType = 1;
        if (twisted("no connection")) send.head = nullptr;
        if (twisted("no buffer")) memset(recv.buffs, 0, sizeof recv.buffs);
    }
    void fill(ncclDevWorkP2p &p, size_t rank, size_t w, char *send, char *recv);
    void fill(ncclDevWorkColl &c, char *send, char *recv);
    ncclDevWorkBatch batch(uint32_t base, size_t works);

    spec s_;
    std::vector<void *> blocks_;
    std::vector<uint64_t *> counters_;
    ncclDevComm *comms_;
    uint32_t *abort_;
};

/* The twisted ones are what NCCL never writes, or what lies in the FIFO where it was overwritten. */
void World::fill(ncclDevWorkP2p &p, size_t rank, size_t w, char *send, char *recv)
{
    const size_t ranks = static_cast<size_t>(s_.ranks), to = (rank + w) % ranks, from = (rank + ranks - w) % ranks;
    p.sendAddr = send + to * s_.count;
    p.recvAddr = recv + from * s_.count;
    p.sendBytes = p.recvBytes = s_.count;
    p.sendRank = static_cast<int>(to);
    p.recvRank = static_cast<int>(from);
    p.nP2pChannels = p.nSendChannels = p.nRecvChannels = static_cast<uint8_t>(s_.channels);
    p.sendChunkSize_u32fp8 = p.recvChunkSize_u32fp8 = s_.protocol == 2 ? 80 : 56; /* 4096, 512 */
    p.sendProtoLL = p.recvProtoLL = s_.protocol == 0;
    p.sendIpcReg = twisted("registered");
    p.profilerEnabled = twisted("profiler");
    if (twisted("peer") || twisted("overwritten peer")) p.sendRank = 99;
    if (twisted("overwritten channels")) {
        p.nP2pChannels = p.nSendChannels = p.nRecvChannels = 0;
        p.channelBase = 1;
    }
    if (twisted("overwritten bytes")) p.sendBytes = ~size_t(0) - 5;
    if (twisted("own message") && w == 0) p.recvBytes--;
}

void World::fill(ncclDevWorkColl &c, char *send, char *recv)
{
    const size_t channels = static_cast<size_t>(s_.channels);
    c.channelHi = static_cast<uint8_t>(channels - 1);
    c.root = twisted("root") ? 99 : static_cast<uint32_t>(s_.root);
    c.sendbuff = twisted("no memory") ? static_cast<void *>(&c) : send;
    c.recvbuff = recv;
    const size_t share = (s_.count + channels - 1) / channels;
    c.cbd.countLo = std::min(share, s_.count);
    c.cbd.countMid = channels > 2 ? std::min(share, (s_.count - c.cbd.countLo) / (channels - 2)) : 0;
    c.cbd.countHi = channels > 1 ? s_.count - c.cbd.countLo - (channels - 2) * c.cbd.countMid : 0;
    c.cbd.chunkGrainsLo = c.cbd.chunkGrainsMid = c.cbd.chunkGrainsHi = s_.grains;
    c.redOpArg = s_.argument;
    if (twisted("argument by address")) {
        uint64_t *argument = make<uint64_t>(1);
        *argument = s_.argument;
        c.redOpArg = reinterpret_cast<uint64_t>(argument);
        c.redOpArgIsPtr = 1;
    }
    c.regUsed = twisted("registered");
    c.netRegUsed = twisted("registered with the net");
    c.profilerEnabled = twisted("profiler");
    if (twisted("another channel")) c.channelLo = 1;
    if (twisted("overwritten count")) c.cbd.countLo = ~size_t(0) / 8;
    if (twisted("overwritten chunk")) c.cbd.chunkGrainsLo = 0;
}

ncclDevWorkBatch World::batch(uint32_t base, size_t works)
{
    ncclDevWorkBatch b = {};
    b.workType = s_.p2p ? ncclDevWorkTypeP2p : ncclDevWorkTypeColl;
    if (twisted("registered work")) b.workType = ncclDevWorkTypeCollReg;
    if (twisted("unknown work")) b.workType = 3;
    if (twisted("wrong work")) b.workType = ncclDevWorkTypeP2p;
    b.funcId = s_.function;
    b.offsetBase = twisted("work outside") ? 1 << 20 : base;
    b.offsetBitset = twisted("no work") ? 0 : (UINT64_C(1) << works) - 1;
    if (twisted("batch outside")) b.nextJump = 1000;
    return b;
}

int World::launch(int rank, char *send, char *recv)
{
    /* What NCCL does where a group is larger than the FIFO: other work lies where the batch says. */
    const bool overwritten = strncmp(s_.twist, "overwritten", 11) == 0, fifo = overwritten || twisted("work FIFO");
    const size_t channels = static_cast<size_t>(s_.channels),
                 each = s_.p2p ? sizeof(ncclDevWorkP2p) : sizeof(ncclDevWorkColl);
    const size_t works = s_.p2p ? static_cast<size_t>(s_.ranks) : 1;
    const size_t first = sizeof(ncclDevKernelArgs) + channels * sizeof(ncclDevWorkBatch);
    const size_t size = first + (fifo ? 0 : works * each);
    char *bytes = make<char>(size);
    ncclDevKernelArgs args = {};
    args.comm = &comms_[rank];
    args.channelMask = (UINT64_C(1) << channels) - 1;
    if (fifo) {
        args.workStorageType = ncclDevWorkStorageTypeFifo;
        args.workMask = 1023;
        args.workBuf = make<char>(1024);
    }
    const uint32_t base = fifo ? 3 * 1024 - 32 : static_cast<uint32_t>(first); /* around the end of the FIFO */
    const auto put = [&](const void *work, size_t number) {
        for (size_t i = 0; i < each; i++) {
            const size_t at = base + number * each + i;
            (fifo ? static_cast<char *>(args.workBuf)[at & args.workMask] : bytes[at]) =
                static_cast<const char *>(work)[i];
        }
    };
    for (size_t w = 0; w < works; w++) {
        if (s_.p2p) {
            ncclDevWorkP2p p = {};
            fill(p, static_cast<size_t>(rank), w, send, recv);
            put(&p, w);
        } else {
            ncclDevWorkColl c = {};
            fill(c, send, recv);
            put(&c, w);
        }
    }
    if (const char *noise = strstr(s_.twist, "noise ")) {
        uint64_t x = strtoull(noise + 6, nullptr, 10) * UINT64_C(0x9e3779b97f4a7c15);
        for (int i = 0; i < 1024; i++) { /* mostly zeros, so that some of it looks right */
            x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            static_cast<char *>(args.workBuf)[i] = x >> 61 ? 0 : static_cast<char>(x >> 40);
        }
    }
    for (size_t i = 0; i < channels; i++) {
        const ncclDevWorkBatch b = batch(base, works);
        memcpy(bytes + sizeof args + i * sizeof b, &b, sizeof b);
    }
    memcpy(bytes, &args, sizeof args);
    const char *kernel = strncmp(s_.twist, "kernel ", 7) == 0 ? s_.twist + 7 : "Generic";
    const std::string short_name = std::string("ncclDevKernel_") + kernel;
    const std::string name =
        "_Z" + std::to_string(short_name.size()) + short_name + "24ncclDevKernelArgsStorageILm4096EE";
    psm_kernel_launch launch = {};
    launch.size = sizeof launch;
    launch.name = name.c_str();
    launch.grid[0] = static_cast<unsigned>(channels) + twisted("grid");
    launch.buffer = twisted("no arguments") ? nullptr : bytes;
    launch.buffer_size = size;
    return registered(&launch, nullptr);
}

/* ---- for Python ---- */

extern "C" {

/* 0, or the error of the launch that failed; text: what was said, and behind | what was touched. */
__attribute__((visibility("default"))) int run_case(const spec *s, char **send, char **recv, const size_t *bytes,
                                                    char *text, size_t room)
{
    psm_hostcuda_kernels();
    said.clear();
    int result = 0;
    std::string more;
    {
        World world(*s);
        const bool alone = world.twisted("aborted");
        if (alone) *world.abort_flag() = 1;
        for (int r = 0; r < s->ranks; r++) {
            world.know(send[r], bytes[0]);
            world.know(recv[r], bytes[1]);
        }
        std::vector<std::thread> threads;
        std::vector<int> codes(static_cast<size_t>(s->ranks));
        for (int r = 0; r < (alone ? 1 : s->ranks); r++)
            threads.emplace_back([&, r] { codes[static_cast<size_t>(r)] = world.launch(r, send[r], recv[r]); });
        for (std::thread &thread : threads) thread.join();
        for (int code : codes)
            if (code) result = code;
        more = world.untouched() ? "|untouched" : "|moved";
        more += " works " + std::to_string(world.works(0)) + " consumed " + std::to_string(world.consumed(0)) +
                " begun " + std::to_string(world.begun(0)) + " ended " + std::to_string(world.ended(0));
    }
    snprintf(text, room, "%s%s", said.c_str(), more.c_str());
    return result;
}

/* stage 0: the input's factor, 1: two operands, 2: the result's divisor. Returns -1 where the op is refused. */
__attribute__((visibility("default"))) int arithmetic(const char *type, const char *op, uint64_t argument, int stage,
                                                      void *out, const void *a, const void *b, size_t n)
{
    psm::Reduction r;
    r.argument = argument;
    if (!psm::type_of(type, &r.type) || !psm::op_of(op, &r.op) || psm::reduction_fault(r)) return -1;
    if (stage == 0)
        psm::reduce_input(r, out, a, n);
    else if (stage == 1)
        psm::reduce_two(r, out, a, b, n);
    else
        psm::reduce_result(r, out, a, n);
    return 0;
}
}
