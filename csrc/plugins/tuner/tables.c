/* NCCL's tables, each as short as its version allows. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tuner.h"
#include "tuner_say.h"

static struct tuner_context *context_of(void *context)
{
    struct tuner_context *c = context;
    return c && c->magic == TUNER_CONTEXT ? c : NULL;
}

static ncclResult_t init(int version, void **context, uint64_t id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,
                         const ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants)
{
    if (!context) return ncclInvalidArgument;
    struct tuner_context *c = NULL;
    ncclResult_t result = tuner_init(version, id, ranks, nodes, logger, domains, constants, &c);
    *context = c;
    return result;
}

static ncclResult_t end(void *context)
{
    struct tuner_context *c = context_of(context);
    if (c) tuner_finalize(c);
    return ncclSuccess;
}

/* ---- v2: one choice ---- */

static ncclResult_t init_v2(size_t ranks, size_t nodes, ncclDebugLogger_t logger, void **context)
{
    return init(2, context, 0, ranks, nodes, logger, NULL, NULL);
}

static ncclResult_t choose(void *context, ncclFunc_t op, size_t bytes, int collnet, int nvls, int pipe_ops,
                           int *algorithm, int *protocol, int *channels)
{
    struct tuner_context *c = context_of(context);
    struct tuner_query q = {.op = (int)op,
                            .bytes = bytes,
                            .pipe_ops = pipe_ops,
                            .registered = TUNER_UNKNOWN,
                            .by_support = true,
                            .collnet = collnet == 1,
                            .nvls = nvls == 1};
    if (c) tuner_collective(c, &q, NULL, algorithm, protocol, channels);
    return ncclSuccess;
}

/* ---- v1: no context; all communicators of the process are one ---- */

static pthread_mutex_t lock_v1 = PTHREAD_MUTEX_INITIALIZER;
static unsigned users_v1;
static _Atomic(struct tuner_context *) context_v1;

static ncclResult_t init_v1(size_t ranks, size_t nodes, ncclDebugLogger_t logger)
{
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&lock_v1);
    if (users_v1 == 0) {
        struct tuner_context *c = NULL;
        result = tuner_init(1, 0, ranks, nodes, logger, NULL, NULL, &c);
        atomic_store(&context_v1, c);
    } else {
        tuner_other_shape(atomic_load(&context_v1), ranks, nodes);
    }
    if (result == ncclSuccess) users_v1++;
    pthread_mutex_unlock(&lock_v1);
    return result;
}

static ncclResult_t choose_v1(ncclFunc_t op, size_t bytes, int collnet, int nvls, int pipe_ops, int *algorithm,
                              int *protocol, int *channels)
{
    return choose(atomic_load(&context_v1), op, bytes, collnet, nvls, pipe_ops, algorithm, protocol, channels);
}

static ncclResult_t end_v1(void)
{
    pthread_mutex_lock(&lock_v1);
    if (users_v1 && --users_v1 == 0) tuner_finalize(atomic_exchange(&context_v1, NULL));
    pthread_mutex_unlock(&lock_v1);
    return ncclSuccess;
}

/* ---- v3 and later: costs ---- */

static ncclResult_t costs_v4(void *context, ncclFunc_t op, size_t bytes, int pipe_ops, float **costs, int algorithms,
                             int protocols, int registered, int *channels)
{
    struct tuner_context *c = context_of(context);
    struct tuner_query q = {.op = (int)op,
                            .bytes = bytes,
                            .pipe_ops = pipe_ops,
                            .registered = registered < 0 ? TUNER_UNKNOWN : registered != 0,
                            .algorithms = algorithms,
                            .protocols = protocols};
    /* NCCL's type is wrong: it is one array of floats. */
    if (c && costs && algorithms > 0 && protocols > 0)
        tuner_collective(c, &q, (float *)(void *)costs, NULL, NULL, channels);
    return ncclSuccess;
}

static ncclResult_t costs_v3(void *context, ncclFunc_t op, size_t bytes, int pipe_ops, float **costs, int algorithms,
                             int protocols, int *channels)
{
    return costs_v4(context, op, bytes, pipe_ops, costs, algorithms, protocols, TUNER_UNKNOWN, channels);
}

static ncclResult_t init_v3(size_t ranks, size_t nodes, ncclDebugLogger_t logger, void **context)
{
    return init(3, context, 0, ranks, nodes, logger, NULL, NULL);
}

static ncclResult_t init_v4(size_t ranks, size_t nodes, ncclDebugLogger_t logger, void **context)
{
    return init(4, context, 0, ranks, nodes, logger, NULL, NULL);
}

static ncclResult_t init_v5(void **context, uint64_t id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,
                            ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants)
{
    return init(5, context, id, ranks, nodes, logger, domains, constants);
}

static ncclResult_t init_v6(void **context, uint64_t id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,
                            ncclNvlDomainInfo_v6_t *domains, ncclTunerConstants_v6_t *constants)
{
    return init(6, context, id, ranks, nodes, logger, domains, constants);
}

/* v7 has the numbers of one more generation of GPUs at the end of each table by generation. */
#define EACH_CONSTANT(X)                                                                                               \
    X(baseLatencies)                                                                                                   \
    X(hwLatencies)                                                                                                     \
    X(llMaxBws) X(perChMaxRingLL128Bws) X(perChMaxTreeLL128Bws) X(perChMaxTreeBws) X(perChMaxNVLSTreeBws)

static ncclResult_t init_v7(void **context, uint64_t id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,
                            ncclNvlDomainInfo_v7_t *domains, ncclTunerConstants_v7_t *constants)
{
    ncclTunerConstants_v5_t own;
    if (!constants) return init(7, context, id, ranks, nodes, logger, domains, NULL);
#define TAKE(table) memcpy(own.table, constants->table, sizeof own.table);
    EACH_CONSTANT(TAKE)
    ncclResult_t result = init(7, context, id, ranks, nodes, logger, domains, &own);
#define GIVE(table) memcpy(constants->table, own.table, sizeof own.table);
    EACH_CONSTANT(GIVE)
    return result;
}

static ncclResult_t chunk_v6(void *context, ncclFunc_t op, size_t bytes, int algorithm, int protocol, int channels,
                             size_t *chunk)
{
    (void)channels;
    struct tuner_context *c = context_of(context);
    if (c) tuner_chunk_size(c, (int)op, bytes, algorithm, protocol, chunk);
    return ncclSuccess;
}

static const char name[] = "PSM";

const ncclTuner_v1_t ncclTunerPlugin_v1 = {.name = name, .init = init_v1, .getCollInfo = choose_v1, .destroy = end_v1};
const ncclTuner_v2_t ncclTunerPlugin_v2 = {.name = name, .init = init_v2, .getCollInfo = choose, .destroy = end};
const ncclTuner_v3_t ncclTunerPlugin_v3 = {.name = name, .init = init_v3, .getCollInfo = costs_v3, .destroy = end};
const ncclTuner_v4_t ncclTunerPlugin_v4 = {.name = name, .init = init_v4, .getCollInfo = costs_v4, .destroy = end};
const ncclTuner_v5_t ncclTunerPlugin_v5 = {.name = name, .init = init_v5, .getCollInfo = costs_v4, .finalize = end};
const ncclTuner_v6_t ncclTunerPlugin_v6 = {
    .name = name, .init = init_v6, .getCollInfo = costs_v4, .finalize = end, .getChunkSize = chunk_v6};
const ncclTuner_v7_t ncclTunerPlugin_v7 = {
    .name = name, .init = init_v7, .getCollInfo = costs_v4, .finalize = end, .getChunkSize = chunk_v6};
