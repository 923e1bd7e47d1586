/* The objects of this process from which a debugger finds all others: `psmkit inspect` reads them out of the memory of
 * a process that hangs, by this list and the debug information. Nothing in libpsm reads it. It changes when such an
 * object is made or destroyed, never for a call or a step. */
#ifndef PSM_CORE_ALIVE_H
#define PSM_CORE_ALIVE_H

enum psm_alive_kind {
    PSM_ALIVE_PROXY = 1, /* psmProxyState */
    PSM_ALIVE_PLANS      /* psmPlanComm */
};

/* A member called `alive` of the object. */
struct psm_alive {
    struct psm_alive *next, *before;
    enum psm_alive_kind kind;
};

void psm_alive_add(struct psm_alive *alive, enum psm_alive_kind kind);
void psm_alive_remove(struct psm_alive *alive); /* accepts one that was never added, zeroed */

#endif
