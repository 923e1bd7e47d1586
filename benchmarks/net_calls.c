/* What a call of a net plugin costs: net_calls LIBRARY TURNS prints, a line a turn, nanoseconds of isend, irecv and
 * test, the last over those that say "done" and those that do not, as a plugin that answers every other one has it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
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
    static char handle[NCCL_NET_HANDLE_MAXSIZE], buffer[64];
    ncclNetCommConfig_v12_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    CHECK(net->init(&context, 1, &config, quiet, NULL) == ncclSuccess);
    CHECK(net->listen(context, 0, handle, &listener) == ncclSuccess);
    CHECK(net->connect(context, 0, handle, &out, NULL) == ncclSuccess && out);
    CHECK(net->accept(listener, &in, NULL) == ncclSuccess && in);
    CHECK(net->regMr(out, buffer, sizeof buffer, NCCL_PTR_HOST, &sent) == ncclSuccess);
    CHECK(net->regMr(in, buffer, sizeof buffer, NCCL_PTR_HOST, &received) == ncclSuccess);
    for (int turn = -1; turn < atoi(argv[2]); turn++) {
        double took[3] = {0, 0, 0};
        for (int batch = 0; batch < BATCHES; batch++) {
            void *request[BATCH], *data = buffer;
            size_t size = 8;
            int tag = 0, sends = batch % 2, sizes, done;
            double begin = now();
            for (int i = 0; i < BATCH; i++) {
                request[i] = NULL;
                ncclResult_t result = sends ? net->isend(out, buffer, 8, 0, sent, NULL, &request[i])
                                            : net->irecv(in, 1, &data, &size, &tag, &received, NULL, &request[i]);
                CHECK(result == ncclSuccess && request[i]);
            }
            double middle = now();
            for (int i = 0; i < BATCH; i++)
                for (done = 0; !done;) CHECK(net->test(request[i], &done, &sizes) == ncclSuccess);
            took[sends ? 0 : 1] += middle - begin;
            took[2] += now() - middle;
        }
        if (turn >= 0)
            printf("%.2f %.2f %.2f\n", took[0] / BATCH / (BATCHES / 2), took[1] / BATCH / (BATCHES / 2),
                   took[2] / BATCH / BATCHES / 2);
    }
    return 0;
}
