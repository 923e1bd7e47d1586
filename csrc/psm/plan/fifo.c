/* The work FIFO: the thread that fills it waits for kernels to release space. Counters wrap around and are compared as
 * differences. */
#include <sched.h>

#include "plan/schedule.h"

/* The space that all channels have released. A channel without work reports nothing: its counter follows the others, so
 * that it does not fall so far behind that it seems to be ahead. */
static void look(struct plan_fifo *fifo)
{
    uint32_t done[MAXCHANNELS], least = fifo->sent;
    for (int c = 0; c < MAXCHANNELS; c++) {
        done[c] = atomic_load_explicit(&fifo->done[c], memory_order_acquire);
        if (done[c] != fifo->channelSent[c] && fifo->sent - least < fifo->sent - done[c]) least = done[c];
    }
    for (int c = 0; c < MAXCHANNELS; c++)
        if (done[c] == fifo->channelSent[c]) {
            fifo->channelSent[c] = least;
            atomic_store_explicit(&fifo->done[c], least, memory_order_relaxed);
        }
    fifo->acked = least;
}

static bool by_events(const psmPlanComm *comm)
{
    return comm->release && comm->release->eventRoom;
}

psm_status psm_plan_fifo_wait(psmPlanComm *comm, psmPlan *plan, uint32_t until)
{
    struct plan_fifo *fifo = &comm->fifo;
    while (until - fifo->acked > fifo->depth) {
        if (by_events(comm))
            fifo->acked = atomic_load_explicit(&fifo->given, memory_order_acquire);
        else
            look(fifo);
        if (until - fifo->acked <= fifo->depth) break;
        if (atomic_load_explicit(&comm->aborted, memory_order_acquire))
            return psm_fail(PSM_ERR_ABORTED, "launch", comm->config.rank, -1, 0,
                            "plan %llu was waiting for space in the work FIFO when the communicator was aborted: %u of "
                            "%u are in use; destroy it",
                            (unsigned long long)plan->id, fifo->sent - fifo->acked, fifo->depth);
        if (comm->engine.pause)
            comm->engine.pause(comm->engine.self, PSM_PLAN_WAIT_FIFO, plan);
        else
            sched_yield();
    }
    return PSM_OK;
}

enum { EVENT = 1, RUN = 2 }; /* bits of a plan's room, above the position in the FIFO */

/* The event comes behind the plan, and both are set by different threads: the second one gives the room back. */
static void set(psmPlan *plan, uint64_t bit, uint32_t position)
{
    struct plan_fifo *fifo = &plan->comm->fifo;
    uint64_t room = atomic_fetch_or(&plan->room, bit << 32 | position) | bit << 32 | position;
    if (room >> 32 == (EVENT | RUN)) atomic_store_explicit(&fifo->given, (uint32_t)room, memory_order_release);
}

void psm_plan_fifo_group(psmPlanComm *comm)
{
    struct plan_fifo *fifo = &comm->fifo;
    psmPlan *last = NULL;
    if (!by_events(comm) || fifo->sent - fifo->recorded <= fifo->depth / 8) return;
    for (psmPlan *plan = comm->planHead; plan; plan = plan->next)
        if (plan->kernel) last = plan;
    if (!last) return;
    fifo->recorded = fifo->sent;
    set(last, EVENT, fifo->sent);
}

void psm_plan_fifo_done(psmPlan *plan)
{
    if (by_events(plan->comm)) {
        set(plan, RUN, 0);
        return;
    }
    for (uint64_t mask = plan->fifoMask; mask; mask &= mask - 1) {
        int c = __builtin_ctzll(mask);
        atomic_store_explicit(&plan->comm->fifo.done[c], plan->acks[c], memory_order_release);
    }
}
