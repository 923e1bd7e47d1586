/* The variants of one transport by name: handlers for both directions. The correct one, `split`, is in the table from
 * the start; others register when the library loads. */
#ifndef PSM_CONN_VARIANTS_H
#define PSM_CONN_VARIANTS_H

#include <pthread.h>
#include <stddef.h>

#include "core/internal.h"
#include "psm/psm_variant.h"

/* The members that the variants of every transport begin with. */
struct psm_variant {
    uint32_t size;
    const char *name, *summary, *outcome;
    int wrong;
    const struct psmTransportComm *send, *recv;
};
#define PSM_VARIANT_OF(type)                                                                                           \
    _Static_assert(offsetof(type, recv) == offsetof(struct psm_variant, recv) &&                                       \
                       offsetof(type, outcome) == offsetof(struct psm_variant, outcome),                               \
                   #type " begins with the members of struct psm_variant")

enum { PSM_VARIANTS_MAX = 64 };
struct psm_variants {
    const char *what; /* for errors: "variant" */
    size_t least;     /* the smallest size of a registered variant */
    pthread_mutex_t lock;
    size_t count;
    const struct psm_variant *table[PSM_VARIANTS_MAX]; /* [0]: the correct one */
};

/* A transport's table, with the correct variant, and its public functions, each of which does as the one of its name
 * below. smallest: the size of a variant that has the members that all must have. */
#define PSM_VARIANTS_OF(type, called, smallest, says, sends, recvs, add, find, list)                                   \
    PSM_VARIANT_OF(type);                                                                                              \
    static const type split = {.size = sizeof split,                                                                   \
                               .name = "split",                                                                        \
                               .summary = (says),                                                                      \
                               .outcome = "",                                                                          \
                               .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),                  \
                               .send = (sends),                                                                        \
                               .recv = (recvs)};                                                                       \
    static struct psm_variants variants = {.what = (called),                                                           \
                                           .least = (smallest),                                                        \
                                           .lock = PTHREAD_MUTEX_INITIALIZER,                                          \
                                           .count = 1,                                                                 \
                                           .table = {(const struct psm_variant *)&split}};                             \
    psm_status add(const type *variant)                                                                                \
    {                                                                                                                  \
        return psm_variants_add(&variants, (const struct psm_variant *)variant);                                       \
    }                                                                                                                  \
    const type *find(const char *name)                                                                                 \
    {                                                                                                                  \
        return (const type *)psm_variants_find(&variants, name);                                                       \
    }                                                                                                                  \
    size_t list(const type **out, size_t capacity)                                                                     \
    {                                                                                                                  \
        return psm_variants_list(&variants, (const struct psm_variant **)out, capacity);                               \
    }

/* INVALID: incomplete, or the name is taken. NO_RESOURCE: the table is full. */
psm_status psm_variants_add(struct psm_variants *variants, const struct psm_variant *variant);
/* name NULL: the correct one. NULL, with the error NOT_FOUND: there is none of that name. */
const struct psm_variant *psm_variants_find(struct psm_variants *variants, const char *name);
size_t psm_variants_list(struct psm_variants *variants, const struct psm_variant **out, size_t capacity);

#endif
