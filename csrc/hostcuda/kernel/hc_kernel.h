/* Kernels, device variables, modules. */
#ifndef HC_KERNEL_H
#define HC_KERNEL_H

#include "device/hc_context.h"

enum { HC_FUNCTION_ATTRIBUTES = 18 }; /* values of CUfunction_attribute */

struct hc_module;

/* A kernel. It stays in memory after its module is unloaded: a thread may still be launching it. */
struct hc_function {
    struct hc_function *next; /* of the same bucket */
    const void *host;         /* its name in <<<>>>; NULL: of a module */
    struct hc_module *module;
    char *name;
    uint64_t handle;
    atomic_bool refused; /* its refusal was logged */
    _Atomic int attributes[HC_FUNCTION_ATTRIBUTES];
};

/* module.c */
struct hc_function *hc_function_of(const void *host);                       /* NULL: not registered */
struct hc_function *hc_function_get(const void *handle);                    /* CUfunction or CUkernel */
void hc_modules_reset(int device);                                          /* the device's memory was freed */
int hc_function_attribute(struct hc_function *f, int attribute, int value); /* set */

int hc_module_registered(CUmodule *module, const void *descriptor); /* of a static runtime */

/* export_table.c */
const void *hc_export_table(const CUuuid *id); /* NULL: there is none */

/* kernel.c */
bool hc_kernel_known(const char *name); /* an interpreter is registered */
void hc_kernels_start(void);            /* PSM_HOSTCUDA_KERNELS */

#endif
