/* Each rank has a connection to the next one and one from the previous one. A collective moves blocks around that ring:
 * in each step a rank sends the current block, and receives another, to which it adds its own part. All collectives of
 * a comm run in the same order on all ranks, one at a time; the first message of each identifies it. */
#define _GNU_SOURCE
#include "collnet/collnet.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collnet/blocks.h"
#include "collnet/reduce.h"
#include "given.h"
#include "net_say.h"

enum { REQUESTS = NCCL_NET_MAX_REQUESTS };
static const char *const kinds[] = {"iallreduce", "iallgather", "ireducescatter"};

struct coll_listener {
    int dev;
    void *context, *inner;
};

struct coll_registration {
    struct coll_registration *next;
    struct coll_comm *comm;
    char *data;
    size_t size;
};

/* A message of either direction. */
struct coll_move {
    void *request;
    size_t size;
    bool posted, done;
};

/* Memory that both connections have registered. */
struct coll_buffer {
    char *data;
    size_t size;
    void *for_send, *for_recv;
};

struct coll_comm {
    int ranks, rank;
    void *context; /* its own: in versions that have one */
    void *send, *recv;
    ncclResult_t failed;
    uint64_t number; /* of the next collective */
    struct coll_request request[REQUESTS], *queue[REQUESTS];
    uint64_t first, last;                     /* of the queue */
    struct coll_buffer mine, theirs, out, in; /* headers; the block that is sent and the one that is received */
    struct coll_move sends, receives;
    bool begun, agreed;
    pthread_mutex_t lock; /* of registrations */
    struct coll_registration *registrations;
};

/* ---- connections ---- */

ncclResult_t coll_listen(void *context, int dev, void *handle, void **out)
{
    struct coll_listener *l = calloc(1, sizeof *l);
    if (!l) return net_no_memory("a listener", sizeof *l);
    *l = (struct coll_listener){.dev = dev, .context = context};
    ncclResult_t result = net_listen(context, dev, handle, &l->inner);
    if (result == ncclSuccess && !net_give(l, 1, 0, NET_GIVEN_COLL_LISTENER)) {
        net_close_listen(l->inner);
        result = net_no_memory("a listener", sizeof *l);
    }
    if (result == ncclSuccess)
        *out = l;
    else
        free(l);
    return result;
}

ncclResult_t coll_close_listen(void *listener)
{
    struct coll_listener *l = listener;
    if (!l) return ncclSuccess;
    if (!net_is_given(l, NET_GIVEN_COLL_LISTENER))
        return net_misuse("closeListen", "this is not an open listener of CollNet");
    net_take_back(l, 1, 0, NET_GIVEN_COLL_LISTENER);
    ncclResult_t result = net_close_listen(l->inner);
    free(l);
    return result;
}

static void buffer_forget(struct coll_comm *c, struct coll_buffer *b)
{
    if (b->for_send) net_dereg(c->send, b->for_send);
    if (b->for_recv) net_dereg(c->recv, b->for_recv);
    free(b->data);
    *b = (struct coll_buffer){0};
}

static ncclResult_t buffer_grow(struct coll_comm *c, struct coll_buffer *b, size_t size)
{
    ncclResult_t result = ncclSuccess;
    if (b->size >= size) return ncclSuccess;
    buffer_forget(c, b);
    *b = (struct coll_buffer){.data = malloc(size), .size = size};
    if (!b->data) return net_no_memory("a block of a collective", size);
    if ((result = net_reg(c->send, b->data, size, NCCL_PTR_HOST, &b->for_send)) != ncclSuccess) return result;
    return net_reg(c->recv, b->data, size, NCCL_PTR_HOST, &b->for_recv);
}

static ncclResult_t give_up(struct coll_comm *c)
{
    struct coll_buffer *const buffers[] = {&c->mine, &c->theirs, &c->out, &c->in};
    ncclResult_t result = ncclSuccess, closed;
    /* Open requests end with their connection, and their memory and its registrations after that. */
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers && !c->begun; i++) buffer_forget(c, buffers[i]);
    if (c->send && (closed = net_close_send(c->send)) != ncclSuccess) result = closed;
    if (c->recv && (closed = net_close_recv(c->recv)) != ncclSuccess) result = closed;
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->data);
    while (c->registrations) {
        struct coll_registration *next = c->registrations->next;
        net_take_back(c->registrations, 1, 0, NET_GIVEN_COLL_REGISTRATION);
        free(c->registrations);
        c->registrations = next;
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
    return result;
}

static ncclResult_t give_out(struct coll_comm *c)
{
    if (net_give(c, 1, 0, NET_GIVEN_COLL_COMM)) {
        if (net_give(c->request, REQUESTS, sizeof *c->request, NET_GIVEN_COLL_REQUEST)) return ncclSuccess;
        net_take_back(c, 1, 0, NET_GIVEN_COLL_COMM);
    }
    return net_no_memory("a comm of CollNet", sizeof *c);
}

ncclResult_t coll_close(void *comm)
{
    struct coll_comm *c = comm;
    if (!c) return ncclSuccess;
    if (!net_is_given(c, NET_GIVEN_COLL_COMM)) return net_misuse("closeColl", "this is not an open comm of CollNet");
    net_take_back(c->request, REQUESTS, sizeof *c->request, NET_GIVEN_COLL_REQUEST);
    net_take_back(c, 1, 0, NET_GIVEN_COLL_COMM);
    return give_up(c);
}

/* NCCL treats a NULL comm as a failure and closes the listener after this call: wait until the ring is complete, or an
 * error. */
static ncclResult_t join(struct coll_comm *c, struct coll_listener *l, void *next)
{
    uint64_t until = psm_clock_ns() + net_settings.timeout_ms * 1000000u;
    while (!c->send || !c->recv) {
        ncclResult_t result = ncclSuccess;
        if (!c->send) result = net_connect(l->context, l->dev, NCCL_NET_TRAFFIC_CLASS_UNDEF, next, &c->send, NULL);
        if (result == ncclSuccess && !c->recv) result = net_accept(l->inner, &c->recv, NULL);
        if (result != ncclSuccess) return result;
        if (c->send && c->recv) break;
        if (psm_clock_ns() > until)
            return net_system("joining the ring of a CollNet communicator (PSM_TIMEOUT)", ETIMEDOUT);
        sched_yield();
    }
    ncclResult_t result = buffer_grow(c, &c->mine, sizeof(struct coll_header));
    return result == ncclSuccess ? buffer_grow(c, &c->theirs, sizeof(struct coll_header)) : result;
}

ncclResult_t coll_connect(void **handles, int nranks, int rank, void *listener, void **out)
{
    struct coll_listener *l = listener;
    *out = NULL;
    if (!net_is_given(l, NET_GIVEN_COLL_LISTENER))
        return net_misuse("connect", "this is not an open listener of CollNet");
    if (nranks < 1 || rank < 0 || rank >= nranks) return net_misuse("connect", "there is no such rank");
    struct coll_comm *c = calloc(1, sizeof *c);
    if (!c) return net_no_memory("a comm of CollNet", sizeof *c);
    *c = (struct coll_comm){.ranks = nranks, .rank = rank, .context = l->context};
    pthread_mutex_init(&c->lock, NULL);
    ncclResult_t result = nranks > 1 ? join(c, l, handles[(rank + 1) % nranks]) : ncclSuccess;
    if (result == ncclSuccess) result = give_out(c);
    if (result == ncclSuccess)
        *out = c;
    else
        give_up(c);
    return result;
}

/* ---- memory: blocks are copied, so a registration only says which memory is valid ---- */

static struct coll_comm *comm_of(void *comm)
{
    return net_is_given(comm, NET_GIVEN_COLL_COMM) ? comm : NULL;
}

ncclResult_t coll_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    *mhandle = NULL;
    struct coll_comm *c = comm_of(comm);
    if (!c) return net_misuse("regMr", "this is not an open comm of CollNet");
    if (type != NCCL_PTR_HOST) return net_misuse("regMr", "memory of this type is not supported: ptrSupport is host");
    struct coll_registration *g = calloc(1, sizeof *g);
    if (!g || !net_give(g, 1, 0, NET_GIVEN_COLL_REGISTRATION)) {
        free(g);
        return net_no_memory("a registration", sizeof *g);
    }
    pthread_mutex_lock(&c->lock);
    *g = (struct coll_registration){c->registrations, c, data, size};
    c->registrations = g;
    pthread_mutex_unlock(&c->lock);
    *mhandle = g;
    return ncclSuccess;
}

ncclResult_t coll_dereg(void *comm, void *mhandle)
{
    struct coll_comm *c = comm_of(comm);
    if (!c) return net_misuse("deregMr", "this is not an open comm of CollNet");
    if (!mhandle) return ncclSuccess;
    pthread_mutex_lock(&c->lock);
    struct coll_registration **at = &c->registrations, *g;
    while ((g = *at) && g != mhandle) at = &g->next;
    if (g) *at = g->next;
    pthread_mutex_unlock(&c->lock);
    if (!g) return net_misuse("deregMr", "this is not a registration of the comm, or it was already deregistered");
    net_take_back(g, 1, 0, NET_GIVEN_COLL_REGISTRATION);
    free(g);
    return ncclSuccess;
}

static bool holds(const void *mhandle, const struct coll_comm *c, const void *data, size_t size)
{
    const struct coll_registration *g = mhandle;
    const char *at = data;
    if (!g || size == 0) return true;
    return net_is_given(g, NET_GIVEN_COLL_REGISTRATION) && g->comm == c && at >= g->data && size <= g->size &&
           (size_t)(at - g->data) <= g->size - size;
}

/* ---- steps ---- */

static ncclResult_t move(struct coll_comm *c, struct coll_move *m, bool sends, const struct coll_buffer *b)
{
    ncclResult_t result = ncclSuccess;
    if (m->done) return ncclSuccess;
    if (m->size == 0) return m->done = true, ncclSuccess; /* both ends know that it is empty */
    if (!m->posted) {
        void *data = b->data, *mhandle = b->for_recv;
        int tag = 0;
        m->request = NULL;
        result = sends ? net_isend(c->send, data, m->size, 0, b->for_send, NULL, &m->request)
                       : net_irecv(c->recv, 1, &data, &m->size, &tag, &mhandle, NULL, &m->request);
        m->posted = m->request != NULL;
        if (result != ncclSuccess || !m->posted) return result;
    }
    int done = 0, got = (int)m->size;
    result = net_test(m->request, &done, &got);
    m->done = result == ncclSuccess && done;
    if (m->done && (size_t)got != m->size) return net_misuse("test", "a block of a collective has the wrong size");
    return result;
}

/* Both messages of a step. True: they are done. */
static bool exchanged(struct coll_comm *c, const struct coll_buffer *out, size_t out_size, const struct coll_buffer *in,
                      size_t in_size, ncclResult_t *result)
{
    if (!c->begun) {
        c->receives = (struct coll_move){.size = in_size};
        c->sends = (struct coll_move){.size = out_size};
        c->begun = true;
    }
    *result = move(c, &c->receives, false, in);
    if (*result == ncclSuccess) *result = move(c, &c->sends, true, out);
    if (*result != ncclSuccess || !c->receives.done || !c->sends.done) return false;
    c->begun = false;
    return true;
}

static ncclResult_t differs(const struct coll_comm *c, const struct coll_header *a, const struct coll_header *b)
{
    NET_SAY(PSM_NET_COLLNET_DIFFERS, psm_net_collnet_differs, NCCL_NET | NCCL_COLL, a->number, c->rank, kinds[a->kind],
            a->count, a->bytes, a->type, a->op, (c->rank + c->ranks - 1) % c->ranks, b->kind < 3 ? kinds[b->kind] : "?",
            b->count, b->bytes, b->type, b->op);
    return ncclInvalidUsage;
}

/* The header, then the first block. */
static bool agree(struct coll_comm *c, struct coll_request *r, ncclResult_t *result)
{
    struct coll_header theirs;
    if (!c->begun) memcpy(c->mine.data, &r->is, sizeof r->is);
    if (!exchanged(c, &c->mine, sizeof r->is, &c->theirs, sizeof r->is, result)) return false;
    memcpy(&theirs, c->theirs.data, sizeof theirs);
    if (memcmp(&theirs, &r->is, sizeof theirs) != 0) {
        *result = differs(c, &r->is, &theirs);
        return false;
    }
    size_t most = 0;
    for (int rank = 0; rank < c->ranks; rank++) {
        uint64_t begin;
        size_t size = coll_block(r, rank, &begin);
        if (size > most) most = size;
    }
    if ((*result = buffer_grow(c, &c->out, most)) != ncclSuccess) return false;
    if ((*result = buffer_grow(c, &c->in, most)) != ncclSuccess) return false;
    coll_block_own(r, TAKE, r->first, c->out.data);
    if (r->is.kind == ALLGATHER) coll_block_give(r, r->first, c->out.data);
    return c->agreed = true;
}

static int block_at(const struct coll_request *r, int step)
{
    int n = (int)r->is.ranks;
    return ((r->first - step) % n + n) % n;
}

/* True: it is done. */
static bool walk(struct coll_comm *c, struct coll_request *r, ncclResult_t *result)
{
    *result = ncclSuccess;
    if (!c->agreed && !agree(c, r, result)) return false;
    while (r->step < r->steps) {
        int sent = block_at(r, r->step), got = block_at(r, r->step + 1);
        uint64_t begin;
        if (!exchanged(c, &c->out, coll_block(r, sent, &begin), &c->in, coll_block(r, got, &begin), result))
            return false;
        if (r->step < r->reduces) coll_block_own(r, ADD, got, c->in.data);
        if (r->step >= r->puts) coll_block_give(r, got, c->in.data);
        struct coll_buffer held = c->out;
        c->out = c->in;
        c->in = held;
        r->step++;
    }
    c->agreed = false;
    return true;
}

static void progress(struct coll_comm *c)
{
    while (c->first < c->last && c->failed == ncclSuccess) {
        struct coll_request *r = c->queue[c->first % REQUESTS];
        if (walk(c, r, &c->failed)) {
            r->done = true;
            c->first++;
        } else if (c->failed == ncclSuccess) {
            return;
        }
    }
}

/* ---- requests ---- */

static struct coll_request *request_take(struct coll_comm *c)
{
    for (int i = 0; i < REQUESTS; i++)
        if (!c->request[i].used) {
            c->request[i] = (struct coll_request){.comm = c, .used = true};
            return &c->request[i];
        }
    return NULL;
}

static ncclResult_t begin(struct coll_comm *c, struct coll_request *r, enum kind kind)
{
    int n = c->ranks;
    r->is.number = c->number++;
    r->is.kind = kind;
    r->is.ranks = (uint32_t)n;
    r->steps = kind == ALLREDUCE ? 2 * (n - 1) : n - 1;
    r->reduces = kind == ALLGATHER ? 0 : n - 1;
    r->puts = kind == ALLGATHER ? 0 : n - 2;
    r->first = kind == REDUCESCATTER ? (c->rank + n - 1) % n : c->rank;
    if (n == 1) {
        uint64_t from;
        char *block = malloc(coll_block(r, 0, &from) + 1);
        if (!block) return net_no_memory("a block of a collective", coll_block(r, 0, &from) + 1);
        coll_block_own(r, TAKE, 0, block);
        coll_block_give(r, 0, block);
        free(block);
        r->done = true;
        return ncclSuccess;
    }
    c->queue[c->last++ % REQUESTS] = r;
    progress(c);
    return c->failed;
}

static ncclResult_t begun(struct coll_request *r, ncclResult_t result, void **request)
{
    if (result == ncclSuccess)
        *request = r;
    else
        r->used = false;
    return result;
}

ncclResult_t coll_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            void *send_mhandle, void *recv_mhandle, void **request)
{
    *request = NULL;
    struct coll_comm *c = comm_of(comm);
    if (!c) return net_misuse("iallreduce", "this is not an open comm of CollNet");
    if (!reduce_supported(type, op))
        return net_misuse("iallreduce", "reduceSupport reports that this is not supported");
    if (c->failed != ncclSuccess) return c->failed;
    size_t size = count * reduce_size(type);
    if (!holds(send_mhandle, c, send, size) || !holds(recv_mhandle, c, recv, size))
        return net_misuse("iallreduce", "a buffer is outside the memory of its mhandle");
    struct coll_request *r = request_take(c);
    if (!r) return ncclSuccess;
    r->is = (struct coll_header){.type = type, .op = op, .count = count, .bytes = size};
    r->send = send;
    r->recv = recv;
    r->total = size;
    return begun(r, begin(c, r, ALLREDUCE), request);
}

/* Checks that apply to both kinds of window. */
static ncclResult_t window(const char *call, struct coll_comm *c, struct coll_request *r, int n,
                           const ncclNetSGE_v12_t *parts, size_t share, size_t offset, size_t bytes, size_t element)
{
    size_t room = 0;
    if (n < 1 || n > PARTS) return net_misuse(call, "too many parts");
    for (int i = 0; i < n; i++) {
        if (!holds(parts[i].mhandle, c, parts[i].address, parts[i].size))
            return net_misuse(call, "a part is outside the memory of its mhandle");
        if (parts[i].size % element) return net_misuse(call, "a part ends within an element");
        room += parts[i].size;
    }
    if (room < bytes) return net_misuse(call, "the parts are smaller than the window");
    if (offset > share * (size_t)c->ranks || bytes > share * (size_t)c->ranks - offset)
        return net_misuse(call, "the window is larger than the ranks' data");
    if (share % element || offset % element || bytes % element)
        return net_misuse(call, "a size is not a multiple of the element");
    r->is.share = share;
    r->is.offset = offset;
    r->is.bytes = bytes;
    r->nparts = n;
    memcpy(r->part, parts, (size_t)n * sizeof *parts);
    return ncclSuccess;
}

ncclResult_t coll_allgather(void *comm, void *send, int n, const ncclNetSGE_v12_t *parts, size_t share, size_t offset,
                            size_t bytes, void *send_mhandle, void **request)
{
    *request = NULL;
    struct coll_comm *c = comm_of(comm);
    if (!c) return net_misuse("iallgather", "this is not an open comm of CollNet");
    if (c->failed != ncclSuccess) return c->failed;
    struct coll_request *r = request_take(c);
    if (!r) return ncclSuccess;
    ncclResult_t result = window("iallgather", c, r, n, parts, share, offset, bytes, 1);
    if (result == ncclSuccess) {
        uint64_t from;
        r->is.kind = ALLGATHER;
        r->is.ranks = (uint32_t)c->ranks;
        if (!holds(send_mhandle, c, send, coll_block(r, c->rank, &from)))
            result = net_misuse("iallgather", "the buffer is outside the memory of its mhandle");
    }
    r->send = send;
    r->total = bytes;
    return begun(r, result == ncclSuccess ? begin(c, r, ALLGATHER) : result, request);
}

ncclResult_t coll_reducescatter(void *comm, int n, const ncclNetSGE_v12_t *parts, void *recv, size_t share,
                                size_t offset, size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *recv_mhandle,
                                void **request)
{
    *request = NULL;
    struct coll_comm *c = comm_of(comm);
    if (!c) return net_misuse("ireducescatter", "this is not an open comm of CollNet");
    if (!reduce_supported(type, op))
        return net_misuse("ireducescatter", "reduceSupport reports that this is not supported");
    if (c->failed != ncclSuccess) return c->failed;
    struct coll_request *r = request_take(c);
    if (!r) return ncclSuccess;
    r->is.type = type;
    r->is.op = op;
    ncclResult_t result = window("ireducescatter", c, r, n, parts, share, offset, bytes, reduce_size(type));
    if (result == ncclSuccess) {
        uint64_t from;
        r->is.kind = REDUCESCATTER;
        r->is.ranks = (uint32_t)c->ranks;
        r->total = coll_block(r, c->rank, &from);
        if (!holds(recv_mhandle, c, recv, r->total))
            result = net_misuse("ireducescatter", "the buffer is outside the memory of its mhandle");
    }
    r->recv = recv;
    return begun(r, result == ncclSuccess ? begin(c, r, REDUCESCATTER) : result, request);
}

/* Host memory: nothing to wait for. */
ncclResult_t coll_flush(void *comm, void *data, int size, void *mhandle, void **request)
{
    (void)data, (void)size, (void)mhandle;
    *request = NULL;
    struct coll_comm *c = comm_of(comm);
    if (!c) return net_misuse("iflush", "this is not an open comm of CollNet");
    struct coll_request *r = request_take(c);
    if (!r) return ncclSuccess;
    r->done = true;
    *request = r;
    return ncclSuccess;
}

ncclResult_t coll_test(void *request, int *done, int *size)
{
    *done = 0;
    struct coll_request *r = request;
    if (!net_is_given(r, NET_GIVEN_COLL_REQUEST) || !r->used)
        return net_misuse("test", "this is not an open request of CollNet");
    struct coll_comm *c = r->comm;
    if (!r->done) progress(c);
    if (!r->done) return c->failed;
    *done = 1;
    if (size) *size = (int)r->total;
    r->used = false;
    return ncclSuccess;
}
