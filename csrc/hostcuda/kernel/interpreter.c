/* Interpreters of kernels (psm_hostcuda.h), and what they read device memory by. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "include/psm_hostcuda.h"
#include "kernel/hc_kernel.h"
#include "psm_messages.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Entries are only ever added, so readers need not take the lock. */
static _Atomic(struct hc_interpreter *) interpreters;
static _Atomic(struct hc_parameters *) layouts;

struct hc_interpreter *hc_interpreter_of(const char *name)
{
    struct hc_interpreter *i = atomic_load(&interpreters);
    while (i && fnmatch(i->pattern, name, 0) != 0) i = i->next;
    return i;
}

struct hc_parameters *hc_parameters_of(const char *name)
{
    struct hc_parameters *p = atomic_load(&layouts);
    while (p && fnmatch(p->pattern, name, 0) != 0) p = p->next;
    return p;
}

int psm_hostcuda_register_kernel(const char *name_pattern, psm_kernel_fn fn, void *context)
{
    if (!name_pattern || !fn) return -1;
    struct hc_interpreter *i = calloc(1, sizeof *i);
    if (!i || !(i->pattern = strdup(name_pattern))) {
        free(i);
        return -1;
    }
    i->fn = fn;
    i->context = context;
    i->next = atomic_load(&interpreters);
    while (!atomic_compare_exchange_weak(&interpreters, &i->next, i)) continue;
    return 0;
}

int psm_hostcuda_kernel_parameters(const char *name_pattern, unsigned n, const size_t *sizes)
{
    if (!name_pattern || n > HC_MAX_PARAMETERS || (n && !sizes)) return -1;
    struct hc_parameters *p = calloc(1, sizeof *p + n * sizeof *sizes);
    if (!p || !(p->pattern = strdup(name_pattern))) {
        free(p);
        return -1;
    }
    p->n = n;
    if (n) memcpy(p->sizes, sizes, n * sizeof *sizes);
    p->next = atomic_load(&layouts);
    while (!atomic_compare_exchange_weak(&layouts, &p->next, p)) continue;
    return 0;
}

_Static_assert(sizeof(struct hc_piece) <= sizeof(((struct psm_kernel_span *)0)->reserved),
               "a span keeps the piece that it stands for");

int psm_hostcuda_map(const struct psm_kernel_launch *launch, const void *address, size_t n, int write,
                     struct psm_kernel_span *span)
{
    struct hc_piece piece;
    if (!launch || !span || !n) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_piece_of((uintptr_t)address, n, launch->device, write != 0, &piece);
    if (rc) return rc;
    span->host = piece.host;
    span->n = piece.n;
    memcpy(span->reserved, &piece, sizeof piece);
    return 0;
}

void psm_hostcuda_unmap(struct psm_kernel_span *span)
{
    struct hc_piece piece;
    if (!span || !span->host) return;
    memcpy(&piece, span->reserved, sizeof piece);
    span->host = NULL;
    hc_piece_end(&piece);
}

static void load_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    int (*begin)(void) = NULL;
    if (!library) {
        psm_msg_hostcuda_kernels_library(path, dlerror());
        return;
    }
    *(void **)&begin = dlsym(library, "psm_hostcuda_kernels");
    if (!begin)
        psm_msg_hostcuda_kernels_library(path, "it has no function psm_hostcuda_kernels");
    else if (begin() != 0)
        psm_msg_hostcuda_kernels_library(path, "its psm_hostcuda_kernels failed");
}

static int start(void)
{
    const char *list = getenv("PSM_HOSTCUDA_KERNELS");
    char *copy = list && *list ? strdup(list) : NULL, *rest = copy;
    Dl_info self;
    /* The library that loaded CUDA may have made it local; interpreters need the functions of psm_hostcuda.h. */
    if (copy && dladdr((void *)(uintptr_t)start, &self))
        (void)dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    for (char *path; copy && (path = strsep(&rest, ":"));)
        if (*path) load_library(path);
    free(copy);
    return 0;
}

HC_LIFE(HC_MODULE_INTERPRETERS, .start = start)
