/* One way through a net plugin, and through TCP alone: net LIBRARY WHAT BYTES TURNS prints nanoseconds a message, a
 * line a turn.
 *
 * WHAT: plugin-stream, plugin-pingpong (as PSM_NET says), tcp-stream, tcp-pingpong (blocking calls), tcp-spin-stream,
 * tcp-spin-pingpong (calls that do not block, again and again). For the latter LIBRARY is the congestion control, "-"
 * the system's. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "psm_abi/net.h"

enum { WINDOW = 4 };

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static bool second; /* the child: it answers, or receives */
static int pair[2]; /* between both */
static char *buffer;
static size_t bytes;

static void meet(void)
{
    char c = 0;
    CHECK(write(pair[second], &c, 1) == 1 && read(pair[second], &c, 1) == 1);
}

/* ---- a way of moving messages ---- */

struct way {
    void (*send)(int n);    /* n messages */
    void (*receive)(int n); /* until all are here */
};

/* ---- TCP ---- */

static int fd;
static bool spins;

static void tcp_up(const char *congestion)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof address;
    int one = 1;
    if (second) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(bind(listener, (struct sockaddr *)&address, n) == 0 && listen(listener, 1) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&address, &n) == 0);
        CHECK(write(pair[1], &address, sizeof address) == sizeof address);
        fd = accept(listener, NULL, NULL);
        close(listener);
    } else {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(read(pair[0], &address, sizeof address) == sizeof address);
        CHECK(connect(fd, (struct sockaddr *)&address, n) == 0);
    }
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    if (strcmp(congestion, "-") != 0)
        CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) == 0);
}

static void tcp_send(int n)
{
    for (; n > 0; n--)
        for (size_t at = 0; at < bytes;) {
            ssize_t k = send(fd, buffer + at, bytes - at, spins ? MSG_DONTWAIT : 0);
            CHECK(k > 0 || errno == EAGAIN);
            if (k > 0) at += (size_t)k;
        }
}

static void tcp_receive(int n)
{
    for (; n > 0; n--)
        for (size_t at = 0; at < bytes;) {
            ssize_t k = recv(fd, buffer + at, bytes - at, spins ? MSG_DONTWAIT : 0);
            CHECK(k > 0 || (k < 0 && errno == EAGAIN));
            if (k > 0) at += (size_t)k;
        }
}

/* ---- the plugin ---- */

static const ncclNet_v12_t *net;
static void *out, *in, *out_mhandle, *in_mhandle;
static void *posted[WINDOW]; /* receives */
static int first, nposted;

/* A connection each way. */
static void plugin_up(const char *path)
{
    void *library = dlopen(path, RTLD_NOW), *context, *listener;
    if (!library) fprintf(stderr, "%s\n", dlerror());
    CHECK(library && (net = dlsym(library, "ncclNetPlugin_v12")));
    char mine[128], theirs[128];
    ncclNetCommConfig_v12_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    CHECK(net->init(&context, 1, &config, quiet, NULL) == ncclSuccess);
    CHECK(net->listen(context, 0, mine, &listener) == ncclSuccess);
    CHECK(write(pair[second], mine, sizeof mine) == sizeof mine);
    CHECK(read(pair[second], theirs, sizeof theirs) == sizeof theirs);
    while (!out || !in) {
        if (!out) CHECK(net->connect(context, 0, theirs, &out, NULL) == ncclSuccess);
        if (!in) CHECK(net->accept(listener, &in, NULL) == ncclSuccess);
    }
    CHECK(net->regMr(out, buffer, bytes, NCCL_PTR_HOST, &out_mhandle) == ncclSuccess);
    CHECK(net->regMr(in, buffer, bytes, NCCL_PTR_HOST, &in_mhandle) == ncclSuccess);
}

static void post_receives(int window)
{
    for (; nposted < window; nposted++) {
        void *data = buffer;
        int tag = 0;
        CHECK(net->irecv(in, 1, &data, &bytes, &tag, &in_mhandle, NULL, &posted[(first + nposted) % WINDOW]) ==
              ncclSuccess);
        CHECK(posted[(first + nposted) % WINDOW]);
    }
}

static void plugin_send(int n)
{
    void *request[WINDOW];
    for (int done = 0, sent = 0; done < n;) {
        while (sent < n && sent < done + WINDOW) {
            CHECK(net->isend(out, buffer, bytes, 0, out_mhandle, NULL, &request[sent % WINDOW]) == ncclSuccess);
            if (!request[sent % WINDOW]) break;
            sent++;
        }
        int yes = 0;
        if (sent > done) CHECK(net->test(request[done % WINDOW], &yes, NULL) == ncclSuccess);
        done += yes;
    }
}

static void plugin_receive(int n)
{
    int window = n < WINDOW ? n : WINDOW;
    for (int done = 0; done < n;) {
        post_receives(n - done < window ? n - done : window);
        int yes = 0;
        CHECK(net->test(posted[first], &yes, NULL) == ncclSuccess);
        if (!yes) continue;
        first = (first + 1) % WINDOW;
        nposted--;
        done++;
    }
}

/* ---- turns ---- */

static double stream(const struct way *way, int n)
{
    meet();
    double begin = now();
    if (second)
        way->receive(n);
    else
        way->send(n);
    meet(); /* the last one is there */
    return (now() - begin) / n;
}

static double pingpong(const struct way *way, int n, bool plugin)
{
    meet();
    double begin = now();
    for (int i = 0; i < n; i++) {
        if (plugin) post_receives(1); /* before it can come, as NCCL does */
        if (!second) way->send(1);
        way->receive(1);
        if (second) way->send(1);
    }
    double took = (now() - begin) / n / 2;
    meet();
    return took;
}

int main(int argc, char **argv)
{
    if (argc != 5 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 2;
    const char *what = argv[2];
    bytes = strtoull(argv[3], NULL, 10);
    bool plugin = strncmp(what, "plugin", 6) == 0, pings = strstr(what, "pingpong") != NULL;
    spins = strstr(what, "spin") != NULL;
    second = fork() == 0;
    if (second) prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(second, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    buffer = mmap(NULL, bytes < 4096 ? 4096 : bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                  -1, 0);
    CHECK(buffer != MAP_FAILED);
    if (plugin)
        plugin_up(argv[1]);
    else
        tcp_up(argv[1]);
    struct way way = plugin ? (struct way){plugin_send, plugin_receive} : (struct way){tcp_send, tcp_receive};
    /* Some milliseconds each: among many such turns are some that nothing else disturbed. */
    int n = pings ? 200 : bytes >= 64u << 20 ? 2 : (int)((32u << 20) / bytes);
    for (int turn = -1; turn < atoi(argv[4]); turn++) {
        double took = pings ? pingpong(&way, n, plugin) : stream(&way, n);
        if (!second && turn >= 0) printf("%.1f\n", took);
    }
    if (second) return 0;
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    return 0;
}
