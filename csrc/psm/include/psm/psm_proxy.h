/* The proxy of a rank: a service thread that answers requests, a UDS thread that hands out file descriptors, and a
 * progress thread that moves data. Names and order of calls are NCCL's; the wire format is our own. */
#ifndef PSM_PROXY_H
#define PSM_PROXY_H

#include "psm.h"
#include "psm_share.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct psmProxyState psmProxyState;
struct psm_host; /* psm_host_ops.h */

/* Message types, by NCCL's numbers (2.23 and later). */
enum psmProxyMsgType {
    psmProxyMsgInit = 1,
    psmProxyMsgSharedInit = 2,
    psmProxyMsgSetup = 3,
    psmProxyMsgConnect = 4,
    psmProxyMsgStart = 5,
    psmProxyMsgClose = 6,
    psmProxyMsgAbort = 7,
    psmProxyMsgStop = 8,
    psmProxyMsgGetFd = 9,
    psmProxyMsgQueryFd = 10,
    psmProxyMsgRegister = 11,
    psmProxyMsgDeregister = 12
};
enum { PSM_PROXY_PAYLOAD = 4096 }; /* bytes of a request or a response at most */

/* How to reach a rank's proxy. Exchanged at bootstrap; shareable. 64 bytes. */
struct psmProxyAddress {
    char service[24]; /* abstract AF_UNIX SOCK_SEQPACKET name: "psm-" and 16 hex digits from getrandom, NUL-ended */
    char uds[24];     /* abstract AF_UNIX SOCK_DGRAM name */
    int32_t rank;
    uint32_t pid;
    uint64_t start_time; /* start time of the process: with the pid it identifies one process */
};
PSM_SHAREABLE(psmProxyAddress, 64);

/* Identifies one call: the low 32 bits are a slot, the high 32 bits its generation. Never 0. The log prints it as opId.
 */
typedef uint64_t psmOpId;

/* Caller's end of a connection. Zero it before psmProxyConnect. */
typedef struct psmProxyConnector {
    psmProxyState *state;
    int rank; /* the rank whose proxy serves it */
    int transport, send;
    int sameProcess;
    int initialized;
    uint64_t connection; /* the service's name for it: slot and generation, no pointer */
    int peer;            /* index of the socket to that proxy */
} psmProxyConnector;

/* Service's end of a connection; what handlers get. */
typedef struct psmProxyConnection {
    psmProxyState *state;
    int transport, send;
    int rank; /* of the caller */
    int sameProcess;
    int connState; /* 0 uninitialised, 1 initialised, 2 shared init, 3 set up, 4 connected */
    uint64_t id;
    const struct psmTransportComm *tcomm;
    void *transportResources;    /* the handler's own: its local info. Never leaves the process. */
    const struct psm_host *host; /* the handler's interface to its host: set by the service before the first call */
    struct psmProxyArgs *proxyAppend; /* last op of this connection in the progress list */
} psmProxyConnection;

enum psmProxyOpState { psmProxyOpNone = 0, psmProxyOpReady = 1, psmProxyOpProgress = 2 };
enum { PSM_MAX_SUBS = 32 };

/* The host callback on the application's stream waits for this; see psm_launch.h. */
struct psmSyncCondition;

/* One operation as saved for the progress thread: a part of a send or a recv on one connection. */
struct psmProxyOp {
    uint64_t connection;
    uint64_t opCount;
    uint64_t nbytes;
    const void *sendbuff; /* device or host pointer of this process */
    void *recvbuff;
    uint64_t sendHandle, recvHandle; /* of psmRegister; 0: not registered */
    int peer, channel, reg;          /* reg: zero-copy */
    struct psmSyncCondition *sync;   /* may be NULL */
    /* For callers that keep their own count: if `ended` is set, the proxy neither reads nor decrements sync. ready:
     * NULL, or a word that becomes non-zero when the operation may start. ended: called once, usually on the progress
     * thread; it may save and start operations, and must not wait. Such an operation is never merged with others. */
    const volatile uint32_t *ready;
    void (*ended)(void *cookie, psm_status status);
    void *cookie;
};

struct psmProxySubArgs {
    psmProxyConnection *connection;
    const uint8_t *sendbuff;
    uint8_t *recvbuff;
    uint64_t nbytes, offset, chunkSize;
    uint64_t base, posted, transmitted, done, nsteps;
    int peer, channel;
    uint64_t sendHandle, recvHandle;
    int reg;
};
struct psmProxyArgs {
    struct psmProxySubArgs subs[PSM_MAX_SUBS];
    int nsubs, done;
    int idle;  /* progress found nothing to do */
    int state; /* enum psmProxyOpState */
    uint64_t opCount;
    psm_status (*progress)(psmProxyState *state, struct psmProxyArgs *args);
    struct psmSyncCondition *sync;
    struct psmProxyArgs *next, *nextPeer;
};

/* Handlers of one direction of a transport on the proxy's side. Called on the service thread; progress on the progress
 * thread. done: set it to 1 when the answer is ready; 0: the service calls again later and serves others meanwhile. */
struct psmTransportComm {
    psm_status (*proxySharedInit)(psmProxyConnection *connection, psmProxyState *state, int nChannels);
    psm_status (*proxySetup)(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                             void *resp, int respSize, int *done);
    psm_status (*proxyConnect)(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done);
    psm_status (*proxyFree)(psmProxyConnection *connection, psmProxyState *state);
    psm_status (*proxyProgress)(psmProxyState *state, struct psmProxyArgs *args);
    psm_status (*proxyRegister)(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                void *resp, int respSize, int *done);
    psm_status (*proxyDeregister)(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                  int *done);
    /* May be NULL. Called when the state is aborted: notify the peer, which may be waiting for data, and do not wait
     * long. Called once per connection that Connect was called for, on the progress thread, before its operations are
     * dropped. */
    void (*proxyAbort)(psmProxyConnection *connection, psmProxyState *state);
};
enum { PSM_TRANSPORTS = 8, PSM_TRANSPORT_P2P = 5 /* NCCL's numbers end at 4; PSM_P2P is 5 in existing logs */ };

struct psmProxyOptions {
    uint32_t size;
    int rank, nranks;
    int device;                          /* CUDA device of the rank; the threads make it current */
    const struct psm_settings *settings; /* NULL: from the environment */
    const struct psmTransportComm *transports[PSM_TRANSPORTS][2]; /* [transport][send]; NULL: none */
    volatile uint32_t *abortFlag;                                 /* NULL: the state uses its own */
    void *host;                                                   /* for handlers: psmProxyHost(state) */
};

/* Creates sockets and pool; starts no thread. */
PSM_API psm_status psmProxyInit(psmProxyState **state, const struct psmProxyOptions *options);
/* Starts the threads. */
PSM_API psm_status psmProxyCreate(psmProxyState *state);
PSM_API psm_status psmProxyAddress(const psmProxyState *state, struct psmProxyAddress *address);
/* Connects to the proxy of `address` (once per peer) and sends Init for a connection. */
PSM_API psm_status psmProxyConnect(psmProxyState *state, int transport, int send, const struct psmProxyAddress *address,
                                   psmProxyConnector *connector);
/* Sends a request and returns at once; fetch the answer by opId. Any thread; calls on one socket are serialised. */
PSM_API psm_status psmProxyCallAsync(psmProxyConnector *connector, int type, const void *req, int reqSize, int respSize,
                                     psmOpId *opId);
/* PSM_IN_PROGRESS until the answer has arrived. Answers of other calls that arrive meanwhile are kept for them. */
PSM_API psm_status psmPollProxyResponse(psmProxyConnector *connector, void *resp, int respSize, psmOpId opId);
/* The same, and waits for up to timeoutMs. PSM_IN_PROGRESS: no answer yet, and the call is still pending. For callers
 * that do other work while they wait; they keep their own deadline. */
PSM_API psm_status psmProxyWaitResponse(psmProxyConnector *connector, void *resp, int respSize, psmOpId opId,
                                        uint32_t timeoutMs);
/* Gives up a call: an answer that arrives later is dropped. NOT_FOUND: it was already fetched or given up. */
PSM_API psm_status psmProxyCancelCall(psmProxyConnector *connector, psmOpId opId);
PSM_API psm_status psmProxyCallBlocking(psmProxyConnector *connector, int type, const void *req, int reqSize,
                                        void *resp, int respSize);
/* The descriptor of the owner's share `id`, received over the UDS; the caller closes it. */
PSM_API psm_status psmProxyClientGetFdBlocking(psmProxyConnector *connector, uint64_t id, int *fd);
/* Sends a descriptor to the proxy's process; *remote is its number there. */
PSM_API psm_status psmProxyClientQueryFdBlocking(psmProxyConnector *connector, int fd, int *remote);
/* Queues an operation for the progress thread of this rank's proxy; psmProxyStart posts what was saved. */
PSM_API psm_status psmProxySaveOp(psmProxyState *state, const struct psmProxyOp *op);
PSM_API psm_status psmProxyStart(psmProxyState *state);
/* Wakes the progress thread: call it when an operation's wait condition was met in this process (by the host function
 * that sets proxyReadyEvent). Any thread; cheap if the thread is awake. */
PSM_API void psmProxyWake(psmProxyState *state);
/* Frees one connection: the handler's proxyFree runs on the service thread after the connection's operations have
 * ended. Its result is returned, but the connection is freed in any case. The socket stays open for the other
 * connections. If the peer is gone, there is nothing left to free, and the call succeeds. */
PSM_API psm_status psmProxyDisconnect(psmProxyConnector *connector);
/* Sets the addresses of all proxies, by rank; copied. Call it after bootstrap: the host provider looks up ranks here.
 */
PSM_API psm_status psmProxySetAddresses(psmProxyState *state, const struct psmProxyAddress *addresses, int nranks);
/* Sends Close to every peer and Stop to the own service, and joins the threads. Idempotent; also works after an abort.
 */
PSM_API psm_status psmProxyStop(psmProxyState *state);
PSM_API psm_status psmProxyDestroy(psmProxyState *state); /* accepts NULL */
/* Ends the operation of all ranks. Where reason is the text of the thread's last error, its cause goes with it. */
PSM_API psm_status psmProxyAbort(psmProxyState *state, const char *reason);

PSM_API int psmProxyRank(const psmProxyState *state);
PSM_API int psmProxyDevice(const psmProxyState *state);
PSM_API const struct psm_settings *psmProxySettings(const psmProxyState *state);
PSM_API int psmProxyAborted(const psmProxyState *state);
PSM_API void *psmProxyHost(const psmProxyState *state);
/* 0: that rank's process died or closed its connections. First process what it has already delivered. */
PSM_API int psmProxyPeerAlive(const psmProxyState *state, int rank);
/* Counters of the proxy since psmProxyInit. Set size before the call. */
struct psmProxyCounters {
    uint32_t size, reserved;
    uint64_t calls, served, retried; /* calls made; requests answered here; times a handler returned done = 0 */
    uint64_t late;                   /* answers to calls that had already ended; dropped */
    uint64_t refused;                /* rejected peers and datagrams */
    uint64_t resent, fds_sent, fds_received;
    uint64_t connections, peers, ops; /* current number: at the service, and in the progress list */
};
PSM_API psm_status psmProxyCount(psmProxyState *state, struct psmProxyCounters *counters);
/* Records an error as the service and progress threads do: ends the operation on all ranks. Any thread. */
PSM_API void psmProxyFail(psmProxyState *state, psm_status status, const char *text);
/* First error of the service or progress thread, PSM_OK if none; its text is in psm_last_error(). */
PSM_API psm_status psmProxyAsyncError(const psmProxyState *state);
/* What the UDS thread hands out for a share id. The caller owns the descriptor (a dup is sent). Removed by id. */
PSM_API psm_status psmProxyOfferFd(psmProxyState *state, uint64_t id, int fd);
/* Fetches the descriptor of another rank's share without waiting: for handlers, which must not block. Start returns a
 * fetch; poll it until it no longer returns PSM_IN_PROGRESS, which ends it (the caller then owns *fd), or cancel it.
 * The service thread calls its handlers again as soon as a fetch has ended. A fetch ends at the deadline at the latest.
 */
typedef struct psmProxyFetch psmProxyFetch;
PSM_API psm_status psmProxyFetchFd(psmProxyState *state, const struct psmProxyAddress *owner, uint64_t id,
                                   psmProxyFetch **fetch);
PSM_API psm_status psmProxyFetchPoll(psmProxyFetch *fetch, int *fd);
PSM_API void psmProxyFetchCancel(psmProxyFetch *fetch); /* accepts NULL */
PSM_API psm_status psmProxyWithdrawFd(psmProxyState *state, uint64_t id);
/* A descriptor that a peer sent by QueryFd: removes it from the list, and the caller closes it; NOT_FOUND otherwise. */
PSM_API psm_status psmProxyTakeFd(psmProxyState *state, int number, int *fd);

#ifdef __cplusplus
}
#endif
#endif
