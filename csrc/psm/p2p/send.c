/* The sender's steps. Copies the application's memory into slots of the receiver's FIFO, or directly into its buffer.
 */
#include <inttypes.h>

#include "p2p/p2p.h"

PSM_FAULT_SITE_OF(site_step, "p2p.send.step", "the sender fills a slot, or copies into the receiver's buffer",
                  PSM_FAULT_CAN_ALL);
PSM_FAULT_SITE_OF(site_publish, "p2p.send.publish", "the sender publishes sendHead or the answer",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

static psm_status refuse_offer(const struct psmP2pLocalInfo *local, uint64_t flag)
{
    return psm_fail(PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
                    "rank %d offered operation %" PRIu64 " (kind %d), expected operation %" PRIu64, local->conn.peer,
                    psm_flag_seq(flag), psm_flag_what(flag), local->conn.seq);
}

/* Take the receiver's offer, and choose how the data goes. */
static psm_status take(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, bool *moved)
{
    struct psm_p2p_control *shared = local->shared;
    if (psm_line_load(&shared->offer) == 0) return PSM_OK;
    /* If it was not there when the operation started. The exchange orders the reads that follow. */
    psm_line_fetch(&shared->offered);
    psm_line_fetch(&shared->recvTail);
    uint64_t flag = psm_line_swap(&shared->offer, 0);
    int kind = psm_flag_what(flag);
    if (psm_flag_seq(flag) != local->conn.seq || (kind != PSM_FLAG_FIFO && kind != PSM_FLAG_ZERO_COPY))
        return refuse_offer(local, flag);
    /* Read once: use the same value that was checked. */
    struct psm_p2p_offer offer = *(const volatile struct psm_p2p_offer *)&shared->offered;
    if (offer.nbytes != sub->nbytes)
        return psm_fail(PSM_ERR_MISMATCH, "send", local->conn.rank, local->conn.peer, 0,
                        "operation %" PRIu64 ": this rank sends %" PRIu64 " bytes, rank %d expects %" PRIu64
                        "; both ends must pass the same size",
                        local->conn.seq, sub->nbytes, local->conn.peer, offer.nbytes);
    *moved = true;
    sub->posted = sub->nsteps;
    psm_p2p_moved(&local->conn, sub, PSM_STEP_TAKEN, sub->base);
    local->conn.stage = PSM_STAGE_FIFO;
    if (kind == PSM_FLAG_FIFO) return PSM_OK;
    if ((sub->sendHandle != 0 || local->zero_copy == 2) && local->zero_copy != 0)
        local->import = psm_import_hold(local->conn.host, offer.id);
    if (!local->import) {
        psm_line_store(&shared->answer, psm_flag(local->conn.seq, PSM_FLAG_DECLINED));
        psm_p2p_moved(&local->conn, sub, PSM_STEP_DECLINED, sub->base);
        return PSM_OK;
    }
    if (!psm_import_at(local->import, offer.offset, offer.nbytes))
        return psm_fail(PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
                        "rank %d offered %" PRIu64 " bytes at %" PRIu64 " of buffer 0x%" PRIx64
                        ", which is smaller than that",
                        local->conn.peer, offer.nbytes, offer.offset, offer.id);
    local->import_offset = offer.offset;
    local->conn.stage = PSM_STAGE_ZERO_COPY;
    sub->nsteps = sub->posted = 1;
    return PSM_OK;
}

static psm_status copy(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, void *to, uint64_t bytes, int event)
{
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_step, &fault));
    uint64_t skip, copied = psm_conn_damaged(&fault, bytes, &skip);
    if (bytes > 0) PSM_TRY(psm_p2p_copy(local, to, sub->sendbuff + sub->offset + skip, copied, event));
    psm_conn_enqueued(sub, bytes);
    psm_p2p_moved(&local->conn, sub, PSM_STEP_COPYING, sub->base + sub->transmitted - 1);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status publish(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub)
{
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_publish, &fault));
    sub->done++;
    if (fault.action != PSM_FAULT_DROP) {
        uint64_t damage = fault.action == PSM_FAULT_CORRUPT ? PSM_CONN_DAMAGE : 0;
        psm_line_store(&local->shared->sendHead, (sub->base + sub->done) ^ damage);
        if (local->conn.stage == PSM_STAGE_ZERO_COPY)
            psm_line_store(&local->shared->answer, psm_flag(local->conn.seq, PSM_FLAG_DONE) ^ damage);
    }
    psm_p2p_published(local, sub, &fault);
    return PSM_OK;
}

static psm_status send_step(struct psm_conn *conn, struct psmProxySubArgs *sub, bool *moved, bool *ended)
{
    struct psmP2pLocalInfo *local = (struct psmP2pLocalInfo *)conn;
    if (local->conn.stage == PSM_STAGE_OFFER) PSM_TRY(take(local, sub, moved));
    if (local->conn.stage == PSM_STAGE_OFFER) return PSM_OK;
    bool zero_copy = local->conn.stage == PSM_STAGE_ZERO_COPY;
    if (zero_copy && sub->transmitted == 0) {
        PSM_TRY(copy(local, sub, psm_import_at(local->import, local->import_offset, sub->nbytes), sub->nbytes,
                     psm_p2p_event_of(local, sub, sub->base)));
        *moved = true;
    }
    while (!zero_copy && sub->transmitted < sub->nsteps && sub->transmitted < sub->done + local->conn.steps) {
        uint64_t step = sub->base + sub->transmitted, tail = psm_line_load(&local->shared->recvTail);
        /* All slots were free when the offer was made, and no more slots can have been emptied than were filled. */
        uint64_t first = sub->base + local->conn.steps, last = first + sub->done;
        if (__builtin_expect(tail < first || tail > last, 0))
            return psm_because(psm_fail(PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
                                        "rank %d published recvTail %" PRIu64 " in operation %" PRIu64
                                        "; expected %" PRIu64 " to %" PRIu64
                                        ": the control segment was written by something else",
                                        local->conn.peer, tail, local->conn.seq, first, last),
                               PSM_CAUSE_DAMAGED_TAIL, local->conn.peer);
        if (tail <= step) break; /* canSend = NO */
        PSM_TRY(copy(local, sub, psm_p2p_slot(local, step), psm_conn_bytes(&local->conn, sub->nbytes - sub->offset),
                     psm_p2p_event_of(local, sub, step)));
        *moved = true;
        /* Between two copies, not after all of them: the receiver empties a slot while the next one is filled, even if
         * a copy takes this thread's time. */
        PSM_TRY(psm_p2p_publish_copied(local, sub, publish, moved));
    }
    PSM_TRY(psm_p2p_publish_copied(local, sub, publish, moved));
    if (sub->done < sub->nsteps) return PSM_OK;
    *ended = true;
    if (!local->import) return PSM_OK;
    struct psm_import *import = local->import;
    local->import = NULL;
    return psm_import_release(local->conn.host, import);
}

psm_status psm_p2p_send_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    (void)state;
    return psm_conn_progress(args, send_step);
}
