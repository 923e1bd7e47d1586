/* Ranks of a CollNet communicator, in processes of their own: collnet LIB VERSION RANKS IN_FLIGHT FOLDER. They do what
 * the lines of FOLDER/program say, with the bytes of FOLDER/in.RANK, and write what they get to FOLDER/out.RANK:
 *   allreduce TYPE OP COUNT IN_PLACE
 *   allgather SHARE OFFSET BYTES PARTS
 *   reducescatter TYPE OP SHARE OFFSET BYTES PARTS
 *   flush
 * A rank named in COLLNET_LEAVES ends before the last line. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>

#include "driver.h"
#include "psm_abi/collnet.h"

enum { MOST = 16 };

static struct shared {
    char handle[MOST][128];
    _Atomic int ready[4];
} *shared;
static int rank, ranks;
static void *collnet, *coll_context, *comm;

#define C(v) ((const ncclCollNet_v##v##_t *)collnet)
#define EACH(call)                                                                                                     \
    (version == 12   ? C(12)->call                                                                                     \
     : version == 11 ? C(11)->call                                                                                     \
     : version == 10 ? C(10)->call                                                                                     \
     : version == 9  ? C(9)->call                                                                                      \
     : version == 8  ? C(8)->call                                                                                      \
     : version == 7  ? C(7)->call                                                                                      \
     : version == 6  ? C(6)->call                                                                                      \
     : version == 5  ? C(5)->call                                                                                      \
                     : C(4)->call)

static size_t size_of(int type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

static void all_here(int point)
{
    double until = now() + DEADLINE;
    atomic_fetch_add(&shared->ready[point], 1);
    while (atomic_load(&shared->ready[point]) < ranks) {
        CHECK(now() < until, "not all ranks come");
        sched_yield();
    }
}

static void open_comm(void)
{
    void *listener = NULL, *handles[MOST];
    int n = -1;
    ncclNetProperties_v12_t properties;
    if (version >= 11)
        OK(version == 12 ? C(12)->init(&coll_context, 7, logger) : C(11)->init(&coll_context, 7, logger));
    else
        OK(version == 10  ? C(10)->init(logger)
           : version == 9 ? C(9)->init(logger)
           : version == 8 ? C(8)->init(logger)
           : version == 7 ? C(7)->init(logger)
           : version == 6 ? C(6)->init(logger)
           : version == 5 ? C(5)->init(logger)
                          : C(4)->init(logger));
    OK(EACH(devices(&n)));
    CHECK(n == 1, "%d devices", n);
    if (version == 12) {
        OK(C(12)->getProperties(0, &properties));
        CHECK(properties.ptrSupport == NCCL_PTR_HOST && properties.maxCollBytes > 0 && properties.latency > 0);
    }
    if (version >= 11)
        OK(version == 12 ? C(12)->listen(coll_context, 0, shared->handle[rank], &listener)
                         : C(11)->listen(coll_context, 0, shared->handle[rank], &listener));
    else if (version == 10)
        OK(C(10)->listen(0, shared->handle[rank], &listener));
    else
        OK(version == 9   ? C(9)->listen(0, shared->handle[rank], &listener)
           : version == 8 ? C(8)->listen(0, shared->handle[rank], &listener)
           : version == 7 ? C(7)->listen(0, shared->handle[rank], &listener)
           : version == 6 ? C(6)->listen(0, shared->handle[rank], &listener)
           : version == 5 ? C(5)->listen(0, shared->handle[rank], &listener)
                          : C(4)->listen(0, shared->handle[rank], &listener));
    all_here(0);
    for (int i = 0; i < ranks; i++) handles[i] = shared->handle[i];
    OK(EACH(connect(handles, ranks, rank, listener, &comm)));
    CHECK(comm != NULL);
    OK(EACH(closeListen(listener)));
}

static void *registered(void *data, size_t size)
{
    void *mhandle = NULL;
    OK(EACH(regMr(comm, data, size, NCCL_PTR_HOST, &mhandle)));
    return mhandle;
}

/* ---- one line of the program ---- */

struct job {
    void *request, *send, *recv, *send_mhandle, *recv_mhandle;
    char *out;
    size_t out_size, total;
    int parts;
    ncclNetSGE_v12_t part[MOST];
};

static void *taken(FILE *in, size_t size)
{
    void *data = malloc(size + 1);
    CHECK(data && fread(data, 1, size, in) == size, "the input is too short");
    return data;
}

/* This rank's share of the window. */
static size_t own_size(size_t share, size_t offset, size_t bytes)
{
    size_t low = share * (size_t)rank, high = low + share;
    low = low > offset ? low : offset;
    high = high < offset + bytes ? high : offset + bytes;
    return low < high ? high - low : 0;
}

static void in_parts(struct job *j, char *data, size_t bytes, int n, size_t element, void *mhandle)
{
    size_t each = bytes / element / (size_t)n * element;
    j->parts = n;
    for (int i = 0; i < n; i++) {
        size_t size = i == n - 1 ? bytes - each * (size_t)(n - 1) : each;
        j->part[i] = (ncclNetSGE_v12_t){mhandle, data + each * (size_t)i, size};
    }
}

#define WITH_PARTS(v, call)                                                                                            \
    case v: {                                                                                                          \
        ncclNetSGE_v##v##_t part[MOST];                                                                                \
        for (int i = 0; i < j->parts; i++) {                                                                           \
            part[i].mhandle = j->part[i].mhandle, part[i].address = j->part[i].address;                                \
            part[i].size = (__typeof__(part[i].size))j->part[i].size;                                                  \
        }                                                                                                              \
        return C(v)->call;                                                                                             \
    }
#define GATHER iallgather(comm, j->send, j->parts, part, share, offset, bytes, j->send_mhandle, &j->request)
#define SCATTER                                                                                                        \
    ireducescatter(comm, j->parts, part, j->recv, share, offset, bytes, (ncclDataType_t)type, (ncclRedOp_t)op,         \
                   j->recv_mhandle, &j->request)

static ncclResult_t gather(struct job *j, size_t share, size_t offset, size_t bytes)
{
    switch (version) {
        WITH_PARTS(12, GATHER)
        WITH_PARTS(11, GATHER)
        WITH_PARTS(10, GATHER)
        WITH_PARTS(9, GATHER)
        WITH_PARTS(8, GATHER)
    }
    return ncclInternalError;
}

static ncclResult_t scatter(struct job *j, int type, int op, size_t share, size_t offset, size_t bytes)
{
    switch (version) {
        WITH_PARTS(12, SCATTER)
        WITH_PARTS(11, SCATTER)
        WITH_PARTS(10, SCATTER)
        WITH_PARTS(9, SCATTER)
        WITH_PARTS(8, SCATTER)
    }
    return ncclInternalError;
}

static ncclResult_t reduce(struct job *j, int type, int op, size_t count)
{
    if (version <= 8) /* the count is an int there, and the compiler makes it one */
        return EACH(iallreduce(comm, j->send, j->recv, (int)count, (ncclDataType_t)type, (ncclRedOp_t)op,
                               j->send_mhandle, j->recv_mhandle, &j->request));
    return EACH(iallreduce(comm, j->send, j->recv, count, (ncclDataType_t)type, (ncclRedOp_t)op, j->send_mhandle,
                           j->recv_mhandle, &j->request));
}

static ncclResult_t start(const char *line, FILE *in, struct job *j)
{
    int type, op, in_place, parts, supported;
    size_t count, share, offset, bytes;
    *j = (struct job){0};
    if (sscanf(line, "allreduce %d %d %zu %d", &type, &op, &count, &in_place) == 4) {
        OK(EACH(reduceSupport((ncclDataType_t)type, (ncclRedOp_t)op, &supported)));
        CHECK(supported == 1);
        j->out_size = j->total = count * size_of(type);
        j->send = taken(in, j->out_size);
        j->recv = j->out = in_place ? j->send : malloc(j->out_size + 1);
        j->send_mhandle = registered(j->send, j->out_size);
        j->recv_mhandle = registered(j->recv, j->out_size);
        return reduce(j, type, op, count);
    }
    if (sscanf(line, "allgather %zu %zu %zu %d", &share, &offset, &bytes, &parts) == 4) {
        j->send = taken(in, own_size(share, offset, bytes));
        j->send_mhandle = registered(j->send, own_size(share, offset, bytes));
        j->recv = j->out = malloc(bytes + 1);
        j->out_size = j->total = bytes;
        j->recv_mhandle = registered(j->recv, bytes);
        in_parts(j, j->recv, bytes, parts, 1, j->recv_mhandle);
        return gather(j, share, offset, bytes);
    }
    if (sscanf(line, "reducescatter %d %d %zu %zu %zu %d", &type, &op, &share, &offset, &bytes, &parts) == 6) {
        j->send = taken(in, bytes);
        j->send_mhandle = registered(j->send, bytes);
        j->out_size = j->total = own_size(share, offset, bytes);
        j->recv = j->out = malloc(j->out_size + 1);
        j->recv_mhandle = registered(j->recv, j->out_size);
        in_parts(j, j->send, bytes, parts, size_of(type), j->send_mhandle);
        return scatter(j, type, op, share, offset, bytes);
    }
    CHECK(strncmp(line, "flush", 5) == 0, "%s is no line", line);
    return EACH(iflush(comm, shared, 64, NULL, &j->request));
}

static void drop(struct job *j)
{
    if (j->send_mhandle) OK(EACH(deregMr(comm, j->send_mhandle)));
    if (j->recv_mhandle) OK(EACH(deregMr(comm, j->recv_mhandle)));
    if (j->send != j->recv) free(j->send);
    free(j->recv);
    *j = (struct job){0};
}

static ncclResult_t end(struct job *j, FILE *out)
{
    double until = now() + DEADLINE;
    for (int done = 0; !done; sched_yield()) {
        int size = -1;
        ncclResult_t result = EACH(test(j->request, &done, &size));
        if (result != ncclSuccess) return result;
        CHECK(now() < until, "a collective does not end");
        CHECK(!done || size == (int)j->total, "test says %d bytes, not %zu", size, j->total);
    }
    CHECK(!j->out_size || fwrite(j->out, 1, j->out_size, out) == j->out_size);
    drop(j);
    return ncclSuccess;
}

static FILE *file(const char *folder, const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, mode);
    CHECK(f != NULL, "%s", path);
    return f;
}

static int be_a_rank(const char *folder, int in_flight)
{
    char line[MOST * 8][128], name[32];
    static struct job job[MOST * 8]; /* what an error leaves is in use still */
    int lines = 0, supported = 1;
    snprintf(name, sizeof name, "program.%d", rank);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *program = file(folder, access(path, R_OK) == 0 ? name : "program", "r");
    while (lines < MOST * 8 && fgets(line[lines], sizeof line[0], program)) lines++;
    fclose(program);
    snprintf(name, sizeof name, "in.%d", rank);
    FILE *in = file(folder, name, "r");
    snprintf(name, sizeof name, "out.%d", rank);
    FILE *out = file(folder, name, "w");
    open_comm();
    OK(EACH(reduceSupport(ncclFloat8e4m3, ncclSum, &supported)));
    CHECK(supported == 0);
    OK(EACH(reduceSupport(ncclFloat32, ncclAvg, &supported)));
    CHECK(supported == 0);
    const char *leaves = getenv("COLLNET_LEAVES");
    ncclResult_t result = ncclSuccess;
    for (int started = 0, ended = 0; ended < lines && result == ncclSuccess;) {
        while (result == ncclSuccess && started < lines && started < ended + in_flight) {
            if (leaves && atoi(leaves) == rank && started == lines - 1) break;
            long at = ftell(in);
            result = start(line[started], in, &job[started]);
            if (result != ncclSuccess) break;
            if (!job[started].request) { /* so many are taken at a time; this comes again */
                CHECK(started > ended);
                drop(&job[started]);
                fseek(in, at, SEEK_SET);
                break;
            }
            started++;
        }
        if (ended == started) break;
        if (result == ncclSuccess) result = end(&job[ended++], out);
    }
    fclose(in);
    fclose(out);
    printf("rank %d: result %d\n", rank, result);
    OK(EACH(closeColl(comm)));
    if (version == 12) OK(C(12)->finalize(coll_context));
    if (version == 11) OK(C(11)->finalize(coll_context));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 6) return 2;
    version = atoi(argv[2]);
    ranks = atoi(argv[3]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MOST];
    for (rank = 0; rank < ranks; rank++) {
        if ((pids[rank] = fork()) != 0) continue;
        char text[16], symbol[40];
        snprintf(text, sizeof text, "%d", rank);
        setenv("PSM_RANK", text, 1);
        who = "rank";
        void *library = dlopen(argv[1], RTLD_NOW);
        snprintf(symbol, sizeof symbol, "ncclCollNetPlugin_v%d", version);
        CHECK(library && (collnet = dlsym(library, symbol)), "%s", dlerror());
        int status = be_a_rank(argv[5], atoi(argv[4]));
        fflush(stdout);
        return status;
    }
    int failed = 0;
    for (int r = 0; r < ranks; r++) {
        int status;
        CHECK(waitpid(pids[r], &status, 0) == pids[r]);
        failed += status != 0;
    }
    return failed;
}
