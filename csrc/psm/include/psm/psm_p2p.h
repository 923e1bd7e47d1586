/* p2p between ranks of one host, by shared memory and the copy engine. Depends only on psm_host_ops. */
#ifndef PSM_P2P_H
#define PSM_P2P_H

#include "psm_host_ops.h"
#include "psm_variant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum psm_p2p_capability {
    PSM_CAN_CUMEM_FD = 1,
    PSM_CAN_CUDA_IPC = 2,
    PSM_CAN_MEMFD = 4,
    PSM_CAN_POSIX_SHM = 8,
    PSM_CAN_ZERO_COPY = 16,
    PSM_CAN_PEER_ACCESS = 32,
    PSM_CAN_DIRECT = 64 /* pointers of the same process: not used if PSM_SHARE selects another way */
};

/* What a rank publishes at bootstrap; shareable. */
struct psm_peer_info {
    uint32_t size, version;
    int32_t rank, device;
    uint64_t host_hash;    /* boot id, IPC and mount namespace: if equal, the ranks can share memory */
    uint64_t process_hash; /* equal: same process */
    char bus_id[16];
    uint32_t capabilities;
    uint32_t peer_access; /* bit d: this device can reach device d of the host directly */
    struct psmProxyAddress proxy;
};
PSM_SHAREABLE(psm_peer_info, 120);

enum psm_p2p_mode {
    PSM_P2P_NONE = 0,
    PSM_P2P_DIRECT = 1 /* same process */,
    PSM_P2P_CUMEM = 2,
    PSM_P2P_IPC = 3,
    PSM_P2P_SHM = 4 /* staged in host memory */,
    PSM_P2P_INTERMEDIATE = 5
};

/* Fills in what this rank publishes; probes its device once. proxy NULL: zeros. Caller's thread with the device
 * current; PSM_ERR_CUDA, PSM_ERR_INVALID. */
PSM_API psm_status psmP2pPeerInfo(const struct psm_host *host, const struct psmProxyAddress *proxy,
                                  struct psm_peer_info *info);

/* Pure and symmetric: the same result for (a, b) and (b, a), from published data only. *mode PSM_P2P_NONE: no path. */
PSM_API psm_status psmP2pCanConnect(const struct psm_peer_info *a, const struct psm_peer_info *b, int *mode);

/* Selects an intermediate rank, whose device reaches both a's and b's, if those do not reach each other: the first
 * match in `infos`. Pure, and the same for (a, b) and (b, a). *via: its index in infos; -1: none found, or none needed.
 */
PSM_API psm_status psmP2pFindIntermediate(const struct psm_peer_info *infos, size_t count,
                                          const struct psm_peer_info *a, const struct psm_peer_info *b, int *via);

/* What the two sides exchange at Setup; shareable, 128 bytes (NCCL's connect info has 128, and 256 from 2.23). */
struct psm_p2p_connect {
    uint32_t magic;
    uint16_t version;
    uint8_t mode, role; /* role 1: send */
    int32_t rank;
    uint16_t channel, connIndex;
    uint32_t steps, chunk;
    uint64_t buffer_size;
    struct psm_share share; /* send side: the control segment; recv side: the FIFO */
};
PSM_SHAREABLE(psm_p2p_connect, 128);

/* Response of Setup: what the peer may know. Its size is the response size. */
struct psmP2pShareInfo {
    uint32_t magic;
    uint16_t version, role;
    uint32_t steps, mode;
    uint64_t buffer_size;
    struct psm_share share;
};
PSM_SHAREABLE(psmP2pShareInfo, 120);

typedef struct psmP2pConnector psmP2pConnector; /* the caller's end: opaque */

/* Setup and Connect run on the caller's thread, one connector at a time per thread, and wait for proxies until the
 * host's deadline. *host is copied; what host->self points to must outlive the connector. The caller owns the connector
 * until Free. Setup: INVALID, UNSUPPORTED (no path between the two), CUDA, NO_RESOURCE, NO_MEMORY, TIMEOUT and the
 * proxy's errors. Connect: MISMATCH (both values in the text), PROTOCOL, VERSION, PEER_DEAD, and as Setup. A failed
 * Connect leaves the connector unchanged; free it. Free waits until the connector's operations have ended; a second
 * Free is INVALID. NULL is accepted. */

PSM_API psm_status psmP2pSendSetup(const struct psm_host *host, const struct psm_peer_info *me,
                                   const struct psm_peer_info *peer, int channel, int connIndex,
                                   struct psm_p2p_connect *info, psmP2pConnector **send);
PSM_API psm_status psmP2pRecvSetup(const struct psm_host *host, const struct psm_peer_info *me,
                                   const struct psm_peer_info *peer, int channel, int connIndex,
                                   struct psm_p2p_connect *info, psmP2pConnector **recv);
/* The same through an intermediate rank's device memory, which its proxy provides: PSM_P2P_INTERMEDIATE. via NULL, or
 * not needed: as above. Both sides must name the same rank. */
PSM_API psm_status psmP2pSendSetupVia(const struct psm_host *host, const struct psm_peer_info *me,
                                      const struct psm_peer_info *peer, const struct psm_peer_info *via, int channel,
                                      int connIndex, struct psm_p2p_connect *info, psmP2pConnector **send);
PSM_API psm_status psmP2pRecvSetupVia(const struct psm_host *host, const struct psm_peer_info *me,
                                      const struct psm_peer_info *peer, const struct psm_peer_info *via, int channel,
                                      int connIndex, struct psm_p2p_connect *info, psmP2pConnector **recv);
PSM_API psm_status psmP2pSendConnect(psmP2pConnector *send, const struct psm_p2p_connect *peer);
PSM_API psm_status psmP2pRecvConnect(psmP2pConnector *recv, const struct psm_p2p_connect *peer);
PSM_API psm_status psmP2pSendFree(psmP2pConnector *send);
PSM_API psm_status psmP2pRecvFree(psmP2pConnector *recv);
/* The service's name of the connection, for psmProxyOp.connection; 0: the connector was freed. Any thread. */
PSM_API uint64_t psmP2pConnection(const psmP2pConnector *connector);
/* Allocates memory that can be registered in every mode: on the rank's device, or zeroed pinned host memory (on_host).
 * Any thread with the device current. Deregister it before you free it. */
PSM_API psm_status psmP2pMemAlloc(const struct psm_host *host, int on_host, size_t size, void **ptr);
PSM_API psm_status psmP2pMemFree(const struct psm_host *host, void *ptr); /* accepts NULL */
/* Registration for zero copy; handle 0 is never returned. PSM_ERR_UNSUPPORTED: this memory cannot be shared with that
 * peer; its data goes through the FIFO. */
PSM_API psm_status psmP2pRegister(psmP2pConnector *connector, void *buffer, size_t size, uint64_t *handle);
PSM_API psm_status psmP2pDeregister(psmP2pConnector *connector, uint64_t handle);

/* A variant: handlers for both directions, registered by name; broken variants are registered next to the correct one.
   Members are only ever added at the end: size says which of them a table has. */
struct psmP2pVariant {
    uint32_t size;
    const char *name, *summary;
    const char *outcome; /* what a run of a broken variant shows, for people; "" for correct variants */
    int wrong;
    const struct psmTransportComm *send, *recv;
    /* caller's side; NULL: that of the correct variant */
    psm_status (*sendConnect)(psmP2pConnector *, const struct psm_p2p_connect *);
    psm_status (*recvConnect)(psmP2pConnector *, const struct psm_p2p_connect *);
    psm_status (*recvSetup)(const struct psm_host *host, const struct psm_peer_info *me,
                            const struct psm_peer_info *peer, int channel, int connIndex, struct psm_p2p_connect *info,
                            psmP2pConnector **recv);
    const char *faults; /* PSM_FAULTS that expose the bug; set them before the processes start; NULL: none */
    const struct psmDeclared *declared; /* the same as outcome, for programs; NULL: not declared */
};
PSM_API psm_status psmP2pRegisterVariant(const struct psmP2pVariant *variant);
PSM_API const struct psmP2pVariant *psmP2pFindVariant(const char *name); /* NULL name: the correct one, `split` */
PSM_API size_t psmP2pVariants(const struct psmP2pVariant **out, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
