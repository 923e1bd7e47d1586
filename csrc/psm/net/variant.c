/* The variants of the net transport by name. The right one is always registered; others register when the library
 * loads. */
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "net/net.h"

enum { VARIANTS = 64 };

static const struct psmNetVariant split = {
    .size = sizeof split,
    .name = "split",
    .summary = "a slot is sent when its copy is done, and used again when the network is done with it",
    .outcome = "",
    .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),
    .send = &psm_net_split_send,
    .recv = &psm_net_split_recv,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct psmNetVariant *table[VARIANTS] = {&split};
static size_t count = 1;

static const struct psmNetVariant *find(const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i]->name, name) == 0) return table[i];
    return NULL;
}

psm_status psmNetRegisterVariant(const struct psmNetVariant *variant)
{
    if (!variant || variant->size < offsetof(struct psmNetVariant, declared) || !variant->name || !*variant->name ||
        !variant->send || !variant->recv || !variant->outcome)
        return psm_fail(PSM_ERR_INVALID, "variant", -1, -1, 0,
                        "a variant has a size, a name, an outcome and the handlers of both directions");
    psm_status status = PSM_OK;
    pthread_mutex_lock(&lock);
    if (find(variant->name))
        status = psm_fail(PSM_ERR_INVALID, "variant", -1, -1, 0, "there is a net variant %.60s already", variant->name);
    else if (count == VARIANTS)
        status =
            psm_fail(PSM_ERR_NO_RESOURCE, "variant", -1, -1, 0, "%d variants are registered, no more fit", VARIANTS);
    else
        table[count++] = variant;
    pthread_mutex_unlock(&lock);
    return status;
}

const struct psmNetVariant *psmNetFindVariant(const char *name)
{
    pthread_mutex_lock(&lock);
    const struct psmNetVariant *found = find(name ? name : split.name);
    pthread_mutex_unlock(&lock);
    if (!found) psm_fail(PSM_ERR_NOT_FOUND, "variant", -1, -1, 0, "there is no net variant %.60s", name);
    return found;
}

size_t psmNetVariants(const struct psmNetVariant **out, size_t capacity)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; out && i < count && i < capacity; i++) out[i] = table[i];
    size_t all = count;
    pthread_mutex_unlock(&lock);
    return all;
}
