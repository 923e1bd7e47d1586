/* The caller's side. Setup calls the own proxy; Connect compares the values that both sides assume, fetches the peer's
 * descriptor and passes it to the own proxy; Free releases everything. Runs on the caller's thread, with the control
 * plane's deadlines. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conn/connector.h"
#include "p2p/p2p.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_setup, "p2p.setup", "a rank sets up its end of a connection");
PSM_FAULT_SITE(site_connect, "p2p.connect", "a rank connects its end to that of the peer");
PSM_FAULT_SITE(site_register, "p2p.register", "a buffer is registered for zero-copy");

struct psmP2pConnector {
    struct psm_connector base;
    struct psm_peer_info via;    /* of PSM_P2P_INTERMEDIATE */
    struct psm_p2p_connect info; /* what this end sent to the peer */
    int control_kind, fifo_kind;
    void *via_proxy;  /* the provider's, to the proxy of the intermediate rank, which has the FIFO; recv only */
    void *peer_proxy; /* the provider's, to the peer's proxy, for registrations; NULL until the first one */
    struct held *held;
};
/* A buffer registered on a connector. */
struct held {
    struct held *next;
    uint64_t handle;
    struct psm_memory memory;
};

static const struct psm_connector_kind p2p = {
    .name = "P2p", .magic = PSM_P2P_MAGIC, .transport = PSM_TRANSPORT_P2P, .refused = psm_msg_libpsm_p2p_refused};

static bool same_process(const struct psmP2pConnector *c)
{
    return c->base.me.process_hash == c->base.peer.process_hash;
}

uint64_t psmP2pConnection(const psmP2pConnector *connector)
{
    return psm_connector_connection(connector, &p2p);
}

/* ---- setup ---- */

static void add(struct psmP2pConnector *c)
{
    char via[64];
    if (c->info.mode == PSM_P2P_INTERMEDIATE)
        snprintf(via, sizeof via, "PSM_P2P/indirect/%d[%d]", c->via.rank, c->via.device);
    else
        snprintf(via, sizeof via, "PSM_P2P/%s%s%s", psm_p2p_mode_name(c->info.mode),
                 c->info.mode == PSM_P2P_SHM ? "/" : "",
                 c->info.mode == PSM_P2P_SHM ? psm_share_kind_name(c->fifo_kind) : "");
    psm_connector_add(&c->base, via);
}

static psm_status check_share_info(const struct psm_connector *c, const void *answer, int role)
{
    const struct psmP2pShareInfo *got = answer;
    uint32_t mode = ((const struct psmP2pConnector *)c)->info.mode;
    if (got->magic == PSM_P2P_MAGIC && got->version == PSM_WIRE_VERSION && got->role == role &&
        got->steps == c->steps && got->mode == mode && got->buffer_size == c->buffer_size)
        return PSM_OK;
    return psm_fail(PSM_ERR_PROTOCOL, "setup", c->me.rank, c->peer.rank, 0,
                    "a proxy answered setup with magic 0x%08x, version %u, role %u, %u steps, mode %u, %" PRIu64
                    " bytes; expected 0x%08x, %d, %d, %u, %u, %" PRIu64,
                    got->magic, got->version, got->role, got->steps, got->mode, got->buffer_size, PSM_P2P_MAGIC,
                    PSM_WIRE_VERSION, role, c->steps, mode, c->buffer_size);
}

/* Setup at one proxy: keeps the connection to it. */
static psm_status ask_one(struct psmP2pConnector *c, const struct psm_p2p_setup *want, int rank, void **proxy,
                          struct psm_share *share)
{
    struct psmP2pShareInfo got = {0};
    struct psm_connector_asks asks = {.rank = rank,
                                      .role = want->role,
                                      .want = want,
                                      .size = sizeof *want,
                                      .answer = sizeof got,
                                      .check = check_share_info};
    PSM_TRY(psm_connector_ask(&c->base, &asks, &got, proxy));
    *share = got.share;
    return PSM_OK;
}

static psm_status ask_setup(struct psmP2pConnector *c)
{
    const struct psm_host_ops *ops = c->base.host.ops;
    const struct psm_settings *settings = ops->settings(c->base.host.self);
    uint32_t both = c->base.me.capabilities & c->base.peer.capabilities;
    struct psm_p2p_setup want = {
        PSM_CONNECTOR_INFO(&c->base),        .mode = c->info.mode,
        .peer = c->base.peer.rank,           .control_kind = (uint16_t)c->control_kind,
        .fifo_kind = (uint16_t)c->fifo_kind, .zero_copy = both & PSM_CAN_ZERO_COPY ? settings->zero_copy : 0};
    psm_status status = PSM_OK;
    if (c->info.mode == PSM_P2P_INTERMEDIATE && !c->base.role) {
        want.role = PSM_P2P_LENDER;
        status = ask_one(c, &want, c->via.rank, &c->via_proxy, &c->info.share);
        want.role = c->base.role;
        want.fifo_kind = PSM_SHARE_NONE;
    }
    struct psm_share share;
    if (status == PSM_OK) status = ask_one(c, &want, c->base.me.rank, &c->base.proxy, &share);
    if (status == PSM_OK) {
        if (!c->via_proxy) c->info.share = share;
        return PSM_OK;
    }
    struct psm_error kept = *psm_last_error();
    if (c->via_proxy) ops->disconnect(c->base.host.self, c->via_proxy);
    return psm_fail_again(&kept);
}

static psm_status setup_via(const struct psm_host *host, const struct psm_peer_info *me,
                            const struct psm_peer_info *peer, const struct psm_peer_info *via, int channel,
                            int connIndex, int role, struct psm_p2p_connect *info, psmP2pConnector **out)
{
    struct psm_fault fault;
    PSM_TRY(psm_connector_check_setup(host, me, peer, info, out, channel, connIndex, &site_setup, &fault));
    int mode;
    PSM_TRY(psmP2pCanConnect(me, peer, &mode));
    if (mode == PSM_P2P_NONE)
        return psm_fail(PSM_ERR_UNSUPPORTED, "setup", me->rank, peer->rank, 0,
                        "no path from rank %d to rank %d through shared memory: hosts 0x%" PRIx64 " and 0x%" PRIx64
                        ", capabilities 0x%x and 0x%x",
                        me->rank, peer->rank, me->host_hash, peer->host_hash, me->capabilities, peer->capabilities);
    int needed = -1;
    if (via) PSM_TRY(psmP2pFindIntermediate(via, 1, me, peer, &needed));
    if (needed == 0) mode = PSM_P2P_INTERMEDIATE;
    struct psmP2pConnector *c;
    PSM_TRY(psm_connector_new(&p2p, sizeof *c, host, me, peer, channel, connIndex, role, &c));
    c->info = (struct psm_p2p_connect){PSM_CONNECTOR_INFO(&c->base), .mode = (uint8_t)mode, .rank = me->rank};
    psm_p2p_kinds(me, peer, mode, &c->control_kind, &c->fifo_kind);
    if (needed == 0) {
        c->via = *via;
        c->fifo_kind = psm_p2p_via_kind(me, peer, via);
    }
    if (ask_setup(c) != PSM_OK) return psm_connector_abandon(&c->base);
    add(c);
    *info = c->info;
    *out = c;
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status setup(const struct psm_host *host, const struct psm_peer_info *me, const struct psm_peer_info *peer,
                        int channel, int connIndex, int role, struct psm_p2p_connect *info, psmP2pConnector **out)
{
    return setup_via(host, me, peer, NULL, channel, connIndex, role, info, out);
}
psm_status psmP2pSendSetupVia(const struct psm_host *host, const struct psm_peer_info *me,
                              const struct psm_peer_info *peer, const struct psm_peer_info *via, int channel,
                              int connIndex, struct psm_p2p_connect *info, psmP2pConnector **send)
{
    return setup_via(host, me, peer, via, channel, connIndex, 1, info, send);
}
psm_status psmP2pRecvSetupVia(const struct psm_host *host, const struct psm_peer_info *me,
                              const struct psm_peer_info *peer, const struct psm_peer_info *via, int channel,
                              int connIndex, struct psm_p2p_connect *info, psmP2pConnector **recv)
{
    return setup_via(host, me, peer, via, channel, connIndex, 0, info, recv);
}

/* ---- connect ---- */

/* Everything that both sides must agree on. */
static psm_status compare(const struct psmP2pConnector *c, const struct psm_p2p_connect *peer)
{
    const struct psm_p2p_connect *me = &c->info;
    struct psm_conn_info theirs = PSM_CONN_INFO(*peer);
    PSM_TRY(psm_connector_compare_ends(&c->base, &theirs));
    if (peer->mode != me->mode)
        return psm_fail(PSM_ERR_MISMATCH, "connect", c->base.me.rank, c->base.peer.rank, 0,
                        "channel %u/%u: the mode is %s (%u) at rank %d and %s (%u) at rank %d", me->channel,
                        me->connIndex, psm_p2p_mode_name(me->mode), me->mode, c->base.me.rank,
                        psm_p2p_mode_name(peer->mode), peer->mode, c->base.peer.rank);
    PSM_TRY(psm_connector_compare_buffers(&c->base, &theirs));
    int kind = me->role ? c->fifo_kind : c->control_kind;
    if (peer->share.kind != kind)
        return psm_fail(PSM_ERR_MISMATCH, "connect", c->base.me.rank, c->base.peer.rank, 0,
                        "channel %u/%u: rank %d shares its %s as %s (%u), expected %s (%d)", me->channel, me->connIndex,
                        c->base.peer.rank, me->role ? "FIFO" : "control segment", psm_share_kind_name(peer->share.kind),
                        peer->share.kind, psm_share_kind_name(kind), kind);
    return PSM_OK;
}

/* The descriptor goes from the peer's proxy to this thread, and from here to the own proxy, which must not wait. */
static psm_status fetch(struct psmP2pConnector *c, int rank, uint64_t id, int *given)
{
    const struct psm_host_ops *ops = c->base.host.ops;
    void *self = c->base.host.self, *peer = NULL;
    int fd = -1;
    bool keeps = ops->size >= offsetof(struct psm_host_ops, fetch_fd) + sizeof ops->fetch_fd && ops->fetch_fd;
    if (!keeps) PSM_TRY(ops->connect(self, PSM_TRANSPORT_P2P, !c->base.role, rank, &peer));
    psm_status status =
        keeps ? ops->fetch_fd(self, PSM_TRANSPORT_P2P, rank, id, &fd) : ops->get_fd(self, peer, id, &fd);
    if (status == PSM_OK) status = ops->query_fd(self, c->base.proxy, fd, given);
    struct psm_error kept = *psm_last_error();
    if (fd >= 0) close(fd);
    psm_status closed = keeps ? PSM_OK : ops->disconnect(self, peer);
    if (status != PSM_OK) return psm_fail_again(&kept);
    return closed;
}

static psm_status connect_end(psmP2pConnector *c, const struct psm_p2p_connect *peer)
{
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_connect,
                             &(struct psm_fault_args){.rank = c->base.me.rank, .peer = c->base.peer.rank}, "connect",
                             &fault));
    PSM_TRY(compare(c, peer));
    bool indirect = c->info.mode == PSM_P2P_INTERMEDIATE;
    struct psm_p2p_attach want = {.peer = *peer,
                                  .given = -1,
                                  .fifo_given = -1,
                                  .same_process = same_process(c),
                                  .fifo_rank = indirect       ? c->via.rank
                                               : c->base.role ? c->base.peer.rank
                                                              : c->base.me.rank};
    /* A segment of this process is found by its id. */
    bool here = same_process(c) && peer->share.kind != PSM_SHARE_CUMEM;
    if (psm_share_needs_fd(peer->share.kind) && !here)
        PSM_TRY(fetch(c, c->base.role ? want.fifo_rank : c->base.peer.rank, peer->share.id, &want.given));
    if (indirect && !c->base.role) {
        want.fifo = c->info.share;
        if (psm_share_needs_fd(want.fifo.kind)) PSM_TRY(fetch(c, c->via.rank, want.fifo.id, &want.fifo_given));
    }
    PSM_TRY(c->base.host.ops->call(c->base.host.self, c->base.proxy, psmProxyMsgConnect, &want, sizeof want, NULL, 0));
    c->base.connected = true;
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status connect_role(psmP2pConnector *connector, const struct psm_p2p_connect *peer, int role)
{
    PSM_TRY(psm_connector_check_connect((struct psm_connector *)connector, &p2p, peer, role));
    return connect_end(connector, peer) == PSM_OK ? PSM_OK : psm_connector_refused(&connector->base, "connect");
}

/* ---- registration ---- */

/* The peer's proxy maps the buffer now, so that no copy waits for it. */
static psm_status tell_peer(struct psmP2pConnector *c, int type, uint64_t id, const struct psm_share *share, int fd,
                            bool keep)
{
    const struct psm_host_ops *ops = c->base.host.ops;
    void *self = c->base.host.self;
    struct psm_p2p_registration want = {.magic = PSM_P2P_MAGIC,
                                        .version = PSM_WIRE_VERSION,
                                        .keep = keep,
                                        .given = -1,
                                        .rank = c->base.me.rank,
                                        .id = id};
    if (share) want.share = *share;
    if (!c->peer_proxy) PSM_TRY(ops->connect(self, PSM_TRANSPORT_P2P, 1, c->base.peer.rank, &c->peer_proxy));
    if (fd >= 0) PSM_TRY(ops->query_fd(self, c->peer_proxy, fd, &want.given));
    return ops->call(self, c->peer_proxy, type, &want, sizeof want, NULL, 0);
}

static psm_status register_recv(struct psmP2pConnector *c, void *buffer, size_t size, struct held *held)
{
    uint32_t both = c->base.me.capabilities & c->base.peer.capabilities, ways = both & PSM_CAN_MEMFD;
    bool far = c->info.mode == PSM_P2P_SHM || c->info.mode == PSM_P2P_INTERMEDIATE;
    if (!far) ways |= both & (PSM_CAN_CUMEM_FD | PSM_CAN_CUDA_IPC);
    if (same_process(c)) ways &= ~(uint32_t)PSM_CAN_CUDA_IPC;
    if (c->info.mode == PSM_P2P_DIRECT) ways = PSM_CAN_DIRECT;
    if (!(both & PSM_CAN_ZERO_COPY))
        return psm_fail(PSM_ERR_UNSUPPORTED, "register", c->base.me.rank, c->base.peer.rank, 0,
                        "no zero-copy between ranks %d and %d: PSM_ZERO_COPY is never on one of them", c->base.me.rank,
                        c->base.peer.rank);
    struct psm_share share;
    PSM_TRY(psm_memory_export(&c->base.host, buffer, size, ways, &held->memory, &share));
    psm_status status = tell_peer(c, psmProxyMsgRegister, held->handle, &share, held->memory.fd, false);
    if (status == PSM_OK) return PSM_OK;
    struct psm_error kept = *psm_last_error();
    psm_memory_close(&c->base.host, &held->memory);
    return psm_fail_again(&kept);
}

static psm_status give_up(struct psmP2pConnector *c, struct held *held, bool keep)
{
    struct psm_registered entry;
    psm_registered_take(held->handle, &entry);
    psm_status first = PSM_OK;
    if (held->memory.kind != PSM_SHARE_NONE) {
        first = tell_peer(c, psmProxyMsgDeregister, held->handle, NULL, -1, keep);
        if (first == PSM_ERR_PEER_DEAD || first == PSM_ERR_PEER_CLOSED)
            first = PSM_OK; /* its mapping was removed with it */
        psm_status closed = psm_memory_close(&c->base.host, &held->memory);
        if (first == PSM_OK) first = closed;
    }
    psm_msg_libpsm_p2p_deregistered(held->handle, c->base.me.rank, c->base.peer.rank);
    free(held);
    return first;
}

psm_status psmP2pRegister(psmP2pConnector *connector, void *buffer, size_t size, uint64_t *handle)
{
    if (!connector || !buffer || size == 0 || !handle || !psm_connector_alive(connector, &p2p))
        return psm_fail(PSM_ERR_INVALID, "register", -1, -1, 0, "register: an argument is NULL, or size is 0");
    struct psmP2pConnector *c = connector;
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_register,
                             &(struct psm_fault_args){.rank = c->base.me.rank, .peer = c->base.peer.rank}, "register",
                             &fault));
    struct held *held = calloc(1, sizeof *held);
    if (!held)
        return psm_fail(PSM_ERR_NO_MEMORY, "register", c->base.me.rank, c->base.peer.rank, 0, "no memory for a buffer");
    held->memory = (struct psm_memory){.fd = -1, .segment = {.fd = -1}};
    held->handle = psm_random64();
    psm_status status = c->base.role ? PSM_OK : register_recv(c, buffer, size, held);
    struct psm_registered entry = {.handle = held->handle, .begin = (uint64_t)(uintptr_t)buffer, .size = size};
    if (!c->base.role) { /* the peer may have mapped more than the buffer */
        entry.mapped = true;
        entry.begin = (uint64_t)(uintptr_t)held->memory.ptr;
        entry.size = held->memory.size;
    }
    if (status == PSM_OK) status = psm_registered_add(&entry);
    if (status != PSM_OK) {
        free(held);
        return psm_fail_at("register", c->base.me.rank, c->base.peer.rank, 0);
    }
    held->next = c->held;
    c->held = held;
    *handle = held->handle;
    psm_msg_libpsm_p2p_registered((uint64_t)(uintptr_t)buffer, size, *handle,
                                  c->base.role ? "local" : psm_share_kind_name(held->memory.kind), c->base.me.rank,
                                  c->base.peer.rank);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

static psm_status deregister(psmP2pConnector *connector, uint64_t handle, bool keep)
{
    struct held **at = NULL;
    if (psm_connector_alive(connector, &p2p))
        for (at = &connector->held; *at && (*at)->handle != handle; at = &(*at)->next) {
        }
    if (!at || !*at)
        return psm_fail(
            PSM_ERR_NOT_FOUND, "register", -1, -1, 0,
            "deregister: 0x%" PRIx64 " is not a registration of this connector, or was already deregistered", handle);
    struct held *held = *at;
    *at = held->next;
    return give_up(connector, held, keep);
}

psm_status psmP2pDeregister(psmP2pConnector *connector, uint64_t handle)
{
    return deregister(connector, handle, false);
}

psm_status psm_p2p_deregister_for_now(psmP2pConnector *connector, uint64_t handle)
{
    return deregister(connector, handle, true);
}

/* ---- free ---- */

static psm_status free_end(psmP2pConnector *c, int role)
{
    if (!c) return PSM_OK;
    PSM_TRY(psm_connector_bury(&c->base, &p2p, role));
    psm_status first = PSM_OK, status;
    while (c->held) {
        struct held *held = c->held;
        c->held = held->next;
        status = give_up(c, held, false);
        if (first == PSM_OK) first = status;
    }
    if (c->peer_proxy) {
        status = c->base.host.ops->disconnect(c->base.host.self, c->peer_proxy);
        if (first == PSM_OK) first = status;
    }
    status = c->base.host.ops->disconnect(c->base.host.self, c->base.proxy);
    if (first == PSM_OK) first = status;
    if (c->via_proxy) {
        status = c->base.host.ops->disconnect(c->base.host.self, c->via_proxy);
        if (first == PSM_OK) first = status;
    }
    free(c);
    return first;
}

PSM_CONNECTOR_ROLE(1, psmP2pConnector, struct psm_p2p_connect, psmP2pSendSetup, psmP2pSendConnect, psmP2pSendFree)
PSM_CONNECTOR_ROLE(0, psmP2pConnector, struct psm_p2p_connect, psmP2pRecvSetup, psmP2pRecvConnect, psmP2pRecvFree)
