/* What the files of RMA share: the messages between ranks, and a communicator with its peers. */
#ifndef PSM_NET_RMA_COMM_H
#define PSM_NET_RMA_COMM_H

#include "fault.h"
#include "given.h"
#include "psm_abi/gin.h"
#include "rma/rma.h"

struct psm_cuda;

/* ---- messages ---- */

enum { RMA_MAGIC = 0x50534d52 /* "PSMR" */, RMA_VERSION = 1, RMA_SLOTS = 4, RMA_CHUNK = 128 << 10 };
enum rma_kind { RMA_HELLO = 1, RMA_REGION, RMA_PUT, RMA_GET, RMA_REPLY, RMA_ACK, RMA_KINDS };

/* Before the bytes of each message. Regions are numbered from 1, in the order in which all ranks register them. */
struct rma_head {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t rank, ranks;
    uint64_t acked;  /* puts of the receiver that are in the sender's memory */
    uint64_t number; /* of the put, or of the get, from 1 */
    uint32_t region, signal_region;
    uint64_t offset, bytes;               /* in that region; of a RMA_REGION: its size */
    uint64_t signal_offset, signal_value; /* with the last message of a put */
    uint32_t signal_op, last;             /* signal_op 0: no signal */
};
_Static_assert(sizeof(struct rma_head) == 80, "both ends know this size");

/* ---- a communicator ---- */

struct rma_region {
    struct rma_region *next;
    struct rma_comm *comm;
    uint32_t id;
    char *data;
    size_t size;
    bool gpu;
};

struct rma_request {
    struct rma_request *next; /* in a queue of the peer, or free */
    struct rma_comm *comm;
    struct rma_peer *peer;
    uint8_t kind;
    bool used, done, lost;   /* lost: a fault dropped it */
    struct rma_region *mine; /* where a put is from, and a get goes to */
    uint64_t mine_at;
    size_t size, moved;
    uint64_t number;
    struct rma_head head; /* what each of its messages says */
};

/* Several messages of one direction, each with its own piece of a registered buffer. */
struct rma_slots {
    char *memory;
    void *registration;
    void *request[RMA_SLOTS];
    size_t size[RMA_SLOTS];
    uint32_t first, n; /* in use: a ring */
};

struct rma_queue {
    struct rma_request *first, *last;
};

struct rma_peer {
    int rank;
    void *send, *recv;
    struct rma_slots out, in;
    struct rma_queue waiting, sent; /* to be sent; sent, and not yet done */
    uint64_t puts, gets;            /* numbers of the last ones */
    uint64_t acked;                 /* own puts that are in the peer's memory */
    uint64_t arrived, told;         /* the peer's puts that are in this memory, and those that it knows of */
    uint64_t signals, notes;        /* of own puts, and of the peer's that are in this memory */
    uint64_t *sizes;                /* of the peer's regions, from 1 */
    uint32_t regions, room;
    uint32_t row; /* of the record */
    bool gone, has_row;
};

struct rma_block {
    struct rma_block *next;
    struct rma_request request[64];
};

struct rma_comm {
    int ranks, rank;
    uint32_t number; /* of the communicators of the process, from 1 */
    uint64_t id;     /* NCCL's, the same on all ranks */
    psm_section *rows;
    struct rma_peer *peer; /* one for each rank, also for the own */
    pthread_mutex_t lock;
    ncclResult_t failed;
    uint32_t regions; /* number of the last one */
    struct rma_region *first_region;
    struct rma_block *blocks;
    struct rma_request *free;
    /* copies of GPU memory */
    const struct psm_cuda *cuda;
    int device;
    void *stream;
    char *scratch; /* RMA_CHUNK bytes, for copies on this rank */
};

struct rma_context {
    struct rma_comm *comm;
    int count;
};

static inline struct rma_comm *rma_comm_of(void *comm)
{
    return net_is_given(comm, NET_GIVEN_RMA_COMM) ? comm : NULL;
}

/* ---- device.c: copies; data of a region is GPU memory or not ---- */

ncclResult_t rma_device_open(struct rma_comm *comm);
void rma_device_close(struct rma_comm *comm);
ncclResult_t rma_read(struct rma_comm *comm, const struct rma_region *from, uint64_t at, void *to, size_t size);
ncclResult_t rma_write(struct rma_comm *comm, const struct rma_region *to, uint64_t at, const void *from, size_t size);
ncclResult_t rma_add(struct rma_comm *comm, const struct rma_region *to, uint64_t at, uint64_t value);
/* Functions that the application's thread calls leave its current device as it is. -1: there is none. */
int rma_device_now(const struct rma_comm *comm);
void rma_device_again(const struct rma_comm *comm, int device);

/* ---- record.c ---- */

void rma_record(struct rma_comm *comm);
void rma_record_peer(struct rma_comm *comm, struct rma_peer *peer);
void rma_record_end(struct rma_comm *comm);

/* ---- move.c: messages; the caller has the lock ---- */

struct rma_request *rma_request_new(struct rma_comm *comm, struct rma_peer *peer, enum rma_kind kind);
void rma_request_forget(struct rma_request *request);
void rma_post(struct rma_request *request);
ncclResult_t rma_move(struct rma_comm *comm);
ncclResult_t rma_slots_make(struct rma_slots *slots, void *net_comm);
/* The caller of `call` got something wrong; the communicator does not end. */
ncclResult_t rma_outside(struct rma_comm *comm, const char *call, int peer, uint32_t region, uint64_t offset,
                         uint64_t bytes, uint64_t size);

#endif
