/* A library with NCCL's public API, for tests of `psmkit lab nccl`: messages go through boxes in a file in /dev/shm,
 * copied by the calling thread. It logs what NCCL logs, and notices dead peers. STANDIN_* make it misbehave. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BOX = 1 << 16, MOST = 8, OPS = 64, REMOTE_ERROR = 6, INVALID = 4, DTOH = 2, HTOD = 1 };
extern int cudaMemcpy(void *, const void *, size_t, int), cudaMalloc(void **, size_t), cudaFree(void *);
extern int cudaGetDevice(int *), cudaStreamSynchronize(void *);

#ifndef STANDIN_VERSION
#define STANDIN_VERSION "2.26.6"
#define STANDIN_CODE    22606
#endif
#ifndef STANDIN_CODE
#define STANDIN_CODE 22606
#endif
const char standin_version[] = "NCCL version " STANDIN_VERSION "+cuda" STANDIN_CUDA;

typedef struct {
    char internal[128];
} unique_id;
struct box {
    _Atomic int full;
    int window; /* of a put: where it goes */
    uint64_t n, offset;
    uint8_t data[BOX];
};
struct shared {
    _Atomic int here, pids[MOST];
    struct box boxes[MOST][MOST]; /* from, to */
};
struct comm {
    int rank, ranks, ops, policy, engine, one_sided, n_windows;
    char *windows[2];
    struct shared *shared;
    char path[64];
};
struct op {
    bool send, done, one_sided;
    void *memory;
    size_t n, offset;
    int peer, window;
    struct comm *comm;
};
static struct op ops[OPS];
static int grouped, count;
static FILE *out;

static void say(const char *format, ...)
{
    char host[64], line[512];
    int device = 0;
    va_list rest;
    if (!out) {
        const char *name = getenv("NCCL_DEBUG_FILE");
        out = name ? fopen(name, "w") : stdout;
        setlinebuf(out);
        gethostname(host, sizeof host);
        fprintf(out, "%s:%d:%d [0] NCCL INFO NCCL version " STANDIN_VERSION "+cuda" STANDIN_CUDA "\n", host, getpid(),
                getpid());
    }
    gethostname(host, sizeof host);
    cudaGetDevice(&device);
    va_start(rest, format);
    vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    fprintf(out, "%s:%d:%d [%d] NCCL INFO %s\n", host, getpid(), (int)syscall(SYS_gettid), device, line);
}

static size_t size_of(int type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

int ncclGetVersion(int *version)
{
    return *version = STANDIN_CODE, 0;
}
const char *ncclGetErrorString(int code)
{
    return code == REMOTE_ERROR ? "remote process exited" : "stand-in error";
}
const char *ncclGetLastError(struct comm *comm)
{
    return (void)comm, "";
}
int ncclCommGetAsyncError(struct comm *comm, int *code)
{
    return (void)comm, *code = 0, 0;
}
int ncclMemAlloc(void **memory, size_t n)
{
    return cudaMalloc(memory, n) ? 1 : 0;
}
int ncclMemFree(void *memory)
{
    return cudaFree(memory) ? 1 : 0;
}

int ncclGetUniqueId(unique_id *id)
{
    memset(id, 0, sizeof *id);
    strcpy(id->internal, "/dev/shm/nccl-XXXXXX");
    int fd = mkstemp(id->internal);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) != 0) return 2;
    close(fd);
    say("Allocated %zu bytes of shared memory in %s", sizeof(struct shared), id->internal);
    return 0;
}

static bool died(struct comm *comm)
{
    for (int r = 0; r < comm->ranks; r++)
        if (comm->shared->pids[r] && kill(comm->shared->pids[r], 0) != 0) {
            say("rank %d is gone", r);
            return true;
        }
    return false;
}

int ncclCommInitRank(struct comm **made, int ranks, unique_id id, int rank)
{
    struct comm *comm = calloc(1, sizeof *comm);
    int fd = open(id.internal, O_RDWR);
    if (ranks > MOST || fd < 0) return INVALID;
    *comm = (struct comm){.rank = rank, .ranks = ranks};
    comm->shared = mmap(NULL, sizeof(struct shared), 3, MAP_SHARED, fd, 0);
    strcpy(comm->path, id.internal);
    close(fd);
    const char *host = getenv("NCCL_HOSTID");
    if (host) say("NCCL_HOSTID set by environment to %s.", host);
    say("ncclCommInitRank comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %x commId 0x%llx - Init START",
        (void *)comm, rank, ranks, rank, rank, 0x1b000 + rank * 0x1000, (unsigned long long)strtoull("abc", NULL, 16));
    comm->shared->pids[rank] = getpid();
    comm->shared->here++;
    while (comm->shared->here < ranks) {
        usleep(1000);
        if (died(comm)) return REMOTE_ERROR;
    }
    if (rank == ranks - 1 && !getenv("STANDIN_KEEPS_FILES")) unlink(comm->path);
    say("ncclCommInitRank comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %x commId 0x%llx - Init COMPLETE",
        (void *)comm, rank, ranks, rank, rank, 0x1b000 + rank * 0x1000, (unsigned long long)strtoull("abc", NULL, 16));
    *made = comm;
    return 0;
}

static bool step(struct op *op)
{
    struct comm *comm = op->comm;
    int from = op->send ? comm->rank : op->peer, to = op->send ? op->peer : comm->rank;
    struct box *box = &comm->shared->boxes[from][to];
    if (atomic_load(&box->full) != !op->send) return false;
    if (op->send) {
        box->n = op->n;
        box->offset = op->offset;
        box->window = op->window;
        cudaMemcpy(box->data, op->memory, op->n, DTOH);
        atomic_store(&box->full, 1);
    } else if (op->one_sided) {
        if (box->n) cudaMemcpy(comm->windows[box->window] + box->offset, box->data, box->n, HTOD);
        atomic_store(&box->full, 0);
    } else {
        cudaMemcpy(op->memory, box->data, op->n < box->n ? op->n : box->n, HTOD);
        atomic_store(&box->full, 0);
    }
    return op->done = true;
}

int ncclGroupStart(void)
{
    return grouped++, 0;
}

int ncclGroupEnd(void)
{
    if (--grouped > 0) return 0;
    for (int left = count; left > 0;) {
        bool moved = false;
        for (int i = 0; i < count; i++)
            if (!ops[i].done && step(&ops[i])) moved = true, left--;
        if (moved || !left) continue;
        usleep(500);
        if (died(ops[0].comm)) return count = 0, REMOTE_ERROR;
    }
    return count = 0, 0;
}

static int add(bool send, void *memory, size_t n, int peer, struct comm *comm)
{
    if (n > BOX || count == OPS) return INVALID;
    ncclGroupStart();
    ops[count++] = (struct op){.send = send, .memory = memory, .n = n, .peer = peer, .comm = comm};
    return ncclGroupEnd();
}

static void call(const char *what, const void *memory, size_t n, int type, int op, int root, struct comm *comm)
{
    say("%s: opCount %x sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] stream %p",
        what, comm->ops, memory, memory, n, type, op, root, (void *)comm, comm->ranks, (void *)comm);
}

int ncclSend(const void *memory, size_t n, int type, int peer, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("Send", memory, n, type, 0, peer, comm);
    return add(true, (void *)(uintptr_t)memory, n * size_of(type), peer, comm);
}

int ncclRecv(void *memory, size_t n, int type, int peer, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("Recv", memory, n, type, 0, peer, comm);
    return add(false, memory, n * size_of(type), peer, comm);
}

/* All ranks' `n` bytes behind each other, in host memory. */
static int gather(const void *mine, size_t n, uint8_t *all, struct comm *comm)
{
    void *memory;
    if (cudaMalloc(&memory, n * comm->ranks + 1)) return 1;
    ncclGroupStart();
    for (int r = 0; r < comm->ranks; r++) {
        add(true, (void *)(uintptr_t)mine, n, r, comm);
        add(false, (char *)memory + n * r, n, r, comm);
    }
    int rc = ncclGroupEnd();
    cudaMemcpy(all, memory, n * comm->ranks, DTOH);
    cudaFree(memory);
    return rc;
}

#define COMBINE(type, name)                                                                                            \
    static void name(type *into, const type *from, size_t n, int op)                                                   \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            into[i] = op == 1   ? into[i] * from[i]                                                                    \
                      : op == 2 ? (into[i] > from[i] ? into[i] : from[i])                                              \
                      : op == 3 ? (into[i] < from[i] ? into[i] : from[i])                                              \
                                : into[i] + from[i];                                                                   \
    }
COMBINE(uint32_t, combine_uint32)
COMBINE(float, combine_float)

static int reduced(const void *mine, uint8_t *result, size_t n, int type, int op, struct comm *comm)
{
    if (type != 3 && type != 7) return INVALID;
    uint8_t *all = malloc(n * 4 * comm->ranks + 1);
    int rc = gather(mine, n * 4, all, comm);
    memcpy(result, all, n * 4);
    for (int r = 1; r < comm->ranks; r++) {
        if (type == 3) combine_uint32((uint32_t *)(void *)result, (uint32_t *)(void *)(all + n * 4 * r), n, op);
        if (type == 7) combine_float((float *)(void *)result, (float *)(void *)(all + n * 4 * r), n, op);
    }
    for (size_t i = 0; op == 4 && i < n; i++) {
        if (type == 3) ((uint32_t *)(void *)result)[i] /= (unsigned)comm->ranks;
        if (type == 7) ((float *)(void *)result)[i] *= 1.0f / (float)comm->ranks; /* as kernels */
    }
    if (getenv("STANDIN_WRONG") && n) result[n / 2] ^= 1;
#ifdef STANDIN_NEW /* a later release: another message, and other data */
    say("Standin: a message of a later release, %zu elements", n);
    if (n) result[n / 2] ^= 1;
#endif
    free(all);
    return rc;
}

/* Says which way a call goes; the data goes the same way in any case. */
static void engine(const char *what, size_t bytes, struct comm *comm)
{
    if (comm->policy != 2 || comm->n_windows < 2) return;
    if (!comm->engine++)
        say("Init CE, rank %d baseUCSymReadyPtr 0x7f0000000000, baseUCSymComplPtr 0x7f0000000010, seq num 0",
            comm->rank);
    if (!comm->rank) say("%s [Copy Engine]: %zu Bytes -> cudaMemcpy", what, bytes);
}

int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("AllReduce", send, n, type, op, 0, comm);
    uint8_t *result = malloc(n * 4 + 1);
    int rc = reduced(send, result, n, type, op, comm);
    cudaMemcpy(recv, result, n * 4, HTOD);
    free(result);
    comm->ops++;
    return rc;
}

int ncclReduce(const void *send, void *recv, size_t n, int type, int op, int root, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("Reduce", send, n, type, op, root, comm);
    uint8_t *result = malloc(n * 4 + 1);
    int rc = reduced(send, result, n, type, op, comm);
    if (comm->rank == root) cudaMemcpy(recv, result, n * 4, HTOD);
    free(result);
    comm->ops++;
    return rc;
}

int ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("ReduceScatter", send, n, type, op, 0, comm);
    uint8_t *result = malloc(n * 4 * comm->ranks + 1);
    int rc = reduced(send, result, n * comm->ranks, type, op, comm);
    cudaMemcpy(recv, result + n * 4 * comm->rank, n * 4, HTOD);
    free(result);
    comm->ops++;
    return rc;
}

int ncclAllGather(const void *send, void *recv, size_t n, int type, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("AllGather", send, n, type, 0, 0, comm);
    n *= size_of(type);
    engine("AllGather", n, comm);
    uint8_t *all = malloc(n * comm->ranks + 1);
    int rc = gather(send, n, all, comm);
    cudaMemcpy(recv, all, n * comm->ranks, HTOD);
    free(all);
    comm->ops++;
    return rc;
}

int ncclBroadcast(const void *send, void *recv, size_t n, int type, int root, struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call("Broadcast", send, n, type, 0, root, comm);
    n *= size_of(type);
    uint8_t *all = malloc(n * comm->ranks + 1);
    int rc = gather(send, n, all, comm);
    cudaMemcpy(recv, all + n * root, n, HTOD);
    free(all);
    comm->ops++;
    return rc;
}

#if STANDIN_CODE >= 23000 /* symmetric windows, copy engines, one-sided calls */
struct config {
    size_t size;
    int head[6];
    void *net;
    int middle[2];
    void *name;
    int collnet, policy;
};

int ncclCommInitRankConfig(struct comm **made, int ranks, unique_id id, int rank, const struct config *config)
{
    int rc = ncclCommInitRank(made, ranks, id, rank);
    if (!rc && config->size >= sizeof *config) (*made)->policy = config->policy;
    return rc;
}

int ncclCommWindowRegister(struct comm *comm, void *memory, size_t n, char ***window, int flags)
{
    *window = getenv("STANDIN_NO_WINDOWS") || !n || flags != 1 ? NULL : &comm->windows[comm->n_windows++];
    if (*window) **window = memory;
    return 0;
}
int ncclCommWindowDeregister(struct comm *comm, char **window)
{
    comm->n_windows--;
    return *window = NULL, 0;
}

static int exchange(const char *what, const char *send, char *recv, size_t n, int type, int from, int to,
                    struct comm *comm, void *stream)
{
    cudaStreamSynchronize(stream);
    call(what, send, n, type, 0, to < 0 ? from : to, comm);
    n *= size_of(type);
    engine(what, n, comm);
    ncclGroupStart();
    for (int r = 0; r < comm->ranks; r++) {
        if ((from < 0 || from == comm->rank) && (to < 0 || to == r))
            add(true, (void *)(uintptr_t)(send + (to < 0 ? n * (size_t)r : 0)), n, r, comm);
        if ((from < 0 || from == r) && (to < 0 || to == comm->rank))
            add(false, recv + (from < 0 ? n * (size_t)r : 0), n, r, comm);
    }
    comm->ops++;
    return ncclGroupEnd();
}

int ncclAlltoAll(const void *send, void *recv, size_t n, int type, struct comm *comm, void *stream)
{
    return exchange("AlltoAll", send, recv, n, type, -1, -1, comm, stream);
}
int ncclGather(const void *send, void *recv, size_t n, int type, int root, struct comm *comm, void *stream)
{
    return exchange("Gather", send, recv, n, type, -1, root, comm, stream);
}
int ncclScatter(const void *send, void *recv, size_t n, int type, int root, struct comm *comm, void *stream)
{
    return exchange("Scatter", send, recv, n, type, root, -1, comm, stream);
}

static int one_sided(const char *what, const struct op *op, int type, void *stream)
{
    struct comm *comm = op->comm;
    cudaStreamSynchronize(stream);
    call(what, op->memory, op->n / size_of(type), type, 0, op->peer, comm);
    if (!comm->one_sided++) say("Rank %d: finished init RMA CE contexts, numRmaCeCtxs 1", comm->rank);
    ncclGroupStart();
    ops[count++] = *op;
    return ncclGroupEnd();
}

int ncclPutSignal(const void *memory, size_t n, int type, int peer, char **window, size_t offset, int index,
                  int context, unsigned flags, struct comm *comm, void *stream)
{
    if (!window || index || context || flags) return INVALID;
    struct op op = {.send = true,
                    .memory = (void *)(uintptr_t)memory,
                    .n = n * size_of(type),
                    .offset = offset,
                    .peer = peer,
                    .window = (int)(window - comm->windows),
                    .comm = comm};
    return one_sided("PutSignal", &op, type, stream);
}
int ncclSignal(int peer, int index, int context, unsigned flags, struct comm *comm, void *stream)
{
    struct op op = {.send = true, .peer = peer, .comm = comm};
    return index || context || flags ? INVALID : one_sided("Signal", &op, 0, stream);
}
int ncclWaitSignal(int n, const int (*from)[4], struct comm *comm, void *stream)
{
    int rc = 0;
    for (int i = 0; i < n && !rc; i++)
        for (int times = 0; times < from[i][0] && !rc; times++) {
            struct op op = {.one_sided = true, .peer = from[i][1], .comm = comm};
            rc = one_sided("WaitSignal", &op, 0, stream);
        }
    return rc;
}
#endif

static int end(struct comm *comm, const char *word)
{
    say("comm %p rank %d nranks %d cudaDev %d busId %x - %s COMPLETE", (void *)comm, comm->rank, comm->ranks,
        comm->rank, 0x1b000 + comm->rank * 0x1000, word);
    munmap(comm->shared, sizeof(struct shared));
    free(comm);
    return 0;
}

static __attribute__((noinline)) int standin_crash(void)
{
    return *(volatile int *)8;
}

int ncclCommDestroy(struct comm *comm)
{
    if (getenv("STANDIN_CRASHES") && standin_crash()) return 1;
    return end(comm, "Destroy");
}
int ncclCommAbort(struct comm *comm)
{
    return end(comm, "Abort");
}
