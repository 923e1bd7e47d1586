/* The CUDA functions of this process, found at run time. libpsm is not linked with a CUDA library, so it works with any
 * CUDA library and without one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "psm_cuda.h"
#include "psm_lib_messages.h"

static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12"};
enum { RUNTIMES = sizeof runtimes / sizeof *runtimes };

static const struct function {
    const char *name, *base;
    size_t offset;
    unsigned since;
    bool driver, required;
} functions[] = {
#define ROW(member, base, library, since, required)                                                                    \
    {#member, base, offsetof(struct psm_cuda, member), since, library == PSM_CUDA_DRV, required},
    PSM_CUDA_FUNCTIONS(ROW)
#undef ROW
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static struct psm_cuda table;
static const struct psm_cuda *_Atomic loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef cudaError_t by_version(const char *, void **, unsigned int, unsigned long long,
                               enum cudaDriverEntryPointQueryResult *);
typedef cudaError_t by_name(const char *, void **, unsigned long long, enum cudaDriverEntryPointQueryResult *);

/* A driver function whose prototype is that of the CUDA version in api.def. */
static void *driver_function(void *runtime, void *driver, const struct function *f)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    by_version *versioned = (by_version *)dlsym(runtime, "cudaGetDriverEntryPointByVersion");
    if (versioned && versioned(f->base, &found, f->since, 0, &result) == 0 && found) return found;
    if (driver && (found = dlsym(driver, f->name))) return found;
    /* libcudart before 12.5 returns the newest prototype, which is correct unless there is a _v2. */
    by_name *named = (by_name *)dlsym(runtime, "cudaGetDriverEntryPoint");
    if (named && strcmp(f->name, f->base) == 0 && named(f->base, &found, 0, &result) == 0) return found;
    return NULL;
}

static void path_of(void *library, const char *name, char *path, size_t size)
{
    struct link_map *map = NULL;
    bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name;
    snprintf(path, size, "%s", known ? map->l_name : name);
}

/* The handle is never closed: pointers into it are kept. */
static void *open_runtime(char *path, size_t size)
{
    const char *given = getenv("PSM_CUDA_LIBRARY");
    void *library = NULL;
    const char *name = given;
    if (given && *given) {
        library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            psm_fail(PSM_ERR_NOT_FOUND, "cuda", -1, -1, 0,
                     "PSM_CUDA_LIBRARY is \"%.80s\", which cannot be loaded: %.140s", given, dlerror());
            return NULL;
        }
    }
    for (size_t i = 0; i < RUNTIMES && !library; i++) library = dlopen(name = runtimes[i], RTLD_NOW | RTLD_NOLOAD);
    /* A library that exists but cannot be loaded is the reason to report; a missing one is not. */
    char why[160] = "";
    for (size_t i = 0; i < RUNTIMES && !library; i++) {
        library = dlopen(name = runtimes[i], RTLD_NOW | RTLD_LOCAL);
        const char *said = library ? NULL : dlerror();
        if (said && !*why && !strstr(said, "cannot open shared object file")) snprintf(why, sizeof why, "%s", said);
    }
    if (!library) {
        psm_fail(PSM_ERR_NOT_FOUND, "cuda", -1, -1, 0,
                 "no CUDA: neither %s nor %s is loaded or on the library path%s%s; set PSM_CUDA_LIBRARY to one",
                 runtimes[0], runtimes[1], *why ? ", or it cannot be loaded: " : "", why);
        return NULL;
    }
    path_of(library, name, path, size);
    return library;
}

static bool load(struct psm_cuda *cuda)
{
    void *runtime = open_runtime(cuda->path, sizeof cuda->path);
    if (!runtime) return false;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        const struct function *f = &functions[i];
        void *found = f->driver ? driver_function(runtime, driver, f) : dlsym(runtime, f->name);
        if (!found && f->required) {
            psm_fail(PSM_ERR_UNSUPPORTED, "cuda", -1, -1, 0,
                     "%.120s has no %s: it is too old, or is not a CUDA runtime library", cuda->path, f->name);
            dlclose(runtime);
            if (driver) dlclose(driver);
            return false;
        }
        memcpy((char *)cuda + f->offset, &found, sizeof found);
    }
    if (cuda->cudaRuntimeGetVersion(&cuda->runtime_version) != 0) cuda->runtime_version = 0;
    if (cuda->cudaDriverGetVersion(&cuda->driver_version) != 0) cuda->driver_version = 0;
    return true;
}

const struct psm_cuda *psm_cuda_get(void)
{
    const struct psm_cuda *cuda = atomic_load_explicit(&loaded, memory_order_acquire);
    if (cuda) return cuda;
    pthread_mutex_lock(&lock);
    cuda = atomic_load_explicit(&loaded, memory_order_relaxed);
    if (!cuda) {
        struct psm_cuda found = {0};
        if (load(&found)) {
            table = found;
            atomic_store_explicit(&loaded, cuda = &table, memory_order_release);
            psm_msg_libpsm_cuda_loaded(table.path, table.runtime_version, table.driver_version);
        }
    }
    pthread_mutex_unlock(&lock);
    return cuda;
}
