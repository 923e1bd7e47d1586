/* The sender's steps. Receives the receiver's credits; copies the application's memory into slots, posts each to the
 * network when its copy is done, and reuses it when the network has released it. */
#include <inttypes.h>

#include "net/net_conn.h"

PSM_FAULT_SITE_OF(site_step, "net.send.step", "the sender copies a chunk into its slot", PSM_FAULT_CAN_ALL);
PSM_FAULT_SITE_OF(site_post, "net.send.post", "the sender posts a slot to the network", PSM_FAULT_CAN_ALL);

/* ---- credits ---- */

/* As many receives as credits are outstanding and the ring has room for. */
static psm_status post_credits(struct psmNetLocalInfo *local)
{
    while (local->credits_posted < local->credits_end && local->credits_posted < local->credits + PSM_NET_CREDITS) {
        uint64_t n = local->credits_posted;
        void **request = &local->credit_requests[n % PSM_NET_CREDITS];
        ncclResult_t result = psm_net_irecv(local->net, local->from, psm_net_ring(local, n),
                                            sizeof(struct psm_net_credit), 0, local->from_registration, request);
        if (result != ncclSuccess) return psm_net_failed(local, result, "irecv of a credit");
        if (!*request) return PSM_OK; /* the network cannot accept it now */
        local->credits_posted++;
    }
    return PSM_OK;
}

static psm_status read_credit(struct psmNetLocalInfo *local, const struct psm_net_credit *credit, int size)
{
    if (size != (int)sizeof *credit || credit->magic != PSM_NET_MAGIC || credit->version != PSM_WIRE_VERSION)
        return psm_peer_sent(psm_fail(
            PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
            "a credit of rank %d has %d bytes, magic 0x%08x, version %u; expected %zu, 0x%08x, %d", local->conn.peer,
            size, credit->magic, credit->version, sizeof *credit, PSM_NET_MAGIC, PSM_WIRE_VERSION));
    if (credit->kind == PSM_NET_ENDED) {
        local->theirs = credit->status ? (psm_status) - (int)credit->status : PSM_ERR_PEER_CLOSED;
        local->theirs_cuda = credit->cuda;
        return PSM_OK;
    }
    if (credit->kind != PSM_NET_CREDIT || credit->recvTail < local->tail || credit->seq < local->offered)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
                                      "a credit of rank %d, of kind %u, is for operation %" PRIu64
                                      " with recvTail %" PRIu64 "; expected at least %" PRIu64 " and %" PRIu64,
                                      local->conn.peer, credit->kind, credit->seq, credit->recvTail, local->offered,
                                      local->tail));
    local->offered = credit->seq;
    local->offered_bytes = credit->nbytes;
    local->tail = credit->recvTail;
    return PSM_OK;
}

static psm_status take_credits(struct psmNetLocalInfo *local, bool *moved)
{
    while (local->broken.status == PSM_OK && local->theirs == PSM_OK) {
        int size;
        psm_status status = PSM_OK;
        PSM_TRY(post_credits(local));
        if (local->credits == local->credits_posted) return PSM_OK;
        void *request = local->credit_requests[local->credits % PSM_NET_CREDITS];
        int done = psm_net_tested(local, request, "the receive of a credit", &size, &status);
        if (done == 0) return PSM_OK;
        if (done < 0) {
            /* It may have left because it has received everything: look() reports it if that takes too long. */
            local->broken = *psm_last_error();
            return PSM_OK;
        }
        PSM_TRY(read_credit(local, psm_net_ring(local, local->credits), size));
        local->credits++;
        *moved = true;
    }
    return PSM_OK;
}

static psm_status take_offer(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, bool *moved)
{
    if (local->offered < local->conn.seq) return PSM_OK;
    if (local->offered != local->conn.seq)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
                                      "rank %d offered operation %" PRIu64 ", expected operation %" PRIu64,
                                      local->conn.peer, local->offered, local->conn.seq));
    if (local->offered_bytes != sub->nbytes)
        return psm_fail(PSM_ERR_MISMATCH, "send", local->conn.rank, local->conn.peer, 0,
                        "operation %" PRIu64 ": this rank sends %" PRIu64 " bytes, rank %d expects %" PRIu64
                        "; both ends must pass the same size",
                        local->conn.seq, sub->nbytes, local->conn.peer, local->offered_bytes);
    *moved = true;
    sub->posted = sub->nsteps;
    local->conn.stage = PSM_STAGE_FIFO;
    psm_net_moved(&local->conn, sub, PSM_STEP_TAKEN, sub->base);
    return PSM_OK;
}

/* ---- slots ---- */

static uint64_t bytes_of(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub, uint64_t n)
{
    return psm_conn_bytes(&local->conn, sub->nbytes - n * local->conn.chunk);
}

static psm_status fill(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub)
{
    struct psm_fault fault;
    PSM_TRY(psm_conn_strike(&local->conn, &site_step, &fault));
    uint64_t n = sub->transmitted, step = sub->base + n, bytes = bytes_of(local, sub, n), skip;
    uint64_t size = psm_conn_damaged(&fault, bytes, &skip);
    uint8_t *to = psm_net_slot(local, step) + sizeof(struct psm_net_head);
    if (bytes > 0) PSM_TRY(psm_net_copy(local, to, sub->sendbuff + n * local->conn.chunk + skip, size, step));
    psm_conn_enqueued(sub, bytes);
    psm_net_moved(&local->conn, sub, PSM_STEP_COPYING, step);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* local->again: the network cannot accept it now. */
static psm_status post(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub)
{
    uint64_t n = local->passed, step = sub->base + n, bytes = bytes_of(local, sub, n);
    struct psm_net_head *head = (struct psm_net_head *)psm_net_slot(local, step);
    void **request = &local->requests[step % local->conn.steps];
    if (!local->again) PSM_TRY(psm_conn_strike(&local->conn, &site_post, &local->late)); /* once per step */
    const struct psm_fault fault = local->late;
    size_t size = sizeof *head + bytes;
    *head = (struct psm_net_head){.magic = PSM_NET_MAGIC,
                                  .version = PSM_WIRE_VERSION,
                                  .kind = PSM_NET_DATA,
                                  .seq = local->conn.seq,
                                  .step = step,
                                  .nbytes = sub->nbytes,
                                  .bytes = bytes};
    if (fault.action == PSM_FAULT_SHORT && (uint64_t)fault.value < size) size = (size_t)fault.value;
    if (fault.action == PSM_FAULT_CORRUPT) head->step = ~step;
    local->again = false;
    *request = NULL;
    if (fault.action != PSM_FAULT_DROP) {
        ncclResult_t result = psm_net_isend(local->net, local->to, head, size, 0, local->to_registration, request);
        if (result != ncclSuccess) return psm_net_failed(local, result, "isend");
        local->again = !*request;
        if (local->again) return PSM_OK;
    }
    local->passed++;
    psm_net_moved(&local->conn, sub, PSM_STEP_PUBLISHED, step);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* Post the contents of its slot to the network, in order. */
static psm_status post_copied(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, bool *moved)
{
    while (local->passed < sub->transmitted) {
        psm_status status = PSM_OK;
        int copied = sub->nbytes == 0 ? 1 : psm_net_copied(local, sub->base + local->passed, &status);
        if (copied < 0) return status;
        if (copied == 0) return PSM_OK;
        PSM_TRY(post(local, sub));
        if (local->again) return PSM_OK;
        *moved = true;
    }
    return PSM_OK;
}

/* The network releases slots in order. A slot without a request was dropped by a fault, and is free. */
static psm_status take_back(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, bool *moved)
{
    while (sub->done < local->passed) {
        void **request = &local->requests[(sub->base + sub->done) % local->conn.steps];
        int size;
        psm_status status = PSM_OK;
        int done = *request ? psm_net_tested(local, *request, "isend", &size, &status) : 1;
        if (done < 0) return status;
        if (done == 0) return PSM_OK;
        *request = NULL;
        sub->done++;
        *moved = true;
    }
    return PSM_OK;
}

/* No credit is left to wait for, and those that came do not cover the operation: the sender would wait forever. */
static psm_status check_credits(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    uint64_t end = sub->base + sub->nsteps;
    if (local->theirs != PSM_OK || local->broken.status != PSM_OK) return PSM_OK; /* look reports these */
    if (local->credits < local->credits_end || (local->offered >= local->conn.seq && local->tail >= end)) return PSM_OK;
    return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "send", local->conn.rank, local->conn.peer, 0,
                                  "bad last credit of rank %d: operation %" PRIu64 ", recvTail %" PRIu64
                                  ", expected operation %" PRIu64 ", recvTail %" PRIu64,
                                  local->conn.peer, local->offered, local->tail, local->conn.seq, end));
}

static psm_status send_step(struct psm_conn *conn, struct psmProxySubArgs *sub, bool *moved, bool *ended)
{
    struct psmNetLocalInfo *local = (struct psmNetLocalInfo *)conn;
    PSM_TRY(take_credits(local, moved));
    PSM_TRY(check_credits(local, sub));
    if (local->conn.stage == PSM_STAGE_OFFER) PSM_TRY(take_offer(local, sub, moved));
    if (local->conn.stage == PSM_STAGE_OFFER) return PSM_OK;
    while (sub->transmitted < sub->nsteps && sub->transmitted < sub->done + local->conn.steps &&
           sub->base + sub->transmitted < local->tail) {
        PSM_TRY(fill(local, sub));
        *moved = true;
        PSM_TRY(post_copied(local, sub, moved));
    }
    PSM_TRY(post_copied(local, sub, moved));
    PSM_TRY(take_back(local, sub, moved));
    *ended = sub->done == sub->nsteps;
    return PSM_OK;
}

psm_status psm_net_send_progress(psmProxyState *state, struct psmProxyArgs *args)
{
    (void)state;
    return psm_conn_progress(args, send_step);
}
