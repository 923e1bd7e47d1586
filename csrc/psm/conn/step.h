/* What the data path reports to the step recorder for each transition. Without a recorder it costs a load and a branch.
 */
#ifndef PSM_CONN_STEP_H
#define PSM_CONN_STEP_H

#include <stdatomic.h>
#include <stdint.h>

enum psm_step_what {
    PSM_STEP_BEGIN = 1, /* an operation starts on the connection */
    PSM_STEP_OFFERED,   /* recv: the offer is published */
    PSM_STEP_TAKEN,     /* send: the offer was taken */
    PSM_STEP_DECLINED,  /* zero-copy was offered and declined; the FIFO is used */
    PSM_STEP_COPYING,   /* a copy and its event are enqueued on the stream */
    PSM_STEP_PUBLISHED, /* the copy is done: sendHead (send), recvTail (recv) or the answer advanced */
    PSM_STEP_ENDED,     /* the operation */
    PSM_STEP_STALLED,   /* nothing moved for stall_report_ms */
    PSM_STEP_FAILED
};

struct psm_step_connection {
    uint64_t connection;
    int rank, peer, channel, connIndex, mode;
    int role; /* 1: send */
    uint32_t steps, chunk;
    uint64_t stream; /* number of the handle: only a name, not usable as a handle */
    uint64_t pair;   /* id of the control segment: the same at both ends */
};

struct psm_step {
    uint64_t at_ns; /* CLOCK_MONOTONIC, read without a system call: coarse to a few ms */
    uint64_t seq, nbytes;
    uint64_t base, step, nsteps;
    uint64_t sendHead, recvTail;
    uint64_t posted, transmitted, done;
    uint64_t offer, answer; /* operations of the flags in the control segment; 0: none */
    uint64_t stream;        /* number of the handle that copies are enqueued on */
    uint32_t slot;
    uint8_t what, stage, zero_copy;
};

/* One per process, set before the first connection. Called on the service thread (open, close) and the progress thread
 * (step). open may return NULL; step and close get its result, and are not called for NULL. */
struct psm_step_recorder {
    void *(*open)(const struct psm_step_connection *connection);
    void (*step)(void *recorder, const struct psm_step *step);
    void (*close)(void *recorder);
};
extern const struct psm_step_recorder *_Atomic psm_step_recorder;

#endif
