/* The work of NCCL from 2.26 on: batches in the arguments of the launch, and what they point to. */
#include "connections.h"
#include "works.h"

#include <cstring>

extern "C" {
#include "base.h"
}

namespace psm
{

namespace
{

struct Lists : Reader {
    Lists(const psm_kernel_launch *l, Memory &m, Plan &p)
        : Reader{l, m, p, {}}, bytes(static_cast<const char *>(l->buffer)), size(l->buffer_size)
    {
    }
    ncclDevKernelArgs args = {};
    const char *bytes; /* of all arguments */
    size_t size;
    uint64_t number = 0; /* of this launch, where works are recorded */
};

/* ---- point to point ---- */

/* Before anything is computed of it: NCCL's own functions divide by these numbers. */
void check_p2p(const Reader &r, const ncclDevWorkP2p &work)
{
    const int channels = work.nP2pChannels;
    if (channels < 1 || channels > MAXCHANNELS || channels & (channels - 1))
        refuse_damaged("SendRecv is spread over %d channels", channels);
    if (work.nSendChannels > channels || work.nRecvChannels > channels)
        refuse_damaged("SendRecv has %d and %d of %d channels", work.nSendChannels, work.nRecvChannels, channels);
    for (int peer : {work.nSendChannels ? work.sendRank : 0, work.nRecvChannels ? work.recvRank : 0})
        if (peer < 0 || peer >= r.comm.nRanks)
            refuse_damaged("SendRecv has no peer %d: there are %d ranks", peer, r.comm.nRanks);
    for (size_t bytes : {work.sendBytes, work.recvBytes})
        if (bytes > MOST_BYTES) refuse_damaged("SendRecv has a message of %zu bytes", bytes);
}

void read_p2p(Reader &r, const Place &place, ncclDevWorkP2p work, Stage &stage, WorkRow &row)
{
    check_p2p(r, work);
    if (work.sendNetReg || work.recvNetReg || work.sendIpcReg || work.recvIpcReg) refuse_registered("SendRecv");
    const int part = ncclP2pChannelToPart(work.nP2pChannels, work.channelBase, place.number);
    const bool sends = part < work.nSendChannels, receives = part < work.nRecvChannels;
    size_t send_begin = 0, send_end = 0, recv_begin = 0, recv_end = 0;
    if (!sends && !receives) refuse_damaged("SendRecv has no part for channel %d", place.number);
    if (sends) ncclP2pPartBounds(work.nSendChannels, part, work.sendBytes, &send_begin, &send_end);
    if (receives) ncclP2pPartBounds(work.nRecvChannels, part, work.recvBytes, &recv_begin, &recv_end);
    row.send_peer = work.sendRank;
    row.recv_peer = work.recvRank;
    row.base = work.channelBase;
    row.part = static_cast<uint32_t>(part);
    row.send_parts = work.nSendChannels;
    row.recv_parts = work.nRecvChannels;
    row.send_all = work.sendBytes;
    row.recv_all = work.recvBytes;
    row.send_bytes = send_end - send_begin;
    row.recv_bytes = recv_end - recv_begin;
    row.send_ll = work.sendProtoLL;
    row.recv_ll = work.recvProtoLL;
    const char *from = r.memory.window(work.sendAddr, send_begin, send_end, false, "the buffer of ncclSend");
    char *to = r.memory.window(work.recvAddr, recv_begin, recv_end, true, "the buffer of ncclRecv");
    if (from) from += send_begin;
    if (to) to += recv_begin;
    if (work.sendRank == r.comm.rank) {
        if (work.recvRank != r.comm.rank || send_end - send_begin != recv_end - recv_begin || send_begin != recv_begin)
            refuse(NOT_SUPPORTED, "a rank's message to itself has %zu bytes to send and %zu to receive", work.sendBytes,
                   work.recvBytes);
        stage.copies.push_back({to, from, send_end - send_begin});
        return;
    }
    if (sends)
        add_message(r, place, work.sendRank, true, work.sendProtoLL ? Protocol::LL : Protocol::Simple,
                    const_cast<char *>(from), send_end - send_begin, u32fp8Decode(work.sendChunkSize_u32fp8), stage);
    if (receives)
        add_message(r, place, work.recvRank, false, work.recvProtoLL ? Protocol::LL : Protocol::Simple, to,
                    recv_end - recv_begin, u32fp8Decode(work.recvChunkSize_u32fp8), stage);
}

/* ---- collectives ---- */

void check_collective(const Function &f, const ncclDevWorkColl &work)
{
    const unsigned lo = work.channelLo, hi = work.channelHi;
    if (lo > hi || hi >= MAXCHANNELS) refuse_damaged("%s is spread over channels %u to %u", f.name, lo, hi);
    for (size_t count : {work.cbd.countLo, work.cbd.countMid, work.cbd.countHi})
        if (count > MOST_BYTES / MAXCHANNELS) refuse_damaged("%s has %zu elements on a channel", f.name, count);
}

void read_collective(Reader &r, const Place &place, Function f, ncclDevWorkColl work, Stage &stage)
{
    check_collective(f, work);
    if (work.regUsed || work.netRegUsed) refuse_registered(f.name);
    if (place.number < static_cast<int>(work.channelLo) || place.number > static_cast<int>(work.channelHi))
        refuse_damaged("%s has no part for channel %d", f.name, place.number);
    f.reduction.argument = argument_of(r, work.redOpArg, work.redOpArgIsPtr, f.reduction);
    Part part = {};
    part.root = static_cast<int>(work.root);
    ncclCollCbdPart(&work, static_cast<uint32_t>(place.number), number_of(f.protocol),
                    static_cast<int>(size_of(f.reduction.type)), &part.count, &part.offset, &part.n, &part.chunk);
    add_collective(r, place, f, part, work.sendbuff, work.recvbuff, stage);
}

/* ---- the lists ---- */

/* n bytes of work, from where the batch says that it lies. */
void read_work(const Lists &r, size_t offset, void *out, size_t n)
{
    if (r.args.workStorageType == ncclDevWorkStorageTypeArgs) {
        if (offset + n > r.size) refuse(LAUNCH_FAILURE, "work lies outside of the arguments");
        memcpy(out, r.bytes + offset, n);
        return;
    }
    if (r.args.workStorageType != ncclDevWorkStorageTypeFifo &&
        r.args.workStorageType != ncclDevWorkStorageTypePersistent)
        refuse(NOT_SUPPORTED, "work is stored in a way that is not known (%d)",
               static_cast<int>(r.args.workStorageType));
    for (size_t i = 0; i < n; i += 16) { /* it wraps around at any 16 bytes */
        const char *from = static_cast<char *>(r.args.workBuf) + ((offset + i) & r.args.workMask);
        memcpy(static_cast<char *>(out) + i, r.memory.at(from, 16, false, "the work buffer"), 16);
    }
}

/* A batch's work at an offset of it cannot be understood. */
[[noreturn]] void refuse_work(const Lists &r, size_t offset, const Damage &damage)
{
    if (r.args.workStorageType != ncclDevWorkStorageTypeFifo) throw damage;
    refuse(LAUNCH_FAILURE,
           "the work FIFO of %zu bytes at %p was written over at offset %zu before the kernel has read it: %s. Raise "
           "NCCL_WORK_FIFO_BYTES, or put fewer operations into a group",
           static_cast<size_t>(r.args.workMask) + 1, r.args.workBuf, offset & r.args.workMask, damage.text.c_str());
}

/* Works of a batch, and of those that extend it, that a profiler waits for. */
using Marks = std::vector<uint64_t>;

/* What is recorded of a batch's works. */
WorkRow row_of(const Lists &r, const Place &place, const Function &f, uint32_t batch, bool extends)
{
    WorkRow row = {};
    row.comm = reinterpret_cast<uint64_t>(r.args.comm);
    row.plan = r.number;
    row.rank = r.comm.rank;
    row.ranks = r.comm.nRanks;
    row.send_peer = row.recv_peer = -1;
    row.storage = static_cast<uint32_t>(r.args.workStorageType);
    row.channel = static_cast<uint32_t>(place.number);
    row.batch = batch;
    row.extends = extends;
    strncpy(row.function, f.name, sizeof row.function - 1);
    return row;
}

void read_batch(Lists &r, const Place &place, const ncclDevWorkBatch &batch, uint32_t number, bool extends,
                Channel &channel, Stage *together, Marks *marks)
{
    const Function f = function_of(batch.funcId);
    const bool p2p = batch.workType == ncclDevWorkTypeP2p;
    r.plan.functions.insert(f.name);
    r.kernel_suits |= kernel_suits(r.launch->name, f);
    if (batch.workType == ncclDevWorkTypeCollReg) refuse_registered(f.name);
    if (batch.workType != ncclDevWorkTypeColl && !p2p)
        refuse(NOT_SUPPORTED, "%s: work of type %u is not interpreted", f.name, static_cast<unsigned>(batch.workType));
    if (p2p != (f.collective == Collective::SendRecv))
        refuse(LAUNCH_FAILURE, "function %s is given work of type %u", f.name, static_cast<unsigned>(batch.workType));
    if (!batch.offsetBitset) refuse(LAUNCH_FAILURE, "%s: a batch has no work", f.name);
    WorkRow row = row_of(r, place, f, number, extends);
    for (unsigned i = 0; i < 64; i++) {
        if (!(batch.offsetBitset >> i & 1)) continue;
        channel.works++;
        row.offset =
            batch.offsetBase + i * static_cast<uint32_t>(p2p ? sizeof(ncclDevWorkP2p) : sizeof(ncclDevWorkColl));
        if (p2p) {
            ncclDevWorkP2p work;
            const size_t offset = batch.offsetBase + i * sizeof work;
            read_work(r, offset, &work, sizeof work);
            try {
                read_p2p(r, place, work, *together, row);
            } catch (const Damage &damage) {
                refuse_work(r, offset, damage);
            }
            if (work.profilerEnabled) marks->push_back(channel.works);
            channel.consumed_to = batch.offsetBase + (i + 1) * static_cast<uint32_t>(sizeof work);
        } else {
            ncclDevWorkColl work;
            const size_t offset = batch.offsetBase + i * sizeof work;
            read_work(r, offset, &work, sizeof work);
            channel.stages.emplace_back();
            try {
                read_collective(r, place, f, work, channel.stages.back());
            } catch (const Damage &damage) {
                refuse_work(r, offset, damage);
            }
            if (work.profilerEnabled) marks->push_back(channel.works);
            channel.consumed_to = batch.offsetBase + (i + 1) * static_cast<uint32_t>(sizeof work);
        }
        if (r.number) works_add(row);
    }
}

/* Up to 2.26 a profiler polls one counter of a channel; later a ring of counters with times. */
constexpr bool ONE_COUNTER = std::is_same<decltype(Comm::workStarted), uint64_t *>::value;

[[maybe_unused]] void tell_work(uint64_t *counter, uint64_t work)
{
    __atomic_store_n(counter, work, __ATOMIC_RELEASE);
}
template <typename Ring> void tell_work(Ring *ring, uint64_t work)
{
    auto &entry = ring->data[work % (sizeof ring->data / sizeof ring->data[0])];
    __atomic_store_n(&entry.timestamp, psm_wall_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&entry.counter, work, __ATOMIC_RELEASE);
}

/* The counters that NCCL's proxy polls for its profiler: kernels write them before and after the works of a batch. */
void tell_profiler(Reader &r, int number, Channel &channel)
{
    auto *begun = r.memory.of(r.comm.workStarted + number, "the profiler's counter of begun work", true);
    auto *ended = r.memory.of(r.comm.workCompleted + number, "the profiler's counter of ended work", true);
    const uint64_t *counter = channel.work_counter;
    channel.tell = [begun, ended, counter](const Marks &works, bool are_done) {
        for (uint64_t work : works) tell_work(are_done ? ended : begun, *counter + work);
    };
}

/* Up to 2.26 kernels say how much of the work FIFO they have read. */
template <typename C> auto consumed_of(const C &comm, int) -> decltype(comm.workConsumed)
{
    return comm.workConsumed;
}
template <typename C> uint32_t *consumed_of(const C &, long)
{
    return nullptr;
}

void read_channel(Lists &r, int number, size_t first, Channel &channel)
{
    ncclDevChannel *on_device;
    const Place place = read_place(r, number, &on_device);
    channel.work_counter = &on_device->workCounter;
    uint32_t *const consumed = consumed_of(r.comm, 0);
    if (consumed && r.args.workStorageType == ncclDevWorkStorageTypeFifo)
        channel.consumed = r.memory.of(consumed + number, "the position in the work FIFO", true);
    const size_t batches = (r.size - sizeof r.args) / sizeof(ncclDevWorkBatch);
    Stage together;
    Marks marks;
    size_t begins = 0; /* stage that the batch begins with */
    uint32_t count = 0;
    bool extends = false;
    for (size_t at = first;;) {
        ncclDevWorkBatch batch;
        if (at >= batches) refuse(LAUNCH_FAILURE, "channel %d: batch %zu lies outside of the arguments", number, at);
        memcpy(&batch, r.bytes + sizeof r.args + at * sizeof batch, sizeof batch);
        read_batch(r, place, batch, count++, extends, channel, &together, &marks);
        extends = batch.nextExtends;
        if (!batch.nextExtends) {
            if (!together.lanes.empty() || !together.copies.empty() ||
                (!marks.empty() && begins == channel.stages.size())) {
                channel.stages.push_back(std::move(together));
                together = Stage();
            }
            if (!marks.empty()) {
                if (!channel.tell) tell_profiler(r, number, channel);
                /* One counter a channel tells of the whole batch. */
                if (ONE_COUNTER) marks = {channel.works};
                channel.stages[begins].begins = marks;
                channel.stages.back().ends = marks;
                marks.clear();
            }
            begins = channel.stages.size();
        }
        if (batch.nextExtends && !batch.nextJump)
            refuse(LAUNCH_FAILURE, "channel %d: the last batch says that it goes on", number);
        if (!batch.nextJump) break;
        at += batch.nextJump;
    }
    for (const Stage &stage : channel.stages) check_distinct(stage);
}

} // namespace

/* They come packed. */
int describe_parameters(const char *)
{
    return 0;
}

void read_plan(const psm_kernel_launch *launch, Memory &memory, Plan &plan)
{
    Lists r(launch, memory, plan);
    if (!r.bytes || r.size < sizeof r.args)
        refuse(NOT_SUPPORTED, "the launch has %zu bytes of packed arguments, and NCCL's have at least %zu", r.size,
               sizeof r.args);
    memcpy(static_cast<void *>(&r.args), r.bytes, sizeof r.args);
    read_comm(r, r.args.comm);
    if (works_wanted()) r.number = works_begin(reinterpret_cast<uint64_t>(r.args.comm));
    size_t block = 0;
    for (int number = 0; number < MAXCHANNELS; number++) {
        if (!(r.args.channelMask >> number & 1)) continue;
        plan.channels.emplace_back();
        read_channel(r, number, block++, plan.channels.back());
    }
    check_launch(r, block);
}

} // namespace psm
