/* A blocking call of the proxy beside a bare round trip of the same socket type, size and way of waiting; and a call
 * inside one process beside a flag that two threads of it put up for each other. Medians, in nanoseconds, one line a
 * measurement: NAME NANOSECONDS.
 *
 *   proxy ROUNDS
 *
 * Caller and service are pinned to different processors where there are two. PSM_SPIN says how long the proxy polls. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "psm/psm_proxy.h"

enum { REQUEST = 24, RESPONSE = 16, WIRE_REQUEST = 48 + REQUEST, WIRE_RESPONSE = 40 + RESPONSE };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static int order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, uint64_t *times, int rounds)
{
    qsort(times, (size_t)rounds, sizeof *times, order);
    printf("%s %llu\n", name, (unsigned long long)times[rounds / 2]);
    fflush(stdout);
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, psm_last_error()->text[0] ? psm_last_error()->text : strerror(errno));
    exit(1);
}

static psm_status echo(psmProxyConnection *connection, psmProxyState *state, const void *req, int req_size, void *resp,
                       int resp_size, int *done)
{
    (void)connection, (void)state, (void)done;
    memcpy(resp, req, (size_t)(req_size < resp_size ? req_size : resp_size));
    return PSM_OK;
}
static const struct psmTransportComm comm = {.proxySetup = echo};

static psmProxyState *proxy(int rank, struct psmProxyAddress *address)
{
    psmProxyState *state;
    struct psmProxyOptions options = {.size = sizeof options, .rank = rank, .nranks = 2, .device = -1};
    options.transports[0][1] = &comm;
    if (psmProxyInit(&state, &options) < 0 || psmProxyAddress(state, address) < 0) die("psmProxyInit");
    if (psmProxyCreate(state) < 0) die("psmProxyCreate");
    return state;
}

static void calls(const char *name, psmProxyState *state, const struct psmProxyAddress *to, uint64_t *times, int rounds)
{
    psmProxyConnector connector = {0};
    uint8_t req[REQUEST] = {1}, resp[RESPONSE];
    if (psmProxyConnect(state, 0, 1, to, &connector) < 0) die("psmProxyConnect");
    for (int i = -rounds / 10; i < rounds; i++) {
        uint64_t begin = now();
        if (psmProxyCallBlocking(&connector, psmProxyMsgSetup, req, sizeof req, resp, sizeof resp) < 0)
            die("psmProxyCallBlocking");
        if (i >= 0) times[i] = now() - begin;
    }
    report(name, times, rounds);
}

/* One message, by spinning or by sleeping in poll(2). False: the other end has closed. */
static int receive(int fd, uint8_t *buffer, size_t size, int spin)
{
    for (;;) {
        ssize_t n = recv(fd, buffer, size, MSG_DONTWAIT);
        if (n > 0) return 1;
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) return 0;
        if (!spin) poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1);
    }
}

static void *idle(void *argument)
{
    pause();
    return argument;
}

/* Both ends have other threads, as every process with a proxy has: the kernel counts uses of a descriptor then. */
static void bare(const char *name, int spin, uint64_t *times, int rounds)
{
    int ends[2];
    uint8_t buffer[8192] = {0};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        pin(1);
        close(ends[0]);
        if (pthread_create(&thread, NULL, idle, NULL) != 0) _exit(1);
        while (receive(ends[1], buffer, sizeof buffer, spin)) send(ends[1], buffer, WIRE_RESPONSE, MSG_NOSIGNAL);
        _exit(0);
    }
    close(ends[1]);
    for (int i = -rounds / 10; i < rounds; i++) {
        uint64_t begin = now();
        send(ends[0], buffer, WIRE_REQUEST, MSG_NOSIGNAL);
        if (!receive(ends[0], buffer, sizeof buffer, spin)) die("recv");
        if (i >= 0) times[i] = now() - begin;
    }
    close(ends[0]);
    waitpid(child, NULL, 0);
    report(name, times, rounds);
}

/* ---- a flag in memory that caller and service share ---- */

static _Alignas(64) _Atomic int there_flag;
static _Alignas(64) _Atomic int back_flag;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void *answer(void *argument)
{
    const int rounds = *(const int *)argument;
    pin(1);
    for (int i = 1; i <= rounds; i++) {
        for (unsigned turn = 1; atomic_load_explicit(&there_flag, memory_order_acquire) != i; turn++)
            turn % 16384 ? relax() : (void)sched_yield();
        atomic_store_explicit(&back_flag, i, memory_order_release);
    }
    return NULL;
}

static void flags(uint64_t *times, int rounds)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, &rounds) != 0) die("pthread_create");
    for (int i = 0; i < rounds; i++) {
        uint64_t begin = now();
        atomic_store_explicit(&there_flag, i + 1, memory_order_release);
        for (unsigned turn = 1; atomic_load_explicit(&back_flag, memory_order_acquire) != i + 1; turn++)
            turn % 16384 ? relax() : (void)sched_yield();
        times[i] = now() - begin;
    }
    pthread_join(thread, NULL);
    report("bare_flag", times, rounds);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 20000, there[2], back[2];
    uint64_t *times = calloc((size_t)rounds, sizeof *times);
    struct psmProxyAddress own, other;
    char byte = 0;
    if (rounds < 10 || !times || pipe(there) != 0 || pipe(back) != 0) die("rounds");
    pid_t child = fork();
    if (child == 0) {
        pin(1);
        psmProxyState *state = proxy(1, &other);
        if (write(there[1], &other, sizeof other) != sizeof other || read(back[0], &byte, 1) != 1) _exit(1);
        psmProxyDestroy(state);
        _exit(0);
    }
    if (read(there[0], &other, sizeof other) != sizeof other) die("read");
    pin(1); /* its threads stay there */
    psmProxyState *state = proxy(0, &own);
    pin(0);
    const char *spin = getenv("PSM_SPIN");
    int polls = !spin || atoi(spin) > 0;
    calls(polls ? "call_polling" : "call_sleeping", state, &other, times, rounds);
    bare(polls ? "bare_polling" : "bare_sleeping", polls, times, rounds);
    if (polls) {
        calls("call_same_process", state, &own, times, rounds);
        flags(times, rounds);
    }
    psmProxyDestroy(state);
    if (write(back[1], &byte, 1) != 1) die("write");
    waitpid(child, NULL, 0);
    free(times);
    return 0;
}
