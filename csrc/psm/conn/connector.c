#define _GNU_SOURCE
#include "conn/connector.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "psm_lib_messages.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct psm_connector *alive;

/* Where the list has it; *NULL: nowhere. Under the lock. */
static struct psm_connector **place(const void *connector, const struct psm_connector_kind *kind)
{
    struct psm_connector **at = &alive;
    while (*at && (*at != connector || (kind && (*at)->kind != kind))) at = &(*at)->next;
    return at;
}

bool psm_connector_alive(const void *connector, const struct psm_connector_kind *kind)
{
    pthread_mutex_lock(&lock);
    bool found = connector && *place(connector, kind);
    pthread_mutex_unlock(&lock);
    return found;
}

uint64_t psm_connector_connection(const void *connector, const struct psm_connector_kind *kind)
{
    if (!psm_connector_alive(connector, kind)) return 0;
    const struct psm_connector *c = connector;
    return c->host.ops->connection(c->host.self, c->proxy);
}

psm_status psm_connector_check_peer(const struct psm_peer_info *info)
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

/* ---- Setup ---- */

psm_status psm_connector_check_setup(const void *host, const struct psm_peer_info *me, const struct psm_peer_info *peer,
                                     const void *info, const void *out, int channel, int connIndex,
                                     struct psm_site *site, struct psm_fault *fault)
{
    if (!host || !me || !peer || !info || !out || channel < 0 || channel > UINT16_MAX || connIndex < 0 ||
        connIndex > UINT16_MAX)
        return psm_fail(PSM_ERR_INVALID, "setup", -1, -1, 0, "setup: an argument is NULL, or there is no channel %d/%d",
                        channel, connIndex);
    return psm_fault_before(site, &(struct psm_fault_args){.rank = me->rank, .peer = peer->rank}, "setup", fault);
}

psm_status psm_connector_new(const struct psm_connector_kind *kind, size_t size, const struct psm_host *host,
                             const struct psm_peer_info *me, const struct psm_peer_info *peer, int channel,
                             int connIndex, int role, void *out)
{
    struct psm_connector *c = calloc(1, size);
    const struct psm_settings *settings = host->ops->settings(host->self);
    if (!c) return psm_fail(PSM_ERR_NO_MEMORY, "setup", me->rank, peer->rank, 0, "no memory for a connector");
    *c = (struct psm_connector){.kind = kind,
                                .host = *host,
                                .me = *me,
                                .peer = *peer,
                                .role = role,
                                .channel = channel,
                                .connIndex = connIndex,
                                .steps = settings->steps,
                                .chunk = (uint32_t)(settings->buffer_size / settings->steps),
                                .buffer_size = settings->buffer_size};
    *(void **)out = c;
    return PSM_OK;
}

psm_status psm_connector_ask(const struct psm_connector *c, const struct psm_connector_asks *asks, void *got,
                             void **proxy)
{
    const struct psm_host_ops *ops = c->host.ops;
    void *self = c->host.self;
    PSM_TRY(ops->connect(self, c->kind->transport, asks->role == 1, asks->rank, proxy));
    psm_status status = ops->call(self, *proxy, psmProxyMsgSetup, asks->want, asks->size, got, asks->answer);
    if (status == PSM_OK) status = asks->check(c, got, asks->role);
    if (status == PSM_OK) return PSM_OK;
    struct psm_error kept = *psm_last_error();
    ops->disconnect(self, *proxy);
    *proxy = NULL;
    return psm_fail_again(&kept);
}

void psm_connector_add(struct psm_connector *c, const char *via)
{
    char mine[16], theirs[16];
    pthread_mutex_lock(&lock);
    c->next = alive;
    alive = c;
    pthread_mutex_unlock(&lock);
    if (!c->role) return; /* the sender's line is enough, as in NCCL */
    snprintf(mine, sizeof mine, "%d", c->me.device);
    snprintf(theirs, sizeof theirs, "%d", c->peer.device);
    psm_msg_transport_channel(c->channel, c->connIndex, c->me.rank, mine, c->peer.rank, theirs, via);
}

psm_status psm_connector_refused(const struct psm_connector *c, const char *stage)
{
    psm_status status = psm_fail_at(stage, c->me.rank, c->peer.rank, 0);
    const struct psm_error *error = psm_last_error();
    c->kind->refused(psm_connector_role(c), c->me.rank, c->peer.rank, (uint64_t)c->channel, stage,
                     psm_status_name(status), psm_cause_name(psm_error_cause(error)), psm_error_names(error),
                     error->text);
    return status;
}

psm_status psm_connector_abandon(struct psm_connector *c)
{
    psm_status status = psm_connector_refused(c, "setup");
    free(c);
    return status;
}

/* ---- Connect ---- */

static const char *verb_of(int role)
{
    return role ? "send" : "receive";
}

psm_status psm_connector_check_connect(const struct psm_connector *c, const struct psm_connector_kind *kind,
                                       const void *peer, int role)
{
    if (!c || !peer || !psm_connector_alive(c, kind))
        return psm_fail(PSM_ERR_INVALID, "connect", -1, -1, 0, "connect: %s",
                        !c || !peer ? "an argument is NULL" : "the connector was freed, or was never set up");
    if (c->role != role)
        return psm_fail(PSM_ERR_INVALID, "connect", c->me.rank, c->peer.rank, 0,
                        "psm%s%sConnect of a connector that was set up to %s", kind->name, role ? "Send" : "Recv",
                        verb_of(c->role));
    if (c->connected)
        return psm_fail(PSM_ERR_INVALID, "connect", c->me.rank, c->peer.rank, 0,
                        "connect of a connector that is already connected");
    return PSM_OK;
}

/* With both values in the text. */
static psm_status differ(const struct psm_connector *c, const char *what, uint64_t mine, uint64_t theirs,
                         const char *remedy)
{
    return psm_fail(PSM_ERR_MISMATCH, "connect", c->me.rank, c->peer.rank, 0,
                    "channel %d/%d: %s is %" PRIu64 " at rank %d and %" PRIu64 " at rank %d%s", c->channel,
                    c->connIndex, what, mine, c->me.rank, theirs, c->peer.rank, remedy);
}

psm_status psm_connector_compare_ends(const struct psm_connector *c, const struct psm_conn_info *peer)
{
    static const char swapped[] = ": connect infos were mixed up";
    if (peer->magic != c->kind->magic)
        return psm_peer_sent(psm_fail(PSM_ERR_PROTOCOL, "connect", c->me.rank, c->peer.rank, 0,
                                      "connect info of rank %d: bad magic 0x%08x, expected 0x%08x", c->peer.rank,
                                      peer->magic, c->kind->magic));
    if (peer->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "connect", c->me.rank, c->peer.rank, 0,
                        "connect info of rank %d: version %u, this rank has %u: use one release of libpsm on all ranks",
                        c->peer.rank, peer->version, PSM_WIRE_VERSION);
    if (peer->rank != c->peer.rank)
        return differ(c, "the peer's rank", (uint64_t)c->peer.rank, (uint64_t)peer->rank, swapped);
    if (peer->role == c->role)
        return differ(c, "the role (1: send)", (uint64_t)c->role, (uint64_t)peer->role,
                      "; expected one sender and one receiver");
    if (peer->channel != c->channel)
        return differ(c, "the channel", (uint64_t)c->channel, (uint64_t)peer->channel, swapped);
    if (peer->connIndex != c->connIndex)
        return differ(c, "the connection index", (uint64_t)c->connIndex, (uint64_t)peer->connIndex, "");
    return PSM_OK;
}

psm_status psm_connector_compare_buffers(const struct psm_connector *c, const struct psm_conn_info *peer)
{
    static const char same[] = "; set it alike on all ranks";
    if (peer->steps != c->steps) return differ(c, "the number of steps (PSM_STEPS)", c->steps, peer->steps, same);
    if (peer->chunk != c->chunk)
        return differ(c, "the chunk (PSM_BUFFER_SIZE / PSM_STEPS)", c->chunk, peer->chunk, same);
    if (peer->buffer_size != c->buffer_size)
        return differ(c, "the buffer size (PSM_BUFFER_SIZE)", c->buffer_size, peer->buffer_size, same);
    return PSM_OK;
}

/* ---- Free ---- */

psm_status psm_connector_bury(struct psm_connector *c, const struct psm_connector_kind *kind, int role)
{
    char name[32];
    snprintf(name, sizeof name, "psm%s%sFree", kind->name, role ? "Send" : "Recv");
    pthread_mutex_lock(&lock);
    struct psm_connector **at = place(c, kind);
    bool found = *at != NULL, fits = found && c->role == role;
    if (fits) *at = c->next;
    pthread_mutex_unlock(&lock);
    if (fits) return PSM_OK;
    if (found)
        return psm_fail(PSM_ERR_INVALID, "free", c->me.rank, c->peer.rank, 0, "%s of a connector that was set up to %s",
                        name, verb_of(c->role));
    return psm_fail(PSM_ERR_INVALID, "free", -1, -1, 0,
                    "%s: the connector at %p was already freed, or was never set up", name, (void *)c);
}
