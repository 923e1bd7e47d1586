/* CUDA IPC mappings that stay open between the groups of PSM_ZERO_COPY=always.
 *
 * Such a group registers its buffers and deregisters them at its end. cudaIpcCloseMemHandle waits for the device, which
 * the next group may hold, and that group may wait for the rank that asks for the close. So the mapping stays open
 * until the connection is freed, and the next registration of the same allocation takes it: CUDA gives each allocation
 * a handle of its own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "p2p/memory.h"
#include "psm_lib_messages.h"

enum { MOST = 64 }; /* mappings of one connection: what they map stays allocated when its owner frees it */

struct kept {
    struct kept *next;
    const void *self;  /* the rank that mapped it */
    const void *owner; /* the connection that it arrived on */
    struct psm_memory memory;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *all;

psm_status psm_memory_keep(const struct psm_host *host, const void *owner, struct psm_memory *memory)
{
    struct kept *kept = memory->kind == PSM_SHARE_CUDA_IPC && !memory->owner ? calloc(1, sizeof *kept) : NULL;
    if (!kept) return psm_memory_close(host, memory);
    psm_msg_libpsm_memory_closed(memory->id, "kept", (uint64_t)(uintptr_t)memory->ptr);
    *kept = (struct kept){.self = host->self, .owner = owner, .memory = *memory};
    struct kept *oldest = NULL;
    int count = 0;
    pthread_mutex_lock(&lock);
    kept->next = all;
    all = kept;
    struct kept **last = NULL;
    for (struct kept **at = &all; *at; at = &(*at)->next) {
        if ((*at)->owner == owner) {
            last = at;
            count++;
        }
    }
    if (count > MOST) {
        oldest = *last;
        *last = oldest->next;
    }
    pthread_mutex_unlock(&lock);
    *memory = (struct psm_memory){.fd = -1, .segment = {.fd = -1}};
    if (!oldest) return PSM_OK;
    psm_status status = psm_memory_close(host, &oldest->memory);
    free(oldest);
    return status;
}

bool psm_memory_take_kept(const struct psm_host *host, const struct psm_share *share, struct psm_memory *memory)
{
    pthread_mutex_lock(&lock);
    struct kept **at = &all;
    while (*at && ((*at)->self != host->self || (*at)->memory.owner_pid != share->owner_pid ||
                   memcmp((*at)->memory.blob, share->blob, sizeof share->blob) != 0))
        at = &(*at)->next;
    struct kept *found = *at;
    if (found) *at = found->next;
    pthread_mutex_unlock(&lock);
    if (!found) return false;
    memory->base = found->memory.base;
    free(found);
    return true;
}

psm_status psm_memory_drop_kept(const struct psm_host *host, const void *owner)
{
    psm_status first = PSM_OK;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct kept **at = &all;
        while (*at && (*at)->owner != owner) at = &(*at)->next;
        struct kept *found = *at;
        if (found) *at = found->next;
        pthread_mutex_unlock(&lock);
        if (!found) return first;
        psm_status status = psm_memory_close(host, &found->memory);
        if (first == PSM_OK) first = status;
        free(found);
    }
}
