/* Reports each copy to NCCL's profiler, as NCCL's net transport reports its transfers: both ends, step by step. Runs on
 * NCCL's progress thread. */
#include "psm_nccl.h"

#include <algorithm>

#include "profiler.h"

namespace psm
{

namespace
{

/* States of the profiler's tables from v4 on. */
constexpr auto OP_IN_PROGRESS = static_cast<ncclProfilerEventState_t>(19);
constexpr auto STEP_SEND_PEER_WAIT = static_cast<ncclProfilerEventState_t>(20);

/* Up to 2.26 the transport starts the event of an operation, and its states have the steps and the size. Later NCCL has
 * started it when it appended the operation. The last argument prefers the first of two that fit. */
template <typename Args>
auto begin_op(Args *args, int s, bool send, int) -> decltype(ncclProfilerStartSendProxyOpEvent(s, args))
{
    return send ? ncclProfilerStartSendProxyOpEvent(s, args) : ncclProfilerStartRecvProxyOpEvent(s, args);
}
template <typename Args> ncclResult_t begin_op(Args *args, int s, bool, long)
{
    return ncclProfilerRecordProxyOpEventState(s, args, OP_IN_PROGRESS);
}

template <typename Args>
auto op_state(Args *args, int s, uint64_t steps, size_t bytes, ncclProfilerEventState_t state, int)
    -> decltype(ncclProfilerRecordProxyOpEventState(s, args, static_cast<int>(steps), bytes, state))
{
    return ncclProfilerRecordProxyOpEventState(s, args, static_cast<int>(steps), bytes, state);
}
template <typename Args> void op_state(Args *, int, uint64_t, size_t, ncclProfilerEventState_t, long) {}

template <typename Args>
auto waits_for_peer(Args *args, int s, int, int) -> decltype(ncclProfilerStartSendProxyOpEvent(s, args))
{
    return ncclSuccess;
}
template <typename Args> ncclResult_t waits_for_peer(Args *args, int s, int step, long)
{
    return ncclProfilerRecordProxyStepEventState(s, args, step, STEP_SEND_PEER_WAIT);
}

/* NCCL divides a step by sliceSteps to number its event. */
int number_of(const struct ncclProxyArgs *args, uint64_t step)
{
    return (int)(step * (uint64_t)std::max(args->sliceSteps, 1));
}

uint64_t bytes_until(const struct psmProxySubArgs *sub, uint64_t step)
{
    return step >= sub->nsteps ? sub->nbytes : step * sub->chunkSize;
}

/* Converts libpsm's counters to events: a step waits for its peer until its copy is on the stream, and ends with the
 * copy. */
void tell(struct ncclProxyArgs *args, int s, const struct psmProxySubArgs *sub, struct Told *told)
{
    struct ncclProxySubArgs *nccl = &args->subs[s];
    bool send = nccl->connection->send;
    for (;;) {
        if (told->ended < sub->done && told->ended < told->moving) {
            uint64_t step = told->ended++;
            ncclProfilerStopProxyStepEvent(s, args, number_of(args, step));
            op_state(args, s, told->ended, bytes_until(sub, told->ended),
                     send ? ncclProfilerProxyOpSendDone : ncclProfilerProxyOpRecvDone, 0);
        } else if (told->moving < sub->transmitted && told->moving < told->begun) {
            uint64_t step = told->moving++;
            nccl->transSize = (size_t)(bytes_until(sub, step + 1) - bytes_until(sub, step));
            ncclProfilerRecordProxyStepEventState(s, args, number_of(args, step),
                                                  send ? ncclProfilerProxyStepSendWait
                                                       : ncclProfilerProxyStepRecvGPUWait);
            op_state(args, s, told->moving, bytes_until(sub, told->moving),
                     send ? ncclProfilerProxyOpSendTransmitted : ncclProfilerProxyOpRecvTransmitted, 0);
        } else if (told->begun < sub->nsteps && told->begun <= sub->transmitted &&
                   told->begun < told->ended + NCCL_STEPS) {
            int step = number_of(args, told->begun++);
            if (send) {
                ncclProfilerStartSendProxyStepEvent(s, args, step);
                waits_for_peer(args, s, step, 0);
            } else {
                ncclProfilerStartRecvProxyStepEvent(s, args, step);
                ncclProfilerRecordProxyStepEventState(s, args, step, ncclProfilerProxyStepRecvWait);
            }
        } else {
            return;
        }
    }
}

} // namespace

void profile_begin(struct ncclProxyArgs *args, Operation *operation)
{
    bool wanted = false;
    for (int s = 0; s < args->nsubs; s++) {
        begin_op(args, s, args->subs[s].connection->send, 0);
        wanted = wanted || args->subs[s].opEventHandle;
    }
    if (wanted) operation->told.resize((size_t)args->nsubs);
}

void profile_moved(struct ncclProxyArgs *args, Operation *operation)
{
    if (operation->told.empty()) return;
    for (size_t s = 0; s < operation->told.size(); s++) {
        const struct psmProxyArgs &part = operation->parts[s / PSM_MAX_SUBS];
        tell(args, (int)s, &part.subs[s % PSM_MAX_SUBS], &operation->told[s]);
    }
}

void profile_end(struct ncclProxyArgs *args, Operation *operation)
{
    profile_moved(args, operation);
    for (size_t s = 0; s < operation->told.size(); s++) {
        struct Told *told = &operation->told[s];
        while (told->ended < told->begun) /* it failed */
            ncclProfilerStopProxyStepEvent((int)s, args, number_of(args, told->ended++));
        ncclProfilerStopProxyOpEvent((int)s, args);
    }
}

} // namespace psm
