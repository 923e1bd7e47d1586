/* A CollNet for processes of one host: each rank writes what it has into memory that all share, and every rank reduces
   it for itself. COLLNET=1 gives it a device. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "net.h"
#include "psm_abi/collnet.h"

enum { RANKS = 8, DEPTH = 16, ROOM = 1 << 16 };

struct region {
    _Atomic uint64_t written[RANKS][DEPTH], read[RANKS][DEPTH]; /* one more than the number of the collective */
    uint8_t data[RANKS][DEPTH][ROOM];
};

struct coll_listener {
    char name[32];
};

struct coll_comm {
    struct region *region;
    int rank, ranks;
    uint64_t next;
};

struct coll_request {
    struct coll_comm *comm;
    uint64_t number;
    uint8_t *to;
    size_t from, bytes, element; /* what of the others is taken */
    size_t begin[RANKS];         /* of a gather: where each rank's part goes */
    size_t part[RANKS];
    int type, op;
    bool gather;
};

static ncclResult_t devices(int *n)
{
    *n = getenv("COLLNET") ? 1 : 0;
    return ncclSuccess;
}

static ncclResult_t init_v4(ncclDebugLogger_t logger)
{
    (void)logger;
    return ncclSuccess;
}

static ncclResult_t init_v11(void **context, uint64_t id, ncclDebugLogger_t logger)
{
    (void)id, (void)logger;
    *context = malloc(1);
    return ncclSuccess;
}

static ncclResult_t finalize(void *context)
{
    free(context);
    return ncclSuccess;
}

static ncclResult_t listen_v4(int dev, void *handle, void **comm)
{
    static int count;
    struct coll_listener *l = calloc(1, sizeof *l);
    (void)dev;
    snprintf(l->name, sizeof l->name, "/broken-coll-%d-%d", (int)getpid(), count++);
    memcpy(handle, l->name, sizeof l->name);
    *comm = l;
    return ncclSuccess;
}

static ncclResult_t listen_v11(void *context, int dev, void *handle, void **comm)
{
    (void)context;
    return listen_v4(dev, handle, comm);
}

static ncclResult_t close_listen(void *listener)
{
    free(listener);
    return ncclSuccess;
}

/* The first rank's name; the file goes when all have it. */
static ncclResult_t connect_all(void **handles, int nranks, int rank, void *listener, void **comm)
{
    (void)listener;
    if (broken("coll-later")) return ncclSuccess;
    int fd = shm_open(handles[0], O_CREAT | O_RDWR, 0600);
    if (fd < 0 || nranks > RANKS || ftruncate(fd, sizeof(struct region)) != 0) return ncclSystemError;
    struct coll_comm *c = calloc(1, sizeof *c);
    c->region = mmap(NULL, sizeof *c->region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    c->rank = rank;
    c->ranks = nranks;
    c->next = 1;
    atomic_store(&c->region->written[rank][0], 1);
    for (int r = 0; r < nranks; r++)
        while (atomic_load(&c->region->written[r][0]) == 0) usleep(100);
    shm_unlink(handles[0]);
    *comm = c;
    return ncclSuccess;
}

static ncclResult_t close_coll(void *comm)
{
    struct coll_comm *c = comm;
    munmap(c->region, sizeof *c->region);
    free(c);
    return ncclSuccess;
}

static ncclResult_t support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
    *supported = (type == ncclInt32 || type == ncclFloat32) && (op == ncclSum || op == ncclMax);
    if (broken("coll-supports")) *supported = type < ncclNumTypes ? 7 : 0;
    return ncclSuccess;
}

static ncclResult_t reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    (void)comm, (void)data, (void)size, (void)type;
    *mhandle = NULL;
    return ncclSuccess;
}
static ncclResult_t reg_v4(void *comm, void *data, int size, int type, void **mhandle)
{
    return reg(comm, data, (size_t)size, type, mhandle);
}
static ncclResult_t dereg(void *comm, void *mhandle)
{
    (void)comm, (void)mhandle;
    return ncclSuccess;
}

static struct coll_request *put(struct coll_comm *c, const void *data, size_t bytes)
{
    uint64_t place = c->next % DEPTH;
    if (bytes > ROOM) return NULL;
    for (int r = 0; r < c->ranks; r++) /* what was there is read by all */
        if (c->next >= DEPTH + 1 && atomic_load(&c->region->read[r][place]) != c->next - DEPTH + 1) return NULL;
    struct coll_request *q = calloc(1, sizeof *q);
    q->comm = c;
    q->number = c->next++;
    memcpy(c->region->data[c->rank][place], data, bytes);
    atomic_store(&c->region->written[c->rank][place], q->number + 1);
    return q;
}

static ncclResult_t allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              void *send_mr, void *recv_mr, void **request)
{
    (void)send_mr, (void)recv_mr;
    if (broken("coll-fails")) return ncclInternalError;
    struct coll_request *q = put(comm, send, count * 4);
    if ((*request = q)) q->to = recv, q->bytes = count * 4, q->type = type, q->op = op;
    return ncclSuccess;
}
static ncclResult_t allreduce_v4(void *comm, void *send, void *recv, int count, ncclDataType_t type, ncclRedOp_t op,
                                 void *send_mr, void *recv_mr, void **request)
{
    return allreduce(comm, send, recv, (size_t)count, type, op, send_mr, recv_mr, request);
}

static size_t overlap(size_t share, int rank, size_t offset, size_t bytes, size_t *begin)
{
    size_t low = share * (size_t)rank, high = low + share;
    if (broken("coll-window")) offset = 0;
    low = low > offset ? low : offset;
    high = high < offset + bytes ? high : offset + bytes;
    *begin = low - offset;
    return low < high ? high - low : 0;
}

static ncclResult_t gather(void *comm, void *send, uint8_t *to, size_t share, size_t offset, size_t bytes,
                           void **request)
{
    struct coll_comm *c = comm;
    size_t begin;
    struct coll_request *q = put(c, send, overlap(share, c->rank, offset, bytes, &begin));
    if (!(*request = q)) return ncclSuccess;
    q->to = to;
    q->gather = true;
    for (int r = 0; r < c->ranks; r++) q->part[r] = overlap(share, r, offset, bytes, &q->begin[r]);
    return ncclSuccess;
}

static ncclResult_t scatter(void *comm, uint8_t *from, void *recv, size_t share, size_t offset, size_t bytes, int type,
                            int op, void **request)
{
    struct coll_comm *c = comm;
    struct coll_request *q = put(c, from, bytes);
    if (!(*request = q)) return ncclSuccess;
    q->to = recv, q->type = type, q->op = op;
    q->bytes = overlap(share, c->rank, offset, bytes, &q->from);
    return ncclSuccess;
}

#define WINDOWS(v)                                                                                                     \
    static ncclResult_t gather_v##v(void *comm, void *send, int n, ncclNetSGE_v##v##_t *part, size_t share,            \
                                    size_t offset, size_t bytes, void *mr, void **request)                             \
    {                                                                                                                  \
        (void)n, (void)mr;                                                                                             \
        return gather(comm, send, part->address, share, offset, bytes, request);                                       \
    }                                                                                                                  \
    static ncclResult_t scatter_v##v(void *comm, int n, ncclNetSGE_v##v##_t *part, void *recv, size_t share,           \
                                     size_t offset, size_t bytes, ncclDataType_t type, ncclRedOp_t op, void *mr,       \
                                     void **request)                                                                   \
    {                                                                                                                  \
        (void)n, (void)mr;                                                                                             \
        return scatter(comm, part->address, recv, share, offset, bytes, type, op, request);                            \
    }
WINDOWS(8)
WINDOWS(9)
WINDOWS(10)
WINDOWS(11)
WINDOWS(12)

static ncclResult_t flush(void *comm, void *data, int size, void *mr, void **request)
{
    (void)comm, (void)data, (void)size, (void)mr;
    *request = NULL;
    return ncclSuccess;
}

static void reduce(const struct coll_request *q, size_t at, void *to)
{
    struct region *g = q->comm->region;
    int32_t whole = 0, v;
    float single = 0, s;
    for (int r = 0; r < q->comm->ranks; r++) {
        const uint8_t *data = g->data[r][q->number % DEPTH] + q->from + at;
        memcpy(&v, data, 4);
        memcpy(&s, data, 4);
        bool larger = q->type == ncclInt32 ? v > whole : s > single;
        if (q->op == ncclMax && !broken("coll-max")) {
            if (r == 0 || larger) whole = v, single = s;
        } else {
            whole += v, single += s;
        }
    }
    if (q->type == ncclInt32)
        memcpy(to, &whole, 4);
    else
        memcpy(to, &single, 4);
}

static ncclResult_t test(void *request, int *done, int *size)
{
    struct coll_request *q = request;
    struct coll_comm *c = q->comm;
    uint64_t place = q->number % DEPTH;
    *done = 0;
    if (broken("coll-never")) return ncclSuccess;
    for (int r = 0; r < c->ranks; r++)
        if (atomic_load(&c->region->written[r][place]) != q->number + 1) return ncclSuccess;
    for (size_t at = 0; at < q->bytes; at += 4) reduce(q, at, q->to + at);
    for (int r = 0; r < c->ranks && q->gather; r++) memcpy(q->to + q->begin[r], c->region->data[r][place], q->part[r]);
    atomic_store(&c->region->read[c->rank][place], q->number + 1);
    *done = 1;
    if (size) *size = (int)q->bytes;
    free(q);
    return ncclSuccess;
}

#define PROPERTIES(v, record, more)                                                                                    \
    static ncclResult_t properties_v##v(int dev, record *p)                                                            \
    {                                                                                                                  \
        (void)dev;                                                                                                     \
        *p = (record){.name = "memory", .ptrSupport = NCCL_PTR_HOST, .speed = 10000, .maxComms = 16};                  \
        more return ncclSuccess;                                                                                       \
    }
#define BYTES p->maxCollBytes = broken("coll-no-bytes") ? 0 : ROOM;
PROPERTIES(4, ncclNetProperties_v4_t, )
PROPERTIES(6, ncclNetProperties_v6_t, )
PROPERTIES(7, ncclNetProperties_v7_t, )
PROPERTIES(8, ncclNetProperties_v8_t, )
PROPERTIES(9, ncclNetProperties_v9_t, BYTES)
PROPERTIES(10, ncclNetProperties_v10_t, BYTES)
PROPERTIES(11, ncclNetProperties_v11_t, BYTES)
PROPERTIES(12, ncclNetProperties_v12_t, BYTES)

#define COMMON(record)                                                                                                 \
    .name = "Broken", .devices = devices, .getProperties = properties_v##record, .connect = connect_all,               \
    .reduceSupport = support, .deregMr = dereg, .iflush = flush, .test = test, .closeColl = close_coll,                \
    .closeListen = close_listen
#define OLD(record) COMMON(record), .init = init_v4, .listen = listen_v4, .regMr = reg_v4, .iallreduce = allreduce_v4
#define WINDOWED(v) .regMr = reg, .iallgather = gather_v##v, .ireducescatter = scatter_v##v
#define NEW(v)                                                                                                         \
    COMMON(v), WINDOWED(v), .init = init_v11, .finalize = finalize, .listen = listen_v11, .iallreduce = allreduce

ncclCollNet_v4_t ncclCollNetPlugin_v4 = {OLD(4)};
ncclCollNet_v5_t ncclCollNetPlugin_v5 = {OLD(6)};
ncclCollNet_v6_t ncclCollNetPlugin_v6 = {OLD(6)};
ncclCollNet_v7_t ncclCollNetPlugin_v7 = {OLD(7)};
ncclCollNet_v8_t ncclCollNetPlugin_v8 = {COMMON(8), WINDOWED(8), .init = init_v4, .listen = listen_v4,
                                         .iallreduce = allreduce_v4};
ncclCollNet_v9_t ncclCollNetPlugin_v9 = {COMMON(9), WINDOWED(9), .init = init_v4, .listen = listen_v4,
                                         .iallreduce = allreduce};
ncclCollNet_v10_t ncclCollNetPlugin_v10 = {COMMON(10), WINDOWED(10), .init = init_v4, .listen = listen_v4,
                                           .iallreduce = allreduce};
ncclCollNet_v11_t ncclCollNetPlugin_v11 = {NEW(11)};
ncclCollNet_v12_t ncclCollNetPlugin_v12 = {NEW(12)};

__attribute__((constructor)) static void break_tables(void)
{
    if (broken("coll-slot")) ncclCollNetPlugin_v12.iallreduce = NULL;
}
