#include "conn/conn_variants.h"

#include <string.h>

static const struct psm_variant *find(const struct psm_variants *variants, const char *name)
{
    for (size_t i = 0; i < variants->count; i++)
        if (strcmp(variants->table[i]->name, name) == 0) return variants->table[i];
    return NULL;
}

psm_status psm_variants_add(struct psm_variants *variants, const struct psm_variant *variant)
{
    if (!variant || variant->size < variants->least || !variant->name || !*variant->name || !variant->send ||
        !variant->recv || !variant->outcome)
        return psm_fail(PSM_ERR_INVALID, "variant", -1, -1, 0,
                        "a %s has a size, a name, an outcome and the handlers of both directions", variants->what);
    psm_status status = PSM_OK;
    pthread_mutex_lock(&variants->lock);
    if (find(variants, variant->name))
        status = psm_fail(PSM_ERR_INVALID, "variant", -1, -1, 0, "a %s %.60s is already registered", variants->what,
                          variant->name);
    else if (variants->count == PSM_VARIANTS_MAX)
        status = psm_fail(PSM_ERR_NO_RESOURCE, "variant", -1, -1, 0, "no %s fits any more: %d are registered",
                          variants->what, PSM_VARIANTS_MAX);
    else
        variants->table[variants->count++] = variant;
    pthread_mutex_unlock(&variants->lock);
    return status;
}

const struct psm_variant *psm_variants_find(struct psm_variants *variants, const char *name)
{
    pthread_mutex_lock(&variants->lock);
    const struct psm_variant *found = name ? find(variants, name) : variants->table[0];
    pthread_mutex_unlock(&variants->lock);
    if (!found) psm_fail(PSM_ERR_NOT_FOUND, "variant", -1, -1, 0, "there is no %s %.60s", variants->what, name);
    return found;
}

size_t psm_variants_list(struct psm_variants *variants, const struct psm_variant **out, size_t capacity)
{
    pthread_mutex_lock(&variants->lock);
    for (size_t i = 0; out && i < variants->count && i < capacity; i++) out[i] = variants->table[i];
    size_t count = variants->count;
    pthread_mutex_unlock(&variants->lock);
    return count;
}
