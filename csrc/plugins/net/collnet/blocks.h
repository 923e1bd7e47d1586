/* A collective, and the blocks that its ranks exchange. */
#ifndef PSM_NET_COLL_BLOCKS_H
#define PSM_NET_COLL_BLOCKS_H

#include "net_plugin.h"

enum { PARTS = 64 };
enum kind { ALLREDUCE, ALLGATHER, REDUCESCATTER };
enum use { TAKE, ADD, GIVE };

/* Parameters that must be the same on all ranks. */
struct coll_header {
    uint64_t number;
    uint32_t kind, ranks;
    uint32_t type, op;
    uint64_t count, share, offset, bytes;
};

struct coll_request {
    struct coll_comm *comm;
    struct coll_header is;
    bool used, queued, done;
    ncclResult_t result;
    const char *send; /* allreduce, allgather */
    char *recv;       /* allreduce, reducescatter */
    int nparts;
    ncclNetSGE_v12_t part[PARTS]; /* the window, of allgather and reducescatter */
    size_t total;                 /* bytes that test reports */
    /* progress along the ring */
    int step, steps, reduces, puts, first; /* steps below `reduces` add, those from `puts` on copy */
};

/* A rank's block: its start, in the buffer of an allreduce or in the window; and its size. */
size_t coll_block(const struct coll_request *r, int rank, uint64_t *begin);
/* This rank's own contribution to a block: TAKE copies it, ADD reduces it. */
void coll_block_own(const struct coll_request *r, enum use use, int rank, char *block);
/* Puts a block where the caller of the collective wants it. */
void coll_block_give(const struct coll_request *r, int rank, char *block);

#endif
