/* NCCL's tables, each as short as its version allows. getCollInfo always answers success: NCCL's headers promise a
 * fallback after an error, but no release from 2.19 to 2.30 has one, and the collective would fail. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "psm_abi_versions.h"
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

static ncclResult_t choose_v2(void *context, ncclFunc_t op, size_t bytes, int collnet, int nvls, int pipe_ops,
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
    return choose_v2(atomic_load(&context_v1), op, bytes, collnet, nvls, pipe_ops, algorithm, protocol, channels);
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

/* ---- init: the table's version is the log's and the record's ---- */

#define INIT_BARE(v)                                                                                                   \
    static ncclResult_t init_v##v(size_t ranks, size_t nodes, ncclDebugLogger_t logger, void **context)                \
    {                                                                                                                  \
        return init(v, context, 0, ranks, nodes, logger, NULL, NULL);                                                  \
    }
PSM_ABI_TUNER_init_V2(INIT_BARE)

#define EACH_CONSTANT(X)                                                                                               \
    X(baseLatencies)                                                                                                   \
    X(hwLatencies)                                                                                                     \
    X(llMaxBws) X(perChMaxRingLL128Bws) X(perChMaxTreeLL128Bws) X(perChMaxTreeBws) X(perChMaxNVLSTreeBws)

/* The constants of v7 and later have more: the numbers of further generations of GPUs at the end of each table by
 * generation, and members of their own. psmkit's rules change those of v5. */
#define TAKE(table)                                                                                                    \
    _Static_assert(sizeof constants->table >= sizeof own.table, "shorter than in v5");                                 \
    memcpy(own.table, constants->table, sizeof own.table);
#define GIVE(table) memcpy(constants->table, own.table, sizeof own.table);
#define INIT(v)                                                                                                        \
    static ncclResult_t init_v##v(void **context, uint64_t id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,   \
                                  ncclNvlDomainInfo_v##v##_t *domains, ncclTunerConstants_v##v##_t *constants)         \
    {                                                                                                                  \
        ncclTunerConstants_v5_t own;                                                                                   \
        if (!constants) return init(v, context, id, ranks, nodes, logger, domains, NULL);                              \
        EACH_CONSTANT(TAKE)                                                                                            \
        ncclResult_t result = init(v, context, id, ranks, nodes, logger, domains, &own);                               \
        EACH_CONSTANT(GIVE)                                                                                            \
        return result;                                                                                                 \
    }
    PSM_ABI_TUNER_init_V5(INIT) PSM_ABI_TUNER_init_V7(INIT)

        static ncclResult_t
    chunk_v6(void *context, ncclFunc_t op, size_t bytes, int algorithm, int protocol, int channels, size_t *chunk)
{
    (void)channels;
    struct tuner_context *c = context_of(context);
    if (c) tuner_chunk_size(c, (int)op, bytes, algorithm, protocol, chunk);
    return ncclSuccess;
}

/* ---- tables ---- */

/* A slot's function has the name of the slot and the version that its signature came with; each table has an init. */
#define getCollInfo_v1  choose_v1
#define getCollInfo_v2  choose_v2
#define getCollInfo_v3  costs_v3
#define getCollInfo_v4  costs_v4
#define destroy_v1      end_v1
#define destroy_v2      end
#define finalize_v5     end
#define getChunkSize_v6 chunk_v6

#define OF_init(version, signature)         init_v##version
#define OF_getCollInfo(version, signature)  getCollInfo_v##signature
#define OF_destroy(version, signature)      destroy_v##signature
#define OF_finalize(version, signature)     finalize_v##signature
#define OF_getChunkSize(version, signature) getChunkSize_v##signature

#define SLOT(slot, own, signature, version) .slot = OF_##slot(version, signature),
#define TABLE(version)                                                                                                 \
    const ncclTuner_v##version##_t ncclTunerPlugin_v##version = {.name = "PSM",                                        \
                                                                 PSM_ABI_TUNER_SLOTS_V##version(SLOT, version)};
PSM_ABI_TUNER_VERSIONS(TABLE)
