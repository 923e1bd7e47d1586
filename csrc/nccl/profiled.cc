/* Reports each copy to NCCL's profiler, as NCCL's net transport reports its transfers: both ends, step by step. Runs on
 * NCCL's progress thread. */
#include "psm_nccl.h"

#include <algorithm>

#include "profiler.h"

namespace psm
{

namespace
{

#ifdef PSM_TREE_2_30
/* NCCL started the event when it appended the operation. */
void begin_op(struct ncclProxyArgs *args, int s, bool)
{
    ncclProfilerRecordProxyOpEventState(s, args, ncclProfilerProxyOpInProgress_v4);
}
void waits_for_peer(struct ncclProxyArgs *args, int s, int step)
{
    ncclProfilerRecordProxyStepEventState(s, args, step, ncclProfilerProxyStepSendPeerWait_v4);
}
void op_state(struct ncclProxyArgs *, int, uint64_t, size_t, ncclProfilerEventState_t) {}
#else
void begin_op(struct ncclProxyArgs *args, int s, bool send)
{
    if (send)
        ncclProfilerStartSendProxyOpEvent(s, args);
    else
        ncclProfilerStartRecvProxyOpEvent(s, args);
}
void waits_for_peer(struct ncclProxyArgs *, int, int) {}
/* In these tables the size is in the operation's state. */
void op_state(struct ncclProxyArgs *args, int s, uint64_t steps, size_t bytes, ncclProfilerEventState_t state)
{
    ncclProfilerRecordProxyOpEventState(s, args, (int)steps, bytes, state);
}
#endif

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
                     send ? ncclProfilerProxyOpSendDone : ncclProfilerProxyOpRecvDone);
        } else if (told->moving < sub->transmitted && told->moving < told->begun) {
            uint64_t step = told->moving++;
            nccl->transSize = (size_t)(bytes_until(sub, step + 1) - bytes_until(sub, step));
            ncclProfilerRecordProxyStepEventState(s, args, number_of(args, step),
                                                  send ? ncclProfilerProxyStepSendWait
                                                       : ncclProfilerProxyStepRecvGPUWait);
            op_state(args, s, told->moving, bytes_until(sub, told->moving),
                     send ? ncclProfilerProxyOpSendTransmitted : ncclProfilerProxyOpRecvTransmitted);
        } else if (told->begun < sub->nsteps && told->begun <= sub->transmitted &&
                   told->begun < told->ended + NCCL_STEPS) {
            int step = number_of(args, told->begun++);
            if (send) {
                ncclProfilerStartSendProxyStepEvent(s, args, step);
                waits_for_peer(args, s, step);
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
        begin_op(args, s, args->subs[s].connection->send);
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
