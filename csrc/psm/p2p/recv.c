/* The receiver's steps. Offers each operation, copies slots of its FIFO into the application's memory, and releases the
 * slots; with zero-copy it waits until the sender has written into the buffer. */
#include <inttypes.h>

#include "p2p/p2p.h"

PSM_FAULT_SITE_OF(site_step, "p2p.recv.step", "the receiver empties a slot", PSM_FAULT_CAN_ALL);
PSM_FAULT_SITE_OF(site_offer, "p2p.recv.offer", "the receiver offers an operation",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));
PSM_FAULT_SITE_OF(site_publish, "p2p.recv.publish", "the receiver publishes recvTail",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

static void describe(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub,
                     struct psm_p2p_offer *offer)
{
    struct psm_registered own;
    uint64_t at = (uint64_t)(uintptr_t)sub->recvbuff;
    *offer = (struct psm_p2p_offer){.seq = local->conn.seq, .nbytes = sub->nbytes};
    if (local->zero_copy == 0 || sub->recvHandle == 0 || sub->nbytes == 0) return;
    if (!psm_registered_find(sub->recvHandle, &own) || !own.mapped) return;
    /* The registration may cover a larger buffer, and another operation may name it by mistake. */
    if (at < own.begin || sub->nbytes > own.size || at - own.begin > own.size - sub->nbytes) return;
    offer->id = own.handle;
    offer->offset = at - own.begin;
}

static psm_status post(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub)
{
    struct psm_p2p_control *shared = local->shared;
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_offer, &fault));
    uint64_t untaken = psm_line_load(&shared->offer);
    if (untaken != 0)
        return psm_fail(PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
                        "rank %d has not taken the offer of operation %" PRIu64 " when operation %" PRIu64 " starts",
                        local->conn.peer, psm_flag_seq(untaken), local->conn.seq);
    struct psm_p2p_offer offer; /* other processes can write to the shared one */
    describe(local, sub, &offer);
    bool zero_copy = offer.id != 0;
    if (fault.action == PSM_FAULT_CORRUPT) offer.nbytes ^= PSM_CONN_DAMAGE;
    shared->offered = offer;
    sub->posted = zero_copy ? 1 : sub->nsteps;
    if (zero_copy) sub->nsteps = 1;
    local->conn.stage = zero_copy ? PSM_STAGE_ZERO_COPY : PSM_STAGE_FIFO;
    /* All slots are free: the previous operation has emptied them. */
    psm_line_store(&shared->recvTail, sub->base + local->conn.steps);
    if (fault.action != PSM_FAULT_DROP)
        psm_line_store(&shared->offer, psm_flag(local->conn.seq, zero_copy ? PSM_FLAG_ZERO_COPY : PSM_FLAG_FIFO));
    psm_p2p_moved(&local->conn, sub, PSM_STEP_OFFERED, sub->base);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status take_answer(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, bool *moved, bool *ended)
{
    struct psm_p2p_control *shared = local->shared;
    if (psm_line_load(&shared->answer) == 0) return PSM_OK;
    uint64_t flag = psm_line_swap(&shared->answer, 0);
    if (psm_flag_seq(flag) != local->conn.seq)
        return psm_fail(PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
                        "rank %d answered operation %" PRIu64 " (%d) in operation %" PRIu64, local->conn.peer,
                        psm_flag_seq(flag), psm_flag_what(flag), local->conn.seq);
    *moved = true;
    switch (psm_flag_what(flag)) {
    case PSM_FLAG_DONE:
        sub->transmitted = sub->done = 1;
        sub->offset = sub->nbytes;
        *ended = true;
        return PSM_OK;
    case PSM_FLAG_DECLINED:
        local->conn.stage = PSM_STAGE_FIFO;
        sub->nsteps = sub->posted = psm_conn_nsteps(sub->nbytes, local->conn.chunk);
        psm_p2p_moved(&local->conn, sub, PSM_STEP_DECLINED, sub->base);
        return PSM_OK;
    default:
        return psm_fail(PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
                        "rank %d answered operation %" PRIu64 " with %d, expected %d (declined) or %d (done)",
                        local->conn.peer, local->conn.seq, psm_flag_what(flag), PSM_FLAG_DECLINED, PSM_FLAG_DONE);
    }
}

static psm_status copy_out(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, uint64_t step)
{
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_step, &fault));
    uint64_t skip, bytes = psm_conn_bytes(&local->conn, sub->nbytes - sub->offset);
    uint64_t copied = psm_conn_damaged(&fault, bytes, &skip);
    if (bytes > 0)
        PSM_TRY(psm_p2p_copy(local, sub->recvbuff + sub->offset, psm_p2p_slot(local, step) + skip, copied,
                             psm_p2p_event_of(local, sub, step)));
    psm_conn_enqueued(sub, bytes);
    psm_p2p_moved(&local->conn, sub, PSM_STEP_COPYING, step);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status give_back(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub)
{
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_publish, &fault));
    sub->done++;
    uint64_t damage = fault.action == PSM_FAULT_CORRUPT ? PSM_CONN_DAMAGE : 0;
    if (fault.action != PSM_FAULT_DROP)
        psm_line_store(&local->shared->recvTail, (sub->base + sub->done + local->conn.steps) ^ damage);
    psm_p2p_published(local, sub, &fault);
    return PSM_OK;
}

static psm_status recv_step(struct psm_conn *conn, struct psmProxySubArgs *sub, bool *moved, bool *ended)
{
    struct psmP2pLocalInfo *local = (struct psmP2pLocalInfo *)conn;
    if (local->conn.stage == PSM_STAGE_OFFER) {
        PSM_TRY(post(local, sub));
        *moved = true;
    }
    if (local->conn.stage == PSM_STAGE_ZERO_COPY) {
        PSM_TRY(take_answer(local, sub, moved, ended));
        if (local->conn.stage == PSM_STAGE_ZERO_COPY) return PSM_OK;
    }
    while (sub->transmitted < sub->nsteps && sub->transmitted < sub->done + local->conn.steps) {
        /* Again for each slot: the sender fills the next ones while this one is copied. */
        uint64_t head = psm_line_load(&local->shared->sendHead);
        uint64_t first = sub->base + sub->transmitted, last = sub->base + sub->nsteps,
                 free = sub->done + local->conn.steps;
        if (last > sub->base + free) last = sub->base + free; /* at most the released slots */
        if (__builtin_expect(head < first || head > last, 0))
            return psm_because(psm_fail(PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
                                        "rank %d published sendHead %" PRIu64 " in operation %" PRIu64
                                        "; expected %" PRIu64 " to %" PRIu64
                                        ": the control segment was written by something else",
                                        local->conn.peer, head, local->conn.seq, first, last),
                               PSM_CAUSE_DAMAGED_HEAD, local->conn.peer);
        if (head <= sub->base + sub->transmitted) break;
        /* Prefetch the lines used when the copy is done, and for the next offer; the sender had them last. */
        psm_line_fetch_own(&local->shared->recvTail);
        psm_line_fetch_own(&local->shared->offer);
        PSM_TRY(copy_out(local, sub, sub->base + sub->transmitted));
        *moved = true;
        PSM_TRY(psm_p2p_publish_copied(local, sub, give_back, moved));
    }
    PSM_TRY(psm_p2p_publish_copied(local, sub, give_back, moved));
    if (sub->done == sub->nsteps) *ended = true;
    return PSM_OK;
}

psm_status psm_p2p_recv_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    (void)state;
    return psm_conn_progress(args, recv_step);
}
