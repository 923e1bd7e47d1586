/* 8 bytes there and back through iceoryx (the C++ one, by its C binding), each end on a processor of its own. One line a
 * turn: iceoryx SECONDS, of one way. iox-roudi must run.
 *
 *   peers_iceoryx TURNS ROUNDS */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "iceoryx_binding_c/publisher.h"
#include "iceoryx_binding_c/runtime.h"
#include "iceoryx_binding_c/subscriber.h"

static iox_pub_t out;
static iox_sub_t in;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void relax(unsigned *turns)
{
    if (++*turns % 1024 == 0) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void put(uint64_t word)
{
    void *chunk;
    if (iox_pub_loan_chunk(out, &chunk, sizeof word) != AllocationResult_SUCCESS) exit(1);
    memcpy(chunk, &word, sizeof word);
    iox_pub_publish_chunk(out, chunk);
}

static uint64_t get(void)
{
    const void *chunk;
    uint64_t word;
    unsigned turns = 0;
    while (iox_sub_take_chunk(in, &chunk) != ChunkReceiveResult_SUCCESS) relax(&turns);
    memcpy(&word, chunk, sizeof word);
    iox_sub_release_chunk(in, chunk);
    return word;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    int turns = atoi(argv[1]), rounds = atoi(argv[2]);
    pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)(child == 0) % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    char name[32];
    snprintf(name, sizeof name, "psm_bench_%d", (int)getpid());
    iox_runtime_init(name);
    sched_setaffinity(0, sizeof set, &set);
    static iox_pub_storage_t publisher;
    static iox_sub_storage_t subscriber;
    iox_pub_options_t sends;
    iox_sub_options_t receives;
    iox_pub_options_init(&sends);
    iox_sub_options_init(&receives);
    receives.queueCapacity = 8;
    out = iox_pub_init(&publisher, "psm", "bench", child == 0 ? "back" : "there", &sends);
    in = iox_sub_init(&subscriber, "psm", "bench", child == 0 ? "there" : "back", &receives);
    while (!iox_pub_has_subscribers(out) || iox_sub_get_subscription_state(in) != SubscribeState_SUBSCRIBED)
        usleep(1000);
    if (child == 0) {
        for (int i = 0; i <= turns * rounds; i++) put(get());
        iox_sub_deinit(in);
        iox_pub_deinit(out);
        return 0; /* not by _exit: iox-roudi would find a process that is gone when it ends, and leave its segments */
    }
    put(0); /* the first one is not counted */
    get();
    for (int turn = 0; turn < turns; turn++) {
        double begin = now();
        for (int i = 0; i < rounds; i++) {
            put((uint64_t)i);
            if (get() != (uint64_t)i) return 1;
        }
        printf("iceoryx %.9f\n", (now() - begin) / rounds / 2);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) return 1;
    iox_sub_deinit(in);
    iox_pub_deinit(out);
    return 0;
}
