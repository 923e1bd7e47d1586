/* libpsm: what a run of a wrong variant of a transport must show. The declaration stands in the variant's own table, so
   that the lab, the tests and `psmkit variants` read it there. Plain data; no function. */
#ifndef PSM_PSM_VARIANT_H
#define PSM_PSM_VARIANT_H

#include "psm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a run in which the mistake shows, as `psmkit analyze` names them. */
enum psm_verdict {
    PSM_VERDICT_NONE = 0, /* not declared */
    PSM_VERDICT_HEALTHY = 1,
    PSM_VERDICT_LEAKING = 2,
    PSM_VERDICT_HUNG = 3,
    PSM_VERDICT_FAILED = 4
};
/* When the mistake shows; several are all needed. A run where it does not show ends well. */
enum psm_shows {
    PSM_SHOWS_ALWAYS = 0,
    PSM_SHOWS_BY_LUCK = 1,     /* depends on timing */
    PSM_SHOWS_SYNC_STREAM = 2, /* the application's stream is the legacy stream or a blocking one */
    PSM_SHOWS_ZERO_COPY = 4,   /* buffers are registered, and used a second time */
    PSM_SHOWS_REUSE = 8        /* an operation, or several, use a slot a second time */
};
/* What is left to the end of the process, also in a run where nothing else shows. */
enum psm_leaves { PSM_LEAVES_NOTHING = 0, PSM_LEAVES_STREAM = 1, PSM_LEAVES_EVENTS = 2, PSM_LEAVES_MEMORY = 4 };

struct psmDeclared {
    uint32_t size;
    uint32_t verdict;  /* enum psm_verdict */
    uint32_t shows;    /* enum psm_shows */
    uint32_t leaves;   /* enum psm_leaves */
    psm_status status; /* of the rank that fails first; PSM_OK: no rank fails */
    const char *codes; /* findings, "PSM507" or "PSM401 PSM507": an analysis names at least one; "": none */
};
/* For the tables of variants, in C: .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM507"). */
#define PSM_DECLARED(...) &(const struct psmDeclared){.size = sizeof(struct psmDeclared), __VA_ARGS__}

#ifdef __cplusplus
}
#endif
#endif
