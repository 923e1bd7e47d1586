/* The work of NCCL 2.21: a list of works for each channel, the first of which lie side by side. */
#include "../connections.h"

#include <cstring>

namespace psm
{

namespace
{

constexpr int ELEMENTS = sizeof ncclWork::elems / sizeof(ncclWorkElem);
constexpr int MESSAGES = sizeof ncclWork::p2pElems / sizeof(ncclWorkElemP2p);

struct Message {
    char *buffer;
    size_t bytes;
};

/* ---- point to point: receives have even places, sends odd ones ---- */

Message message_of(Reader &r, const ncclWorkElemP2p &e, bool sends)
{
    char *buffer = reinterpret_cast<char *>(static_cast<uintptr_t>(e.buffHi32) << 32 | e.buffLo32);
    const size_t bytes = static_cast<size_t>(e.countHi32) << 32 | e.countLo32;
    const char *what = sends ? "the buffer of ncclSend" : "the buffer of ncclRecv";
    return {r.memory.window(buffer, 0, bytes, !sends, what), bytes};
}

void read_messages(Reader &r, const Place &place, const ncclWork &work, Stage &stage)
{
    const int groups = work.p2pElems[0].ngroups;
    if (groups < 1 || groups > MESSAGES) refuse(LAUNCH_FAILURE, "SendRecv has %d groups", groups);
    for (int i = 0; i < groups; i++) {
        const ncclWorkElemP2p &e = work.p2pElems[i];
        const bool sends = i % 2;
        if (e.p2pType == ncclWorkP2pTypeUnused || e.peer == -1) continue;
        if (e.p2pType != (sends ? ncclWorkP2pTypeSend : ncclWorkP2pTypeRecv))
            refuse(LAUNCH_FAILURE, "SendRecv has a message of type %d at place %d", static_cast<int>(e.p2pType), i);
        if (e.reg) refuse_registered("SendRecv");
        const Message m = message_of(r, e, sends);
        if (e.peer == r.comm.rank) {
            const ncclWorkElemP2p &other = work.p2pElems[i ^ 1];
            const Message o = message_of(r, other, !sends);
            if (other.p2pType == ncclWorkP2pTypeUnused || other.peer != e.peer || o.bytes != m.bytes)
                refuse(NOT_SUPPORTED, "a rank's message to itself has %zu bytes on one side and %zu on the other",
                       m.bytes, o.bytes);
            if (sends) stage.copies.push_back({o.buffer, m.buffer, m.bytes});
            continue;
        }
        const bool ll = e.proto == NCCL_PROTO_LL;
        if (!ll && (e.proto & 3) != NCCL_PROTO_SIMPLE)
            refuse(NOT_SUPPORTED, "SendRecv: protocol %d is not interpreted", e.proto & 3);
        if (e.chunkSize <= 0) refuse(LAUNCH_FAILURE, "SendRecv has chunks of %d bytes", e.chunkSize);
        add_message(r, place, e.peer, sends, ll ? Protocol::LL : Protocol::Simple, m.buffer, m.bytes,
                    static_cast<size_t>(ll ? e.chunkSize / 2 : e.chunkSize), stage);
    }
}

/* ---- collectives ---- */

void read_collective(Reader &r, const Place &place, Function f, const ncclWorkElem &e, Stage &stage)
{
    if (e.regUsed) refuse_registered(f.name);
    f.reduction.argument = argument_of(r, e.redOpArg, e.redOpArgIsPtr, f.reduction);
    if (f.reduction.op == Op::SumPostDiv) { /* the divisor alone; the type says whether it is signed */
        const Type t = f.reduction.type;
        f.reduction.argument = f.reduction.argument << 1 | (t == Type::i8 || t == Type::i32 || t == Type::i64);
    }
    Part part = {};
    part.root = static_cast<int>(e.root);
    part.count = e.count;
    part.offset = e.workOffset;
    part.n = e.workCount;
    part.chunk = e.chunkCount;
    part.last_chunk = e.lastChunkCount;
    add_collective(r, place, f, part, e.sendbuff, e.recvbuff, stage);
}

/* ---- the lists ---- */

void read_channel(Reader &r, const ncclDevKernelArgs &args, int number, size_t first, Channel &channel)
{
    enum { MOST = 1 << 20 }; /* works of one launch: more is a list that is not one */
    ncclDevChannel *on_device;
    const Place place = read_place(r, number, &on_device);
    ncclWork work;
    const ncclWork *at = args.workHead + first;
    for (size_t n = 0;; n++) {
        if (n == MOST) refuse(LAUNCH_FAILURE, "channel %d: the list of work does not end", number);
        memcpy(static_cast<void *>(&work), r.memory.of(at, "the list of work"), sizeof work);
        const Function f = function_of(work.header.funcIndex);
        const bool p2p = work.header.type == ncclWorkTypeP2p;
        r.plan.functions.insert(f.name);
        r.kernel_suits |= kernel_suits(r.launch->name, f);
        if (work.header.type == ncclWorkTypeRegColl) refuse_registered(f.name);
        if (!p2p && work.header.type != ncclWorkTypeColl)
            refuse(NOT_SUPPORTED, "%s: work of type %d is not interpreted", f.name, static_cast<int>(work.header.type));
        if (p2p != (f.collective == Collective::SendRecv))
            refuse(LAUNCH_FAILURE, "function %s is given work of type %d", f.name, static_cast<int>(work.header.type));
        if (p2p) {
            channel.stages.emplace_back();
            read_messages(r, place, work, channel.stages.back());
        }
        for (int i = 0; !p2p && i < ELEMENTS && work.elems[i].isUsed; i++) {
            channel.stages.emplace_back();
            read_collective(r, place, f, work.elems[i], channel.stages.back());
        }
        if (work.header.isLast) break;
        at = args.workHead + work.header.workNext;
    }
    if (work.header.inFifo) { /* all of it was read */
        channel.consumed = r.memory.of(place.channel.workFifoDone, "the position in the work FIFO", true);
        channel.consumed_to = work.header.doneAcks;
    }
    for (const Stage &stage : channel.stages) check_distinct(stage);
}

} // namespace

int describe_parameters(const char *kernels)
{
    const size_t sizes[] = {sizeof(ncclDevKernelArgs::comm), sizeof(ncclDevKernelArgs::channelMask),
                            sizeof(ncclDevKernelArgs::workHead)};
    return psm_hostcuda_kernel_parameters(kernels, 3, sizes);
}

void read_plan(const psm_kernel_launch *launch, Memory &memory, Plan &plan)
{
    Reader r = {launch, memory, plan, {}};
    ncclDevKernelArgs args;
    if (launch->parameters != 3)
        refuse(NOT_SUPPORTED, "the launch has %u parameters, and NCCL's kernels have 3", launch->parameters);
    memcpy(&args.comm, launch->arguments[0], sizeof args.comm);
    memcpy(&args.channelMask, launch->arguments[1], sizeof args.channelMask);
    memcpy(&args.workHead, launch->arguments[2], sizeof args.workHead);
    read_comm(r, args.comm);
    size_t block = 0;
    for (int number = 0; number < MAXCHANNELS; number++) {
        if (!(args.channelMask >> number & 1)) continue;
        plan.channels.emplace_back();
        read_channel(r, args, number, block++, plan.channels.back());
    }
    check_launch(r, block);
}

} // namespace psm
