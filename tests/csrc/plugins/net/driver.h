/* Two processes that use a net plugin as NCCL does. The receiver is the parent, the sender its child. */
#ifndef DRIVER_H
#define DRIVER_H

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "table.h"

enum { DEADLINE = 60 /* seconds; nothing takes as long */, LARGEST = 5 << 20 /* bytes of a message */ };

static const char *who = "receiver";
static int link_fd; /* to the other process */
static pid_t child;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %s:", __FILE__, __LINE__, who, #condition);                                    \
            fprintf(stderr, " " __VA_ARGS__);                                                                          \
            fprintf(stderr, "\n");                                                                                     \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        ncclResult_t ok_ = (call);                                                                                     \
        CHECK(ok_ == ncclSuccess, "%s answered %d", #call, ok_);                                                       \
    } while (0)

static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    (void)flags;
    va_start(arguments, format);
    int n = snprintf(text, sizeof text, "host:%d:%d [0] NCCL %s ", (int)getpid(), (int)getpid(),
                     level == NCCL_LOG_WARN ? "WARN" : "INFO");
    vsnprintf(text + n, sizeof text - (size_t)n, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n", text);
    CHECK(file && line > 0);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the other process ---- */

static void tell(const void *data, size_t n)
{
    CHECK(write(link_fd, data, n) == (ssize_t)n, "%s", strerror(errno));
}

static void hear(void *data, size_t n)
{
    for (size_t got = 0; got < n;) {
        struct pollfd wait = {link_fd, POLLIN, 0};
        CHECK(poll(&wait, 1, DEADLINE * 1000) == 1, "the other process says nothing");
        ssize_t k = read(link_fd, (char *)data + got, n - got);
        CHECK(k > 0, "the other process is gone");
        got += (size_t)k;
    }
}

/* Both come here before any goes on. */
static void meet(void)
{
    char c = 'm';
    tell(&c, 1);
    hear(&c, 1);
}

/* ---- connections ---- */

struct link {
    void *listener, *comm, *mhandle;
    int max_recvs;
};

static void *listening(int dev, char handle[128])
{
    void *listener = NULL;
    /* What a version may not touch stays as it is. */
    memset(handle, 0x5a, 128);
    OK(t_listen(dev, handle, &listener));
    CHECK(listener != NULL);
    for (int i = 64; i < 128; i++) CHECK(handle[i] == 0x5a, "byte %d of the handle", i);
    return listener;
}

static void *accepting(void *listener)
{
    void *comm = NULL;
    double until = now() + DEADLINE;
    for (;;) {
        OK(t_accept(listener, &comm));
        if (comm) return comm;
        CHECK(now() < until, "nobody connects");
        sched_yield();
    }
}

static void *connecting(int dev, char handle[128])
{
    void *comm = NULL;
    double until = now() + DEADLINE;
    for (;;) {
        OK(t_connect(dev, handle, &comm));
        if (comm) return comm;
        CHECK(now() < until, "no connection");
        sched_yield();
    }
}

static struct link link_up(bool sender)
{
    struct link l = {0};
    char handle[128];
    ncclNetProperties_v12_t p;
    OK(t_properties(0, &p));
    l.max_recvs = p.maxRecvs;
    if (sender) {
        hear(handle, sizeof handle);
        l.comm = connecting(0, handle);
    } else {
        l.listener = listening(0, handle);
        tell(handle, sizeof handle);
        l.comm = accepting(l.listener);
    }
    return l;
}

static void link_down(struct link *l, bool sender)
{
    if (sender)
        OK(t_close_send(l->comm));
    else
        OK(t_close_recv(l->comm));
    if (l->listener) OK(t_close_listen(l->listener));
}

/* ---- data ---- */

static unsigned char byte_of(unsigned seed, size_t i)
{
    return (unsigned char)((i * 2654435761u >> 13) + i + seed * 31);
}

static void fill(unsigned char *data, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) data[i] = byte_of(seed, i);
}

static void compare(const unsigned char *data, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        CHECK(data[i] == byte_of(seed, i), "byte %zu of %zu, message %u: %u", i, n, seed, data[i]);
}

/* Until done or an error. sizes may be NULL. */
static ncclResult_t finish(void *request, int *sizes)
{
    double until = now() + DEADLINE;
    for (int done = 0; !done;) {
        ncclResult_t result = t_test(request, &done, sizes);
        if (result != ncclSuccess) return result;
        CHECK(now() < until, "a request does not end");
        if (!done) sched_yield();
    }
    return ncclSuccess;
}

static ncclResult_t send_one(void *comm, void *data, size_t n, int tag, void **request)
{
    double until = now() + DEADLINE;
    *request = NULL;
    while (!*request) {
        ncclResult_t result = t_isend(comm, data, n, tag, NULL, request);
        if (result != ncclSuccess) return result;
        CHECK(now() < until, "a send is not taken");
        if (!*request) sched_yield();
    }
    return ncclSuccess;
}

static ncclResult_t receive_one(void *comm, void *data, size_t n, int tag, void **request)
{
    void *mhandle = NULL;
    double until = now() + DEADLINE;
    *request = NULL;
    while (!*request) {
        ncclResult_t result = t_irecv(comm, 1, &data, &n, &tag, &mhandle, request);
        if (result != ncclSuccess) return result;
        CHECK(now() < until, "a receive is not taken");
    }
    return ncclSuccess;
}

static int count_of(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    CHECK(d != NULL);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

#endif
