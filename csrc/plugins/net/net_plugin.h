/* Internals of the net plugin: the interface of a backend, and the code in front of all backends.
 *
 * NCCL's tables (tables.c, one per version) call the front (front.c), which has the interface of the newest: it checks
 * arguments, keeps requests, injects faults, records, and notifies the profiler. A backend moves bytes. Nothing here
 * waits: a call that cannot continue returns "not yet" and is made again. Each comm is used by one thread at a time,
 * except for registrations. */
#ifndef PSM_NET_H
#define PSM_NET_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base.h"
#include "fault.h"
#include "psm_abi/net.h"
#include "record.h"

enum {
    NET_RECVS = 8,                        /* maximum number of receives in a group */
    NET_REQUESTS = NCCL_NET_MAX_REQUESTS, /* groups, or messages for each receive of a group, in flight */
    NET_ADDRESS = 72,                     /* "10.0.0.2<45001>", "pid 4711" */
    NET_HANDLE = NCCL_NET_HANDLE_MAXSIZE_V4,
    NET_SECRET = 16
};

/* Who has not said who it is by then loses its place where others wait for one. A peer says it with its first bytes; it
 * has until PSM_TIMEOUT where there is room. */
#define NET_CROWDED_NS UINT64_C(1000000000)

struct net_backend;
struct net_comm;
struct net_registration;

/* One buffer: of a send, or a slot of a grouped receive. */
struct net_part {
    char *data;
    size_t room; /* posted */
    size_t size; /* size of the message; set when it is known */
    int tag;
    bool matched;  /* of a receive: a message was assigned to it */
    uint32_t left; /* pieces of it that are not moved yet */
    struct net_registration *registration;
    void *phandle; /* of the profiler */
};

enum net_kind { NET_FREE, NET_SEND, NET_RECV, NET_FLUSH };

struct net_request {
    struct net_comm *comm;
    struct net_part *part; /* n of them */
    void *inner;           /* of a chained plugin, or of a virtual device */
    uint64_t number;       /* order on its comm, from 0 */
    uint64_t message;      /* the receive of the connection that it is or goes to; a backend may know better */
    char *copy;            /* sent in place of the caller's data if a fault corrupts it */
    struct net_registration *copy_registration;
    void *event[NET_RECVS]; /* of the profiler */
    uint32_t left;          /* unfinished parts */
    uint32_t row_number;    /* of the record */
    void *row;
    uint8_t kind, n, slot; /* slot: of that receive */
    bool started;          /* event[] is */
    bool lost;             /* dropped by a fault: no backend knows about it */
    bool optional;         /* it was posted with NCCL_NET_OPTIONAL_RECV_COMPLETION */
};

/* An estimate of the monotonic clock, for the thread of a comm: see record.c. */
struct net_clock {
    uint64_t tick, ns, last, rate;
    uint64_t window; /* ticks after tick during which it is valid; 0: never */
    uint64_t kernel; /* last value of the kernel's clock tick */
    unsigned fresh;  /* timestamps that may be derived from last */
};

/* A descriptor of GPU memory; fd -1: none. */
struct net_dmabuf {
    uint64_t offset;
    int fd;
};

struct net_registration {
    struct net_registration *next, *previous;
    struct net_comm *comm;
    char *data;
    size_t size;
    int type;
    void *inner; /* of a chained plugin, or of a virtual device */
};

/* The common start of every backend's comm. */
struct net_comm {
    bool sends;
    bool any_registration; /* regIsGlobal: those of other comms are valid, too */
    const struct net_backend *backend;
    uint64_t id; /* the same number on both ends */
    int dev, max_recvs;
    int rank, peer_rank, peer_dev; /* -1: no launcher set it */
    char address[NET_ADDRESS];     /* of the peer */
    ncclResult_t failed;           /* the result of every call from then on */
    /* requests */
    struct net_request *request;
    struct net_part *parts;
    struct net_request **free;
    uint32_t capacity, nfree;
    uint32_t mask;  /* rings have `capacity` entries: a power of two; this is the mask */
    uint32_t open;  /* returned to the caller, not yet reported as done */
    uint64_t taken; /* total number; free[] is a ring that starts there */
    uint64_t next;  /* number of the next request */
    uint64_t messages, bytes;
    pthread_mutex_t lock; /* of registrations */
    struct net_registration *registrations;
    psm_section *comms, *rows; /* of the record; NULL: none */
    uint64_t stalled_until;    /* set by a fault; 0: not set */
    uint32_t number;           /* of the communicator, from 1 */
    struct net_clock clock;
    uint32_t row;
    uint32_t looks, next_look; /* unsuccessful tests since the last one that was recorded, and when the next one is */
    bool has_row, said_error, says_later, lost_any; /* of the recorded ones: lost_any: by a fault */
    bool one_sided; /* of RMA: receives are always open, and the peer may always leave */
    bool has_fault;
    struct psm_fault fault; /* of an isend that was refused: it applies when that is tried again */
};

struct net_listener {
    uint32_t number; /* of the communicator */
    const struct net_backend *backend;
    int dev;
    bool one_sided;
    void **device; /* of accept, as in struct net_context */
};

/* One of NCCL's communicators (v11 and later), or the process. */
struct net_context {
    uint32_t number; /* of the communicator, from 1 */
    uint64_t comm_id;
    int traffic_class; /* NCCL_NET_TRAFFIC_CLASS_UNDEF */
    bool one_sided;    /* RMA's: see struct net_comm */
    void *inner;       /* of a chained plugin */
    void **device;     /* of connect: where NCCL expects a device handle, or NULL */
};

struct net_backend {
    const char *name;
    /* Find the devices. Logs failures. */
    ncclResult_t (*init)(void);
    void (*fini)(void);
    int (*devices)(void);
    void (*properties)(int dev, ncclNetProperties_v12_t *props);
    /* handle: NET_HANDLE zeroed bytes */
    ncclResult_t (*listen)(const struct net_context *context, int dev, void *handle, struct net_listener **listener);
    void (*close_listen)(struct net_listener *listener);
    /* *comm stays NULL: not yet. The handle is the caller's copy and the same at each call. */
    ncclResult_t (*connect)(const struct net_context *context, int dev, void *handle, struct net_comm **comm);
    ncclResult_t (*accept)(struct net_listener *listener, struct net_comm **comm);
    /* *taken stays false: not yet; nothing was done. */
    ncclResult_t (*post)(struct net_comm *comm, struct net_request *request, bool *taken);
    /* Make progress on all requests of the comm; request->left is 0 when that one is done. */
    ncclResult_t (*progress)(struct net_comm *comm, struct net_request *request);
    /* A fault: loses the peer, as if the network had died. */
    void (*cut)(struct net_comm *comm);
    /* Releases the descriptors and the memory of the comm. Open requests end. */
    void (*close)(struct net_comm *comm);

    /* Optional functions: a backend for host memory only needs none of them. */
    /* For each communicator, after init of the first. */
    ncclResult_t (*enter)(struct net_context *context, ncclDebugLogger_t logger, ncclProfilerCallback_t profiler);
    ncclResult_t (*leave)(struct net_context *context);
    ncclResult_t (*make_device)(int *dev, const ncclNetVDeviceProps_v12_t *props);
    ncclResult_t (*reg)(struct net_comm *comm, struct net_registration *registration, const struct net_dmabuf *dmabuf);
    ncclResult_t (*dereg)(struct net_comm *comm, struct net_registration *registration);
    /* request->left stays 0: nothing to wait for. */
    ncclResult_t (*flush)(struct net_comm *comm, struct net_request *request, int n, void **data, int *sizes,
                          struct net_registration **registrations);
    ncclResult_t (*device_memory)(struct net_comm *comm, struct net_registration *registration, void **out);
    ncclResult_t (*consumed)(struct net_comm *comm, int n, struct net_request *request);
    ncclResult_t (*attributes)(struct net_context *context, const ncclNetAttr_v12_t *attributes);
};

extern const struct net_backend net_socket, net_shm, net_chain, net_merged;

/* ---- the front, with the interface of v12 ---- */

ncclResult_t net_init(void **context, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                      ncclProfilerCallback_t profiler);
ncclResult_t net_init_process(ncclDebugLogger_t logger, ncclProfilerCallback_t profiler); /* up to v10 */
ncclResult_t net_finalize(void *context);
ncclResult_t net_devices(int *ndev);
ncclResult_t net_properties(int dev, ncclNetProperties_v12_t *props);
/* context NULL: that of the process */
ncclResult_t net_listen(void *context, int dev, void *handle, void **listener);
/* device: NULL, or where NCCL expects a device handle */
ncclResult_t net_connect(void *context, int dev, int traffic_class, void *handle, void **comm, void **device);
ncclResult_t net_accept(void *listener, void **comm, void **device);
ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **registration);
ncclResult_t net_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                            void **registration);
ncclResult_t net_dereg(void *comm, void *registration);
ncclResult_t net_isend(void *comm, void *data, size_t size, int tag, void *registration, void *phandle, void **request);
ncclResult_t net_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **registrations, void **phandles,
                       void **request);
ncclResult_t net_iflush(void *comm, int n, void **data, int *sizes, void **registrations, void **request);
ncclResult_t net_test(void *request, int *done, int *sizes);
ncclResult_t net_close_send(void *comm);
ncclResult_t net_close_recv(void *comm);
ncclResult_t net_close_listen(void *listener);
ncclResult_t net_device_memory(void *comm, void *registration, void **out);
ncclResult_t net_consumed(void *comm, int n, void *request);
ncclResult_t net_make_device(int *dev, const ncclNetVDeviceProps_v12_t *props);
ncclResult_t net_attributes(void *context, const ncclNetAttr_v12_t *attributes);
int net_physical_devices(void); /* the physical ones */

/* ---- for backends ---- */

const struct net_backend *net_physical(void); /* the backend that PSM_NET names */
/* A registration of this comm; does not use the caller's locks and lists. */
ncclResult_t net_registration_make(struct net_comm *comm, void *data, size_t size, int type,
                                   const struct net_dmabuf *dmabuf, struct net_registration **out);
ncclResult_t net_registration_drop(struct net_registration *registration);

/* ---- virtual devices, numbered after the physical ones ---- */

int net_merged_count(void);
void net_merged_forget(void);
ncclResult_t net_merged_make(int *dev, const ncclNetVDeviceProps_v12_t *props);
/* For handles of NCCL_NET_HANDLE_MAXSIZE bytes: whether listen of a virtual device made it; marks it as not. */
bool net_merged_handle(const void *handle);
void net_merged_unmark(void *handle);

/* Allocates a backend's comm, which starts with struct net_comm, and its requests. NULL: no memory. */
void *net_comm_new(size_t size, const struct net_backend *backend, bool sends, int dev, int max_recvs);
void net_comm_free(struct net_comm *comm); /* does not close its descriptors */
/* The comm has failed: every request and every call ends with this. Returns it. The caller logs why. */
ncclResult_t net_fail(struct net_comm *comm, ncclResult_t result);
/* The peer is gone. what: "closed the connection", "reset it (ECONNRESET)". */
ncclResult_t net_peer_gone(struct net_comm *comm, const char *what);
ncclResult_t net_too_large(struct net_comm *comm, size_t got, size_t posted, int tag);
/* The peer violated the protocol. */
ncclResult_t net_protocol(struct net_comm *comm, const char *what, uint64_t seen, uint64_t meant);
/* NCCL made a call that the contract forbids. */
ncclResult_t net_misuse(const char *call, const char *what);
/* The handle that connect got, or what it leads to, is none of ours. */
ncclResult_t net_bad_handle(const char *what, uint64_t seen, uint64_t meant);
/* Takes as long wherever the first difference is. */
bool net_same_secret(const uint8_t *a, const uint8_t *b);
/* A system call failed; number is its errno. */
ncclResult_t net_system(const char *what, int number);
ncclResult_t net_no_memory(const char *what, size_t bytes);
ncclResult_t net_random(void *to, size_t n); /* for secrets and unpredictable numbers */
/* A part of a request has been moved. */
static inline void net_part_done(struct net_request *r)
{
    r->left--;
}

/* ---- settings, read once by the first init ---- */

enum net_merge { NET_MERGE_AUTO, NET_MERGE_NEVER, NET_MERGE_ALWAYS };
enum net_congestion { NET_CONGESTION_AUTO, NET_CONGESTION_SYSTEM, NET_CONGESTION_NAMED };
struct net_settings {
    char backend[4352];             /* PSM_NET */
    char ifname[256];               /* PSM_NET_IFNAME, NCCL_SOCKET_IFNAME */
    int family;                     /* PSM_NET_FAMILY, NCCL_SOCKET_FAMILY: AF_UNSPEC, AF_INET, AF_INET6 */
    uint64_t streams;               /* PSM_NET_STREAMS */
    uint64_t min_share;             /* PSM_NET_MIN_SHARE */
    uint64_t max_recvs;             /* PSM_NET_MAX_RECVS; 0: the backend's */
    uint64_t buffer;                /* PSM_NET_SOCKET_BUFFER; 0: the kernel's */
    uint64_t speed;                 /* PSM_NET_SPEED, Mbit/s; 0: what the device says */
    uint64_t latency_ns;            /* PSM_NET_LATENCY; 0: the network's own, below */
    uint64_t timeout_ms;            /* PSM_TIMEOUT */
    uint64_t shm_slots;             /* PSM_NET_SHM_SLOTS */
    uint64_t shm_size;              /* PSM_NET_SHM_SIZE, of a slot */
    enum net_merge merge;           /* PSM_NET_MERGE */
    enum net_congestion congestion; /* PSM_NET_CONGESTION */
    char congestion_name[16];
};
extern struct net_settings net_settings;
ncclResult_t net_settings_read(void);

/* ---- the record ---- */

void net_record_comm(struct net_comm *comm);
void net_record_comm_end(struct net_comm *comm);
void net_record_posted(struct net_request *request);
void net_record_done(struct net_request *request, ncclResult_t result);
/* The first error of the comm. call: the NCCL call that returns it, cause: "peer", "size", "system", "fault", ... */
void net_record_error(struct net_comm *comm, const char *call, const char *cause, ncclResult_t result);
void net_record_look(struct net_comm *comm);
/* isend refuses this message for now, or no longer does. */
void net_record_later(struct net_comm *comm, bool later, size_t size, int tag);
/* A thread that does nothing else polls a receive without success: read the time now, while nothing else is to do. */
void net_record_wait(struct net_comm *comm);
/* An unsuccessful test. */
static inline void net_record_idle(struct net_comm *comm)
{
    if (++comm->looks >= comm->next_look) net_record_look(comm);
}

#endif
