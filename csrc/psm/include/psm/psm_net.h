/* Between ranks of different hosts: the copy engine stages data in pinned host memory, and the proxy gives it to a net
 * plugin (libnccl-net-*.so, tables v8 to v12). Written against psm_host_ops alone; docs/transport.md. */
#ifndef PSM_NET_H
#define PSM_NET_H

#include "psm_p2p.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PSM_TRANSPORT_NET = 6 };
enum { PSM_NET_HANDLE = 128, PSM_NET_NAME = 16, PSM_NET_MORE = 64 };

/* What the two sides tell each other at Setup; shareable, at most 256 bytes. */
struct psm_net_connect {
    uint32_t magic;
    uint16_t version;
    uint8_t role, unused; /* role 1: send */
    int32_t rank;
    uint16_t channel, connIndex;
    uint32_t steps, chunk;
    uint64_t buffer_size;
    uint64_t id;                    /* of this end, random */
    char net[PSM_NET_NAME];         /* the network's name, as far as it fits */
    uint8_t handle[PSM_NET_HANDLE]; /* where this end listens, as its plugin wrote it */
    uint8_t more[PSM_NET_MORE];     /* zeros */
};
PSM_SHAREABLE(psm_net_connect, 248);

/* Response of Setup: what the peer may know. Its size is the response size. */
struct psmNetShareInfo {
    uint32_t magic;
    uint16_t version, role;
    uint32_t steps, device; /* device: of the network */
    uint64_t buffer_size;
    uint64_t id;
    char net[PSM_NET_NAME];
    uint8_t handle[PSM_NET_HANDLE];
    uint8_t more[PSM_NET_MORE];
};
PSM_SHAREABLE(psmNetShareInfo, 240);

/* Uses this table, `const ncclNet_v<version>_t *`, 8 to 12, for the connections that are set up from now on; NULL: the
   library that PSM_NET_PLUGIN names, a path or NCCL's name (psm: libnccl-net-psm.so, the default, which lies beside
   libpsm). The table stays valid. INVALID: another is in use, or the version is none of these. Any thread. */
PSM_API psm_status psmNetUse(int version, const void *table);
/* Opens the network and closes it again: its name and version. NOT_FOUND, UNSUPPORTED, SYSTEM: there is none. */
PSM_API psm_status psmNetName(char *name, size_t size, int *version);

/* Pure and symmetric, as psmP2pCanConnect: whether two ranks can be connected by a network. Whoever has the choice
   takes p2p where that has a way; ranks of one host have none with PSM_P2P_DISABLE=1, or with another PSM_HOSTID each.
 */
PSM_API psm_status psmNetCanConnect(const struct psm_peer_info *a, const struct psm_peer_info *b, int *can);

typedef struct psmNetConnector psmNetConnector; /* the caller's end: opaque */

/* As those of p2p. Only the own proxy is asked: the two proxies meet in the network, for as long as PSM_TIMEOUT says.
   Setup: INVALID, UNSUPPORTED, NOT_FOUND (no network), CUDA, NO_RESOURCE, NO_MEMORY, SYSTEM (the network's error).
   Connect does not wait for the peer: PSM_IN_PROGRESS until both have called it, so call it for all ends in turn, again
   and again. Then OK; or MISMATCH (both values in the text), PROTOCOL, VERSION, TIMEOUT, PEER_DEAD, and as Setup. */
PSM_API psm_status psmNetSendSetup(const struct psm_host *host, const struct psm_peer_info *me,
                                   const struct psm_peer_info *peer, int channel, int connIndex,
                                   struct psm_net_connect *info, psmNetConnector **send);
PSM_API psm_status psmNetRecvSetup(const struct psm_host *host, const struct psm_peer_info *me,
                                   const struct psm_peer_info *peer, int channel, int connIndex,
                                   struct psm_net_connect *info, psmNetConnector **recv);
PSM_API psm_status psmNetSendConnect(psmNetConnector *send, const struct psm_net_connect *peer);
PSM_API psm_status psmNetRecvConnect(psmNetConnector *recv, const struct psm_net_connect *peer);
PSM_API psm_status psmNetSendFree(psmNetConnector *send);
PSM_API psm_status psmNetRecvFree(psmNetConnector *recv);
/* The service's name of the connection, for psmProxyOp and psmGroupOp; 0: the connector was freed. Any thread. */
PSM_API uint64_t psmNetConnection(const psmNetConnector *connector);

/* A variant: handlers for both directions, registered by name; wrong ones stand beside the right one, `split`. Members
   are only ever added at the end: size says which of them a table has. */
struct psmNetVariant {
    uint32_t size;
    const char *name, *summary;
    const char *outcome; /* what a run of a wrong variant shows, for people; "" for right ones */
    int wrong;
    const struct psmTransportComm *send, *recv;
    const char *faults; /* PSM_FAULTS that show the mistake, to be set before the processes begin; NULL: none */
    const struct psmDeclared *declared; /* the same as outcome, for programs; NULL: not declared */
};
PSM_API psm_status psmNetRegisterVariant(const struct psmNetVariant *variant);
PSM_API const struct psmNetVariant *psmNetFindVariant(const char *name); /* NULL name: the right one */
PSM_API size_t psmNetVariants(const struct psmNetVariant **out, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
