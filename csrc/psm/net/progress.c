/* What net does when an operation begins, waits, fails or ends; conn/progress.c calls it. Nothing is shared: an end
 * learns about the other only through the network. */
#include <inttypes.h>
#include <stdio.h>

#include "net/net_conn.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_copy, "net.copy", "a copy and its event are enqueued on the stream");

enum { FAREWELL_NS = 10000000 };

/* Steps that may be filled, as far as this end knows. A sender's slot is free only when the network has also released
 * it. The receiver owes no more receives than the operation has steps. */
static uint64_t recv_tail(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    uint64_t own = sub->base + sub->done + local->conn.steps;
    if (local->conn.role) return own < local->tail ? own : local->tail;
    return local->told && sub->posted == sub->nsteps ? own : local->tail;
}

static uint64_t send_head(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    return sub->base + local->passed;
}

/* The sender counts a slot as done later, when the network has released it. */
static uint64_t copied(const struct psm_conn *conn, const struct psmProxySubArgs *sub)
{
    return conn->role ? ((const struct psmNetLocalInfo *)conn)->passed : sub->done;
}

static void words(const struct psm_conn *conn, const struct psmProxySubArgs *sub, struct psm_step *now)
{
    const struct psmNetLocalInfo *local = (const struct psmNetLocalInfo *)conn;
    now->sendHead = send_head(local, sub);
    now->recvTail = recv_tail(local, sub);
    now->done = copied(conn, sub);
}

void psm_net_moved(struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what, uint64_t step)
{
    const struct psmNetLocalInfo *local = (const struct psmNetLocalInfo *)conn;
    if (__builtin_expect(conn->recorder != NULL, 1)) {
        struct psm_step now = psm_conn_step_now(conn, sub, what, step);
        words(conn, sub, &now);
        psm_conn_record(conn, &now);
    }
    if (__builtin_expect(psm_log_on(PSM_LEVEL_TRACE, PSM_SUB_NET | PSM_SUB_PROXY), 0))
        psm_msg_libpsm_net_step(psm_conn_role(conn), conn->rank, conn->peer, (uint64_t)conn->channel,
                                psm_conn_what_name(what), step, step % conn->steps, recv_tail(local, sub),
                                send_head(local, sub), sub->posted, sub->transmitted, sub->done,
                                psm_conn_can_send(conn, sub, recv_tail(local, sub)));
}

psm_status psm_net_copy(struct psmNetLocalInfo *local, void *to, const void *from, uint64_t bytes, uint64_t step)
{
    return psm_conn_copy(&local->conn, &site_copy, to, from, bytes, (int)(step % local->conn.steps));
}

psm_status psm_net_failed(const struct psmNetLocalInfo *local, ncclResult_t result, const char *call)
{
    char what[96];
    snprintf(what, sizeof what, "%s in operation %" PRIu64 ", stage %s,", call, local->conn.seq,
             psm_conn_stage_name(local->conn.stage));
    return psm_net_fail(local->net, result, what, psm_conn_role(&local->conn), local->conn.rank, local->conn.peer);
}

int psm_net_tested(struct psmNetLocalInfo *local, void *request, const char *call, int *size, psm_status *status)
{
    int done = 0, sizes[8] = {0}; /* for one receive; a plugin with groups may write several */
    ncclResult_t result = local->net->test(request, &done, sizes);
    if (result != ncclSuccess) {
        *status = psm_net_failed(local, result, call);
        return -1;
    }
    *size = sizes[0];
    return done != 0;
}

/* ---- waiting ---- */

static void describe_wait(const struct psm_conn *conn, const struct psmProxySubArgs *sub, char *text, size_t n)
{
    const struct psmNetLocalInfo *local = (const struct psmNetLocalInfo *)conn;
    uint64_t copies = sub->transmitted - copied(&local->conn, sub), sent = local->passed - sub->done;
    if (copies > 0)
        snprintf(text, n, "this side: %" PRIu64 " copies on its stream are not done", copies);
    else if (local->conn.role && local->conn.stage == PSM_STAGE_OFFER)
        snprintf(text, n, "rank %d, the receiver, to post its recv", local->conn.peer);
    else if (local->conn.role && sent > 0)
        snprintf(text, n,
                 "the network: %" PRIu64 " messages to rank %d, the receiver, were posted and are not sent yet", sent,
                 local->conn.peer);
    else if (local->conn.role)
        snprintf(text, n, "rank %d, the receiver, to post a receive for step %" PRIu64, local->conn.peer,
                 sub->base + sub->transmitted);
    else if (sub->posted == 0)
        snprintf(text, n, "the network, which accepts no receive");
    else
        snprintf(text, n, "the message from rank %d, the sender, with step %" PRIu64, local->conn.peer,
                 sub->base + local->passed);
}

/* A sender that has sent everything and frees its end closes the way back before the last bytes arrive: the data comm
 * tells when no more will arrive. It sends no step that it got no credit for. */
static bool gone(const struct psm_conn *conn, const struct psmProxySubArgs *sub)
{
    const struct psmNetLocalInfo *local = (const struct psmNetLocalInfo *)conn;
    bool owed = local->told && sub->base + local->passed < local->tail;
    bool open =
        conn->role ? local->passed == sub->nsteps : owed && local->passed < sub->posted && local->theirs == PSM_OK;
    return !open && (local->theirs != PSM_OK || local->broken.status != PSM_OK ||
                     !conn->host->ops->peer_alive(conn->host->self, conn->peer));
}

static psm_status gone_error(const struct psm_conn *conn)
{
    const struct psmNetLocalInfo *local = (const struct psmNetLocalInfo *)conn;
    if (local->theirs != PSM_OK) return psm_conn_peer_failed(conn, local->theirs, local->theirs_cuda);
    if (local->broken.status != PSM_OK) return psm_fail_again(&local->broken);
    return psm_conn_peer_dead(conn);
}

/* ---- the end ---- */

/* By the network, if that is possible without a long wait. */
static void say_end(struct psm_conn *conn, psm_status status, int cuda)
{
    struct psmNetLocalInfo *local = (struct psmNetLocalInfo *)conn;
    uint8_t *at = psm_net_farewell(local);
    uint64_t end = psm_clock_ns() + FAREWELL_NS;
    size_t size = sizeof(struct psm_net_credit);
    local->over = true;
    if (local->theirs != PSM_OK || local->broken.status != PSM_OK) return; /* nobody is there to receive it */
    if (local->conn.role)
        *(struct psm_net_head *)at = (struct psm_net_head){.magic = PSM_NET_MAGIC,
                                                           .version = PSM_WIRE_VERSION,
                                                           .kind = PSM_NET_ENDED,
                                                           .seq = local->conn.seq,
                                                           .status = (uint32_t)-status,
                                                           .cuda = (uint32_t)cuda};
    else
        *(struct psm_net_credit *)at = (struct psm_net_credit){.magic = PSM_NET_MAGIC,
                                                               .version = PSM_WIRE_VERSION,
                                                               .kind = PSM_NET_ENDED,
                                                               .seq = local->conn.seq,
                                                               .status = (uint32_t)-status,
                                                               .cuda = (uint32_t)cuda};
    void *request = NULL;
    int done = 0;
    if (psm_net_isend(local->net, local->to, at, size, 0, local->to_registration, &request) != ncclSuccess) return;
    while (request && !done && psm_clock_ns() < end)
        if (local->net->test(request, &done, NULL) != ncclSuccess) return;
}

void psm_net_proxy_abort(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    struct psmNetLocalInfo *local = connection->transportResources;
    if (!local || !local->conn.connected || local->over) return;
    say_end(&local->conn, PSM_ERR_ABORTED, 0);
}

/* ---- operations ---- */

static psm_status begin(struct psm_conn *conn, struct psmProxySubArgs *sub)
{
    struct psmNetLocalInfo *local = (struct psmNetLocalInfo *)conn;
    if (local->over)
        return psm_fail(PSM_ERR_INVALID, "progress", conn->rank, conn->peer, 0,
                        "the connection to rank %d ended with an error; free it and make another", conn->peer);
    local->passed = 0;
    local->told = false;
    local->credits_end += 1 + sub->nsteps - psm_net_first(local, sub);
    psm_net_moved(conn, sub, PSM_STEP_BEGIN, sub->base);
    return PSM_OK;
}

const struct psm_conn_ops psm_net_conn_ops = {
    .begin = begin,
    .moved = psm_net_moved,
    .copied = copied,
    .words = words,
    .describe_wait = describe_wait,
    .gone = gone,
    .gone_error = gone_error,
    .stalled = psm_msg_libpsm_net_stalled,
    .failed = psm_msg_libpsm_net_failed,
    .say_end = say_end,
};
