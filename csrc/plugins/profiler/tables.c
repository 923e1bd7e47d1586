/* NCCL's tables, all versions. No function except init ever returns an error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "profiler_plugin.h"

static ncclResult_t stop(void *handle)
{
    prof_stop((uint64_t)(uintptr_t)handle);
    return ncclSuccess;
}

static inline uint8_t number(unsigned value, unsigned n)
{
    return value < n ? (uint8_t)value : PSM_PROF_NAME_NONE;
}

/* Before the row is published: no other thread has it. */
static inline void set_flag(struct psm_prof_event *event, unsigned flag)
{
    atomic_store_explicit(&event->flags, atomic_load_explicit(&event->flags, memory_order_relaxed) | flag,
                          memory_order_relaxed);
}

/* Up to v3 init does not name the communicator; its operations do. From 2.27 on NCCL does not pass it to these versions
 * at all. */
static void identify(struct prof_comm *comm, uint64_t hash, const char *name, int rank)
{
    struct psm_prof_comm *shared = comm->shared;
    if (PROF_GET(shared->rank) < 0) PROF_SET(shared->rank, rank);
    if (PROF_GET(shared->comm_hash) || !hash) return;
    PROF_SET(shared->comm_hash, hash);
    if (!name || atomic_exchange(&comm->naming, 1)) return;
    memcpy(shared->name, name, strnlen(name, sizeof shared->name - 1));
    atomic_store(&comm->naming, 0);
}

/* The version of the NCCL that has this function, as a number: 23102 is 2.31.2. 0: unknown, it is not a library that
 * exports ncclGetVersion, and no other library of the process does. */
static int nccl_version(const void *caller)
{
    Dl_info from;
    void *library = dladdr(caller, &from) ? dlopen(from.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, "ncclGetVersion") : NULL;
    if (!found) found = dlsym(RTLD_DEFAULT, "ncclGetVersion");
    ncclResult_t (*get)(int *);
    int version = 0;
    memcpy(&get, &found, sizeof get);
    if (found && get(&version) != ncclSuccess) version = 0;
    if (library) dlclose(library);
    return version;
}

/* Forks of releases before 2.31 have a v7 of their own without userTag: what would be there belongs to other members,
 * or to nobody. */
static bool has_tags(const void *caller)
{
    int version = nccl_version(caller);
    return !version || version >= 23100;
}

#include "psm_abi_each_profiler.h"
