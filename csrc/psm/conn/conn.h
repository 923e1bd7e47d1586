/* The proxy's end of a connection, as p2p and net both have it: its identity, its stream and events, its operations one
 * after the other, the clock of its stalls, its recorder. A transport's own local info has it as first member. */
#ifndef PSM_CONN_CONN_H
#define PSM_CONN_CONN_H

#include "conn/step.h"
#include "core/internal.h"
#include "psm/psm_launch.h"
#include "psm_cuda.h"

enum { PSM_CONN_MAX_STEPS = 64 };
#define PSM_CONN_MAX_BUFFER (UINT64_C(1) << 32) /* limit of PSM_BUFFER_SIZE */

/* How a fault of kind PSM_FAULT_CORRUPT changes a number: far beyond every bound. */
#define PSM_CONN_DAMAGE (UINT64_C(1) << 60)

/* Numbers of the step recorder's stages. */
enum psm_conn_stage {
    PSM_STAGE_IDLE,
    PSM_STAGE_OFFER,     /* send: the receiver has not posted yet; recv: nothing is offered yet */
    PSM_STAGE_FIFO,      /* data goes through the slots */
    PSM_STAGE_ZERO_COPY, /* p2p. send: copies into the receiver's buffer; recv: waits for the answer */
    PSM_STAGE_ENDED
};

/* Local: neither it nor any part of it leaves the process. Stream and events come first: broken variants write a peer's
 * over them. */
struct psm_conn {
    cudaStream_t stream;
    cudaEvent_t events[PSM_CONN_MAX_STEPS];
    const struct psm_host *host;
    const struct psm_cuda *cuda;
    const struct psm_conn_ops *ops;
    uint64_t connection, pair; /* pair: the same at both ends */
    int rank, peer, channel, connIndex;
    int mode, role;       /* role 1: send */
    uint32_t steps, made; /* slots; created events */
    uint32_t chunk, stall_ms;
    _Atomic bool connected; /* set on the service thread when the data path is complete */
    bool used;

    /* progress thread only */
    struct psmProxySubArgs *active; /* the operation that is running on the connection */
    enum psm_conn_stage stage;
    uint64_t seq;                             /* operations started */
    uint64_t step;                            /* steps finished: base of the next operation */
    uint64_t now_ns;                          /* start time of this turn */
    uint64_t moved_ns, looked_ns, stalled_ns; /* last progress; last look at the peer; last report */
    int suspect;                              /* consecutive looks that found the peer gone and nothing to do */
    void *recorder;                           /* psm_step_recorder's */
};

/* What differs between the transports. Called when an operation begins or ends, at a look at the peer and at a failure,
 * never for a step. */
struct psm_conn_ops {
    /* An operation is next. An error: the connection has ended, and takes no more of them. */
    psm_status (*begin)(struct psm_conn *conn, struct psmProxySubArgs *sub);
    /* Its first turn moved nothing. NULL: nothing to do. */
    void (*waits)(struct psm_conn *conn, struct psmProxySubArgs *sub);
    void (*moved)(struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what, uint64_t step);
    /* Finished copies of the operation. */
    uint64_t (*copied)(const struct psm_conn *conn, const struct psmProxySubArgs *sub);
    /* The words that only the transport knows: sendHead, recvTail, what it offers, what counts as done. */
    void (*words)(const struct psm_conn *conn, const struct psmProxySubArgs *sub, struct psm_step *now);
    /* What the operation waits for. */
    void (*describe_wait)(const struct psm_conn *conn, const struct psmProxySubArgs *sub, char *text, size_t n);
    /* The peer has ended or is dead, and all that it delivered was found. */
    bool (*gone)(const struct psm_conn *conn, const struct psmProxySubArgs *sub);
    /* The error of an operation whose peer has gone. */
    psm_status (*gone_error)(const struct psm_conn *conn);
    /* Log lines: an operation that moves nothing, and one that failed. */
    void (*stalled)(const char *role, int64_t rank, int64_t peer, uint64_t channel, uint64_t ms, const char *stage,
                    uint64_t step, uint64_t recv_tail, uint64_t send_head, uint64_t transmitted, uint64_t done,
                    uint64_t nsteps, const char *can_send, const char *side);
    void (*failed)(const char *role, int64_t rank, int64_t peer, uint64_t channel, uint64_t seq, uint64_t step,
                   const char *status, const char *cause, int64_t names, const char *text);
    /* Tell the peer that this end has ended, if nothing has told it yet. */
    void (*say_end)(struct psm_conn *conn, psm_status status, int cuda);
};

static inline const char *psm_conn_role(const struct psm_conn *conn)
{
    return conn->role ? "send" : "recv";
}
static inline const char *psm_conn_peer_role(const struct psm_conn *conn)
{
    return conn->role ? "receiver" : "sender";
}
const char *psm_conn_stage_name(enum psm_conn_stage stage);
static inline uint64_t psm_conn_nsteps(uint64_t nbytes, uint32_t chunk)
{
    return nbytes == 0 ? 1 : (nbytes + chunk - 1) / chunk; /* an operation of 0 bytes is one step without a copy */
}
static inline psm_status psm_conn_strike(const struct psm_conn *conn, struct psm_site *site, struct psm_fault *fault)
{
    return psm_fault_before(site, &(struct psm_fault_args){.rank = conn->rank, .peer = conn->peer}, psm_conn_role(conn),
                            fault);
}

/* How many bytes of a copy a fault lets through. *skip: how many bytes behind its source the copy begins. */
static inline uint64_t psm_conn_damaged(const struct psm_fault *fault, uint64_t bytes, uint64_t *skip)
{
    *skip = fault->action == PSM_FAULT_CORRUPT && bytes > 1;
    if (fault->action == PSM_FAULT_DROP) return 0;
    if (fault->action == PSM_FAULT_SHORT && (uint64_t)fault->value < bytes) return (uint64_t)fault->value;
    return bytes - *skip;
}
/* Bytes of the next step, when the operation has `left` bytes left. */
static inline uint64_t psm_conn_bytes(const struct psm_conn *conn, uint64_t left)
{
    return left < conn->chunk ? left : conn->chunk;
}
/* The copy of a step is enqueued. */
static inline void psm_conn_enqueued(struct psmProxySubArgs *sub, uint64_t bytes)
{
    sub->transmitted++;
    sub->offset += bytes;
}
static inline const char *psm_conn_can_send(const struct psm_conn *conn, const struct psmProxySubArgs *sub,
                                            uint64_t recv_tail)
{
    return conn->stage == PSM_STAGE_FIFO && recv_tail > sub->base + sub->transmitted ? "YES" : "NO";
}

/* ---- end.c: on the service thread ---- */

/* What a request of Setup says in every transport: PSM_CONN_SETUP(psm_p2p_setup). */
struct psm_conn_setup {
    uint32_t magic;
    uint16_t version;
    int peer, channel, connIndex, role;
    uint32_t steps, chunk;
    uint64_t buffer_size;
};
#define PSM_CONN_SETUP(want)                                                                                           \
    (struct psm_conn_setup)                                                                                            \
    {                                                                                                                  \
        (want).magic, (want).version, (want).peer, (want).channel, (want).connIndex, (want).role, (want).steps,        \
            (want).chunk, (want).buffer_size                                                                           \
    }

/* The handlers of struct psmTransportComm. */
typedef psm_status psm_conn_request(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                    void *resp, int respSize, int *done);
typedef psm_status psm_conn_free(psmProxyConnection *connection, psmProxyState *state);
typedef psm_status psm_conn_turn(psmProxyState *state, struct psmProxyArgs *args);
/* The handlers of one direction. Further members, which only some transports have, follow. */
#define PSM_CONN_COMM(setup, connect, free, progress, ...)                                                             \
    {.proxySetup = (setup), .proxyConnect = (connect), .proxyFree = (free), .proxyProgress = (progress), __VA_ARGS__}

static inline int psm_conn_rank(const psmProxyConnection *connection)
{
    return connection->host->ops->rank(connection->host->self);
}
/* Members of the answer to Setup that repeat the request. */
#define PSM_CONN_SHARED(want)                                                                                          \
    .magic = (want).magic, .version = (want).version, .role = (want).role, .steps = (want).steps,                      \
    .buffer_size = (want).buffer_size
/* Before each handler: its host has CUDA, and the rank's device is current. */
psm_status psm_conn_enter(psmProxyConnection *connection, const char *stage, int peer);
/* Strike a fault site on behalf of the connection's rank. */
psm_status psm_conn_strike_at(const psmProxyConnection *connection, struct psm_site *site, const char *stage, int peer,
                              struct psm_fault *fault);
/* Copy a request of `size` bytes whose answer has `answer` bytes. PROTOCOL: it has other sizes. */
psm_status psm_conn_read(const psmProxyConnection *connection, const char *stage, void *want, size_t size,
                         const void *req, int reqSize, size_t answer, int respSize);
/* Setup: check the request, and allocate the connection's local info: `size` bytes, zeroed, with struct psm_conn first.
 * PROTOCOL, VERSION, INVALID, NO_MEMORY; or what the fault at the site says. */
psm_status psm_conn_new(psmProxyConnection *connection, const struct psm_conn_setup *want, uint32_t magic, int mode,
                        size_t size, const struct psm_conn_ops *ops, struct psm_site *site, struct psm_fault *fault,
                        void *local);
/* Setup has failed after psm_conn_new: free the local info, and return the error. */
psm_status psm_conn_abandon(psmProxyConnection *connection, psmProxyState *state, psm_conn_free *free_it);
/* Whether a request of Connect is for this end. PROTOCOL, VERSION, INVALID. */
psm_status psm_conn_check_connect(const psmProxyConnection *connection, uint32_t magic, uint16_t version, int peer,
                                  uint32_t expected_magic);
/* Free: take the local info from the connection, and make the rank's device current. NULL: there is none. */
void *psm_conn_take(psmProxyConnection *connection);
/* The stream and events of this end, created and used only in this process. */
psm_status psm_conn_make_stream(struct psm_conn *conn);
void psm_conn_open_recorder(struct psm_conn *conn);
/* Close the recorder and destroy stream and events, once the copies on the stream are done. */
void psm_conn_end(struct psm_conn *conn, psm_status *first);
static inline void psm_conn_note(psm_status *first, psm_status status)
{
    if (*first == PSM_OK) *first = status;
}

/* ---- progress.c: on the progress thread ----
 * One operation at a time per connection. The operation has ended when args->state is None; the call that ends it
 * returns its error. The proxy decrements args->sync for ended operations. */

typedef psm_status psm_conn_step(struct psm_conn *conn, struct psmProxySubArgs *sub, bool *moved, bool *ended);
psm_status psm_conn_progress(struct psmProxyArgs *args, psm_conn_step *step);
/* The error of an operation whose peer is dead, and of one that the peer has ended with an error. */
psm_status psm_conn_peer_dead(const struct psm_conn *conn);
psm_status psm_conn_peer_failed(const struct psm_conn *conn, psm_status theirs, unsigned cuda);
/* Enqueue a copy and the event behind it on the stream. */
enum { PSM_NO_EVENT = -1 };
psm_status psm_conn_copy(struct psm_conn *conn, struct psm_site *site, void *to, const void *from, uint64_t bytes,
                         int event);
/* 1: the copy before that event is complete; 0: not yet; else the failure. PSM_NO_EVENT: all copies of the stream. */
int psm_conn_copied(struct psm_conn *conn, int event, psm_status *status);
/* What the recorder gets, without the words that only the transport knows. */
static inline struct psm_step psm_conn_step_now(const struct psm_conn *conn, const struct psmProxySubArgs *sub,
                                                enum psm_step_what what, uint64_t step)
{
    return (struct psm_step){.at_ns = conn->now_ns,
                             .seq = conn->seq,
                             .nbytes = sub->nbytes,
                             .base = sub->base,
                             .step = step,
                             .nsteps = sub->nsteps,
                             .posted = sub->posted,
                             .transmitted = sub->transmitted,
                             .done = sub->done,
                             .stream = (uint64_t)(uintptr_t)conn->stream,
                             .slot = (uint32_t)(step % conn->steps),
                             .what = (uint8_t)what,
                             .stage = (uint8_t)conn->stage,
                             .zero_copy = conn->stage == PSM_STAGE_ZERO_COPY};
}
static inline void psm_conn_record(const struct psm_conn *conn, const struct psm_step *now)
{
    const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
    if (recorder && conn->recorder) recorder->step(conn->recorder, now);
}
const char *psm_conn_what_name(enum psm_step_what what);

#endif
