/* The caller's side. Setup calls the own proxy; Connect compares the values that both sides assume and lets the proxies
 * meet through the network; Free releases everything. Runs on the caller's thread, with the control plane's deadlines.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conn/connector.h"
#include "net/net_conn.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_send_setup, "net.send.setup", "a rank sets up its sending end of a net connection");
PSM_FAULT_SITE(site_recv_setup, "net.recv.setup", "a rank sets up its receiving end of a net connection");
PSM_FAULT_SITE(site_send_connect, "net.send.connect", "a rank connects its sending end to that of the peer");
PSM_FAULT_SITE(site_recv_connect, "net.recv.connect", "a rank connects its receiving end to that of the peer");

struct psmNetConnector {
    struct psm_connector base;
    struct psm_net_connect info; /* what this end sent to the peer */
    bool asked;                  /* Connect was called */
    struct psm_fault fault;      /* of Connect, which may be called several times */
    uint32_t device;             /* of the network */
};

static const struct psm_connector_kind net = {
    .name = "Net", .magic = PSM_NET_MAGIC, .transport = PSM_TRANSPORT_NET, .refused = psm_msg_libpsm_net_refused};

uint64_t psmNetConnection(const psmNetConnector *connector)
{
    return psm_connector_connection(connector, &net);
}

/* ---- path ---- */

/* Setup finds out whether a rank has a network: nobody else knows which one it uses. */
psm_status psmNetCanConnect(const struct psm_peer_info *a, const struct psm_peer_info *b, int *can)
{
    if (!a || !b || !can)
        return psm_fail(PSM_ERR_INVALID, "canconnect", -1, -1, 0, "psmNetCanConnect: an argument is NULL");
    *can = 0;
    PSM_TRY(psm_connector_check_peer(a));
    PSM_TRY(psm_connector_check_peer(b));
    *can = a->rank != b->rank;
    return PSM_OK;
}

/* ---- setup ---- */

static void add(struct psmNetConnector *c)
{
    char via[64];
    snprintf(via, sizeof via, "PSM_NET/%.*s/%u", PSM_NET_NAME, c->info.net, c->device);
    psm_connector_add(&c->base, via);
}

static psm_status check_share_info(const struct psm_connector *c, const void *answer, int role)
{
    const struct psmNetShareInfo *got = answer;
    if (got->magic == PSM_NET_MAGIC && got->version == PSM_WIRE_VERSION && got->role == role &&
        got->steps == c->steps && got->buffer_size == c->buffer_size)
        return PSM_OK;
    return psm_fail(PSM_ERR_PROTOCOL, "setup", c->me.rank, c->peer.rank, 0,
                    "the proxy answered setup with magic 0x%08x, version %u, role %u, %u steps, %" PRIu64
                    " bytes; expected 0x%08x, %d, %u, %u, %" PRIu64,
                    got->magic, got->version, got->role, got->steps, got->buffer_size, PSM_NET_MAGIC, PSM_WIRE_VERSION,
                    role, c->steps, c->buffer_size);
}

static psm_status ask_setup(struct psmNetConnector *c)
{
    struct psm_net_setup want = {PSM_CONNECTOR_INFO(&c->base), .peer = c->base.peer.rank};
    struct psmNetShareInfo got = {0};
    struct psm_connector_asks asks = {.rank = c->base.me.rank,
                                      .role = c->base.role,
                                      .want = &want,
                                      .size = sizeof want,
                                      .answer = sizeof got,
                                      .check = check_share_info};
    PSM_TRY(psm_connector_ask(&c->base, &asks, &got, &c->base.proxy));
    c->info.id = got.id;
    c->device = got.device;
    memcpy(c->info.net, got.net, sizeof got.net);
    memcpy(c->info.handle, got.handle, sizeof got.handle);
    memcpy(c->info.more, got.more, sizeof got.more);
    return PSM_OK;
}

static psm_status setup(const struct psm_host *host, const struct psm_peer_info *me, const struct psm_peer_info *peer,
                        int channel, int connIndex, int role, struct psm_net_connect *info, psmNetConnector **out)
{
    struct psm_fault fault;
    PSM_TRY(psm_connector_check_setup(host, me, peer, info, out, channel, connIndex,
                                      role ? &site_send_setup : &site_recv_setup, &fault));
    int can;
    PSM_TRY(psmNetCanConnect(me, peer, &can));
    if (!can)
        return psm_fail(PSM_ERR_UNSUPPORTED, "setup", me->rank, peer->rank, 0,
                        "rank %d cannot connect to itself through a network: use a copy on its stream", me->rank);
    struct psmNetConnector *c;
    PSM_TRY(psm_connector_new(&net, sizeof *c, host, me, peer, channel, connIndex, role, &c));
    c->info = (struct psm_net_connect){PSM_CONNECTOR_INFO(&c->base), .rank = me->rank};
    if (ask_setup(c) != PSM_OK) return psm_connector_abandon(&c->base);
    add(c);
    *info = c->info;
    *out = c;
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* ---- connect ---- */

/* Everything that both sides must agree on. */
static psm_status compare(const struct psmNetConnector *c, const struct psm_net_connect *peer)
{
    const struct psm_net_connect *me = &c->info;
    struct psm_conn_info theirs = PSM_CONN_INFO(*peer);
    PSM_TRY(psm_connector_compare_ends(&c->base, &theirs));
    PSM_TRY(psm_connector_compare_buffers(&c->base, &theirs));
    if (memcmp(peer->net, me->net, sizeof me->net) != 0)
        return psm_fail(PSM_ERR_MISMATCH, "connect", c->base.me.rank, c->base.peer.rank, 0,
                        "channel %u/%u: the network is %.*s at rank %d and %.*s at rank %d; set PSM_NET_PLUGIN alike "
                        "on all ranks",
                        me->channel, me->connIndex, PSM_NET_NAME, me->net, c->base.me.rank, PSM_NET_NAME, peer->net,
                        c->base.peer.rank);
    return PSM_OK;
}

static psm_status connect_end(psmNetConnector *c, const struct psm_net_connect *peer)
{
    struct psm_net_connected got = {0};
    if (!c->asked) {
        PSM_TRY(psm_fault_before(c->base.role ? &site_send_connect : &site_recv_connect,
                                 &(struct psm_fault_args){.rank = c->base.me.rank, .peer = c->base.peer.rank},
                                 "connect", &c->fault));
        PSM_TRY(compare(c, peer));
        c->asked = true;
    }
    PSM_TRY(c->base.host.ops->call(c->base.host.self, c->base.proxy, psmProxyMsgConnect, peer, sizeof *peer, &got,
                                   sizeof got));
    if (!got.connected) return PSM_IN_PROGRESS;
    c->base.connected = true;
    psm_fault_act_after(&c->fault);
    return PSM_OK;
}

static psm_status connect_role(psmNetConnector *connector, const struct psm_net_connect *peer, int role)
{
    PSM_TRY(psm_connector_check_connect((struct psm_connector *)connector, &net, peer, role));
    psm_status status = connect_end(connector, peer);
    return status >= 0 ? status : psm_connector_refused(&connector->base, "connect");
}

/* ---- free ---- */

static psm_status free_end(psmNetConnector *c, int role)
{
    if (!c) return PSM_OK;
    PSM_TRY(psm_connector_bury(&c->base, &net, role));
    psm_status status = c->base.host.ops->disconnect(c->base.host.self, c->base.proxy);
    free(c);
    return status;
}

PSM_CONNECTOR_ROLE(1, psmNetConnector, struct psm_net_connect, psmNetSendSetup, psmNetSendConnect, psmNetSendFree)
PSM_CONNECTOR_ROLE(0, psmNetConnector, struct psm_net_connect, psmNetRecvSetup, psmNetRecvConnect, psmNetRecvFree)
