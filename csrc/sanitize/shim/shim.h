/* The shim: the handle sanitizer over any CUDA, by interposing its functions. */
#ifndef PSM_SHIM_H
#define PSM_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "san.h"
#include "san_copy.h"
#include "types.h"
#include "types_copy.h"
#include "types_device.h"
#include "types_device_launch.h"
#include "types_graph.h"
#include "types_memory.h"
#include "types_stream.h"

#define SHIM_EXPORT __attribute__((visibility("default")))

/* Result of a function that no library provides: the driver is missing. */
enum { SHIM_NO_CUDA = 35 };
enum shim_library { SHIM_RUNTIME, SHIM_DRIVER, SHIM_LIBRARIES };

struct shim_function {
    const char *name;
    enum shim_library library;
    int soname;        /* of the runtime: 0, or the only one that has it with these parameters */
    atomic_bool plain; /* found in another: passed through unchanged */
    void *own;
    void *_Atomic real; /* what the program would have received from dlsym or from the driver */
    void *_Atomic next; /* the function to call: set when the sanitizer has started */
};

/* The function that the driver returns for a name from this CUDA version on; function[1]: per-thread default stream.
 * -1: not interposed. */
struct shim_version {
    const char *base;
    int since;
    int function[2];
};

/* Generated from api.def. */
extern struct shim_function shim_functions[];
extern const int shim_count;
extern const struct shim_version shim_versions[];
extern const int shim_version_count;
extern const int shim_newest; /* CUDA version of api.def */

void *shim_find(int number);

static inline void *shim_next(int number)
{
    void *next = atomic_load_explicit(&shim_functions[number].next, memory_order_acquire);
    return __builtin_expect(next != NULL, 1) ? next : shim_find(number);
}

static inline bool shim_checks(int number)
{
    return psm_san_on() && !atomic_load_explicit(&shim_functions[number].plain, memory_order_relaxed);
}

/* Whether a shared libcudart is at this address. */
bool shim_is_runtime(const void *address);

/* ---- real.c: the dynamic linker, behind our own dlsym ---- */
typedef void *(*shim_dlsym_t)(void *handle, const char *name);
typedef void *(*shim_dlvsym_t)(void *handle, const char *name, const char *version);
shim_dlsym_t shim_real_dlsym(void);
shim_dlvsym_t shim_real_dlvsym(void);

#endif
