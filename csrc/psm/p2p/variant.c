/* The variants of the transport by name. The right one is always registered; others register when the library loads. */
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "p2p/p2p.h"

enum { VARIANTS = 64 };

static const struct psmP2pVariant split = {
    .size = sizeof split,
    .name = "split",
    .summary = "share info and local info apart; each process makes its own stream and events",
    .outcome = "",
    .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),
    .send = &psm_p2p_split_send,
    .recv = &psm_p2p_split_recv,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct psmP2pVariant *table[VARIANTS] = {&split};
static size_t count = 1;

static const struct psmP2pVariant *find(const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i]->name, name) == 0) return table[i];
    return NULL;
}

psm_status psmP2pRegisterVariant(const struct psmP2pVariant *variant)
{
    if (!variant || variant->size < offsetof(struct psmP2pVariant, sendConnect) || !variant->name || !*variant->name ||
        !variant->send || !variant->recv || !variant->outcome)
        return psm_fail(PSM_ERR_INVALID, "variant", -1, -1, 0,
                        "a variant has a size, a name, an outcome and the handlers of both directions");
    psm_status status = PSM_OK;
    pthread_mutex_lock(&lock);
    if (find(variant->name))
        status = psm_fail(PSM_ERR_INVALID, "variant", -1, -1, 0, "there is a variant %s already", variant->name);
    else if (count == VARIANTS)
        status =
            psm_fail(PSM_ERR_NO_RESOURCE, "variant", -1, -1, 0, "%d variants are registered, no more fit", VARIANTS);
    else
        table[count++] = variant;
    pthread_mutex_unlock(&lock);
    return status;
}

const struct psmP2pVariant *psmP2pFindVariant(const char *name)
{
    pthread_mutex_lock(&lock);
    const struct psmP2pVariant *found = find(name ? name : split.name);
    pthread_mutex_unlock(&lock);
    if (!found) psm_fail(PSM_ERR_NOT_FOUND, "variant", -1, -1, 0, "there is no variant %.60s", name);
    return found;
}

size_t psmP2pVariants(const struct psmP2pVariant **out, size_t capacity)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; out && i < count && i < capacity; i++) out[i] = table[i];
    size_t all = count;
    pthread_mutex_unlock(&lock);
    return all;
}
