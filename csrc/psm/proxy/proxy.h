/* Internals of the proxy. It has three threads (service, UDS, progress); the application has any number.
 *
 * Who may access what:
 *   service thread only: psm_service and everything that it owns (peers, requests, handlers' resources)
 *   any thread, under its lock: connection table, clients (calls to other proxies), offers, fd jobs, saved ops, errors
 *   progress thread only: the list of running operations
 * Take one lock at a time, except client->lock before calls.lock. */
#ifndef PSM_PROXY_INTERNAL_H
#define PSM_PROXY_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/alive.h"
#include "core/internal.h"
#include "limit.h"
#include "proxy/wire.h"
#include "psm/psm_host_ops.h"
#include "psm/psm_launch.h"

enum {
    PSM_PEER_QUEUE = 4096, /* requests and unsent answers of a peer; at this limit the service reads no more from it */
    PSM_SERVICE_PEERS = 16384,
    PSM_CONNECTIONS = 1 << 20,
    PSM_CALLS = 1 << 20,
    PSM_GOTTEN = 256 /* answered GetFd requests that may be repeated */
};

/* ---- waiting (wait.c) ---- */

/* The wait ends when *word is no longer `value`, after `ns` at the latest, or spuriously. */
void psm_futex_wait(const volatile uint32_t *word, uint32_t value, uint64_t ns);
void psm_futex_wake(const volatile void *word);
void psm_cond_init(pthread_cond_t *cond); /* waits by CLOCK_MONOTONIC */
void psm_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns);
void psm_relax(void);
/* A level-triggered flag for poll(2). */
int psm_event_make(void); /* -1 with errno */
void psm_event_set(int event);
void psm_event_clear(int event);

/* ---- sockets (socket.c) ---- */

/* A bound abstract socket, non-blocking, with a random name. */
psm_status psm_socket_listen(int type, int rank, char name[24], int *fd);
void psm_socket_address(struct sockaddr_un *address, socklen_t *size, const char *name);
struct ucred; /* of GNU's <sys/socket.h> */
/* Checks the process at the other end of a connected socket. PSM_ERR_DENIED: another user; both uids are in the text.
 */
psm_status psm_socket_check_user(int fd, int rank, int peer, struct ucred *user);
int psm_socket_pidfd(int fd, uint32_t pid); /* -1: none */
/* Receives one whole message. PSM_IN_PROGRESS: none yet. PSM_ERR_PEER_CLOSED: the other end has closed, *number has an
 * errno. */
psm_status psm_socket_send(int fd, const void *bytes, size_t size, int *number);
psm_status psm_socket_recv(int fd, void *bytes, size_t capacity, size_t *size, int *number);
/* Sends the last message of a connection, if possible. */
void psm_socket_bye(int fd, psm_status status, bool refused, const char *text);
void psm_hello_fill(struct psm_wire_hello *hello, int rank, int nranks, const char *service);

/* ---- what is refused (refused.c) ---- */

/* Counts and logs a datagram or a connection that is refused. The limit is the calling thread's. */
void psm_refused(psmProxyState *state, struct psm_limit *limit, const char *what, const struct ucred *user,
                 const char *why);
/* Logs how many were only counted. */
void psm_refused_rest(struct psm_limit *limit);

/* ---- messages that a fault holds back (held.c) ---- */

/* PSM_FAULT_REORDER: send it after the next message to the same receiver, or at `until`. */
struct psm_held {
    uint64_t until;
    int fd;      /* -1: none */
    char to[24]; /* destination of a datagram */
    size_t size;
    uint8_t bytes[];
};
/* Copies the message and duplicates the descriptor. False: another one is held, or there is no memory; send the message
 * at once. to: NULL on a connected socket. */
bool psm_held_keep(struct psm_held **held, const char *to, const void *bytes, size_t size, int fd);
void psm_held_drop(struct psm_held **held);
static inline bool psm_held_due(const struct psm_held *held, uint64_t now)
{
    return held && now >= held->until;
}

/* ---- calls inside a process (direct.c) ---- */

/* A request that does not use a socket. Two references: the caller's and the service's. */
struct psm_direct_call {
    struct psm_direct_call *next;
    _Atomic uint32_t refs;
    _Atomic uint32_t done; /* a futex */
    _Atomic uint32_t waiting;
    uint64_t client; /* id of the caller: never reused in a process */
    int client_rank;
    int cpu; /* processor that the caller polls on: a service on the same one must yield */
    int type;
    uint64_t connection, op_id;
    uint32_t req_size, resp_size;
    struct psm_error error; /* status PSM_OK: no error */
    uint8_t *resp;
    uint8_t data[]; /* the request, then the response, aligned */
};
/* The way to a service of this process. Lives until the last reference is dropped. */
struct psm_direct {
    _Atomic uint32_t refs;
    _Atomic(struct psm_direct_call *) head; /* newest first; psm_direct_closed: the service has ended */
    _Atomic uint32_t sleeping;              /* the service is in poll(2), or about to enter it */
    int event;                              /* wakes it; closed with the last reference */
    _Atomic int cpu;                        /* processor that the service polls on */
    int rank;
    char name[24];
};
struct psm_direct *psm_direct_make(const char *name, int rank); /* registers it in the process */
struct psm_direct *psm_direct_find(const char *name);           /* takes a reference; NULL: not of this process */
void psm_direct_forget(struct psm_direct *direct);              /* unregisters it */
void psm_direct_drop(struct psm_direct *direct);
/* False: the service has ended. Passes the service's reference to it. */
bool psm_direct_push(struct psm_direct *direct, struct psm_direct_call *call);
struct psm_direct_call *psm_direct_take(struct psm_direct *direct, bool close);  /* all, oldest first */
struct psm_direct_call *psm_direct_call_make(size_t req_size, size_t resp_size); /* two references; NULL: no memory */
void psm_direct_call_drop(struct psm_direct_call *call);
void psm_direct_call_done(struct psm_direct_call *call); /* answers; drops the service's reference */

/* ---- connections (connections.c) ---- */

struct psm_connection {
    psmProxyConnection pub; /* first: handlers get it */
    struct psm_host host;
    uint32_t generation;
    bool taken;
    _Atomic uint32_t running; /* operations that were posted and have not ended */
    bool freeing;             /* accepts no more operations */
    _Atomic bool connected;   /* Connect has been answered */
    uint64_t owner;           /* id of the service's peer that created it */
    struct psm_connection *next_freed;
};
struct psm_connections {
    pthread_mutex_t lock;
    struct psm_connection **slots;
    uint32_t count, capacity, last, live;
};
struct psm_connection *psm_connection_new(psmProxyState *state, uint64_t owner); /* NULL: no memory or slots */
/* NULL: no such connection, or another generation of it. */
struct psm_connection *psm_connection_find(psmProxyState *state, uint64_t id);
/* Counts one operation in; psm_connection_ended counts it out. NULL: no such connection, or it is being freed. */
struct psm_connection *psm_connection_enter(psmProxyState *state, uint64_t id);
/* The same for the next connected one from *slot on; NULL: there are no more. */
struct psm_connection *psm_connection_enter_next(psmProxyState *state, uint32_t *slot);
/* Any live connection of an owner (0: of any) that is not being freed yet; marks it as being freed. */
struct psm_connection *psm_connection_begin_free(psmProxyState *state, uint64_t owner);
void psm_connection_begin_free_one(psmProxyState *state, struct psm_connection *connection);
void psm_connection_release(psmProxyState *state, struct psm_connection *connection);

/* ---- the calling side (client.c, calls.c) ---- */

struct psm_call {
    uint32_t slot, generation;
    uint64_t begun;    /* psm_tick_ns, for psmkit inspect */
    uint32_t answered; /* generation of the last received answer; 0: none */
    bool taken, done, queued;
    int type, peer;
    uint32_t resp_size, capacity;
    uint8_t *resp;
    struct psm_error error;
    struct psm_direct_call *direct;
    uint32_t next_free;
};
struct psm_calls {
    pthread_mutex_t lock;
    struct psm_call **slots;
    uint32_t count, capacity, free_head;
};
/* A socket to another rank's proxy, or the direct way to one of this process. */
struct psm_client {
    int rank;
    struct psmProxyAddress address;
    struct psm_direct *direct;
    _Atomic int fd; /* -1: direct */
    _Atomic int gone;
    pthread_mutex_t lock; /* protects the state below, and sending */
    struct psm_held *held;
    _Atomic uint64_t held_until; /* of held; 0: none */
    pthread_cond_t moved;        /* an answer was stored, or nobody reads the socket any more */
    bool reading;
    unsigned waiters;
    struct psm_error end; /* why it was lost */
};

/* ---- file descriptors (uds.c, fdjob.c) ---- */

struct psm_offer {
    uint64_t id;
    int fd;
};
struct psmProxyFetch {
    struct psmProxyFetch *next;
    psmProxyState *state;
    int type, rank;
    uint32_t pid;
    uint64_t op_id, share, begun;
    char name[24]; /* address of the other's UDS */
    int give;      /* QueryFd: a dup of the caller's descriptor */
    int got, number;
    uint64_t deadline, next_send;
    uint32_t attempts;
    bool done, wanted, handler;
    struct psm_error error;
};
struct psm_given { /* a descriptor received by QueryFd */
    int fd, rank;
    uint64_t op_id;
    char from[24];
    bool taken;
};
struct psm_gotten {
    uint64_t op_id;
    char from[24];
};
struct psm_uds {
    int fd, event;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    struct psm_offer *offers;
    size_t noffers, offers_size;
    struct psmProxyFetch *jobs;
    struct psm_given *given;
    size_t ngiven, given_size;
    struct psm_gotten gotten[PSM_GOTTEN]; /* a ring: answered GetFd requests, and who sent them */
    unsigned ngotten;
    struct psm_held *held_ask, *held_answer;
    _Atomic uint32_t generation;
    struct psm_limit refusals; /* UDS thread */
};

/* ---- operations (progress.c, pool.c) ---- */

struct psm_posted {
    struct psm_posted *next;
    struct psm_connection *connection;
    uint32_t row; /* of the pool */
    struct psmProxyOp op;
};
struct psm_args {
    struct psmProxyArgs pub;     /* first: what the transport receives */
    uint32_t rows[PSM_MAX_SUBS]; /* rows of the pool, by sub */
    /* psmProxyOp's, of its only sub */
    const volatile uint32_t *ready;
    void (*ended)(void *cookie, psm_status status);
    void *cookie;
};
struct psm_progress {
    pthread_mutex_t lock;
    struct psm_posted *saved, **saved_end, *posted, **posted_end, *free;
    _Atomic uint32_t word; /* a futex: changes when there is new work */
    _Atomic uint32_t sleeping, live;
    struct psmProxyArgs *active, **active_end, *free_args; /* progress thread */
    bool told;                                             /* the state was aborted, as seen by the progress thread */
    struct psm_section *_Atomic pool;                      /* NULL: no operation yet, or no record */
    _Atomic bool pool_made;
};

/* State of an operation, for external observers (pool.c). One thread at a time owns a row: first the saver, then the
 * poster, then the progress thread. */
enum psm_op_stand {
    PSM_OP_SAVED,   /* psmProxyStart has not been called */
    PSM_OP_POSTED,  /* the progress thread has not fetched it */
    PSM_OP_CHAINED, /* its connection is busy with another operation */
    PSM_OP_ACTIVE,  /* it may start; its stream may not have reached it */
    PSM_OP_PROGRESS
};
#define PSM_POOL_NONE UINT32_MAX
uint32_t psm_pool_save(psmProxyState *state, const struct psm_connection *c, const struct psmProxyOp *op);
void psm_pool_move(const struct psm_progress *p, uint32_t row, enum psm_op_stand stand, int subs);
void psm_pool_end(const struct psm_progress *p, uint32_t row);

/* ---- the state ---- */

enum psm_phase { PSM_PHASE_MADE, PSM_PHASE_RUNNING, PSM_PHASE_STOPPING, PSM_PHASE_STOPPED };

struct psm_peer;
struct psm_service;
struct psm_job_refs {
    _Atomic uint64_t calls, served, retried, late, refused, resent, fds_sent, fds_received, peers;
};

struct psmProxyState {
    struct psm_alive alive;
    int rank, nranks, device;
    struct psm_settings settings;
    const struct psmTransportComm *transports[PSM_TRANSPORTS][2];
    volatile uint32_t *abort_flag;
    void *host;
    struct psmProxyAddress address, *addresses;
    int naddresses;
    pthread_mutex_t lock; /* phase, addresses, error */
    pthread_mutex_t stop_lock;
    pthread_mutex_t connect_lock; /* held while a client is being created */
    enum psm_phase phase;
    bool have_service, have_uds, have_progress;
    pthread_t service, uds_thread, progress_thread;
    struct psm_service *serving; /* for psmkit inspect: the service thread's own data while it runs */
    _Atomic uint32_t stop, stop_progress, aborted;
    int listen_fd;
    int abort_event; /* set once, for waits in poll(2) */
    struct psm_direct *direct;
    uint64_t client_id;
    struct psm_connections connections;
    struct psm_calls calls;
    struct psm_client *_Atomic *clients; /* by rank */
    psmProxyConnector **fetchers;        /* by rank: kept for descriptors, host.c; NULL: none yet */
    pthread_mutex_t fetch_lock;
    unsigned processors;   /* that this process may use */
    _Atomic uint8_t *lost; /* by rank: its process has died or has closed */
    struct psm_uds uds;
    struct psm_progress progress;
    _Atomic int async_status;
    struct psm_error async_error;
    struct psm_job_refs counts;
};

#define PSM_COUNT(state, what) atomic_fetch_add_explicit(&(state)->counts.what, 1, memory_order_relaxed)

void *psm_service_main(void *state);
void *psm_uds_main(void *state);
void *psm_progress_main(void *state);

/* For psm_fail_again: drops earlier failures. */
extern const struct psm_error psm_no_error;
bool psm_state_ended(const psmProxyState *state); /* aborted, by either flag */
/* How long to poll before sleeping: PSM_SPIN, or 0 if more processes are connected than there are processors. Then who
 * polls holds the processor that the other end needs. */
uint64_t psm_state_spin_ns(const psmProxyState *state);
/* The first call wins: records the reason, and wakes everyone. */
void psm_state_abort(psmProxyState *state, const struct psm_error *error);
/* What the peers receive at the end: PSM_OK, or PSM_ERR_ABORTED with the reason. */
struct psm_error psm_state_ending(psmProxyState *state);
void psm_state_lost(psmProxyState *state, int rank);
void psm_thread_device(psmProxyState *state, const char *thread);
/* A macro, so that the arguments are built only if a fault is set. */
static inline struct psm_fault_args psm_fault_here(psmProxyState *state, int peer, int type)
{
    return (struct psm_fault_args){.rank = state->rank,
                                   .peer = peer,
                                   .op = type ? psm_proxy_type_name(type) : NULL,
                                   .abort_flag = (const volatile uint32_t *)&state->aborted};
}

/* The stage of an error: the type's name in lower case. */
const char *psm_proxy_stage(int type);
/* The payloads of Init. */
struct psm_wire_init {
    int32_t transport, send, rank, same_process;
};
PSM_SHAREABLE(psm_wire_init, 16);
struct psm_wire_inited {
    uint64_t connection;
};
PSM_SHAREABLE(psm_wire_inited, 8);

psm_status psm_calls_take(psmProxyState *state, int peer, int type, uint32_t resp_size, psmOpId *id);
void psm_calls_drop(psmProxyState *state, psmOpId id);
struct psm_call *psm_calls_find(psmProxyState *state, psmOpId id); /* calls.lock is held */
void psm_calls_fail(psmProxyState *state, int peer, const struct psm_error *error);
void psm_calls_free(psmProxyState *state);
void psm_calls_store(psmProxyState *state, int peer, const struct psm_wire_message *message, psmOpId expected);
/* Moves a received answer to the caller. PSM_IN_PROGRESS: it has not arrived. */
psm_status psm_calls_fetch(psmProxyState *state, psmOpId id, void *resp, size_t resp_size);
bool psm_client_hold(struct psm_client *client, const void *bytes, size_t size);
void psm_client_flush(struct psm_client *client, bool now);
/* Sends what a fault holds back: now, or if it is due. */
static inline void psm_client_send_held(struct psm_client *client, bool now)
{
    if (__builtin_expect(atomic_load_explicit(&client->held_until, memory_order_relaxed) != 0, 0))
        psm_client_flush(client, now);
}
/* For the service thread: the other side has hung up. */
void psm_client_hung_up(psmProxyState *state, struct psm_client *client);
void psm_clients_close(psmProxyState *state, psm_status status, const char *text);
void psm_clients_free(psmProxyState *state);

psm_status psm_uds_init(psmProxyState *state);
void psm_uds_stop(psmProxyState *state);
void psm_uds_free(psmProxyState *state);

psm_status psm_progress_init(psmProxyState *state);
void psm_progress_free(psmProxyState *state);
/* Ends what is posted, in place of the progress thread. Call it after the thread has ended. */
void psm_progress_cancel(psmProxyState *state);

#endif
