/* What a call of a net plugin costs: net_calls LIBRARY TURNS prints, a line a turn, nanoseconds of isend, irecv and
 * test, the last over those that say "done" and those that do not, as a plugin that answers every other one has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "psm_abi/net.h"

enum { BATCH = 32, BATCHES = 2000 };

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    void *library = dlopen(argv[1], RTLD_NOW), *context, *listener, *out = NULL, *in = NULL, *sent, *received;
    if (!library) fprintf(stderr, "%s\n", dlerror());
    const ncclNet_v12_t *net = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
    CHECK(net);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    static char handle[NCCL_NET_HANDLE_MAXSIZE], buffer[64], in_buffer[64];
    ncclNetCommConfig_v12_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    CHECK(net->init(&context, 1, &config, quiet, NULL) == ncclSuccess);
    CHECK(net->listen(context, 0, handle, &listener) == ncclSuccess);
    while (!out || !in) {
        if (!out) CHECK(net->connect(context, 0, handle, &out, NULL) == ncclSuccess);
        if (!in) CHECK(net->accept(listener, &in, NULL) == ncclSuccess);
    }
    CHECK(net->regMr(out, buffer, sizeof buffer, NCCL_PTR_HOST, &sent) == ncclSuccess);
    CHECK(net->regMr(in, in_buffer, sizeof in_buffer, NCCL_PTR_HOST, &received) == ncclSuccess);
    for (int turn = -1; turn < atoi(argv[2]); turn++) {
        double took[3] = {0, 0, 0};
        uint64_t tests = 0;
        for (int batch = 0; batch < BATCHES / 2; batch++) {
            /* A network that moves bytes completes a receive only after its send: both are posted before the tests. */
            void *request[2 * BATCH], *data = in_buffer;
            size_t size = 8;
            int tag = 0, sizes, done;
            memset(request, 0, sizeof request);
            double begin = now();
            for (int i = 0; i < BATCH; i++)
                CHECK(net->irecv(in, 1, &data, &size, &tag, &received, NULL, &request[i]) == ncclSuccess && request[i]);
            double received_at = now();
            for (int i = BATCH; i < 2 * BATCH; i++) {
                /* A sender gets no request until the receiver's post has reached it. */
                do CHECK(net->isend(out, buffer, 8, 0, sent, NULL, &request[i]) == ncclSuccess);
                while (!request[i]);
            }
            double middle = now();
            for (int left = 2 * BATCH; left;)
                for (int i = 0; i < 2 * BATCH; i++) {
                    if (!request[i]) continue;
                    CHECK(net->test(request[i], &done, &sizes) == ncclSuccess);
                    tests++;
                    if (done) request[i] = NULL, left--;
                }
            took[0] += middle - received_at;
            took[1] += received_at - begin;
            took[2] += now() - middle;
        }
        if (turn >= 0)
            printf("%.2f %.2f %.2f\n", took[0] / BATCH / (BATCHES / 2), took[1] / BATCH / (BATCHES / 2),
                   took[2] / (double)tests);
    }
    return 0;
}
