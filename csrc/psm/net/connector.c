/* The caller's side. Setup calls the own proxy; Connect compares the values that both sides assume and lets the proxies
 * meet through the network; Free releases everything. Runs on the caller's thread, with the control plane's deadlines.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_send_setup, "net.send.setup", "a rank sets up its sending end of a net connection");
PSM_FAULT_SITE(site_recv_setup, "net.recv.setup", "a rank sets up its receiving end of a net connection");
PSM_FAULT_SITE(site_send_connect, "net.send.connect", "a rank connects its sending end to that of the peer");
PSM_FAULT_SITE(site_recv_connect, "net.recv.connect", "a rank connects its receiving end to that of the peer");

struct psmNetConnector {
    struct psmNetConnector *next;
    struct psm_host host;
    struct psm_peer_info me, peer;
    struct psm_net_connect info; /* what this end sent to the peer */
    bool asked, connected;       /* Connect was called */
    struct psm_fault fault;      /* of Connect, which may be called several times */
    uint32_t device;             /* of the network */
    void *proxy;                 /* the provider's, to the own proxy */
};

/* Live connectors: a freed one is recognised by its address, not by its contents. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct psmNetConnector *alive;

static bool is_alive(const psmNetConnector *connector)
{
    pthread_mutex_lock(&lock);
    const struct psmNetConnector *c = alive;
    while (c && c != connector) c = c->next;
    pthread_mutex_unlock(&lock);
    return c != NULL;
}

static bool bury(psmNetConnector *connector)
{
    pthread_mutex_lock(&lock);
    struct psmNetConnector **at = &alive;
    while (*at && *at != connector) at = &(*at)->next;
    bool found = *at != NULL;
    if (found) *at = connector->next;
    pthread_mutex_unlock(&lock);
    return found;
}

uint64_t psmNetConnection(const psmNetConnector *connector)
{
    if (!connector || !is_alive(connector)) return 0;
    return connector->host.ops->connection(connector->host.self, connector->proxy);
}

static const char *role_of(const psmNetConnector *c)
{
    return c->info.role ? "send" : "recv";
}

/* ---- path ---- */

static psm_status check_peer(const struct psm_peer_info *info)
{
    if (info->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "canconnect", -1, info->rank, 0,
                        "rank %d publishes version %u of its information, this library has %d: use one release of "
                        "libpsm on all ranks",
                        info->rank, info->version, PSM_WIRE_VERSION);
    if (info->size != sizeof *info)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "canconnect", -1, info->rank, 0,
                                      "rank %d published %u bytes, expected %zu", info->rank, info->size,
                                      sizeof *info));
    return PSM_OK;
}

/* Setup finds out whether a rank has a network: nobody else knows which one it uses. */
psm_status psmNetCanConnect(const struct psm_peer_info *a, const struct psm_peer_info *b, int *can)
{
    if (!a || !b || !can)
        return psm_fail(PSM_ERR_INVALID, "canconnect", -1, -1, 0, "psmNetCanConnect: an argument is NULL");
    *can = 0;
    PSM_TRY(check_peer(a));
    PSM_TRY(check_peer(b));
    *can = a->rank != b->rank;
    return PSM_OK;
}

/* ---- setup ---- */

static void say_channel(const struct psmNetConnector *c)
{
    char via[64], mine[16], theirs[16];
    if (!c->info.role) return; /* the sender's line is enough, as in NCCL */
    snprintf(via, sizeof via, "PSM_NET/%.*s/%u", PSM_NET_NAME, c->info.net, c->device);
    snprintf(mine, sizeof mine, "%d", c->me.device);
    snprintf(theirs, sizeof theirs, "%d", c->peer.device);
    psm_msg_transport_channel(c->info.channel, c->info.connIndex, c->me.rank, mine, c->peer.rank, theirs, via);
}

/* The last error is that of this end. */
static psm_status say_refused(const struct psmNetConnector *c, const char *stage)
{
    psm_status status = psm_fail_at(stage, c->me.rank, c->peer.rank, 0);
    psm_msg_libpsm_net_refused(role_of(c), c->me.rank, c->peer.rank, c->info.channel, stage, psm_status_name(status),
                               psm_cause_name(psm_error_cause(psm_last_error())), psm_error_names(psm_last_error()),
                               psm_last_error()->text);
    return status;
}

static psm_status check_share_info(const struct psmNetConnector *c, const struct psmNetShareInfo *got)
{
    if (got->magic == PSM_NET_MAGIC && got->version == PSM_WIRE_VERSION && got->role == c->info.role &&
        got->steps == c->info.steps && got->buffer_size == c->info.buffer_size)
        return PSM_OK;
    return psm_fail(PSM_ERR_PROTOCOL, "setup", c->me.rank, c->peer.rank, 0,
                    "the proxy answered setup with magic 0x%08x, version %u, role %u, %u steps, %" PRIu64
                    " bytes; expected 0x%08x, %d, %u, %u, %" PRIu64,
                    got->magic, got->version, got->role, got->steps, got->buffer_size, PSM_NET_MAGIC, PSM_WIRE_VERSION,
                    c->info.role, c->info.steps, c->info.buffer_size);
}

static psm_status ask_setup(struct psmNetConnector *c)
{
    const struct psm_host_ops *ops = c->host.ops;
    struct psm_net_setup want = {.magic = PSM_NET_MAGIC,
                                 .version = PSM_WIRE_VERSION,
                                 .role = c->info.role,
                                 .peer = c->peer.rank,
                                 .channel = c->info.channel,
                                 .connIndex = c->info.connIndex,
                                 .steps = c->info.steps,
                                 .chunk = c->info.chunk,
                                 .buffer_size = c->info.buffer_size};
    struct psmNetShareInfo got = {0};
    PSM_TRY(ops->connect(c->host.self, PSM_TRANSPORT_NET, c->info.role, c->me.rank, &c->proxy));
    psm_status status = ops->call(c->host.self, c->proxy, psmProxyMsgSetup, &want, sizeof want, &got, (int)sizeof got);
    if (status == PSM_OK) status = check_share_info(c, &got);
    if (status == PSM_OK) {
        c->info.id = got.id;
        c->device = got.device;
        memcpy(c->info.net, got.net, sizeof got.net);
        memcpy(c->info.handle, got.handle, sizeof got.handle);
        memcpy(c->info.more, got.more, sizeof got.more);
        return PSM_OK;
    }
    struct psm_error kept = *psm_last_error();
    ops->disconnect(c->host.self, c->proxy);
    return psm_fail_again(&kept);
}

static psm_status setup(const struct psm_host *host, const struct psm_peer_info *me, const struct psm_peer_info *peer,
                        int channel, int connIndex, int role, struct psm_net_connect *info, psmNetConnector **out)
{
    if (!host || !me || !peer || !info || !out || channel < 0 || channel > UINT16_MAX || connIndex < 0 ||
        connIndex > UINT16_MAX)
        return psm_fail(PSM_ERR_INVALID, "setup", -1, -1, 0, "setup: an argument is NULL, or there is no channel %d/%d",
                        channel, connIndex);
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(role ? &site_send_setup : &site_recv_setup,
                             &(struct psm_fault_args){.rank = me->rank, .peer = peer->rank}, "setup", &fault));
    int can;
    PSM_TRY(psmNetCanConnect(me, peer, &can));
    if (!can)
        return psm_fail(PSM_ERR_UNSUPPORTED, "setup", me->rank, peer->rank, 0,
                        "rank %d cannot connect to itself through a network: use a copy on its stream", me->rank);
    const struct psm_settings *settings = host->ops->settings(host->self);
    struct psmNetConnector *c = calloc(1, sizeof *c);
    if (!c) return psm_fail(PSM_ERR_NO_MEMORY, "setup", me->rank, peer->rank, 0, "no memory for a connector");
    c->host = *host;
    c->me = *me;
    c->peer = *peer;
    c->info = (struct psm_net_connect){.magic = PSM_NET_MAGIC,
                                       .version = PSM_WIRE_VERSION,
                                       .role = (uint8_t)role,
                                       .rank = me->rank,
                                       .channel = (uint16_t)channel,
                                       .connIndex = (uint16_t)connIndex,
                                       .steps = settings->steps,
                                       .chunk = (uint32_t)(settings->buffer_size / settings->steps),
                                       .buffer_size = settings->buffer_size};
    if (ask_setup(c) != PSM_OK) {
        psm_status status = say_refused(c, "setup");
        free(c);
        return status;
    }
    pthread_mutex_lock(&lock);
    c->next = alive;
    alive = c;
    pthread_mutex_unlock(&lock);
    say_channel(c);
    *info = c->info;
    *out = c;
    psm_fault_act_after(&fault);
    return PSM_OK;
}

psm_status psmNetSendSetup(const struct psm_host *host, const struct psm_peer_info *me,
                           const struct psm_peer_info *peer, int channel, int connIndex, struct psm_net_connect *info,
                           psmNetConnector **send)
{
    return setup(host, me, peer, channel, connIndex, 1, info, send);
}
psm_status psmNetRecvSetup(const struct psm_host *host, const struct psm_peer_info *me,
                           const struct psm_peer_info *peer, int channel, int connIndex, struct psm_net_connect *info,
                           psmNetConnector **recv)
{
    return setup(host, me, peer, channel, connIndex, 0, info, recv);
}

/* ---- connect ---- */

static psm_status differ(const struct psmNetConnector *c, const char *what, uint64_t mine, uint64_t theirs,
                         const char *remedy)
{
    return psm_fail(PSM_ERR_MISMATCH, "connect", c->me.rank, c->peer.rank, 0,
                    "channel %u/%u: %s is %" PRIu64 " at rank %d and %" PRIu64 " at rank %d%s", c->info.channel,
                    c->info.connIndex, what, mine, c->me.rank, theirs, c->peer.rank, remedy);
}

/* Everything that both sides must agree on. */
static psm_status compare(const struct psmNetConnector *c, const struct psm_net_connect *peer)
{
    const struct psm_net_connect *me = &c->info;
    static const char same[] = "; set it alike on all ranks", swapped[] = ": connect infos were mixed up";
    if (peer->magic != me->magic)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "connect", c->me.rank, c->peer.rank, 0,
                                      "connect info of rank %d: bad magic 0x%08x, expected 0x%08x", c->peer.rank,
                                      peer->magic, me->magic));
    if (peer->version != me->version)
        return psm_fail(PSM_ERR_VERSION, "connect", c->me.rank, c->peer.rank, 0,
                        "connect info of rank %d: version %u, this rank has %u: use one release of libpsm on all ranks",
                        c->peer.rank, peer->version, me->version);
    if (peer->rank != c->peer.rank)
        return differ(c, "the peer's rank", (uint64_t)c->peer.rank, (uint64_t)peer->rank, swapped);
    if (peer->role == me->role)
        return differ(c, "the role (1: send)", me->role, peer->role, "; expected one sender and one receiver");
    if (peer->channel != me->channel) return differ(c, "the channel", me->channel, peer->channel, swapped);
    if (peer->connIndex != me->connIndex) return differ(c, "the connection index", me->connIndex, peer->connIndex, "");
    if (peer->steps != me->steps) return differ(c, "the number of steps (PSM_STEPS)", me->steps, peer->steps, same);
    if (peer->chunk != me->chunk)
        return differ(c, "the chunk (PSM_BUFFER_SIZE / PSM_STEPS)", me->chunk, peer->chunk, same);
    if (peer->buffer_size != me->buffer_size)
        return differ(c, "the buffer size (PSM_BUFFER_SIZE)", me->buffer_size, peer->buffer_size, same);
    if (memcmp(peer->net, me->net, sizeof me->net) != 0)
        return psm_fail(PSM_ERR_MISMATCH, "connect", c->me.rank, c->peer.rank, 0,
                        "channel %u/%u: the network is %.*s at rank %d and %.*s at rank %d; set PSM_NET_PLUGIN alike "
                        "on all ranks",
                        me->channel, me->connIndex, PSM_NET_NAME, me->net, c->me.rank, PSM_NET_NAME, peer->net,
                        c->peer.rank);
    return PSM_OK;
}

static psm_status connect_end(psmNetConnector *c, const struct psm_net_connect *peer)
{
    struct psm_net_connected got = {0};
    if (!c->asked) {
        PSM_TRY(psm_fault_before(c->info.role ? &site_send_connect : &site_recv_connect,
                                 &(struct psm_fault_args){.rank = c->me.rank, .peer = c->peer.rank}, "connect",
                                 &c->fault));
        PSM_TRY(compare(c, peer));
        c->asked = true;
    }
    PSM_TRY(c->host.ops->call(c->host.self, c->proxy, psmProxyMsgConnect, peer, sizeof *peer, &got, sizeof got));
    if (!got.connected) return PSM_IN_PROGRESS;
    c->connected = true;
    psm_fault_act_after(&c->fault);
    return PSM_OK;
}

static psm_status connect_role(psmNetConnector *connector, const struct psm_net_connect *peer, int role)
{
    if (!connector || !peer || !is_alive(connector))
        return psm_fail(PSM_ERR_INVALID, "connect", -1, -1, 0, "connect: %s",
                        !connector || !peer ? "an argument is NULL" : "the connector was freed, or was never set up");
    const char *wrong = connector->info.role != role ? "was set up for the other role"
                        : connector->connected       ? "is already connected"
                                                     : NULL;
    if (wrong)
        return psm_fail(PSM_ERR_INVALID, "connect", connector->me.rank, connector->peer.rank, 0,
                        "%s of a connector that %s", role ? "psmNetSendConnect" : "psmNetRecvConnect", wrong);
    psm_status status = connect_end(connector, peer);
    return status >= 0 ? status : say_refused(connector, "connect");
}

psm_status psmNetSendConnect(psmNetConnector *send, const struct psm_net_connect *peer)
{
    return connect_role(send, peer, 1);
}
psm_status psmNetRecvConnect(psmNetConnector *recv, const struct psm_net_connect *peer)
{
    return connect_role(recv, peer, 0);
}

/* ---- free ---- */

static psm_status free_end(psmNetConnector *c, int role)
{
    if (!c) return PSM_OK;
    const char *name = role ? "psmNetSendFree" : "psmNetRecvFree";
    if (is_alive(c) && c->info.role != role)
        return psm_fail(PSM_ERR_INVALID, "free", c->me.rank, c->peer.rank, 0,
                        "%s of a connector that was set up for the other role", name);
    if (!bury(c))
        return psm_fail(PSM_ERR_INVALID, "free", -1, -1, 0,
                        "%s: the connector at %p was already freed, or was never set up", name, (void *)c);
    psm_status status = c->host.ops->disconnect(c->host.self, c->proxy);
    free(c);
    return status;
}

psm_status psmNetSendFree(psmNetConnector *send)
{
    return free_end(send, 1);
}
psm_status psmNetRecvFree(psmNetConnector *recv)
{
    return free_end(recv, 0);
}
