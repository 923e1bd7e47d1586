/* The variants of the transport by name. */
#include <stddef.h>

#include "conn/variants.h"
#include "net/net.h"

PSM_VARIANT_OF(struct psmNetVariant);

static const struct psmNetVariant split = {
    .size = sizeof split,
    .name = "split",
    .summary = "a slot is sent when its copy is done, and used again when the network is done with it",
    .outcome = "",
    .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),
    .send = &psm_net_split_send,
    .recv = &psm_net_split_recv,
};
static struct psm_variants variants = {.what = "net variant",
                                       .least = offsetof(struct psmNetVariant, declared),
                                       .lock = PTHREAD_MUTEX_INITIALIZER,
                                       .count = 1,
                                       .table = {(const struct psm_variant *)&split}};

psm_status psmNetRegisterVariant(const struct psmNetVariant *variant)
{
    return psm_variants_add(&variants, (const struct psm_variant *)variant);
}

const struct psmNetVariant *psmNetFindVariant(const char *name)
{
    return (const struct psmNetVariant *)psm_variants_find(&variants, name);
}

size_t psmNetVariants(const struct psmNetVariant **out, size_t capacity)
{
    return psm_variants_list(&variants, (const struct psm_variant **)out, capacity);
}
