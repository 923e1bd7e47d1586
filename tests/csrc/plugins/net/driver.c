#define _GNU_SOURCE
#include <pthread.h>

#include "driver.h"
#include "endings.h"
#include "strangers.h"

static const size_t sizes_of[] = {0,    1,     7,     8,          64,         4063,          4064,    4065,
                                  4096, 65536, 65537, 131072 + 5, 262144 - 1, (1 << 20) + 3, 5u << 20};
enum { SIZES = sizeof sizes_of / sizeof *sizes_of };

/* One at a time, then all at once; each receive is larger than its message. */
static void data(bool sender)
{
    struct link l = link_up(sender);
    unsigned char *buffer = malloc(LARGEST + 64);
    void *request;
    int size;
    for (unsigned i = 0; i < SIZES; i++) {
        size_t n = sizes_of[i];
        if (sender) {
            fill(buffer, n, i);
            OK(t_reg(l.comm, buffer, LARGEST, NCCL_PTR_HOST, &l.mhandle));
            do OK(t_isend(l.comm, buffer, n, 3, l.mhandle, &request));
            while (!request);
            OK(finish(request, &size));
            CHECK(size == (int)n);
            OK(t_dereg(l.comm, l.mhandle));
        } else {
            memset(buffer, 0xee, LARGEST + 64);
            OK(receive_one(l.comm, buffer, n + 64, 3, &request));
            OK(finish(request, &size));
            CHECK(size == (int)n, "%d, not %zu", size, n);
            compare(buffer, n, i);
            for (int k = 0; k < 64; k++) CHECK(buffer[n + (size_t)k] == 0xee, "behind a message of %zu", n);
            if (n > 0) {
                OK(t_iflush(l.comm, buffer, (int)n, NULL, &request));
                if (request) OK(finish(request, NULL));
            }
        }
    }
    free(buffer);
    meet();
    link_down(&l, sender);
}

/* As many as the pool holds, until each says "later"; then all of them. */
static void many(bool sender)
{
    enum { ROUNDS = 6, MOST = 512 };
    struct link l = link_up(sender);
    static void *request[MOST];
    static unsigned char *buffer[MOST];
    size_t step = 9973;
    int pool = version >= 7 ? NCCL_NET_MAX_REQUESTS : NCCL_NET_MAX_REQUESTS_V6, total = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int n = 0;
        if (sender) {
            int mine = 0;
            hear(&n, sizeof n);
            for (; mine < n; mine++) {
                size_t size = (size_t)((total + mine) * 7919) % step;
                buffer[mine] = malloc(size + 1);
                fill(buffer[mine], size, (unsigned)(total + mine));
                OK(send_one(l.comm, buffer[mine], size, 0, &request[mine]));
            }
        } else {
            for (; n < MOST; n++) {
                void *data = buffer[n] = malloc(step), *mhandle = NULL;
                int tag = 0;
                OK(t_irecv(l.comm, 1, &data, &step, &tag, &mhandle, &request[n]));
                if (!request[n]) break;
            }
            free(buffer[n]);
            CHECK(n >= pool && n < MOST, "%d receives are taken", n);
            tell(&n, sizeof n);
        }
        /* The last first: nothing has to be tested in order. */
        for (int i = n - 1; i >= 0; i--) {
            int size = -1;
            size_t meant = (size_t)((total + i) * 7919) % step;
            OK(finish(request[i], &size));
            CHECK(size == (int)meant, "%d is %d bytes, not %zu", total + i, size, meant);
            if (!sender) compare(buffer[i], meant, (unsigned)(total + i));
            free(buffer[i]);
        }
        total += n;
    }
    meet();
    link_down(&l, sender);
}

/* The sender fills its pool while nothing is posted, or is told to wait; all of it comes. */
static void ahead(bool sender)
{
    enum { MOST = 4096 };
    struct link l = link_up(sender);
    static unsigned char out[MOST], in[8];
    static void *request[MOST];
    int n = 0;
    if (sender) {
        for (; n < MOST; n++) {
            out[n] = (unsigned char)n;
            OK(t_isend(l.comm, &out[n], 1, 0, NULL, &request[n]));
            if (!request[n]) break;
        }
        tell(&n, sizeof n);
        for (int i = 0; i < n; i++) OK(finish(request[i], NULL));
    } else {
        hear(&n, sizeof n);
        for (int i = 0; i < n; i++) {
            OK(receive_one(l.comm, in, sizeof in, 0, &request[0]));
            OK(finish(request[0], NULL));
            CHECK(in[0] == (unsigned char)i);
        }
    }
    meet();
    link_down(&l, sender);
}

enum { GROUP_ROOM = 70000 };

static unsigned char group_data[2][8][GROUP_ROOM];

static size_t size_in_group(int index, int k)
{
    return (size_t)(index * 977 + k * 3331) % GROUP_ROOM;
}

/* The last tag first; each for the second group as soon as its first is sent, which has to wait. */
static void send_groups(struct link *l, int n, int round)
{
    void *request[16] = {0};
    bool sent[16] = {false};
    int left = 2 * n, first = n;
    for (double until = now() + DEADLINE; left > 0;) {
        CHECK(now() < until, "sends are not taken");
        for (int i = 2 * n - 1; i >= 0; i--) {
            int group = i & 1 ? 0 : 1, k = i / 2, index = 2 * round + group, at = group * n + k;
            if (sent[at] || (group == 1 && !sent[k])) continue;
            size_t size = size_in_group(index, k);
            fill(group_data[group][k], size, (unsigned)(index * 8 + k));
            OK(t_isend(l->comm, group_data[group][k], size, 100 + k, NULL, &request[at]));
            if (!request[at]) continue;
            CHECK(group == 0 || first == 0, "the second group was open before the first was full");
            first -= group == 0;
            sent[at] = true;
            left--;
        }
        /* A tag that is in no group is never taken. */
        void *never = NULL;
        if (left) OK(t_isend(l->comm, group_data[0][0], 1, 999, NULL, &never));
        CHECK(!never);
    }
    for (int i = 0; i < 2 * n; i++) OK(finish(request[i], NULL));
}

static void post_groups(struct link *l, int n, void **request)
{
    for (int group = 0; group < 2; group++) {
        void *data[8], *mhandles[8] = {0};
        size_t sizes[8];
        int tags[8];
        for (int k = 0; k < n; k++) data[k] = group_data[group][k], sizes[k] = GROUP_ROOM, tags[k] = 100 + k;
        do OK(t_irecv(l->comm, n, data, sizes, tags, mhandles, &request[group]));
        while (!request[group]);
    }
}

static void take_groups(int n, int round, void *const *request)
{
    int sizes[8];
    for (int group = 0; group < 2; group++) {
        int index = 2 * round + group;
        OK(finish(request[group], sizes));
        for (int k = 0; k < n; k++) {
            size_t size = size_in_group(index, k);
            CHECK(sizes[k] == (int)size, "slot %d: %d, not %zu", k, sizes[k], size);
            compare(group_data[group][k], size, (unsigned)(index * 8 + k));
        }
    }
}

/* Groups whose tags are sent in another order; a tag of the second group waits until the first is full. */
static void groups(bool sender)
{
    enum { ROUNDS = 40 };
    struct link l = link_up(sender);
    int n = l.max_recvs;
    CHECK(n > 1, "maxRecvs is %d", n);
    for (int round = 0; round < ROUNDS; round++) {
        void *request[2] = {0};
        if (!sender) post_groups(&l, n, request);
        /* Half of the times they are looked at while nothing has come. */
        int done = 0, sizes[8];
        if (!sender && round & 1) OK(t_test(request[0], &done, sizes));
        CHECK(!done);
        meet(); /* both groups are posted */
        if (sender)
            send_groups(&l, n, round);
        else
            take_groups(n, round, request);
        meet();
    }
    link_down(&l, sender);
}

/* A message that is larger than its receive: both ends are told, and nothing behind the buffer is written. */
static void too_large(bool sender)
{
    struct link l = link_up(sender);
    size_t n = 1000;
    unsigned char buffer[1024];
    void *request = NULL;
    memset(buffer, 0xee, sizeof buffer);
    if (sender) {
        ncclResult_t result = ncclSuccess;
        meet();
        /* A small one may be on its way before the answer is here: the next ones find it. */
        for (double until = now() + DEADLINE; result == ncclSuccess;) {
            CHECK(now() < until, "nobody says that the message was too large");
            int done = 0;
            if (!request) result = t_isend(l.comm, buffer, n, 0, NULL, &request);
            if (result == ncclSuccess && request) result = t_test(request, &done, NULL);
            if (done) request = NULL;
        }
        CHECK(result == ncclInvalidUsage, "%d", result);
        CHECK(t_isend(l.comm, buffer, 1, 0, NULL, &request) == ncclInvalidUsage);
    } else {
        OK(receive_one(l.comm, buffer, n - 1, 0, &request));
        meet();
        CHECK(finish(request, NULL) == ncclInvalidUsage);
        CHECK(buffer[n - 1] == 0xee);
    }
    meet();
    link_down(&l, sender);
}

/* Both ends in one process, as NCCL makes them for registrations; several at a time; nothing left open. */
static void loopback(bool sender)
{
    if (sender) return;
    enum { N = 5 };
    char handle[N][128];
    void *listener[N], *out[N] = {0}, *in[N] = {0};
    for (int i = 0; i < N; i++) listener[i] = listening(0, handle[i]);
    double until = now() + DEADLINE;
    for (bool all = false; !all;) {
        all = true;
        for (int i = 0; i < N; i++) {
            if (version == 4 && out[i]) goto accept; /* its connect waits */
            if (!out[i]) OK(t_connect(0, handle[i], &out[i]));
        accept:
            if (!in[i] && out[i]) OK(t_accept(listener[i], &in[i]));
            all = all && in[i] && out[i];
        }
        CHECK(now() < until, "no connection");
    }
    for (int i = 0; i < N; i++) {
        int a = 1000 + i, b = 0, done[2] = {0, 0}, size;
        void *send, *receive, *mhandle, *data = &b, *none = NULL;
        size_t n = sizeof b;
        OK(t_reg(in[i], &b, sizeof b, NCCL_PTR_HOST, &mhandle));
        OK(t_irecv(in[i], 1, &data, &n, &(int){7}, &mhandle, &receive));
        OK(send_one(out[i], &a, sizeof a, 7, &send));
        while (!done[0] || !done[1]) {
            if (!done[0]) OK(t_test(send, &done[0], &size));
            if (!done[1]) OK(t_test(receive, &done[1], &size));
        }
        CHECK(b == a && size == sizeof b);
        /* What is wrong is an error, and said to be one. */
        CHECK(t_test(receive, &done[0], &size) != ncclSuccess);
        CHECK(t_isend(in[i], &a, sizeof a, 0, NULL, &send) != ncclSuccess);
        CHECK(t_irecv(out[i], 1, &data, &n, &(int){7}, &none, &receive) != ncclSuccess);
        n = sizeof b + 1;
        CHECK(t_irecv(in[i], 1, &data, &n, &(int){7}, &mhandle, &receive) != ncclSuccess);
        CHECK(t_reg(in[i], &b, sizeof b, NCCL_PTR_CUDA, &none) != ncclSuccess);
        OK(t_dereg(in[i], mhandle));
        CHECK(t_dereg(in[i], mhandle) != ncclSuccess);
        OK(t_reg(in[i], &b, sizeof b, NCCL_PTR_HOST, &mhandle)); /* the close gives it back */
    }
    char bad[128] = {1, 2, 3};
    void *none = NULL;
    CHECK(t_connect(0, bad, &none) != ncclSuccess && !none);
    CHECK(t_listen(1000, handle[0], &none) != ncclSuccess);
    CHECK(t_connect(-1, handle[0], &none) != ncclSuccess);
    for (int i = 0; i < N; i++) {
        if (i & 1) OK(t_close_listen(listener[i]));
        OK(t_close_send(out[i]));
        OK(t_close_recv(in[i]));
        if (!(i & 1)) OK(t_close_listen(listener[i]));
    }
    /* Connections that nobody accepts, and one that is left in the middle. */
    listener[0] = listening(0, handle[0]);
    if (version > 4) OK(t_connect(0, handle[0], &out[0]));
    OK(t_close_listen(listener[0]));
    if (version > 4 && out[0]) OK(t_close_send(out[0]));
}

/* Pointers that the plugin never gave, or that it has taken back. Most of them point nowhere. */
static void invented(bool sender)
{
    struct link l = link_up(sender);
    static char inside[4096];
    char buffer[64], handle[128], *gone = malloc(64);
    void *const wrong[] = {(void *)8,          (void *)0x7fff0000dead0, inside + 8, handle,
                           (char *)l.comm + 8, (void *)~7ull,           gone};
    void *request = NULL, *comm = NULL, *data = buffer;
    size_t size = sizeof buffer;
    int done, tag = 0;
    free(gone);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *w = wrong[i], *mhandle = w;
        CHECK(t_test(w, &done, NULL) != ncclSuccess);
        CHECK(t_dereg(l.comm, w) != ncclSuccess);
        CHECK(t_reg(w, buffer, sizeof buffer, NCCL_PTR_HOST, &mhandle) != ncclSuccess);
        mhandle = w;
        CHECK(t_isend(w, buffer, size, tag, NULL, &request) != ncclSuccess);
        CHECK(t_irecv(w, 1, &data, &size, &tag, NULL, &request) != ncclSuccess);
        if (sender)
            CHECK(t_isend(l.comm, buffer, size, tag, w, &request) != ncclSuccess);
        else
            CHECK(t_irecv(l.comm, 1, &data, &size, &tag, &mhandle, &request) != ncclSuccess &&
                  t_iflush(l.comm, buffer, 8, w, &request) != ncclSuccess);
        CHECK(t_accept(w, &comm) != ncclSuccess && t_close_listen(w) != ncclSuccess);
        CHECK(t_close_send(w) != ncclSuccess && t_close_recv(w) != ncclSuccess);
        CHECK((sender ? t_close_recv : t_close_send)(l.comm) != ncclSuccess);
    }
    /* Each is of one kind, and of one life. */
    void *listener = listening(0, handle), *mhandle = NULL;
    CHECK(t_test(listener, &done, NULL) != ncclSuccess && t_test(l.comm, &done, NULL) != ncclSuccess);
    CHECK(t_accept(l.comm, &comm) != ncclSuccess);
    OK(t_close_listen(listener));
    CHECK(t_close_listen(listener) != ncclSuccess);
    OK(t_reg(l.comm, buffer, sizeof buffer, NCCL_PTR_HOST, &mhandle));
    CHECK(t_test(mhandle, &done, NULL) != ncclSuccess);
    OK(t_dereg(l.comm, mhandle));
    CHECK(t_dereg(l.comm, mhandle) != ncclSuccess);
    if (sender)
        OK(send_one(l.comm, buffer, sizeof buffer, 0, &request));
    else
        OK(receive_one(l.comm, buffer, sizeof buffer, 0, &request));
    OK(finish(request, NULL));
    CHECK(t_test(request, &done, NULL) != ncclSuccess, "it was said to be done");
    meet();
    comm = l.comm;
    link_down(&l, sender);
    CHECK(t_test(request, &done, NULL) != ncclSuccess, "its comm is closed");
    CHECK((sender ? t_close_send : t_close_recv)(comm) != ncclSuccess);
}

static void devices(bool sender)
{
    if (sender) return;
    int n = 0;
    OK(t_devices(&n));
    for (int i = 0; i < n; i++) {
        ncclNetProperties_v12_t p;
        OK(t_properties(i, &p));
        CHECK(p.ptrSupport == NCCL_PTR_HOST && p.guid == (uint64_t)i && p.speed > 0 && p.maxComms > 0);
        CHECK(p.netDeviceType == NCCL_NET_DEVICE_HOST && p.regIsGlobal == 0);
        if (version >= 5) CHECK(p.latency > 0, "latency is %g us", (double)p.latency);
        if (version >= 9) CHECK(p.vProps.ndevs == 1 && p.vProps.devs[0] == i && p.maxP2pBytes > 0);
        if (version >= 11) CHECK(p.maxMultiRequestSize == 1);
        if (version >= 12) CHECK(p.railId == -1 && p.planeId == -1);
        printf("%s %d %d %s %g\n", p.name, p.speed, p.maxRecvs, p.pciPath ? p.pciPath : "-", (double)p.latency);
    }
    CHECK(t_properties(n, &(ncclNetProperties_v12_t){0}) != ncclSuccess);
}

/* What the profiler is told: a start and a stop for each buffer, with the phandle it came with. */
static int starts, stops, others;
static ncclResult_t profiled(void **event, int type, void *phandle, int64_t id, void *data)
{
    if (id >> 16 != 0x5053) { /* a chained plugin has its own */
        others += phandle == &starts;
    } else if (type == ncclProfilerNetEventStart) {
        CHECK(phandle == &starts && data && id == (0x5053 << 16 | 1));
        *event = malloc(1);
        starts++;
    } else {
        CHECK(type == ncclProfilerNetEventStop && *event);
        free(*event);
        stops++;
    }
    return ncclSuccess;
}

static void profiler(bool sender)
{
    struct link l = link_up(sender);
    for (int i = 0; i < 10; i++) {
        char byte = 0;
        void *request = NULL, *data = &byte;
        size_t n = 1;
        if (sender) do
                OK(t_isend_p(l.comm, &byte, 1, 0, NULL, &starts, &request));
            while (!request);
        else
            OK(t_irecv_p(l.comm, 1, &data, &n, &(int){0}, &(void *){NULL}, &(void *){&starts}, &request));
        OK(finish(request, NULL));
    }
    int meant = version >= 10 ? 10 : 0;
    CHECK(starts == meant && stops == meant, "%d starts, %d stops", starts, stops);
    meet();
    printf("%s: %d events of another plugin\n", who, others);
    link_down(&l, sender);
}

/* Ten messages, under whatever faults are set; prints what became of each. DRIVER_WAIT: seconds to wait for one. */
static void faults(bool sender)
{
    struct link l = link_up(sender);
    const char *wait = getenv("DRIVER_WAIT");
    double most = wait ? atof(wait) : 1;
    for (int i = 0; i < 10; i++) {
        unsigned char byte[64];
        void *request = NULL;
        int size = 0, done = 0;
        memset(byte, sender ? 'a' + i : 0, sizeof byte);
        ncclResult_t result = sender ? send_one(l.comm, byte, sizeof byte, 0, &request)
                                     : receive_one(l.comm, byte, sizeof byte, 0, &request);
        for (double until = now() + most; result == ncclSuccess && !done && now() < until;)
            result = t_test(request, &done, &size);
        printf("%s %d: result %d done %d size %d %c%c\n", who, i, result, done, size, byte[0] ? byte[0] : '-',
               byte[32] ? byte[32] : '-');
        if (result != ncclSuccess || !done) break;
    }
    fflush(stdout);
    meet();
    link_down(&l, sender);
}

/* Threads that have connections of their own make them, use them and close them at the same time; memory of a
 * connection is registered by another thread than the one that uses it. */
static void *registers(void *comm)
{
    static char memory[64];
    for (int i = 0; i < 200; i++) {
        void *mhandle;
        OK(t_reg(comm, memory, sizeof memory, NCCL_PTR_HOST, &mhandle));
        OK(t_dereg(comm, mhandle));
    }
    return NULL;
}

static void *uses(void *seed)
{
    for (int round = 0; round < 5; round++) {
        char handle[128];
        void *listener = listening(0, handle), *out = NULL, *in = NULL, *send, *receive;
        double until = now() + DEADLINE;
        while (!in || !out) {
            if (!out) OK(t_connect(0, handle, &out));
            if (!in && out) OK(t_accept(listener, &in));
            CHECK(now() < until, "no connection");
        }
        pthread_t helper[2];
        pthread_create(&helper[0], NULL, registers, in);
        pthread_create(&helper[1], NULL, registers, out);
        for (unsigned i = 0; i < 50; i++) {
            unsigned char a[3000], b[3000];
            fill(a, sizeof a, i + (unsigned)(uintptr_t)seed);
            OK(receive_one(in, b, sizeof b, 1, &receive));
            OK(send_one(out, a, sizeof a, 1, &send));
            OK(finish(receive, NULL));
            OK(finish(send, NULL));
            compare(b, sizeof b, i + (unsigned)(uintptr_t)seed);
        }
        pthread_join(helper[0], NULL);
        pthread_join(helper[1], NULL);
        OK(t_close_send(out));
        OK(t_close_recv(in));
        OK(t_close_listen(listener));
    }
    return NULL;
}

static void threads(bool sender)
{
    enum { N = 3 };
    pthread_t thread[N];
    if (sender) return;
    for (uintptr_t i = 0; i < N; i++) pthread_create(&thread[i], NULL, uses, (void *)(i * 100));
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
}

static const struct {
    const char *name;
    void (*run)(bool sender);
} scenarios[] = {
    {"data", data},
    {"many", many},
    {"ahead", ahead},
    {"groups", groups},
    {"too_large", too_large},
    {"sender_dies", sender_dies},
    {"receiver_dies", receiver_dies},
    {"closes_early", closes_early},
    {"receiver_closes", receiver_closes},
    {"loopback", loopback},
    {"stranger", stranger},
    {"crowd", crowd},
    {"knocks", knocks},
    {"invented", invented},
    {"devices", devices},
    {"profiler", profiler},
    {"faults", faults},
    {"threads", threads},
};

static void run(const char *name, bool sender)
{
    OK(t_init(logger, profiled));
    int fds = count_of("/proc/self/fd");
    int tasks = count_of("/proc/self/task");
    bool found = false;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(scenarios[i].name, name) != 0) continue;
        scenarios[i].run(sender);
        found = true;
    }
    CHECK(found, "%s", name);
    /* The record of the process stays. */
    int left = count_of("/proc/self/fd") - fds;
    CHECK(left <= 1, "%d descriptors are left", left);
    /* One that makes threads itself, and a sanitizer's with them, cannot tell. */
    CHECK(strcmp(name, "threads") == 0 || count_of("/proc/self/task") == tasks, "a thread is left");
    OK(t_finalize());
}

/* driver LIBRARY VERSION SCENARIO */
int main(int argc, char **argv)
{
    int pair[2], status = 0;
    if (argc != 4 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return 2;
    t_load(argv[1], argv[2]);
    signal(SIGPIPE, SIG_DFL); /* a plugin that raises it dies here */
    child = fork();
    if (child < 0) return 2;
    link_fd = pair[child == 0];
    close(pair[child != 0]);
    if (child == 0) {
        who = "sender";
        setenv("PSM_RANK", "0", 1);
    } else {
        setenv("PSM_RANK", "1", 1);
    }
    run(argv[3], child == 0);
    if (child == 0) return 0;
    /* What ends by a signal did it on purpose. */
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && strcmp(argv[3], "sender_dies") == 0) return 0;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the sender ended with 0x%x", status);
    return 0;
}
