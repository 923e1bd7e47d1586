/* Kernels, device variables, modules. */
#ifndef HC_KERNEL_H
#define HC_KERNEL_H

#include "device/hc_context.h"
#include "include/psm_hostcuda.h"

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
struct hc_function *hc_function_of(const void *host);    /* NULL: not registered */
struct hc_function *hc_function_get(const void *handle); /* CUfunction or CUkernel */

int hc_module_registered(CUmodule *module, const void *descriptor); /* of a static runtime */

/* export_table.c */
const void *hc_export_table(const CUuuid *id); /* NULL: there is none */

/* ---- interpreters (interpreter.c) ---- */

enum { HC_MAX_PARAMETERS = 256 };

struct hc_interpreter {
    struct hc_interpreter *next; /* the last registered first */
    char *pattern;
    psm_kernel_fn fn;
    void *context;
};

struct hc_parameters {
    struct hc_parameters *next;
    char *pattern;
    unsigned n;
    size_t sizes[];
};

/* By the name of a kernel: the last one that was registered for it. NULL: none. */
struct hc_interpreter *hc_interpreter_of(const char *name);
struct hc_parameters *hc_parameters_of(const char *name);

#endif
