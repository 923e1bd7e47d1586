/* The caller's end of a connection, as p2p and net both have it. A transport's own connector has it as first member. */
#ifndef PSM_CONN_CONNECTOR_H
#define PSM_CONN_CONNECTOR_H

#include "core/internal.h"
#include "psm/psm_p2p.h"

/* What differs between the transports. */
struct psm_connector_kind {
    const char *name; /* in the names of its functions: "P2p" */
    uint32_t magic;
    int transport; /* PSM_TRANSPORT_P2P */
    /* The log line of an end that was refused. */
    void (*refused)(const char *role, int64_t rank, int64_t peer, uint64_t channel, const char *stage,
                    const char *status, const char *cause, int64_t names, const char *text);
};

struct psm_connector {
    struct psm_connector *next;
    const struct psm_connector_kind *kind;
    struct psm_host host;
    struct psm_peer_info me, peer;
    int role, channel, connIndex; /* role 1: send */
    uint32_t steps, chunk;
    uint64_t buffer_size;
    bool connected;
    void *proxy; /* the provider's, to the own proxy */
};

/* What both ends of a connection must agree on: PSM_CONN_INFO(psm_p2p_connect). */
struct psm_conn_info {
    uint32_t magic;
    uint16_t version;
    int rank, role, channel, connIndex;
    uint32_t steps, chunk;
    uint64_t buffer_size;
};
#define PSM_CONN_INFO(info)                                                                                            \
    (struct psm_conn_info)                                                                                             \
    {                                                                                                                  \
        (info).magic, (info).version, (info).rank, (info).role, (info).channel, (info).connIndex, (info).steps,        \
            (info).chunk, (info).buffer_size                                                                           \
    }

/* The same as members of the request of Setup and of the connect info. */
#define PSM_CONNECTOR_INFO(c)                                                                                          \
    .magic = (c)->kind->magic, .version = PSM_WIRE_VERSION, .role = (uint8_t)(c)->role,                                \
    .channel = (uint16_t)(c)->channel, .connIndex = (uint16_t)(c)->connIndex, .steps = (c)->steps,                     \
    .chunk = (c)->chunk, .buffer_size = (c)->buffer_size

static inline const char *psm_connector_role(const struct psm_connector *c)
{
    return c->role ? "send" : "recv";
}

/* Whether that is a connector of the kind (NULL: any) which is not freed: it is recognised by its address, not by its
 * contents. Any thread. */
bool psm_connector_alive(const void *connector, const struct psm_connector_kind *kind);
/* The service's name of its connection; 0: it was freed. */
uint64_t psm_connector_connection(const void *connector, const struct psm_connector_kind *kind);

/* Whether a rank publishes what this release can read: VERSION, PROTOCOL. */
psm_status psm_connector_check_peer(const struct psm_peer_info *info);

/* ---- Setup ---- */

/* INVALID; or what the fault at the site says. */
psm_status psm_connector_check_setup(const void *host, const struct psm_peer_info *me, const struct psm_peer_info *peer,
                                     const void *info, const void *out, int channel, int connIndex,
                                     struct psm_site *site, struct psm_fault *fault);
/* Allocates a connector of `size` bytes and fills in its base. NO_MEMORY. */
psm_status psm_connector_new(const struct psm_connector_kind *kind, size_t size, const struct psm_host *host,
                             const struct psm_peer_info *me, const struct psm_peer_info *peer, int channel,
                             int connIndex, int role, void *out);
/* Send a request of Setup to the proxy of a rank, and check the answer. *proxy: the connection to that proxy; a request
 * that fails leaves none. */
struct psm_connector_asks {
    int rank, role;
    const void *want;
    int size, answer;
    psm_status (*check)(const struct psm_connector *c, const void *got, int role);
};
psm_status psm_connector_ask(const struct psm_connector *c, const struct psm_connector_asks *asks, void *got,
                             void **proxy);
/* Setup has succeeded: the connector is alive from here on, and the sender logs its channel. */
void psm_connector_add(struct psm_connector *c, const char *via);
/* Log the last error, which is that of this end, and return its status. */
psm_status psm_connector_refused(const struct psm_connector *c, const char *stage);
/* The same for Setup; frees the connector, which has no connection. */
psm_status psm_connector_abandon(struct psm_connector *c);

/* ---- Connect ---- */

/* Before Connect. INVALID. */
psm_status psm_connector_check_connect(const struct psm_connector *c, const struct psm_connector_kind *kind,
                                       const void *peer, int role);
/* Whether the peer's info is that of the other end of this connection: PROTOCOL, VERSION, MISMATCH. */
psm_status psm_connector_compare_ends(const struct psm_connector *c, const struct psm_conn_info *peer);
/* Whether both ends cut the buffer in the same way: MISMATCH. */
psm_status psm_connector_compare_buffers(const struct psm_connector *c, const struct psm_conn_info *peer);

/* The public functions of a transport for one role. They call setup, connect_role and free_end of the file. */
#define PSM_CONNECTOR_ROLE(number, connector_type, info_type, setup_name, connect_name, free_name)                     \
    psm_status setup_name(const struct psm_host *host, const struct psm_peer_info *me,                                 \
                          const struct psm_peer_info *peer, int channel, int connIndex, info_type *info,               \
                          connector_type **out)                                                                        \
    {                                                                                                                  \
        return setup(host, me, peer, channel, connIndex, (number), info, out);                                         \
    }                                                                                                                  \
    psm_status connect_name(connector_type *connector, const info_type *peer)                                          \
    {                                                                                                                  \
        return connect_role(connector, peer, (number));                                                                \
    }                                                                                                                  \
    psm_status free_name(connector_type *connector)                                                                    \
    {                                                                                                                  \
        return free_end(connector, (number));                                                                          \
    }

/* ---- Free ---- */

/* The connector is no longer alive; the transport releases it. INVALID: it was freed, or has the other role. */
psm_status psm_connector_bury(struct psm_connector *c, const struct psm_connector_kind *kind, int role);

#endif
