/* The variants of the transport by name. */
#include <stddef.h>

#include "conn/variants.h"
#include "p2p/p2p.h"

PSM_VARIANT_OF(struct psmP2pVariant);

static const struct psmP2pVariant split = {
    .size = sizeof split,
    .name = "split",
    .summary = "share info and local info apart; each process makes its own stream and events",
    .outcome = "",
    .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),
    .send = &psm_p2p_split_send,
    .recv = &psm_p2p_split_recv,
};
static struct psm_variants variants = {.what = "variant",
                                       .least = offsetof(struct psmP2pVariant, sendConnect),
                                       .lock = PTHREAD_MUTEX_INITIALIZER,
                                       .count = 1,
                                       .table = {(const struct psm_variant *)&split}};

psm_status psmP2pRegisterVariant(const struct psmP2pVariant *variant)
{
    return psm_variants_add(&variants, (const struct psm_variant *)variant);
}

const struct psmP2pVariant *psmP2pFindVariant(const char *name)
{
    return (const struct psmP2pVariant *)psm_variants_find(&variants, name);
}

size_t psmP2pVariants(const struct psmP2pVariant **out, size_t capacity)
{
    return psm_variants_list(&variants, (const struct psm_variant **)out, capacity);
}
