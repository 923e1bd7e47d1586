/* The receiver's steps. Posts receives for its slots and notifies the sender; copies received data into the
 * application's memory; posts a slot again when its copy is done. */
#include <inttypes.h>

#include "net/net_conn.h"

PSM_FAULT_SITE_OF(site_step, "net.recv.step", "the receiver copies a chunk from its slot", PSM_FAULT_CAN_ALL);
PSM_FAULT_SITE_OF(site_post, "net.recv.post", "the receiver posts a slot: the receive, and its credit",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP));
PSM_FAULT_SITE_OF(site_credit, "net.recv.credit", "the receiver tells the sender how many steps it may fill",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

/* ---- receives and credits ---- */

/* posted counts receives. Slots of a post that a fault drops stay lost. */
static psm_status post(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, bool *moved)
{
    while (sub->posted < sub->nsteps && sub->posted + local->lost < sub->done + local->conn.steps) {
        uint64_t step = sub->base + sub->posted;
        void **request = &local->requests[step % local->conn.steps];
        if (!local->again) PSM_TRY(psm_conn_strike(&local->conn, &site_post, &local->late)); /* once per step */
        if (local->late.action == PSM_FAULT_DROP) {
            local->lost++;
            continue;
        }
        ncclResult_t result =
            psm_net_irecv(local->net, local->from, psm_net_slot(local, step),
                          sizeof(struct psm_net_head) + local->conn.chunk, 0, local->from_registration, request);
        if (result != ncclSuccess) return psm_net_failed(local, result, "irecv");
        local->again = !*request;
        if (local->again) return PSM_OK; /* the network cannot accept it now */
        sub->posted++;
        *moved = true;
        psm_fault_act_after(&local->late);
    }
    return PSM_OK;
}

/* The way back is lost. The sender may have left because it has sent everything: look() reports it if that takes too
 * long. */
static void lose_way_back(struct psmNetLocalInfo *local)
{
    local->broken = *psm_last_error();
}

/* A credit is sent when its request is complete: a network may move bytes only in test. *open: some are still pending.
 */
static void push_credits(struct psmNetLocalInfo *local, bool *open)
{
    *open = false;
    for (int i = 0; i < PSM_NET_CREDITS; i++) {
        void **request = &local->credit_requests[i];
        int size;
        psm_status status = PSM_OK;
        if (!*request) continue;
        int done = psm_net_tested(local, *request, "isend of a credit", &size, &status);
        if (done != 0) *request = NULL;
        if (done < 0) lose_way_back(local);
        if (done == 0) *open = true;
    }
}

static psm_status tell_once(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, uint64_t tail, bool *told)
{
    struct psm_fault fault;
    void **request = &local->credit_requests[local->credits % PSM_NET_CREDITS];
    *told = false;
    if (*request || local->broken.status != PSM_OK) return PSM_OK; /* later */
    PSM_TRY(psm_conn_strike(&local->conn, &site_credit, &fault));
    struct psm_net_credit *credit = psm_net_ring(local, local->credits);
    *credit = (struct psm_net_credit){.magic = PSM_NET_MAGIC,
                                      .version = PSM_WIRE_VERSION,
                                      .kind = PSM_NET_CREDIT,
                                      .seq = local->conn.seq,
                                      .nbytes = sub->nbytes,
                                      .recvTail = tail};
    if (fault.action == PSM_FAULT_CORRUPT) credit->nbytes ^= PSM_CONN_DAMAGE;
    if (fault.action != PSM_FAULT_DROP) {
        ncclResult_t result =
            psm_net_isend(local->net, local->to, credit, sizeof *credit, 0, local->to_registration, request);
        if (result != ncclSuccess) {
            psm_net_failed(local, result, "isend of a credit");
            lose_way_back(local);
            return PSM_OK;
        }
        if (!*request) return PSM_OK; /* the network cannot accept it now */
    }
    *told = true;
    local->credits++;
    local->tail = tail;
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* One message for the first lap, then one per receive that is posted again. */
static psm_status tell(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub)
{
    uint64_t first = psm_net_first(local, sub), before = local->credits_end - (1 + sub->nsteps - first);
    while (sub->posted >= first && local->credits - before < 1 + sub->posted - first) {
        bool told;
        PSM_TRY(tell_once(local, sub, sub->base + first + local->credits - before, &told));
        if (!told) return PSM_OK;
        bool begins = !local->told;
        local->told = true;
        if (begins) psm_net_moved(&local->conn, sub, PSM_STEP_OFFERED, sub->base);
    }
    return PSM_OK;
}

/* ---- messages ---- */

static psm_status check(struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub,
                        const struct psm_net_head *head, int size)
{
    uint64_t n = local->passed, step = sub->base + n;
    uint64_t bytes = psm_conn_bytes(&local->conn, sub->nbytes - n * local->conn.chunk);
    if (size < (int)sizeof *head || head->magic != PSM_NET_MAGIC || head->version != PSM_WIRE_VERSION)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
                                      "the message with step %" PRIu64
                                      " from rank %d has %d bytes, magic 0x%08x, version %u; expected %" PRIu64
                                      ", 0x%08x, %d",
                                      step, local->conn.peer, size, head->magic, head->version, sizeof *head + bytes,
                                      PSM_NET_MAGIC, PSM_WIRE_VERSION));
    if (head->kind == PSM_NET_ENDED) {
        local->theirs = head->status ? (psm_status) - (int)head->status : PSM_ERR_PEER_CLOSED;
        local->theirs_cuda = head->cuda;
        return PSM_IN_PROGRESS;
    }
    if (head->seq != local->conn.seq || head->step != step || head->nbytes != sub->nbytes)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
                                      "rank %d sent step %" PRIu64 " of operation %" PRIu64 " with %" PRIu64
                                      " bytes in all, expected step %" PRIu64 " of operation %" PRIu64 " with %" PRIu64
                                      ": a message was lost or damaged",
                                      local->conn.peer, head->step, head->seq, head->nbytes, step, local->conn.seq,
                                      sub->nbytes));
    if (head->bytes != bytes || (uint64_t)size != sizeof *head + bytes)
        return psm_peer_sent(psm_fail(
            PSM_ERR_PROTOCOL, "recv", local->conn.rank, local->conn.peer, 0,
            "step %" PRIu64 " of operation %" PRIu64 ": rank %d sent a message of %d bytes that says %" PRIu64
            ", expected %zu and %" PRIu64 " bytes",
            step, local->conn.seq, local->conn.peer, size, head->bytes, (size_t)(sizeof *head + bytes), bytes));
    return PSM_OK;
}

static psm_status copy_out(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, uint64_t step)
{
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_step, &fault));
    uint64_t skip, bytes = psm_conn_bytes(&local->conn, sub->nbytes - sub->offset);
    uint64_t size = psm_conn_damaged(&fault, bytes, &skip);
    const uint8_t *from = psm_net_slot(local, step) + sizeof(struct psm_net_head) + skip;
    if (bytes > 0) PSM_TRY(psm_net_copy(local, sub->recvbuff + sub->offset, from, size, step));
    psm_conn_enqueued(sub, bytes);
    psm_net_moved(&local->conn, sub, PSM_STEP_COPYING, step);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status take_messages(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, bool *moved)
{
    while (local->passed < sub->posted && local->theirs == PSM_OK) {
        uint64_t step = sub->base + local->passed;
        void **request = &local->requests[step % local->conn.steps];
        int size;
        psm_status status = PSM_OK;
        int done = psm_net_tested(local, *request, "irecv", &size, &status);
        if (done == 0) return PSM_OK;
        *request = NULL;
        if (done < 0) return status;
        /* Read once: use the same value that was checked. */
        struct psm_net_head head = *(const struct psm_net_head *)psm_net_slot(local, step);
        status = check(local, sub, &head, size);
        if (status != PSM_OK) return status < 0 ? status : PSM_OK;
        local->passed++;
        PSM_TRY(copy_out(local, sub, step));
        *moved = true;
    }
    return PSM_OK;
}

/* A slot is free when its bytes are copied out, in order. The last one, and with it the operation, ends when the
 * network has released the credits: *open. */
static psm_status end_copies(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, bool open, bool *moved)
{
    while (sub->done < sub->transmitted && !(open && sub->done + 1 == sub->nsteps)) {
        psm_status status = PSM_OK;
        uint64_t step = sub->base + sub->done;
        int copied = sub->nbytes == 0 ? 1 : psm_net_copied(local, step, &status);
        if (copied < 0) return status;
        if (copied == 0) return PSM_OK;
        sub->done++;
        psm_net_moved(&local->conn, sub, PSM_STEP_PUBLISHED, step);
        *moved = true;
    }
    return PSM_OK;
}

static psm_status recv_step(struct psm_conn *conn, struct psmProxySubArgs *sub, bool *moved, bool *ended)
{
    struct psmNetLocalInfo *local = (struct psmNetLocalInfo *)conn;
    if (local->conn.stage == PSM_STAGE_OFFER) {
        local->conn.stage = PSM_STAGE_FIFO;
        local->lost = 0;
        *moved = true;
    }
    bool open;
    PSM_TRY(post(local, sub, moved));
    PSM_TRY(tell(local, sub));
    push_credits(local, &open);
    PSM_TRY(take_messages(local, sub, moved));
    PSM_TRY(end_copies(local, sub, open, moved));
    *ended = sub->done == sub->nsteps;
    return PSM_OK;
}

psm_status psm_net_recv_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    (void)state;
    return psm_conn_progress(args, recv_step);
}
