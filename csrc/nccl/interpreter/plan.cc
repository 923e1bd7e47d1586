#include "plan.h"
#include "functions.h"
#include "layouts.h"
#include "schedules.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace psm
{

using Comm = std::remove_pointer<decltype(ncclDevKernelArgs::comm)>::type;

namespace
{

struct Reader {
    const psm_kernel_launch *launch;
    Memory &memory;
    Plan &plan;
    ncclDevKernelArgs args;
    Comm comm;
    const char *bytes; /* of all arguments */
    size_t size;
    bool kernel_suits = false;
};

/* What one channel knows of the ring, the tree and its peers. */
struct Place {
    int number;
    ncclDevChannel channel;
    const int *ring;
};

void refuse_registered(const char *what)
{
    refuse(NOT_SUPPORTED,
           "%s of registered buffers is not interpreted: set NCCL_LOCAL_REGISTER=0 and "
           "NCCL_GRAPH_REGISTER=0",
           what);
}

End *end_of(Reader &r, const Place &place, int peer, bool send, int index, Protocol protocol)
{
    if (peer < 0 || peer >= r.comm.nRanks)
        refuse(LAUNCH_FAILURE, "channel %d has no peer %d: there are %d ranks", place.number, peer, r.comm.nRanks);
    ncclDevChannelPeer *address =
        *r.memory.of(place.channel.peers + peer, "the address of a channel's connections to a peer");
    ncclDevChannelPeer *connections = r.memory.of(address, "a channel's connections to a peer", true);
    ncclConnInfo &c = send ? connections->send[index] : connections->recv[index];
    const char *way = send ? "to" : "from";
    if (!c.head || !c.tail) refuse(LAUNCH_FAILURE, "channel %d has no connection %s rank %d", place.number, way, peer);
    if (c.flags & NCCL_NVLS_MIN_POLL)
        refuse(NOT_SUPPORTED, "the connection %s rank %d is of NVLS: set NCCL_NVLS_ENABLE=0", way, peer);
    if (c.netDeviceHandle.netDeviceType != NCCL_NET_DEVICE_HOST)
        refuse(NOT_SUPPORTED,
               "the net plugin gives data %s rank %d to the device itself: use one that does not offload", way, peer);
    r.plan.ends.emplace_back();
    End &end = r.plan.ends.back();
    end.saved = &c.step;
    end.head = r.memory.of(c.head, "a connection's head", !send);
    end.tail = r.memory.of(c.tail, "a connection's tail", send);
    if (c.connFifo) {
        ncclConnFifo *fifo = r.memory.of(c.connFifo, "a connection's FIFO to the proxy", true, STEPS);
        end.has_fifo = true;
        for (int i = 0; i < STEPS; i++) {
            end.fifo[i].mode = &fifo[i].mode;
            end.fifo[i].offset = &fifo[i].offset;
            end.fifo[i].size = reinterpret_cast<int64_t *>(&fifo[i].size);
            if (fifo[i].mode != NCCL_MODE_NORMAL && fifo[i].mode != NCCL_MODE_OFFSET)
                refuse(NOT_SUPPORTED, "the proxy gives data %s rank %d by address (mode %d)", way, peer, fifo[i].mode);
        }
    }
    const int number = protocol == Protocol::LL      ? NCCL_PROTO_LL
                       : protocol == Protocol::LL128 ? NCCL_PROTO_LL128
                                                     : NCCL_PROTO_SIMPLE;
    end.device_buffer = c.buffs[number];
    end.slot = protocol == Protocol::Simple ? static_cast<size_t>(c.stepSize)
                                            : static_cast<size_t>(r.comm.buffSizes[number]) / STEPS;
    const bool shared =
        protocol == Protocol::Simple && end.has_fifo && *end.fifo[0].mode == NCCL_MODE_OFFSET; /* looked up by slot */
    end.room = end.slot * STEPS;
    if (!shared) end.buffer = r.memory.at(end.device_buffer, end.room, send, "a connection's buffer");
    return &end;
}

/* What several lanes at a time may not share. */
void check_distinct(const Stage &stage)
{
    std::set<const uint64_t *> seen;
    for (const Lane &lane : stage.lanes)
        for (const auto *ends : {&lane.flow().from, &lane.flow().to})
            for (const End *end : *ends)
                if (!seen.insert(end->saved).second)
                    refuse(NOT_SUPPORTED, "two transfers of one batch use the same connection at the same time");
}

Flow flow_of(const Function &f, unsigned chunk_steps, unsigned slice_steps, const Reader &r)
{
    Flow flow;
    flow.protocol = f.protocol;
    flow.slices = chunk_steps / slice_steps;
    flow.steps = slice_steps;
    flow.reduction = f.reduction;
    flow.element = size_of(f.reduction.type);
    flow.step_bytes = static_cast<size_t>(r.comm.buffSizes[NCCL_PROTO_SIMPLE]) / STEPS;
    return flow;
}

/* ---- point to point ---- */

void read_p2p(Reader &r, const Place &place, ncclDevWorkP2p work, Stage &stage)
{
    const Function f = {Collective::SendRecv, Algorithm::Ring, Protocol::Simple, {Type::u8, Op::Sum, 0}, "SendRecv"};
    if (work.sendNetReg || work.recvNetReg || work.sendIpcReg || work.recvIpcReg) refuse_registered("SendRecv");
    if (work.profilerEnabled)
        refuse(NOT_SUPPORTED, "SendRecv with counters for a profiler is not interpreted: unset NCCL_PROFILER_PLUGIN");
    const int part = ncclP2pChannelToPart(work.nP2pChannels, work.channelBase, place.number);
    const bool sends = part < work.nSendChannels, receives = part < work.nRecvChannels;
    size_t send_begin = 0, send_end = 0, recv_begin = 0, recv_end = 0;
    if (!sends && !receives) refuse(LAUNCH_FAILURE, "SendRecv has no part for channel %d", place.number);
    if (sends) ncclP2pPartBounds(work.nSendChannels, part, work.sendBytes, &send_begin, &send_end);
    if (receives) ncclP2pPartBounds(work.nRecvChannels, part, work.recvBytes, &recv_begin, &recv_end);
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
    for (const bool send_side : {true, false}) {
        if (!(send_side ? sends : receives)) continue;
        Flow flow = flow_of(f, 1, 1, r);
        const size_t n = send_side ? send_end - send_begin : recv_end - recv_begin;
        const size_t chunk = u32fp8Decode(send_side ? work.sendChunkSize_u32fp8 : work.recvChunkSize_u32fp8);
        flow.protocol = (send_side ? work.sendProtoLL : work.recvProtoLL) ? Protocol::LL : Protocol::Simple;
        flow.step_bytes = static_cast<size_t>(r.comm.p2pChunkSize);
        if (!chunk) refuse(LAUNCH_FAILURE, "SendRecv has chunks of 0 bytes");
        End *end = end_of(r, place, send_side ? work.sendRank : work.recvRank, send_side, 1, flow.protocol);
        (send_side ? flow.to : flow.from).push_back(end);
        flow.schedule = send_side ? send(from, n, chunk) : receive(to, n, chunk);
        stage.lanes.emplace_back(std::move(flow), &r.memory);
    }
}

/* ---- collectives ---- */

void read_tree(Reader &r, const Place &place, const Function &f, const Part &part, const Flow &base, Stage &stage)
{
    const ncclTree &tree = place.channel.tree;
    std::vector<int> down;
    for (int peer : tree.down)
        if (peer >= 0) down.push_back(peer);
    const auto ends = [&](const std::vector<int> &peers, bool send) {
        std::vector<End *> out;
        for (int peer : peers) out.push_back(end_of(r, place, peer, send, 0, f.protocol));
        return out;
    };
    if (tree.up < 0) {
        Flow flow = base;
        flow.from = ends(down, false);
        flow.to = ends(down, true);
        flow.schedule = tree_root(part);
        stage.lanes.emplace_back(std::move(flow), &r.memory);
        return;
    }
    Flow upwards = base, downwards = base;
    upwards.from = ends(down, false);
    upwards.to = ends({tree.up}, true);
    upwards.schedule = tree_reduce(part, down.empty());
    downwards.from = ends({tree.up}, false);
    downwards.to = ends(down, true);
    downwards.schedule = tree_broadcast(part, down.empty());
    stage.lanes.emplace_back(std::move(upwards), &r.memory);
    stage.lanes.emplace_back(std::move(downwards), &r.memory);
}

uint64_t argument_of(Reader &r, const ncclDevWorkColl &work, const Reduction &reduction)
{
    if (!work.redOpArgIsPtr || reduction.op == Op::Sum || reduction.op == Op::Prod) return work.redOpArg;
    const size_t n = reduction.op == Op::SumPostDiv ? sizeof(uint64_t) : size_of(reduction.type);
    uint64_t value = 0;
    memcpy(&value, r.memory.at(reinterpret_cast<void *>(work.redOpArg), n, false, "the argument of a reduction"), n);
    return value;
}

void read_collective(Reader &r, const Place &place, Function f, ncclDevWorkColl work, Stage &stage)
{
    if (work.regUsed || work.netRegUsed) refuse_registered(f.name);
    if (work.profilerEnabled)
        refuse(NOT_SUPPORTED, "%s with counters for a profiler is not interpreted: unset NCCL_PROFILER_PLUGIN", f.name);
    if (place.number < static_cast<int>(work.channelLo) || place.number > static_cast<int>(work.channelHi))
        refuse(LAUNCH_FAILURE, "%s has no part for channel %d", f.name, place.number);
    const bool rooted = f.collective == Collective::Broadcast || f.collective == Collective::Reduce;
    if (rooted && work.root >= static_cast<uint32_t>(r.comm.nRanks))
        refuse(LAUNCH_FAILURE, "%s has root %u of %d ranks", f.name, work.root, r.comm.nRanks);
    f.reduction.argument = argument_of(r, work, f.reduction);
    if (const char *fault = reduction_fault(f.reduction)) refuse(NOT_SUPPORTED, "%s: %s", f.name, fault);

    const int number = f.protocol == Protocol::LL      ? NCCL_PROTO_LL
                       : f.protocol == Protocol::LL128 ? NCCL_PROTO_LL128
                                                       : NCCL_PROTO_SIMPLE;
    Part part = {};
    part.element = size_of(f.reduction.type);
    ncclCollCbdPart(&work, static_cast<uint32_t>(place.number), number, static_cast<int>(part.element), &part.count,
                    &part.offset, &part.n, &part.chunk);
    if (!part.chunk) refuse(LAUNCH_FAILURE, "%s has chunks of 0 elements on channel %d", f.name, place.number);
    part.rank = r.comm.rank;
    part.ranks = r.comm.nRanks;
    part.root = static_cast<int>(work.root);
    part.index = place.channel.ring.index;
    part.ring = place.ring;
    const size_t begin = part.offset * part.element, end = begin + part.n * part.element;
    const size_t each = part.count * part.element, all = each * static_cast<size_t>(part.ranks);
    const bool root = part.rank == part.root;
    const bool whole_in = f.collective == Collective::ReduceScatter, whole_out = f.collective == Collective::AllGather;
    if (part.n && (f.collective != Collective::Broadcast || root))
        part.in = r.memory.window(work.sendbuff, whole_in ? 0 : begin, whole_in ? all : end, false, "the send buffer");
    if (part.n && (f.collective != Collective::Reduce || root))
        part.out =
            r.memory.window(work.recvbuff, whole_out ? 0 : begin, whole_out ? all : end, true, "the receive buffer");
    part.in_place = whole_out ? work.sendbuff == static_cast<char *>(work.recvbuff) + each * part.rank
                              : work.sendbuff == work.recvbuff;

    if (f.algorithm == Algorithm::Tree) return read_tree(r, place, f, part, flow_of(f, 1, 1, r), stage);
    Flow flow;
    switch (f.collective) {
    case Collective::AllReduce:
        flow = flow_of(f, ALLREDUCE_CHUNKSTEPS, ALLREDUCE_SLICESTEPS, r);
        flow.schedule = ring_all_reduce(part);
        break;
    case Collective::AllGather:
        flow = flow_of(f, ALLGATHER_CHUNKSTEPS, ALLGATHER_SLICESTEPS, r);
        flow.schedule = ring_all_gather(part);
        break;
    case Collective::ReduceScatter:
        flow = flow_of(f, REDUCESCATTER_CHUNKSTEPS, REDUCESCATTER_SLICESTEPS, r);
        flow.schedule = ring_reduce_scatter(part);
        break;
    case Collective::Broadcast:
        flow = flow_of(f, BROADCAST_CHUNKSTEPS, BROADCAST_SLICESTEPS, r);
        flow.schedule = ring_broadcast(part);
        break;
    case Collective::Reduce:
        flow = flow_of(f, REDUCE_CHUNKSTEPS, REDUCE_SLICESTEPS, r);
        flow.schedule = ring_reduce(part);
        break;
    case Collective::SendRecv:
        refuse(LAUNCH_FAILURE, "work of a collective names function SendRecv");
    }
    flow.from = {end_of(r, place, place.channel.ring.prev, false, 0, f.protocol)};
    flow.to = {end_of(r, place, place.channel.ring.next, true, 0, f.protocol)};
    stage.lanes.emplace_back(std::move(flow), &r.memory);
}

/* ---- the lists ---- */

/* n bytes of work, from where the batch says that it lies. */
void read_work(Reader &r, size_t offset, void *out, size_t n)
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

void read_batch(Reader &r, const Place &place, const ncclDevWorkBatch &batch, Channel &channel, Stage *together)
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
    for (unsigned i = 0; i < 64; i++) {
        if (!(batch.offsetBitset >> i & 1)) continue;
        channel.works++;
        if (p2p) {
            ncclDevWorkP2p work;
            read_work(r, batch.offsetBase + i * sizeof work, &work, sizeof work);
            read_p2p(r, place, work, *together);
            channel.consumed_to = batch.offsetBase + (i + 1) * static_cast<uint32_t>(sizeof work);
        } else {
            ncclDevWorkColl work;
            read_work(r, batch.offsetBase + i * sizeof work, &work, sizeof work);
            channel.stages.emplace_back();
            read_collective(r, place, f, work, channel.stages.back());
            channel.consumed_to = batch.offsetBase + (i + 1) * static_cast<uint32_t>(sizeof work);
        }
    }
}

void read_channel(Reader &r, int number, size_t first, Channel &channel)
{
    Place place;
    ncclDevChannel *on_device = r.memory.of(r.comm.channels + number, "a channel", true);
    place.number = number;
    place.channel = *on_device;
    place.ring =
        r.memory.of(place.channel.ring.userRanks, "a channel's ring", false, static_cast<size_t>(r.comm.nRanks));
    channel.work_counter = &on_device->workCounter;
#if PSM_NCCL_FIFO_CREDITS
    if (r.args.workStorageType == ncclDevWorkStorageTypeFifo)
        channel.consumed = r.memory.of(r.comm.workConsumed + number, "the position in the work FIFO", true);
#endif
    const size_t batches = (r.size - sizeof r.args) / sizeof(ncclDevWorkBatch);
    Stage together;
    for (size_t at = first;;) {
        ncclDevWorkBatch batch;
        if (at >= batches) refuse(LAUNCH_FAILURE, "channel %d: batch %zu lies outside of the arguments", number, at);
        memcpy(&batch, r.bytes + sizeof r.args + at * sizeof batch, sizeof batch);
        read_batch(r, place, batch, channel, &together);
        if (!batch.nextExtends && (!together.lanes.empty() || !together.copies.empty())) {
            channel.stages.push_back(std::move(together));
            together = Stage();
        }
        if (batch.nextExtends && !batch.nextJump)
            refuse(LAUNCH_FAILURE, "channel %d: the last batch says that it goes on", number);
        if (!batch.nextJump) break;
        at += batch.nextJump;
    }
    for (const Stage &stage : channel.stages) check_distinct(stage);
}

} // namespace

void read_plan(const psm_kernel_launch *launch, Memory &memory, Plan &plan)
{
    Reader r = {launch, memory, plan, {}, {}, static_cast<const char *>(launch->buffer), launch->buffer_size, false};
    if (!r.bytes || r.size < sizeof r.args)
        refuse(NOT_SUPPORTED, "the launch has %zu bytes of packed arguments, and NCCL's have at least %zu", r.size,
               sizeof r.args);
    memcpy(static_cast<void *>(&r.args), r.bytes, sizeof r.args);
    memcpy(static_cast<void *>(&r.comm), memory.of(r.args.comm, "the communicator"), sizeof r.comm);
    plan.rank = r.comm.rank;
    if (r.comm.nRanks < 2 || r.comm.rank < 0 || r.comm.rank >= r.comm.nRanks)
        refuse(LAUNCH_FAILURE,
               "the communicator has rank %d of %d: is this library built with the headers of the "
               "libnccl that runs?",
               r.comm.rank, r.comm.nRanks);
    plan.abort = memory.of(const_cast<uint32_t *>(r.comm.abortFlag), "the abort flag");
    size_t block = 0;
    for (int number = 0; number < MAXCHANNELS; number++) {
        if (!(r.args.channelMask >> number & 1)) continue;
        plan.channels.emplace_back();
        read_channel(r, number, block++, plan.channels.back());
    }
    if (block != launch->grid[0])
        refuse(LAUNCH_FAILURE, "%u blocks are launched for %zu channels", launch->grid[0], block);
    if (!r.kernel_suits)
        refuse(LAUNCH_FAILURE,
               "it is given %s, which it is not the kernel of: build this library with the "
               "host_table.cc of the libnccl that runs",
               plan.functions.begin()->c_str());
}

} // namespace psm
