/* Names of NCCL as numbers; a name without one gets a number of the communicator. */
#include <string.h>

#include "profiler_plugin.h"

static const char *const funcs[PSM_PROF_FUNCS] = {
    [PSM_PROF_BROADCAST] = "Broadcast", [PSM_PROF_REDUCE] = "Reduce",
    [PSM_PROF_ALLGATHER] = "AllGather", [PSM_PROF_REDUCESCATTER] = "ReduceScatter",
    [PSM_PROF_ALLREDUCE] = "AllReduce", [PSM_PROF_SENDRECV] = "SendRecv",
    [PSM_PROF_SEND] = "Send",           [PSM_PROF_RECV] = "Recv",
    [PSM_PROF_ALLTOALL] = "AlltoAll",   [PSM_PROF_SCATTER] = "Scatter",
    [PSM_PROF_GATHER] = "Gather",
};
static const char *const algos[PSM_PROF_ALGOS] = {"TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                                  "NVLS_TREE", "PAT"};
static const char *const protos[PSM_PROF_PROTOS] = {"LL", "LL128", "SIMPLE"};
static const char *const phases[PSM_PROF_PHASES] = {"initial_sync", "compute", "final_sync"};
static const char *const datatypes[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                        "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                        "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

static uint8_t other(struct prof_comm *comm, const char *name)
{
    struct psm_prof_comm *shared = comm->shared;
    char text[PSM_PROF_NAME] = {0};
    memcpy(text, name, strnlen(name, sizeof text - 1));
    uint32_t n = atomic_load_explicit(&shared->names, memory_order_acquire);
    for (uint32_t i = 0; i < n && i < PSM_PROF_NAMES; i++)
        if (memcmp(shared->other[i], text, sizeof text) == 0) return (uint8_t)(PSM_PROF_NAME_OTHER + i);
    /* Two threads with a new name each at the same moment: the event of one stays without a name. */
    if (n >= PSM_PROF_NAMES || atomic_exchange_explicit(&comm->naming, 1, memory_order_acquire))
        return PSM_PROF_NAME_NONE;
    uint8_t code = PSM_PROF_NAME_NONE;
    if (atomic_load_explicit(&shared->names, memory_order_relaxed) == n) {
        memcpy(shared->other[n], text, sizeof text);
        atomic_store_explicit(&shared->names, n + 1, memory_order_release);
        code = (uint8_t)(PSM_PROF_NAME_OTHER + n);
    }
    atomic_store_explicit(&comm->naming, 0, memory_order_release);
    return code;
}

/* last: the previous result, since most operations are like the one before. */
static uint8_t find(struct prof_comm *comm, const char *const *names, unsigned n, const char *name, uint8_t *last)
{
    if (!name) return PSM_PROF_NAME_NONE;
    if (*last < n && strcmp(names[*last], name) == 0) return *last;
    for (unsigned i = 0; i < n; i++)
        if (names[i][0] == name[0] && strcmp(names[i], name) == 0) return *last = (uint8_t)i;
    return other(comm, name);
}

uint8_t prof_func(const struct prof_new *made, const char *name)
{
    return find(made->comm, funcs, PSM_PROF_FUNCS, name, &made->local->last.func);
}

uint8_t prof_algo(const struct prof_new *made, const char *name)
{
    return find(made->comm, algos, PSM_PROF_ALGOS, name, &made->local->last.algo);
}

uint8_t prof_proto(const struct prof_new *made, const char *name)
{
    return find(made->comm, protos, PSM_PROF_PROTOS, name, &made->local->last.proto);
}

uint8_t prof_phase(const struct prof_new *made, const char *name)
{
    return find(made->comm, phases, PSM_PROF_PHASES, name, &made->local->last.phase);
}

uint8_t prof_word(const struct prof_new *made, const char *name)
{
    return name ? other(made->comm, name) : PSM_PROF_NAME_NONE;
}

uint8_t prof_datatype(const struct prof_new *made, const char *name)
{
    /* NCCL 2.24 to 2.30 have no name for this one, and only for this one. */
    if (name && *name == 'U' && strcmp(name, "Unknown") == 0) return 1;
    return find(made->comm, datatypes, sizeof datatypes / sizeof *datatypes, name, &made->local->last.datatype);
}
