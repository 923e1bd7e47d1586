/* The net transport connects ranks of different hosts: the copy engine stages data in pinned host memory, and the proxy
 * passes it to a net plugin (libnccl-net-*.so, tables v8 to v12). Depends only on psm_host_ops; see
 * docs/transport_net.md.
 */
#ifndef PSM_NET_H
#define PSM_NET_H

#include "psm_p2p.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PSM_TRANSPORT_NET = 6 };
enum { PSM_NET_HANDLE = 128, PSM_NET_NAME = 16, PSM_NET_MORE = 64 };

/* What the two sides exchange at Setup; shareable, at most 256 bytes. */
struct psm_net_connect {
    uint32_t magic;
    uint16_t version;
    uint8_t role, unused; /* role 1: send */
    int32_t rank;
    uint16_t channel, connIndex;
    uint32_t steps, chunk;
    uint64_t buffer_size;
    uint64_t id;                    /* of this end, random */
    char net[PSM_NET_NAME];         /* name of the network, truncated to fit */
    uint8_t handle[PSM_NET_HANDLE]; /* listen handle of this end, as its plugin wrote it */
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

/* Sets the table, `const ncclNet_v<version>_t *`, 8 to 12, for connections that are set up from now on. NULL: the
 * library in PSM_NET_PLUGIN, a path or NCCL's name (psm: libnccl-net-psm.so, the default, in libpsm's folder). The
 * table must stay valid. INVALID: another table is in use, or the version is not supported. Any thread. */
PSM_API psm_status psmNetUse(int version, const void *table);
/* Opens the network, reads its name and version, and closes it. NOT_FOUND, UNSUPPORTED, SYSTEM: there is none. */
PSM_API psm_status psmNetName(char *name, size_t size, int *version);

/* Pure and symmetric, as psmP2pCanConnect: whether a network can connect the two ranks. A caller that has the choice
 * uses p2p where it can. Ranks of one host have no p2p path with PSM_P2P_DISABLE=1, or if their PSM_HOSTID differs. */
PSM_API psm_status psmNetCanConnect(const struct psm_peer_info *a, const struct psm_peer_info *b, int *can);

typedef struct psmNetConnector psmNetConnector; /* the caller's end: opaque */

/* As the functions of p2p. Setup and Connect call only the own proxy: the two proxies meet through the network, within
 * PSM_TIMEOUT. Setup: INVALID, UNSUPPORTED, NOT_FOUND (no network), CUDA, NO_RESOURCE, NO_MEMORY, SYSTEM (the network's
 * error). Connect does not wait for the peer: it returns PSM_IN_PROGRESS until both sides have called it, so call it
 * for all ends in turn, repeatedly. Then OK; or MISMATCH (both values in the text), PROTOCOL, VERSION, TIMEOUT,
 * PEER_DEAD, and as Setup. */
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

/* A variant: handlers for both directions, registered by name; broken variants are registered next to the correct one,
   `split`. Members are only ever added at the end: size says which of them a table has. */
struct psmNetVariant {
    uint32_t size;
    const char *name, *summary;
    const char *outcome; /* what a run of a broken variant shows, for people; "" for correct variants */
    int wrong;
    const struct psmTransportComm *send, *recv;
    const char *faults; /* PSM_FAULTS that expose the bug; set them before the processes start; NULL: none */
    const struct psmDeclared *declared; /* the same as outcome, for programs; NULL: not declared */
};
PSM_API psm_status psmNetRegisterVariant(const struct psmNetVariant *variant);
PSM_API const struct psmNetVariant *psmNetFindVariant(const char *name); /* NULL name: the correct one */
PSM_API size_t psmNetVariants(const struct psmNetVariant **out, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
