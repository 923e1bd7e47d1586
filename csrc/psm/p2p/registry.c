/* Registered buffers of this process, and mapped buffers of peers. The progress thread looks them up once per
 * operation; the service thread and callers change them. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "p2p/p2p.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- own ---- */

static struct owned {
    struct owned *next;
    struct psm_registered entry;
} *registered;

psm_status psm_registered_add(const struct psm_registered *entry)
{
    struct owned *owned = calloc(1, sizeof *owned);
    if (!owned) return psm_fail(PSM_ERR_NO_MEMORY, "register", -1, -1, 0, "no memory for the record of a buffer");
    owned->entry = *entry;
    pthread_mutex_lock(&lock);
    owned->next = registered;
    registered = owned;
    pthread_mutex_unlock(&lock);
    return PSM_OK;
}

static bool find(uint64_t handle, struct psm_registered *entry, bool take)
{
    pthread_mutex_lock(&lock);
    struct owned **at = &registered;
    while (*at && (*at)->entry.handle != handle) at = &(*at)->next;
    struct owned *found = *at;
    if (found) *entry = found->entry;
    if (found && take) *at = found->next;
    pthread_mutex_unlock(&lock);
    if (found && take) free(found);
    return found != NULL;
}

bool psm_registered_find(uint64_t handle, struct psm_registered *entry)
{
    return find(handle, entry, false);
}
bool psm_registered_take(uint64_t handle, struct psm_registered *entry)
{
    return find(handle, entry, true);
}

/* ---- of peers ---- */

struct psm_import {
    struct psm_import *next;
    const void *self; /* the rank that mapped it: a process may have several */
    void *owner;      /* the connection that it arrived on */
    uint64_t id;
    int refs; /* one for the list, one per copy */
    bool keep;
    struct psm_memory memory;
};
static struct psm_import *imports;

static struct psm_import **place(const struct psm_host *host, uint64_t id)
{
    struct psm_import **at = &imports;
    while (*at && ((*at)->id != id || (*at)->self != host->self)) at = &(*at)->next;
    return at;
}

psm_status psm_import_add(const struct psm_host *host, void *owner, uint64_t id, const struct psm_share *share, int fd,
                          int owner_rank)
{
    pthread_mutex_lock(&lock);
    bool known = *place(host, id) != NULL;
    pthread_mutex_unlock(&lock);
    if (known)
        return psm_fail(PSM_ERR_PROTOCOL, "register", -1, owner_rank, 0,
                        "rank %d registers a buffer of id 0x%" PRIx64 " twice", owner_rank, id);
    struct psm_import *import = calloc(1, sizeof *import);
    if (!import) return psm_fail(PSM_ERR_NO_MEMORY, "register", -1, owner_rank, 0, "no memory for a peer's buffer");
    psm_status status = psm_memory_map(host, share, fd, owner_rank, &import->memory);
    if (status != PSM_OK) {
        free(import);
        return status;
    }
    import->self = host->self;
    import->owner = owner;
    import->id = id;
    import->refs = 1;
    pthread_mutex_lock(&lock);
    import->next = imports;
    imports = import;
    pthread_mutex_unlock(&lock);
    return PSM_OK;
}

struct psm_import *psm_import_hold(const struct psm_host *host, uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct psm_import *import = *place(host, id);
    if (import) import->refs++;
    pthread_mutex_unlock(&lock);
    return import;
}

void *psm_import_at(const struct psm_import *import, uint64_t offset, uint64_t bytes)
{
    if (bytes > import->memory.size || offset > import->memory.size - bytes) return NULL;
    return (char *)import->memory.ptr + offset;
}

psm_status psm_import_release(const struct psm_host *host, struct psm_import *import)
{
    pthread_mutex_lock(&lock);
    bool last = --import->refs == 0;
    pthread_mutex_unlock(&lock);
    if (!last) return PSM_OK;
    psm_status status =
        import->keep ? psm_memory_keep(host, import->owner, &import->memory) : psm_memory_close(host, &import->memory);
    free(import);
    return status;
}

psm_status psm_import_remove(const struct psm_host *host, void *owner, uint64_t id, bool keep, bool *found)
{
    psm_status first = PSM_OK;
    *found = false;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct psm_import **at = &imports, *import;
        while (*at && ((*at)->owner != owner || (id != 0 && (*at)->id != id))) at = &(*at)->next;
        import = *at;
        if (import) {
            *at = import->next;
            import->keep = keep;
        }
        pthread_mutex_unlock(&lock);
        if (!import) return first;
        *found = true;
        psm_status status = psm_import_release(host, import);
        if (first == PSM_OK) first = status;
    }
}
