/* Another net plugin, of any version, behind this one. */
#ifndef PSM_NET_CHAIN_H
#define PSM_NET_CHAIN_H

#include "net_plugin.h"
#include "psm_abi_versions.h"

/* The slots of the newest table in the other library, each with the version that introduced its current signature:
 * init_v4, init_v10, ... Missing slots are NULL. */
struct chain_table {
    int version; /* 0: no library is loaded */
    const char *name;
    void *library;
    const void *table;
#define SLOT(slot, version) __typeof__(((ncclNet_v##version##_t *)0)->slot) slot##_v##version;
    PSM_ABI_NET_SHAPES(SLOT)
#undef SLOT
};
extern struct chain_table chain;

/* Loads the newest table of the library at path. The log says what is wrong. */
ncclResult_t chain_load(const char *path);
/* Reads the table again, which the other plugin's init may have filled. The log says which slot is missing. */
ncclResult_t chain_filled(const char *path);
void chain_unload(void);
/* Members that the version lacks are filled in as by NCCL's adapters. */
ncclResult_t chain_properties(int dev, ncclNetProperties_v12_t *props);
/* Logs that a call of the other plugin failed; returns the result. */
ncclResult_t chain_failed(const char *call, ncclResult_t result);

#endif
