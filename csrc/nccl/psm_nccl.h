/* The p2p transport of libpsm inside NCCL: NCCL's proxy as the host of csrc/psm/p2p (psm_host_ops), and NCCL's
 * transport tables over it. Compiled against the user's NCCL tree; types come from its headers.
 *
 * Init, Setup, Connect and the operations go through NCCL's own proxy. Descriptors and registrations do not: NCCL's
 * service converts only cuMem handles, but a control segment is a memfd, and a peer's proxy cannot be reached for the
 * first time after init. So each proxy has a libpsm proxy next to it, which hands out descriptors, maps registered
 * buffers and knows whether a peer is alive. Its address is part of the connect info.
 *
 * libpsm sees the ranks of the top parent communicator, as NCCL's proxy does. */
#ifndef PSM_NCCL_H
#define PSM_NCCL_H

#include "tree.h" /* NCCL's headers, and a check that we support them */

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "psm/psm_p2p.h"

namespace psm
{

/* What a rank sends to its peer at Setup; shareable. */
struct ConnectInfo {
    struct psm_p2p_connect p2p;
    struct psmProxyAddress fds;
};
static_assert(sizeof(ConnectInfo) == 192, "crosses processes");
static_assert(sizeof(ConnectInfo) <= sizeof(struct ncclConnect),
              "NCCL before 2.23 has 128 bytes of connect info: too few for libpsm");

class Provider;

/* How much of an operation NCCL's profiler has received. */
struct Told {
    uint64_t begun = 0, moving = 0, ended = 0;
};

/* NCCL's ops of one group on one connection, while they run. */
struct Operation {
    Provider *provider;
    struct psmSyncCondition *sync; /* NCCL's, not libpsm's */
    std::vector<struct psmProxyArgs> parts;
    int nsubs = 0;
    bool begun = false;               /* the stream has reached it: sync->proxyReadyEvent was seen */
    std::atomic<bool> counted{false}; /* subtracted from sync->proxyOpCount; sync may be freed */
    std::vector<Told> told;           /* for each sub; empty: no profiler */
};

/* A buffer of the application that one peer can reach. */
struct Registration {
    const struct ncclReg *record; /* NCCL's, of all peers */
    int peer;                     /* rank of the communicator that registered it */
    uintptr_t begin;
    size_t size;
    psmP2pConnector *send, *recv; /* where it is registered; NULL: not */
    uint64_t sendHandle, recvHandle;
};

/* One per NCCL proxy state: the host that its handlers and its callers share. */
class Provider
{
  public:
    /* The provider of this state, created at the first call. NULL: see psm_last_error. Each get needs one release. */
    static Provider *of(struct ncclProxyState *state);
    void give_back();

    struct ncclProxyState *state;
    struct psm_host host; /* of handlers */
    struct psm_settings settings;
    struct psmProxyAddress address; /* of the libpsm proxy */

    /* Address of a rank's descriptors. */
    void learn(const struct psmProxyAddress &address);
    psm_status connect_to(int rank, psmProxyConnector *connector);
    /* The permanent connection to it, for descriptors, which also reports its death. */
    psm_status connect_fds(int rank, psmProxyConnector *connector);
    psmProxyState *fds() { return fds_; }
    bool alive(int rank);
    bool aborted() const { return __atomic_load_n(state->abortFlag, __ATOMIC_ACQUIRE) != 0; }
    /* No call is answered any more. */
    bool stopped() const { return __atomic_load_n(&state->stop, __ATOMIC_ACQUIRE) != 0; }

    /* ---- operations ---- */
    void begin(Operation *operation);
    /* Whether the stream has reached it. Also false after an abort: then nothing is left to do. */
    bool ready(Operation *operation);
    /* Decrements the count for it, once, and drops it. */
    void end(Operation *operation);

    /* ---- registrations ---- */
    void add(const std::shared_ptr<Registration> &registration);
    /* Removes one from the list: of one peer, or of all (-1). NULL: none is left. */
    std::shared_ptr<Registration> take(const struct ncclReg *record, int peer);
    bool has(const struct ncclReg *record, int peer);
    std::shared_ptr<Registration> find(int peer, uintptr_t at, size_t size);

  private:
    explicit Provider(struct ncclProxyState *nccl);
    ~Provider();
    psm_status open();
    void watch();

    int references_ = 0;
    psmProxyState *fds_ = nullptr;
    std::mutex lock_;
    std::map<int, struct psmProxyAddress> addresses_;
    std::map<int, psmProxyConnector>
        sockets_; /* one to each peer, for the lifetime of this object: it reports the peer's death */
    std::list<Operation *> operations_;
    std::list<std::shared_ptr<Registration>> registrations_;
    std::condition_variable wake_;
    bool closing_ = false, released_ = false;
    std::thread watcher_;
};

/* The host of one connector: `self` of its psm_host. */
struct Caller {
    Provider *provider;
    struct ncclComm *comm;
    struct ncclProxyConnector *own; /* NCCL's connection, which its ops are posted to */
};

/* An end of a connection: transportResources of NCCL's connector. */
struct End {
    Caller caller;
    struct psm_host host;
    psmP2pConnector *connector;
};

/* transportResources of NCCL's connection in the proxy. */
struct Served {
    Provider *provider;
    psmProxyConnection connection;
};

/* PSM_VARIANT, or the correct one. NULL: see psm_last_error. */
const struct psmP2pVariant *variant_in_use();
struct psm_host host_of(Caller *caller);
struct psm_host host_of(Provider *provider);
/* The last error as NCCL's result, with one line in the log. */
ncclResult_t refuse(const char *what, psm_status status);
ncclResult_t result_of(psm_status status);

/* ---- NCCL's profiler ---- */

void profile_begin(struct ncclProxyArgs *args, Operation *operation);
void profile_moved(struct ncclProxyArgs *args, Operation *operation);
void profile_end(struct ncclProxyArgs *args, Operation *operation);

/* ---- NCCL's tables ---- */

ncclResult_t proxy_setup(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req, int reqSize,
                         void *resp, int respSize, int *done);
ncclResult_t proxy_connect(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req, int reqSize,
                           void *resp, int respSize, int *done);
ncclResult_t proxy_free(struct ncclProxyConnection *connection, struct ncclProxyState *state);
ncclResult_t proxy_progress(struct ncclProxyState *state, struct ncclProxyArgs *args);
/* For buffers of collectives, which the tree registers over any connection it has to a peer. */
ncclResult_t proxy_register(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req,
                            int reqSize, void *resp, int respSize, int *done);
ncclResult_t proxy_deregister(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req,
                              int reqSize, int *done);

} // namespace psm

#endif
