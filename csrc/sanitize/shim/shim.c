/* How the shim intercepts calls between a program and CUDA: by symbols, by dlsym, and by the two ways to request entry
 * points. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "psm_messages.h"

enum { RUNTIMES = 4, PER_THREAD_DEFAULT_STREAM = 2 };

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- which libraries are loaded ---- */

static struct runtime {
    uintptr_t begin, end;
    char path[256];
} runtimes[RUNTIMES];
static _Atomic int nruntimes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int note_runtime(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size, (void)context;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *file = slash ? slash + 1 : info->dlpi_name;
    if (!file || strncmp(file, "libcudart.so", 12) != 0) return 0;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, to = from + info->dlpi_phdr[i].p_memsz;
        begin = from < begin ? from : begin;
        end = to > end ? to : end;
    }
    int n = atomic_load(&nruntimes);
    for (int i = 0; i < n; i++)
        if (runtimes[i].begin == begin) return 0;
    if (n == RUNTIMES || strlen(info->dlpi_name) >= sizeof runtimes->path) return 0;
    runtimes[n].begin = begin;
    runtimes[n].end = end;
    strcpy(runtimes[n].path, info->dlpi_name);
    atomic_store_explicit(&nruntimes, n + 1, memory_order_release);
    return 0;
}

static int look_for_runtimes(void)
{
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(note_runtime, NULL);
    pthread_mutex_unlock(&lock);
    return atomic_load(&nruntimes);
}

bool shim_is_runtime(const void *address)
{
    int n = atomic_load_explicit(&nruntimes, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if ((uintptr_t)address >= runtimes[i].begin && (uintptr_t)address < runtimes[i].end) return true;
    return false;
}

/* ---- the next function of a name ---- */

/* After us in the order of symbols, or in a library that is loaded for somebody else. */
static void *behind(enum shim_library library, const char *name)
{
    shim_dlsym_t find = shim_real_dlsym();
    void *found = find(RTLD_NEXT, name);
    if (found) return found;
    if (library == SHIM_RUNTIME) {
        int n = look_for_runtimes();
        for (int i = n - 1; i >= 0 && !found; i--) {
            void *handle = dlopen(runtimes[i].path, RTLD_LAZY | RTLD_NOLOAD);
            if (!handle) continue;
            found = find(handle, name);
            dlclose(handle);
        }
        return found;
    }
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return NULL;
    found = find(handle, name);
    dlclose(handle);
    return found;
}

static _Thread_local int last_device;

static int log_device(void)
{
    return last_device;
}

/* These two are called only inside checked calls, so calls that they cause are not checked. */
static int device(void)
{
    static void *_Atomic runtime, *_Atomic driver;
    int (*ask)(int *) = (int (*)(int *))atomic_load(&runtime);
    int now = 0;
    if (!ask) ask = (int (*)(int *))atomic_load(&driver);
    if (!ask) {
        void *found = behind(SHIM_RUNTIME, "cudaGetDevice");
        atomic_store(found ? &runtime : &driver, found ? found : behind(SHIM_DRIVER, "cuCtxGetDevice"));
        ask = (int (*)(int *))(found ? found : atomic_load(&driver));
    }
    if (ask && ask(&now) == 0) last_device = now;
    return last_device;
}

static bool place(uint64_t address, uint64_t *base, uint64_t *size)
{
    static void *_Atomic driver, *_Atomic runtime;
    if (!atomic_load(&driver)) atomic_store(&driver, behind(SHIM_DRIVER, "cuMemGetAddressRange_v2"));
    CUresult (*range)(CUdeviceptr *, size_t *, CUdeviceptr) =
        (CUresult (*)(CUdeviceptr *, size_t *, CUdeviceptr))atomic_load(&driver);
    CUdeviceptr begin;
    size_t n;
    if (range) {
        if (range(&begin, &n, (CUdeviceptr)address) != 0) return false;
        *base = begin;
        *size = n;
        return true;
    }
    /* Without libcuda: the memory type is the first field of what the runtime returns for a pointer; 0 is unregistered.
     */
    if (!atomic_load(&runtime)) atomic_store(&runtime, behind(SHIM_RUNTIME, "cudaPointerGetAttributes"));
    int (*attributes)(void *, const void *) = (int (*)(void *, const void *))atomic_load(&runtime);
    union {
        int type;
        char room[256];
    } answer = {0};
    *base = *size = 0;
    return attributes && attributes(&answer, (const void *)(uintptr_t)address) == 0 && answer.type != 0;
}

static void start(void)
{
    const struct psm_san_hooks hooks = {.device = device, .log_device = log_device, .place = place};
    const char *text = getenv("PSM_SANITIZE");
    if (!text || strcmp(text, "off") == 0) return;
    psm_san_start(strcmp(text, "error") == 0 ? PSM_SAN_ERROR : PSM_SAN_WARN, "shim", &hooks);
}

static void tell_driver_only(void)
{
    static atomic_bool told;
    if (atomic_load(&psm_san_mode_now) == PSM_SAN_OFF || look_for_runtimes() || atomic_exchange(&told, true)) return;
    psm_msg_sanitizer_driver_only();
}

/* 12 for libcudart.so.12; 0 if the function is in another file. */
static int soname_of(void *function)
{
    Dl_info info;
    const char *at = dladdr(function, &info) && info.dli_fname ? strstr(info.dli_fname, "libcudart.so.") : NULL;
    return at ? atoi(at + strlen("libcudart.so.")) : 0;
}

void *shim_find(int number)
{
    struct shim_function *f = &shim_functions[number];
    /* At the first call, not when the shim is loaded: every program that this one starts inherits it. */
    pthread_once(&once, start);
    look_for_runtimes();
    void *next = atomic_load(&f->real);
    if (!next) next = behind(f->library, f->name);
    if (f->library == SHIM_DRIVER && !psm_san_depth) tell_driver_only();
    if (f->soname && next && soname_of(next) != f->soname) atomic_store(&f->plain, true);
    atomic_store_explicit(&f->next, next, memory_order_release);
    return next;
}

/* ---- what the program gets in place of a function ---- */

static void *stand_in(struct shim_function *f, void *real)
{
    void *none = NULL;
    if (real == f->own) return real;
    if (atomic_compare_exchange_strong(&f->real, &none, real)) return f->own;
    /* A second libcudart in one process has its own state. There is only one driver, however its functions were
     * obtained. */
    return none == real || f->library == SHIM_DRIVER ? f->own : real;
}

struct by_hand {
    const char *name;
    void *own;
    enum shim_library library;
    void *_Atomic real;
};
static struct by_hand by_hand[7];

static void *instead_of(const char *name, void *real)
{
    for (int i = 0; by_hand[i].name; i++) {
        if (strcmp(by_hand[i].name, name) != 0) continue;
        void *none = NULL;
        if (real != by_hand[i].own) atomic_compare_exchange_strong(&by_hand[i].real, &none, real);
        return by_hand[i].own;
    }
    for (int i = 0; i < shim_count; i++)
        if (strcmp(shim_functions[i].name, name) == 0) return stand_in(&shim_functions[i], real);
    return real;
}

/* The driver's result for a name without version suffix. */
static void *instead_of_entry(const char *name, int version, uint64_t flags, void *real)
{
    if (strcmp(name, "cuGetProcAddress") == 0)
        return instead_of(version >= 12000 ? "cuGetProcAddress_v2" : "cuGetProcAddress", real);
    /* In a CUDA newer than api.def the parameters may differ. */
    if (version > shim_newest) return real;
    const struct shim_version *best = NULL;
    for (int i = 0; i < shim_version_count; i++) {
        const struct shim_version *v = &shim_versions[i];
        if (v->since <= version && strcmp(v->base, name) == 0 && (!best || v->since > best->since)) best = v;
    }
    if (!best || best->function[0] < 0) return real;
    bool per_thread = (flags & PER_THREAD_DEFAULT_STREAM) != 0 && best->function[1] >= 0;
    return stand_in(&shim_functions[best->function[per_thread]], real);
}

/* A name that looks like CUDA's. Other names must not wait for us, and RTLD_NEXT depends on the caller's place: the
 * return address must stay the caller's, so these calls must be jumps. */
static bool is_cuda(void *handle, const char *name)
{
    return handle != RTLD_NEXT && name && name[0] == 'c' && name[1] == 'u';
}

__attribute__((noinline)) static void *wrap(void *handle, const char *name, const char *version)
{
    void *found = version ? shim_real_dlvsym()(handle, name, version) : shim_real_dlsym()(handle, name);
    if (!found) return NULL;
    void *own = instead_of(name, found);
    if (found != own) return own;
    /* Our own symbol was found in the global order: check whether there is a real one after it. */
    for (int i = 0; i < shim_count; i++)
        if (shim_functions[i].own == found) return behind(shim_functions[i].library, name) ? own : NULL;
    for (int i = 0; by_hand[i].name; i++)
        if (by_hand[i].own == found) return behind(by_hand[i].library, name) ? own : NULL;
    return own;
}

#if defined(__GNUC__) && !defined(__clang__)
#define JUMPS __attribute__((optimize("optimize-sibling-calls", "omit-frame-pointer")))
#else
#define JUMPS
#endif

SHIM_EXPORT JUMPS void *dlsym(void *handle, const char *name)
{
    if (!is_cuda(handle, name)) return shim_real_dlsym()(handle, name);
    return wrap(handle, name, NULL);
}

SHIM_EXPORT JUMPS void *dlvsym(void *handle, const char *name, const char *version)
{
    if (!is_cuda(handle, name)) return shim_real_dlvsym()(handle, name, version);
    return wrap(handle, name, version);
}

/* ---- entry points by name ---- */

static void *real_by_hand(const char *name)
{
    for (int i = 0; by_hand[i].name; i++) {
        if (strcmp(by_hand[i].name, name) != 0) continue;
        void *real = atomic_load(&by_hand[i].real);
        return real ? real : behind(by_hand[i].library, name);
    }
    return NULL;
}

typedef CUresult (*proc_address_t)(const char *, void **, int, cuuint64_t);
SHIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    proc_address_t next = (proc_address_t)real_by_hand("cuGetProcAddress");
    CUresult rc = next ? next(symbol, pfn, version, flags) : SHIM_NO_CUDA;
    if (rc == 0 && symbol && pfn && *pfn) *pfn = instead_of_entry(symbol, version, flags, *pfn);
    return rc;
}

typedef CUresult (*proc_address_v2_t)(const char *, void **, int, cuuint64_t, void *);
SHIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, void *status)
{
    proc_address_v2_t next = (proc_address_v2_t)real_by_hand("cuGetProcAddress_v2");
    CUresult rc = next ? next(symbol, pfn, version, flags, status) : SHIM_NO_CUDA;
    if (rc == 0 && symbol && pfn && *pfn) *pfn = instead_of_entry(symbol, version, flags, *pfn);
    return rc;
}

/* The runtime asks the driver for its own version. */
static int runtime_version(void)
{
    int version = 0;
    int (*ask)(int *) = (int (*)(int *))behind(SHIM_RUNTIME, "cudaRuntimeGetVersion");
    return ask && ask(&version) == 0 ? version : 0;
}

typedef cudaError_t (*entry_point_t)(const char *, void **, unsigned long long, void *);
static cudaError_t entry_point(const char *name, const char *symbol, void **pfn, unsigned long long flags, void *status)
{
    entry_point_t next = (entry_point_t)real_by_hand(name);
    psm_san_depth++;
    cudaError_t rc = next ? next(symbol, pfn, flags, status) : SHIM_NO_CUDA;
    if (rc == 0 && symbol && pfn && *pfn) *pfn = instead_of_entry(symbol, runtime_version(), flags, *pfn);
    psm_san_depth--;
    return rc;
}

SHIM_EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags, void *status)
{
    return entry_point("cudaGetDriverEntryPoint", symbol, pfn, flags, status);
}

SHIM_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **pfn, unsigned long long flags,
                                                     void *status)
{
    return entry_point("cudaGetDriverEntryPoint_ptsz", symbol, pfn, flags | PER_THREAD_DEFAULT_STREAM, status);
}

typedef cudaError_t (*entry_version_t)(const char *, void **, unsigned, unsigned long long, void *);
static cudaError_t entry_version(const char *name, const char *symbol, void **pfn, unsigned version,
                                 unsigned long long flags, void *status)
{
    entry_version_t next = (entry_version_t)real_by_hand(name);
    psm_san_depth++;
    cudaError_t rc = next ? next(symbol, pfn, version, flags, status) : SHIM_NO_CUDA;
    if (rc == 0 && symbol && pfn && *pfn) *pfn = instead_of_entry(symbol, (int)version, flags, *pfn);
    psm_san_depth--;
    return rc;
}

SHIM_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **pfn, unsigned version,
                                                         unsigned long long flags, void *status)
{
    return entry_version("cudaGetDriverEntryPointByVersion", symbol, pfn, version, flags, status);
}

SHIM_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **pfn, unsigned version,
                                                              unsigned long long flags, void *status)
{
    return entry_version("cudaGetDriverEntryPointByVersion_ptsz", symbol, pfn, version,
                         flags | PER_THREAD_DEFAULT_STREAM, status);
}

static struct by_hand by_hand[7] = {
    {"cuGetProcAddress", (void *)cuGetProcAddress, SHIM_DRIVER, NULL},
    {"cuGetProcAddress_v2", (void *)cuGetProcAddress_v2, SHIM_DRIVER, NULL},
    {"cudaGetDriverEntryPoint", (void *)cudaGetDriverEntryPoint, SHIM_RUNTIME, NULL},
    {"cudaGetDriverEntryPoint_ptsz", (void *)cudaGetDriverEntryPoint_ptsz, SHIM_RUNTIME, NULL},
    {"cudaGetDriverEntryPointByVersion", (void *)cudaGetDriverEntryPointByVersion, SHIM_RUNTIME, NULL},
    {"cudaGetDriverEntryPointByVersion_ptsz", (void *)cudaGetDriverEntryPointByVersion_ptsz, SHIM_RUNTIME, NULL},
    {NULL, NULL, SHIM_LIBRARIES, NULL},
};
