/* The life cycle. Each module registers what it does when the process starts to use CUDA, when a device is reset, when
 * a context ends, and at exit. It does so when the library is loaded; whoever resets a device need not know the
 * modules. */
#ifndef HC_LIFE_H
#define HC_LIFE_H

#include "core/hc.h"

/* In the order of the start. Resets, ends of contexts and the exit go through them backwards. */
enum hc_life_order {
    HC_MODULE_ERRORS,
    HC_MODULE_TOPOLOGY,
    HC_MODULE_BANNER,
    HC_MODULE_CONTEXTS,
    HC_MODULE_INTERPRETERS,
    HC_MODULE_VARIABLES,
    HC_MODULE_POOLS,
    HC_MODULE_RANGES,
    HC_MODULE_ALLOCATIONS,
    HC_MODULE_STREAMS,
    HC_MODULE_EVENTS,
    HC_MODULES
};

/* Each function may be NULL. */
struct hc_life {
    int (*start)(void);                      /* an error: every call returns it */
    void (*reset)(int device);               /* cudaDeviceReset: everything on the device ends */
    void (*context_ends)(CUcontext context); /* cuCtxDestroy: everything that was created in it ends */
    void (*stop)(void);                      /* the process exits */
};

void hc_life_register(enum hc_life_order module, const struct hc_life *life);

/* Once per file, with the functions as designated initialisers. */
#define HC_LIFE(module, ...)                                                                                           \
    static const struct hc_life life_of_module = {__VA_ARGS__};                                                        \
    __attribute__((constructor)) static void register_module(void)                                                     \
    {                                                                                                                  \
        hc_life_register(module, &life_of_module);                                                                     \
    }

int hc_life_start(void); /* the first error, or 0 */
void hc_life_reset(int device);
void hc_life_context_ends(CUcontext context);
void hc_life_stop(void);

#endif
