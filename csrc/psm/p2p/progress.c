/* What p2p does when an operation begins, waits, fails or ends; conn/progress.c calls it. The words of the control
 * segment are in the log, the record and the report of a stall. */
#include <inttypes.h>
#include <stdio.h>

#include "p2p/p2p.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_copy, "p2p.copy", "a copy and its event are enqueued on the stream");

static void words(const struct psm_conn *conn, const struct psmProxySubArgs *sub, struct psm_step *now)
{
    const struct psm_p2p_control *shared = ((const struct psmP2pLocalInfo *)conn)->shared;
    (void)sub;
    now->sendHead = psm_line_own(&shared->sendHead);
    now->recvTail = psm_line_own(&shared->recvTail);
    now->offer = psm_flag_seq(psm_line_own(&shared->offer));
    now->answer = psm_flag_seq(psm_line_own(&shared->answer));
}

static void record(const struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what,
                   uint64_t step)
{
    struct psm_step now = psm_conn_step_now(conn, sub, what, step);
    words(conn, sub, &now);
    psm_conn_record(conn, &now);
}

/* Apart, so that a step that is not logged saves no registers for it. */
static __attribute__((noinline, cold)) void trace(const struct psm_conn *conn, const struct psmProxySubArgs *sub,
                                                  enum psm_step_what what, uint64_t step)
{
    const struct psm_p2p_control *shared = ((const struct psmP2pLocalInfo *)conn)->shared;
    uint64_t tail = psm_line_load(&shared->recvTail);
    psm_msg_libpsm_p2p_step(psm_conn_role(conn), conn->rank, conn->peer, (uint64_t)conn->channel,
                            psm_conn_what_name(what), step, step % conn->steps, tail, psm_line_load(&shared->sendHead),
                            sub->posted, sub->transmitted, sub->done, psm_conn_can_send(conn, sub, tail));
}

void psm_p2p_passed(const struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what,
                    uint64_t step)
{
    if (__builtin_expect(psm_log_on(PSM_LEVEL_TRACE, PSM_SUB_P2P | PSM_SUB_PROXY), 0)) trace(conn, sub, what, step);
}

void psm_p2p_moved(struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what, uint64_t step)
{
    if (__builtin_expect(conn->recorder != NULL, 1)) record(conn, sub, what, step);
    psm_p2p_passed(conn, sub, what, step);
}

psm_status psm_p2p_copy(struct psmP2pLocalInfo *local, void *to, const void *from, uint64_t bytes, int event)
{
    return psm_conn_copy(&local->conn, &site_copy, to, from, bytes, event);
}

static uint64_t copied(const struct psm_conn *conn, const struct psmProxySubArgs *sub)
{
    (void)conn;
    return sub->done;
}

/* ---- waiting ---- */

static void describe_wait(const struct psm_conn *conn, const struct psmProxySubArgs *sub, char *text, size_t n)
{
    const struct psmP2pLocalInfo *local = (const struct psmP2pLocalInfo *)conn;
    const struct psm_p2p_control *shared = local->shared;
    uint64_t offer = psm_line_load(&shared->offer);
    if (sub->transmitted > sub->done)
        snprintf(text, n, "this side: %" PRIu64 " copies on its stream are not done", sub->transmitted - sub->done);
    else if (local->conn.stage == PSM_STAGE_OFFER && local->conn.role && offer == 0 &&
             shared->offered.seq == local->conn.seq)
        snprintf(text, n,
                 "nothing that can come: rank %d, the receiver, has posted its recv, but its offer is no longer in "
                 "the control segment, and this side never took it: it was cleared, or never published",
                 local->conn.peer);
    else if (local->conn.stage == PSM_STAGE_OFFER && local->conn.role)
        snprintf(text, n, "rank %d, the receiver, to post its recv", local->conn.peer);
    else if (local->conn.role)
        snprintf(text, n, "rank %d, the receiver, to empty a slot", local->conn.peer);
    else if (offer != 0)
        snprintf(text, n, "rank %d, the sender, to take this side's offer: it has not started its send",
                 local->conn.peer);
    else if (local->conn.stage == PSM_STAGE_ZERO_COPY)
        snprintf(text, n,
                 "rank %d, the sender, to answer the zero-copy offer, which is no longer in the control segment: that "
                 "rank took it and is copying, or it was cleared by mistake",
                 local->conn.peer);
    else
        snprintf(text, n, "rank %d, the sender, to fill a slot", local->conn.peer);
}

/* The end that each side has published in the control segment; 0: none. */
static struct psm_line *own_end(const struct psmP2pLocalInfo *local)
{
    return local->conn.role ? &local->shared->sendEnded : &local->shared->recvEnded;
}
static uint64_t peer_end(const struct psm_conn *conn)
{
    const struct psm_p2p_control *shared = ((const struct psmP2pLocalInfo *)conn)->shared;
    return psm_line_load(conn->role ? &shared->recvEnded : &shared->sendEnded);
}

static bool gone(const struct psm_conn *conn, const struct psmProxySubArgs *sub)
{
    (void)sub;
    return peer_end(conn) != 0 || !conn->host->ops->peer_alive(conn->host->self, conn->peer);
}

static psm_status gone_error(const struct psm_conn *conn)
{
    uint64_t ended = peer_end(conn);
    psm_status theirs = (psm_status) - (int)(ended & UINT32_MAX);
    if (ended == 0) return psm_conn_peer_dead(conn);
    if (theirs != PSM_ERR_PEER_CLOSED) return psm_conn_peer_failed(conn, theirs, (unsigned)(ended >> 32));
    return psm_fail(PSM_ERR_PEER_CLOSED, psm_conn_role(conn), conn->rank, conn->peer, 0,
                    "rank %d, the %s, freed the connection in operation %" PRIu64 ", stage %s", conn->peer,
                    psm_conn_peer_role(conn), conn->seq, psm_conn_stage_name(conn->stage));
}

/* ---- operations ---- */

static void say_end(struct psm_conn *conn, psm_status status, int cuda)
{
    struct psm_line *ended = own_end((struct psmP2pLocalInfo *)conn);
    if (psm_line_own(ended) == 0) psm_line_store(ended, (uint64_t)(-status) | (uint64_t)(uint32_t)cuda << 32);
}

/* Prefetch the lines that an operation starts with: the other end wrote them last. Only once: later looks must not take
 * a line away from the end that is about to write it. */
static void fetch(const struct psmP2pLocalInfo *local)
{
    struct psm_p2p_control *shared = local->shared;
    psm_line_fetch_own(&shared->offer);
    if (local->conn.role) {
        psm_line_fetch(&shared->offered);
        psm_line_fetch(&shared->recvTail);
    } else {
        psm_line_fetch_own(&shared->offered);
        psm_line_fetch_own(&shared->recvTail);
    }
}

static psm_status begin(struct psm_conn *conn, struct psmProxySubArgs *sub)
{
    struct psmP2pLocalInfo *local = (struct psmP2pLocalInfo *)conn;
    uint64_t over = psm_line_own(own_end(local));
    if (over)
        return psm_fail(PSM_ERR_INVALID, "progress", conn->rank, conn->peer, 0,
                        "the connection to rank %d ended with %s; free it and make another", conn->peer,
                        psm_status_name((psm_status) - (int)(over & UINT32_MAX)));
    fetch(local);
    if (conn->role) /* usually the offer is already there, and is taken at once */
        psm_p2p_passed(conn, sub, PSM_STEP_BEGIN, sub->base);
    else
        psm_p2p_moved(conn, sub, PSM_STEP_BEGIN, sub->base);
    return PSM_OK;
}

static void waits(struct psm_conn *conn, struct psmProxySubArgs *sub)
{
    if (conn->role && conn->recorder) record(conn, sub, PSM_STEP_BEGIN, sub->base);
}

const struct psm_conn_ops psm_p2p_conn_ops = {
    .begin = begin,
    .waits = waits,
    .moved = psm_p2p_moved,
    .copied = copied,
    .words = words,
    .describe_wait = describe_wait,
    .gone = gone,
    .gone_error = gone_error,
    .stalled = psm_msg_libpsm_p2p_stalled,
    .failed = psm_msg_libpsm_p2p_failed,
    .say_end = say_end,
};
