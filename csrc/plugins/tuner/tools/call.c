#define _GNU_SOURCE
#include "call.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "psm_abi_versions.h"

#define V1 ((const ncclTuner_v1_t *)t->table) /* the first slots of all versions */

enum { GUARD = 16, MARK = 0x5ca1ab1e };

/* The tuner's messages go to standard error in NCCL's format, filtered as with NCCL_DEBUG=INFO. */
static __attribute__((format(printf, 5, 6))) void logger(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                                         int line, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    (void)flags, (void)file, (void)line;
    if (level > NCCL_LOG_INFO) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "NCCL %s %s\n", level == NCCL_LOG_WARN ? "WARN" : "INFO", text);
}

const char *tuner_open(struct tuner *t, const char *path, int version)
{
    char symbol[40];
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    *t = (struct tuner){version, dlsym(library, symbol)};
    return t->table ? NULL : "no table of this version";
}

const char *tuner_name(const struct tuner *t)
{
    return V1->name; /* the first slot of all */
}

const char *tuner_missing(const struct tuner *t)
{
    if (!V1->name) return "name";
    if (!V1->init) return "init";
    if (!V1->getCollInfo) return "getCollInfo";
    if (!V1->destroy) return t->version < 5 ? "destroy" : "finalize";
    return NULL;
}

bool tuner_beyond;

/* No switch over the versions has a default: the compiler names the one whose call is missing, as TUNER_V8. */
#pragma GCC diagnostic error "-Wswitch"
#define NAMED(v) TUNER_V##v = v,
enum version { PSM_ABI_TUNER_VERSIONS(NAMED) };

/* Calls of one signature: since the version that it came with. */
#define CASE(v, ...)                                                                                                   \
    case TUNER_V##v: {                                                                                                 \
        const ncclTuner_v##v##_t *table = t->table;                                                                    \
        return table->__VA_ARGS__;                                                                                     \
    }
#define SINCE(slot, v, ...) PSM_ABI_TUNER_##slot##_V##v(CASE, slot(__VA_ARGS__))

#define TAKE(table) memcpy(room.constants.table, constants->table, sizeof constants->table);
#define GIVE(table) memcpy(constants->table, room.constants.table, sizeof constants->table);
#define EACH_CONSTANT(X)                                                                                               \
    X(baseLatencies)                                                                                                   \
    X(hwLatencies)                                                                                                     \
    X(llMaxBws) X(perChMaxRingLL128Bws) X(perChMaxTreeLL128Bws) X(perChMaxTreeBws) X(perChMaxNVLSTreeBws)

/* The constants of v7 and later have more: the caller's, with garbage for what they lack, and a guard. */
#define LONGER(v)                                                                                                      \
    case TUNER_V##v: {                                                                                                 \
        struct {                                                                                                       \
            ncclTunerConstants_v##v##_t constants;                                                                     \
            double after[GUARD];                                                                                       \
        } room;                                                                                                        \
        for (size_t i = 0; i < sizeof room / sizeof(double); i++) ((double *)&room)[i] = 1.25;                         \
        EACH_CONSTANT(TAKE)                                                                                            \
        ncclNvlDomainInfo_v##v##_t own = {info.nNvlDomains, info.minRanksPerNvlDomain, info.maxRanksPerNvlDomain};     \
        ncclResult_t result =                                                                                          \
            ((const ncclTuner_v##v##_t *)t->table)->init(context, id, ranks, nodes, logger, &own, &room.constants);    \
        EACH_CONSTANT(GIVE)                                                                                            \
        for (int i = 0; i < GUARD; i++) tuner_beyond |= room.after[i] != 1.25;                                         \
        return result;                                                                                                 \
    }

ncclResult_t tuner_begin(const struct tuner *t, void **context, uint64_t id, size_t ranks, size_t nodes, int domains,
                         ncclTunerConstants_v5_t *constants)
{
    int each = domains > 0 ? (int)ranks / domains : (int)ranks;
    ncclNvlDomainInfo_v5_t info = {domains, each, each};
    *context = NULL;
    switch ((enum version)t->version) {
        SINCE(init, 1, ranks, nodes, logger)
        SINCE(init, 2, ranks, nodes, logger, context)
        SINCE(init, 5, context, id, ranks, nodes, logger, &info, constants)
        PSM_ABI_TUNER_init_V7(LONGER)
    }
    return ncclInternalError;
}

/* As topoGetAlgoInfo reads the table: -1 is not available, the first of the lowest wins, negative costs never do. */
static void pick(const struct question *q, struct reply *r)
{
    float best = 3.4e38f;
    r->algorithm = r->protocol = -1;
    for (int i = 0; i < q->algorithms * PROTOCOLS; i++)
        if (r->costs[i] >= 0 && r->costs[i] < best) {
            best = r->costs[i];
            r->algorithm = i / PROTOCOLS;
            r->protocol = i % PROTOCOLS;
        }
}

static ncclResult_t ask(const struct tuner *t, void *context, const struct question *q, float **costs, int *a, int *p,
                        int *c)
{
    ncclFunc_t op = (ncclFunc_t)q->op;
    switch ((enum version)t->version) {
        SINCE(getCollInfo, 1, op, q->bytes, q->collnet, q->nvls, q->pipe_ops, a, p, c)
        SINCE(getCollInfo, 2, context, op, q->bytes, q->collnet, q->nvls, q->pipe_ops, a, p, c)
        SINCE(getCollInfo, 3, context, op, q->bytes, q->pipe_ops, costs, q->algorithms, PROTOCOLS, c)
        SINCE(getCollInfo, 4, context, op, q->bytes, q->pipe_ops, costs, q->algorithms, PROTOCOLS, q->registered, c)
    }
    return ncclInternalError;
}

void tuner_ask(const struct tuner *t, void *context, const struct question *q, struct reply *r)
{
    struct {
        uint32_t before[GUARD];
        float costs[PAIRS];
        uint32_t after[GUARD];
    } table;
    struct {
        uint32_t before, value, after;
    } algorithm = {MARK, (uint32_t)-1, MARK}, protocol = algorithm, channels = {MARK, 0, MARK};
    int *a = (int *)&algorithm.value, *p = (int *)&protocol.value, *c = (int *)&channels.value;
    float **costs = (float **)(void *)table.costs;
    size_t used = sizeof(float) * (size_t)(q->algorithms * PROTOCOLS);
    for (int i = 0; i < GUARD; i++) table.before[i] = table.after[i] = MARK;
    memset(table.costs, 0x5c, sizeof table.costs);
    memcpy(table.costs, q->costs, used);
    memset(r, 0, sizeof *r);
    r->result = ask(t, context, q, costs, a, p, c);
    for (int i = 0; i < GUARD; i++) r->outside |= table.before[i] != MARK || table.after[i] != MARK;
    for (size_t i = used; i < sizeof table.costs; i++) r->outside |= ((unsigned char *)table.costs)[i] != 0x5c;
    r->outside |= algorithm.before != MARK || algorithm.after != MARK || protocol.before != MARK ||
                  protocol.after != MARK || channels.before != MARK || channels.after != MARK;
    memcpy(r->costs, table.costs, used);
    r->channels = *c;
    if (t->version > 2) {
        pick(q, r);
    } else {
        r->algorithm = *a;
        r->protocol = *p;
    }
}

#define WITHOUT_CHUNK                                                                                                  \
    case TUNER_V1:                                                                                                     \
    case TUNER_V2:                                                                                                     \
    case TUNER_V3:                                                                                                     \
    case TUNER_V4:                                                                                                     \
    case TUNER_V5
#define HAS(v)                                                                                                         \
    case TUNER_V##v:                                                                                                   \
        return ((const ncclTuner_v##v##_t *)t->table)->getChunkSize != NULL;
bool tuner_has_chunk(const struct tuner *t)
{
    switch ((enum version)t->version) {
    WITHOUT_CHUNK:
        return false;
        PSM_ABI_TUNER_getChunkSize_V6(HAS)
    }
    return false;
}

ncclResult_t tuner_ask_chunk(const struct tuner *t, void *context, int op, size_t bytes, int algorithm, int protocol,
                             int channels, size_t *chunk)
{
    switch ((enum version)t->version) {
    WITHOUT_CHUNK:
        break;
        SINCE(getChunkSize, 6, context, (ncclFunc_t)op, bytes, algorithm, protocol, channels, chunk)
    }
    return ncclInternalError;
}

ncclResult_t tuner_end(const struct tuner *t, void *context)
{
    switch ((enum version)t->version) {
        SINCE(destroy, 1)
        SINCE(destroy, 2, context)
        SINCE(finalize, 5, context)
    }
    return ncclInternalError;
}
