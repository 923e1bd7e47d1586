/* Where the block of a rank lies, and how it is read and written. */
#include "collnet/blocks.h"

#include <string.h>

#include "collnet/reduce.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

size_t coll_block(const struct coll_request *r, int rank, uint64_t *begin)
{
    const struct coll_header *h = &r->is;
    uint64_t n = h->ranks, at = (uint64_t)rank;
    if (h->kind == ALLREDUCE) {
        size_t element = reduce_size((ncclDataType_t)h->type);
        uint64_t each = h->count / n, more = h->count % n, from = each * at + smaller(at, more);
        *begin = from * element;
        return (each + (at < more)) * element;
    }
    uint64_t low = larger(at * h->share, h->offset), high = smaller((at + 1) * h->share, h->offset + h->bytes);
    *begin = low - h->offset;
    return low < high ? high - low : 0;
}

/* Bytes of the window, which has several parts: copied from there, reduced with, or copied there. */
static void in_window(const struct coll_request *r, enum use use, uint64_t begin, size_t size, char *block)
{
    for (int i = 0; i < r->nparts && size; i++) {
        uint64_t part = r->part[i].size;
        if (begin >= part) {
            begin -= part;
            continue;
        }
        size_t n = smaller(size, part - begin);
        char *at = (char *)r->part[i].address + begin;
        if (use == TAKE)
            memcpy(block, at, n);
        else if (use == GIVE)
            memcpy(at, block, n);
        else
            reduce_into(block, at, n, (ncclDataType_t)r->is.type, (ncclRedOp_t)r->is.op);
        begin = 0;
        size -= n;
        block += n;
    }
}

void coll_block_own(const struct coll_request *r, enum use use, int rank, char *block)
{
    uint64_t begin;
    size_t size = coll_block(r, rank, &begin);
    if (size == 0) return;
    if (r->is.kind == REDUCESCATTER)
        in_window(r, use, begin, size, block);
    else if (use == ADD)
        reduce_into(block, r->send + begin, size, (ncclDataType_t)r->is.type, (ncclRedOp_t)r->is.op);
    else
        memcpy(block, r->send + (r->is.kind == ALLREDUCE ? begin : 0), size);
}

void coll_block_give(const struct coll_request *r, int rank, char *block)
{
    uint64_t begin;
    size_t size = coll_block(r, rank, &begin);
    if (size == 0) return;
    if (r->is.kind == ALLGATHER)
        in_window(r, GIVE, begin, size, block);
    else
        memcpy(r->recv + (r->is.kind == ALLREDUCE ? begin : 0), block, size);
}
