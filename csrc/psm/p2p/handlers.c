/* The proxy's side of a connection: Setup makes what the peer attaches, Connect attaches what the peer made, and makes
 * stream and events that never leave this process. On the service thread. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "p2p/p2p.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_setup, "p2p.proxy.setup", "the proxy makes the control segment or the FIFO");
PSM_FAULT_SITE(site_connect, "p2p.proxy.connect", "the proxy attaches what the peer made");
PSM_FAULT_SITE(site_register, "p2p.proxy.register", "the proxy maps a peer's registered buffer");

/* ---- setup ---- */

static psm_status make_shared(struct psmP2pLocalInfo *local, const struct psm_p2p_setup *want, struct psm_share *share)
{
    const struct psm_host *host = local->conn.host;
    int fd;
    if (local->conn.role == 0 && want->fifo_kind == PSM_SHARE_NONE) return PSM_OK;
    if (local->conn.role == 1) {
        PSM_TRY(psm_segment_create(&local->control, want->control_kind, sizeof(struct psm_p2p_control), "control"));
        local->shared = local->control.data;
        psm_segment_share(&local->control, share);
        fd = local->control.fd;
    } else {
        PSM_TRY(psm_memory_make(host, want->fifo_kind, want->buffer_size, "fifo", &local->fifo));
        psm_memory_share(&local->fifo, share);
        fd = psm_memory_fd(&local->fifo);
    }
    return fd < 0 ? PSM_OK : host->ops->offer_fd(host->self, share->id, fd);
}

psm_status psm_p2p_proxy_setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done)
{
    (void)state;
    struct psm_fault fault;
    struct psm_p2p_setup want;
    PSM_TRY(psm_conn_enter(connection, "setup", -1));
    PSM_TRY(
        psm_conn_read(connection, "setup", &want, sizeof want, req, reqSize, sizeof(struct psmP2pShareInfo), respSize));
    struct psm_conn_setup setup = PSM_CONN_SETUP(want);
    struct psmP2pLocalInfo *local;
    PSM_TRY(psm_conn_new(connection, &setup, PSM_P2P_MAGIC, want.mode, sizeof *local, &psm_p2p_conn_ops, &site_setup,
                         &fault, &local));
    local->zero_copy = want.zero_copy;
    local->fifo.fd = local->fifo.segment.fd = local->control.fd = -1;
    struct psmP2pShareInfo info = {PSM_CONN_SHARED(want), .mode = want.mode};
    if (make_shared(local, &want, &info.share) != PSM_OK)
        return psm_conn_abandon(connection, state, psm_p2p_proxy_free);
    memcpy(resp, &info, sizeof info); /* what the peer may know, and not a byte of local */
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

/* ---- connect ---- */

static psm_status map_fifo(struct psmP2pLocalInfo *local, const struct psm_share *share, int fd, int owner)
{
    uint64_t meant = (uint64_t)local->conn.steps * local->conn.chunk;
    if (share->size != meant)
        return psm_fail(PSM_ERR_MISMATCH, "connect", local->conn.rank, owner, 0,
                        "rank %d shares a FIFO of %" PRIu64 " bytes, expected %" PRIu64, owner, share->size, meant);
    return psm_memory_map(local->conn.host, share, fd, owner, &local->fifo);
}

static psm_status attach(struct psmP2pLocalInfo *local, const struct psm_p2p_attach *want, int fd, int fifo_fd)
{
    const struct psm_share *share = &want->peer.share;
    if (local->conn.role) {
        PSM_TRY(map_fifo(local, share, fd, want->fifo_rank));
    } else {
        if (want->fifo.kind != PSM_SHARE_NONE) PSM_TRY(map_fifo(local, &want->fifo, fifo_fd, want->fifo_rank));
        if (share->size != sizeof(struct psm_p2p_control))
            return psm_fail(PSM_ERR_MISMATCH, "connect", local->conn.rank, local->conn.peer, 0,
                            "rank %d shares a control segment of %" PRIu64 " bytes, expected %zu", local->conn.peer,
                            share->size, sizeof(struct psm_p2p_control));
        PSM_TRY(psm_segment_attach(&local->control, share, fd));
        local->shared = local->control.data;
    }
    return psm_conn_make_stream(&local->conn);
}

psm_status psm_p2p_proxy_connect(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    (void)state;
    (void)resp;
    struct psmP2pLocalInfo *local = connection->transportResources;
    struct psm_fault fault;
    int peer = local ? local->conn.peer : -1;
    PSM_TRY(psm_conn_enter(connection, "connect", peer));
    PSM_TRY(psm_conn_strike_at(connection, &site_connect, "connect", peer, &fault));
    struct psm_p2p_attach want;
    PSM_TRY(psm_conn_read(connection, "connect", &want, sizeof want, req, reqSize, 0, respSize));
    PSM_TRY(psm_conn_check_connect(connection, want.peer.magic, want.peer.version, want.peer.rank, PSM_P2P_MAGIC));
    local->same_process = want.same_process != 0;
    if (local->conn.role == PSM_P2P_LENDER ||
        (!local->conn.role && local->fifo.kind == 0 && want.fifo.kind == PSM_SHARE_NONE))
        return psm_fail(PSM_ERR_INVALID, "connect", local->conn.rank, peer, 0, "connect of an end that %s",
                        local->conn.role ? "lends a FIFO to others" : "has no FIFO");
    int fd = -1, fifo_fd = -1;
    const struct psm_host *host = local->conn.host;
    psm_status status = want.given >= 0 ? host->ops->take_fd(host->self, want.given, &fd) : PSM_OK;
    if (status == PSM_OK && want.fifo_given >= 0) status = host->ops->take_fd(host->self, want.fifo_given, &fifo_fd);
    if (status == PSM_OK) status = attach(local, &want, fd, fifo_fd);
    if (fd >= 0) close(fd);
    if (fifo_fd >= 0) close(fifo_fd);
    if (status != PSM_OK) return psm_fail_at("connect", local->conn.rank, peer, 0);
    local->conn.pair = local->control.id;
    psm_conn_open_recorder(&local->conn);
    local->conn.connected = true;
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

/* ---- free ---- */

/* Stream, events, device memory, host memory; then what was imported, the segment, the record. */
psm_status psm_p2p_proxy_free(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    psm_status first = PSM_OK;
    bool found;
    if (connection->host) psm_conn_note(&first, psm_import_remove(connection->host, connection, 0, false, &found));
    struct psmP2pLocalInfo *local = psm_conn_take(connection);
    if (!local) {
        if (connection->host) psm_conn_note(&first, psm_memory_drop_kept(connection->host, connection));
        return first;
    }
    const struct psm_host *host = local->conn.host;
    if (local->conn.connected) {
        struct psm_line *ended = local->conn.role ? &local->shared->sendEnded : &local->shared->recvEnded;
        if (psm_line_own(ended) == 0) psm_line_store(ended, (uint64_t)-PSM_ERR_PEER_CLOSED);
    }
    psm_conn_end(&local->conn, &first);
    if (local->import) psm_conn_note(&first, psm_import_release(host, local->import));
    psm_conn_note(&first, psm_memory_drop_kept(host, connection));
    if (local->fifo.owner && psm_memory_fd(&local->fifo) >= 0) host->ops->withdraw_fd(host->self, local->fifo.id);
    psm_conn_note(&first, psm_memory_close(host, &local->fifo)); /* recv: the FIFO itself; send: the import of it */
    if (local->control.fd >= 0) host->ops->withdraw_fd(host->self, local->control.id);
    psm_segment_close(&local->control);
    free(local);
    return first;
}

/* ---- registration: the peer's buffer, on the sender's proxy ---- */

static psm_status read_registration(psmProxyConnection *connection, const void *req, int reqSize, int respSize,
                                    struct psm_p2p_registration *want)
{
    int rank = psm_conn_rank(connection);
    PSM_TRY(psm_conn_read(connection, "register", want, sizeof *want, req, reqSize, 0, respSize));
    if (want->magic != PSM_P2P_MAGIC)
        return psm_fail(PSM_ERR_PROTOCOL, "register", rank, -1, 0, "register: bad magic 0x%08x, expected 0x%08x",
                        want->magic, PSM_P2P_MAGIC);
    if (want->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "register", rank, want->rank, 0, "register: bad version %u, expected %d",
                        want->version, PSM_WIRE_VERSION);
    return PSM_OK;
}

psm_status psm_p2p_proxy_register(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                  void *resp, int respSize, int *done)
{
    (void)state;
    (void)resp;
    struct psm_fault fault;
    PSM_TRY(psm_conn_enter(connection, "register", connection->rank));
    PSM_TRY(psm_conn_strike_at(connection, &site_register, "register", connection->rank, &fault));
    const struct psm_host *host = connection->host;
    struct psm_p2p_registration want;
    PSM_TRY(read_registration(connection, req, reqSize, respSize, &want));
    int fd = -1;
    if (want.given >= 0) PSM_TRY(host->ops->take_fd(host->self, want.given, &fd));
    psm_status status = psm_import_add(host, connection, want.id, &want.share, fd, want.rank);
    if (fd >= 0) close(fd);
    if (status != PSM_OK) return psm_fail_at("register", host->ops->rank(host->self), want.rank, 0);
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

psm_status psm_p2p_proxy_deregister(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                    int *done)
{
    (void)state;
    struct psm_fault fault;
    PSM_TRY(psm_conn_enter(connection, "register", connection->rank));
    PSM_TRY(psm_conn_strike_at(connection, &site_register, "register", connection->rank, &fault));
    struct psm_p2p_registration want;
    PSM_TRY(read_registration(connection, req, reqSize, 0, &want));
    bool found = false; /* id 0 would mean all */
    psm_status status =
        want.id ? psm_import_remove(connection->host, connection, want.id, want.keep != 0, &found) : PSM_OK;
    *done = 1;
    if (status == PSM_OK && !found)
        return psm_fail(PSM_ERR_NOT_FOUND, "register", -1, want.rank, 0,
                        "rank %d deregisters a buffer of id 0x%" PRIx64 ", which is not registered on this connection",
                        want.rank, want.id);
    return status;
}

const struct psmTransportComm psm_p2p_split_send =
    PSM_P2P_COMM(psm_p2p_proxy_setup, psm_p2p_proxy_connect, psm_p2p_proxy_free, psm_p2p_send_progress);
const struct psmTransportComm psm_p2p_split_recv =
    PSM_P2P_COMM(psm_p2p_proxy_setup, psm_p2p_proxy_connect, psm_p2p_proxy_free, psm_p2p_recv_progress);
