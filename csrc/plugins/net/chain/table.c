/* Finds the other plugin's table and converts all versions to one interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "chain/chain.h"
#include "net_say.h"
#include "properties.h"

struct chain_table chain;

/* ---- slots ---- */

#define TAKE(slot, type, signature) chain.slot##_v##signature = (__typeof__(chain.slot##_v##signature))t->slot;
#define TAKE_TABLE(v)                                                                                                  \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = chain.table;                                                                       \
        chain.name = t->name;                                                                                          \
        PSM_ABI_NET_SLOTS_V##v(TAKE) break;                                                                            \
    }

static void take(void)
{
    switch (chain.version) {
        PSM_ABI_NET_VERSIONS(TAKE_TABLE)
    }
}

/* NCCL calls init, and reads the rest of the table after it: init may fill it. */
#define HAS_INIT(v)                                                                                                    \
    case v:                                                                                                            \
        return ((const ncclNet_v##v##_t *)chain.table)->init != NULL;

static bool has_init(void)
{
    switch (chain.version) {
        PSM_ABI_NET_VERSIONS(HAS_INIT)
    }
    return false;
}

/* The first slot that NCCL calls without a check and that is empty, or NULL. */
#define EMPTY(slot)                                                                                                    \
    if (!t->slot) return #slot;
#define EMPTY_OF(v)                                                                                                    \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = chain.table;                                                                       \
        PSM_ABI_NET_REQUIRED_V##v(EMPTY) break;                                                                        \
    }

static const char *empty_slot(void)
{
    switch (chain.version) {
        PSM_ABI_NET_VERSIONS(EMPTY_OF)
    }
    return NULL;
}

/* ---- the library ---- */

static ncclResult_t unusable(const char *path, const char *why)
{
    NET_SAY(PSM_NET_CHAIN_UNUSABLE, psm_net_chain_unusable, NCCL_INIT | NCCL_NET, path, why);
    chain_unload();
    return ncclInvalidUsage;
}

ncclResult_t chain_load(const char *path)
{
    char text[512];
    chain = (struct chain_table){0};
    if (!*path) return unusable(path, "no path: expected PSM_NET=chain:/path/to/libnccl-net-other.so");
    chain.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!chain.library) {
        const char *error = dlerror();
        snprintf(text, sizeof text, "%s", error ? error : "dlopen failed");
        return unusable(path, text);
    }
    for (int version = PSM_ABI_NET_LAST; version >= PSM_ABI_NET_FIRST && !chain.table; version--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        chain.table = dlsym(chain.library, symbol);
        chain.version = version;
    }
    if (!chain.table) {
        snprintf(text, sizeof text, "it has no table of a net plugin, ncclNetPlugin_v%d to v%d", PSM_ABI_NET_FIRST,
                 PSM_ABI_NET_LAST);
        return unusable(path, text);
    }
#define SELF(version) || chain.table == (const void *)&ncclNetPlugin_v##version
    if (false PSM_ABI_NET_VERSIONS(SELF)) return unusable(path, "it is this library, which would call itself for ever");
    take();
    if (has_init()) return ncclSuccess;
    snprintf(text, sizeof text, "init is NULL in its ncclNetPlugin_v%d", chain.version);
    return unusable(path, text);
}

ncclResult_t chain_filled(const char *path)
{
    char text[128];
    take();
    const char *empty = empty_slot();
    if (!empty) return ncclSuccess;
    snprintf(text, sizeof text, "%s is NULL in its ncclNetPlugin_v%d after init", empty, chain.version);
    NET_SAY(PSM_NET_CHAIN_UNUSABLE, psm_net_chain_unusable, NCCL_INIT | NCCL_NET, path, text);
    return ncclInvalidUsage;
}

void chain_unload(void)
{
    if (chain.library) dlclose(chain.library);
    chain = (struct chain_table){0};
}

/* ---- properties ---- */

#define RECORD(v)                                                                                                      \
    case v: {                                                                                                          \
        ncclNetProperties_v##v##_t p = {0};                                                                            \
        result = ((const ncclNet_v##v##_t *)chain.table)->getProperties(dev, &p);                                      \
        if (result == ncclSuccess) {                                                                                   \
            NET_COPY_PROPERTIES(v, out, &p)                                                                            \
        }                                                                                                              \
        break;                                                                                                         \
    }

ncclResult_t chain_properties(int dev, ncclNetProperties_v12_t *out)
{
    ncclResult_t result = ncclInternalError;
    if (chain.version < 9) {
        /* Sizes are ints there, and NCCL's adapters limit them to these. */
        out->maxP2pBytes = MAX_NET_SIZE;
        out->maxCollBytes = MAX_COLLNET_SIZE;
    }
    switch (chain.version) {
        PSM_ABI_NET_VERSIONS(RECORD)
    }
    return result == ncclSuccess ? result : chain_failed("getProperties", result);
}
