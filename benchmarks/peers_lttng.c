/* A tracepoint of LTTng-UST at the start of an event and one at its end: KIND NANOSECONDS, for each kind the least of
 * RUNS runs of ROUNDS pairs. A session must record psm_bench:*.
 *
 *   peers_lttng ROUNDS RUNS */
#define _GNU_SOURCE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "peers_lttng.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    const uint64_t rounds = strtoull(argv[1], NULL, 10), runs = strtoull(argv[2], NULL, 10);
    if (!lttng_ust_tracepoint_enabled(psm_bench, begin)) {
        fprintf(stderr, "no session records psm_bench:*\n");
        return 1;
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    sched_setaffinity(0, sizeof set, &set);
    double least[3] = {1e30, 1e30, 1e30};
    for (uint64_t run = 0; run < runs; run++) {
        double from = now();
        for (uint64_t i = 0; i < rounds; i++) {
            lttng_ust_tracepoint(psm_bench, begin, i, 0, 0);
            lttng_ust_tracepoint(psm_bench, end, i);
        }
        double middle = now();
        for (uint64_t i = 0; i < rounds; i++) {
            lttng_ust_tracepoint(psm_bench, begin_coll, i, i, "AllReduce", "ncclFloat32", 1 << 20);
            lttng_ust_tracepoint(psm_bench, end, i);
        }
        double then = now();
        for (uint64_t i = 0; i < rounds; i++) {
            lttng_ust_tracepoint(psm_bench, begin, i, i, 4);
            lttng_ust_tracepoint(psm_bench, end, i);
        }
        const double took[3] = {middle - from, then - middle, now() - then};
        for (int i = 0; i < 3; i++)
            if (took[i] / (double)rounds < least[i]) least[i] = took[i] / (double)rounds;
    }
    printf("group %.1f\ncoll %.1f\nstep %.1f\n", least[0], least[1], least[2]);
    return 0;
}
