#include "connections.h"

#include <cstring>

namespace psm
{

int number_of(Protocol protocol)
{
    return protocol == Protocol::LL      ? NCCL_PROTO_LL
           : protocol == Protocol::LL128 ? NCCL_PROTO_LL128
                                         : NCCL_PROTO_SIMPLE;
}

void read_comm(Reader &r, Comm *address)
{
    memcpy(static_cast<void *>(&r.comm), r.memory.of(address, "the communicator"), sizeof r.comm);
    r.plan.rank = r.comm.rank;
    if (r.comm.nRanks < 2 || r.comm.rank < 0 || r.comm.rank >= r.comm.nRanks)
        refuse(LAUNCH_FAILURE,
               "the communicator has rank %d of %d: is this library built with the headers of the "
               "libnccl that runs?",
               r.comm.rank, r.comm.nRanks);
    r.plan.abort = r.memory.of(const_cast<uint32_t *>(r.comm.abortFlag), "the abort flag");
}

Place read_place(Reader &r, int number, ncclDevChannel **on_device)
{
    Place place;
    *on_device = r.memory.of(r.comm.channels + number, "a channel", true);
    place.number = number;
    place.channel = **on_device;
    place.ring =
        r.memory.of(place.channel.ring.userRanks, "a channel's ring", false, static_cast<size_t>(r.comm.nRanks));
    return place;
}

void check_launch(const Reader &r, size_t blocks)
{
    if (blocks != r.launch->grid[0])
        refuse(LAUNCH_FAILURE, "%u blocks are launched for %zu channels", r.launch->grid[0], blocks);
    if (!r.kernel_suits)
        refuse(LAUNCH_FAILURE,
               "it is given %s, which it is not the kernel of: build this library with the "
               "host_table.cc of the libnccl that runs",
               r.plan.functions.begin()->c_str());
}

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
    const int number = number_of(protocol);
    end.device_buffer = c.buffs[number];
    end.slot = protocol == Protocol::Simple ? static_cast<size_t>(c.stepSize)
                                            : static_cast<size_t>(r.comm.buffSizes[number]) / STEPS;
    const bool shared =
        protocol == Protocol::Simple && end.has_fifo && *end.fifo[0].mode == NCCL_MODE_OFFSET; /* looked up by slot */
    end.room = end.slot * STEPS;
    if (!shared) end.buffer = r.memory.at(end.device_buffer, end.room, send, "a connection's buffer");
    return &end;
}

void check_distinct(const Stage &stage)
{
    std::set<const uint64_t *> seen;
    for (const Lane &lane : stage.lanes)
        for (const auto *ends : {&lane.flow().from, &lane.flow().to})
            for (const End *end : *ends)
                if (!seen.insert(end->saved).second)
                    refuse(NOT_SUPPORTED, "two transfers of one batch use the same connection at the same time");
}

static Flow flow_of(const Function &f, unsigned chunk_steps, unsigned slice_steps, const Reader &r)
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

void add_message(Reader &r, const Place &place, int peer, bool sends, Protocol protocol, char *buffer, size_t bytes,
                 size_t chunk, Stage &stage)
{
    const Function f = {Collective::SendRecv, Algorithm::Ring, protocol, {Type::u8, Op::Sum, 0}, "SendRecv"};
    Flow flow = flow_of(f, 1, 1, r);
    flow.step_bytes = static_cast<size_t>(r.comm.p2pChunkSize);
    if (!chunk || chunk > MOST_BYTES) refuse_damaged("SendRecv has chunks of %zu bytes", chunk);
    (sends ? flow.to : flow.from).push_back(end_of(r, place, peer, sends, 1, protocol));
    flow.schedule = sends ? send(buffer, bytes, chunk) : receive(buffer, bytes, chunk);
    stage.lanes.emplace_back(std::move(flow), &r.memory);
}

/* ---- collectives ---- */

static void add_tree(Reader &r, const Place &place, const Function &f, const Part &part, const Flow &base, Stage &stage)
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

uint64_t argument_of(Reader &r, uint64_t value, bool is_pointer, const Reduction &reduction)
{
    if (!is_pointer || reduction.op == Op::Sum || reduction.op == Op::Prod) return value;
    const size_t n = reduction.op == Op::SumPostDiv ? sizeof(uint64_t) : size_of(reduction.type);
    uint64_t out = 0;
    memcpy(&out, r.memory.at(reinterpret_cast<void *>(value), n, false, "the argument of a reduction"), n);
    return out;
}

void add_collective(Reader &r, const Place &place, const Function &f, Part part, const void *sendbuff, void *recvbuff,
                    Stage &stage)
{
    const bool rooted = f.collective == Collective::Broadcast || f.collective == Collective::Reduce;
    if (rooted && (part.root < 0 || part.root >= r.comm.nRanks))
        refuse_damaged("%s has root %d of %d ranks", f.name, part.root, r.comm.nRanks);
    if (const char *fault = reduction_fault(f.reduction)) refuse(NOT_SUPPORTED, "%s: %s", f.name, fault);
    part.element = size_of(f.reduction.type);
    const size_t most = MOST_BYTES / part.element / static_cast<size_t>(r.comm.nRanks);
    if (!part.chunk || part.chunk > most)
        refuse_damaged("%s has chunks of %zu elements on channel %d", f.name, part.chunk, place.number);
    if (part.count > most || part.offset > most || part.n > most)
        refuse_damaged("%s has %zu elements, and %zu from %zu on on channel %d", f.name, part.count, part.n,
                       part.offset, place.number);
    part.rank = r.comm.rank;
    part.ranks = r.comm.nRanks;
    part.index = place.channel.ring.index;
    part.ring = place.ring;
    const size_t begin = part.offset * part.element, end = begin + part.n * part.element;
    const size_t each = part.count * part.element, all = each * static_cast<size_t>(part.ranks);
    const bool root = part.rank == part.root;
    const bool whole_in = f.collective == Collective::ReduceScatter, whole_out = f.collective == Collective::AllGather;
    if ((whole_in || whole_out) && part.offset + part.n > part.count)
        refuse_damaged("%s has elements %zu to %zu of %zu on channel %d", f.name, part.offset, part.offset + part.n,
                       part.count, place.number);
    if (part.n && (f.collective != Collective::Broadcast || root))
        part.in = r.memory.window(sendbuff, whole_in ? 0 : begin, whole_in ? all : end, false, "the send buffer");
    if (part.n && (f.collective != Collective::Reduce || root))
        part.out = r.memory.window(recvbuff, whole_out ? 0 : begin, whole_out ? all : end, true, "the receive buffer");
    part.in_place = whole_out ? sendbuff == static_cast<char *>(recvbuff) + each * part.rank : sendbuff == recvbuff;

    if (f.algorithm == Algorithm::Tree) return add_tree(r, place, f, part, flow_of(f, 1, 1, r), stage);
    Flow flow;
/* A case for a collective: how its ring counts steps, and who makes the schedule. */
#define RING(name, STEPS, schedule_of)                                                                                 \
    case Collective::name:                                                                                             \
        flow = flow_of(f, STEPS##_CHUNKSTEPS, STEPS##_SLICESTEPS, r);                                                  \
        flow.schedule = schedule_of(part);                                                                             \
        break;
    switch (f.collective) {
        RING(AllReduce, ALLREDUCE, ring_all_reduce)
        RING(AllGather, ALLGATHER, ring_all_gather)
        RING(ReduceScatter, REDUCESCATTER, ring_reduce_scatter)
        RING(Broadcast, BROADCAST, ring_broadcast)
        RING(Reduce, REDUCE, ring_reduce)
    case Collective::SendRecv:
        refuse(LAUNCH_FAILURE, "work of a collective names function SendRecv");
    }
    flow.from = {end_of(r, place, place.channel.ring.prev, false, 0, f.protocol)};
    flow.to = {end_of(r, place, place.channel.ring.next, true, 0, f.protocol)};
    stage.lanes.emplace_back(std::move(flow), &r.memory);
}

} // namespace psm
