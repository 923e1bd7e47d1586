/* Driver functions by name and version: cuGetProcAddress, cudaGetDriverEntryPoint. */
#define _GNU_SOURCE
#include "kernel/hc_kernel.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { LEGACY = 1, PER_THREAD = 2 };
/* Values of CUdriverProcAddressQueryResult and of cudaDriverEntryPointQueryResult. */
enum { FOUND, NOT_FOUND, TOO_OLD };

static void *driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Opens libcuda.so.1 next to this library: the process may have loaded the runtime only. */
static void load(void)
{
    Dl_info self;
    char path[4096];
    if (!dladdr((void *)(uintptr_t)load, &self) || !self.dli_fname) return;
    const char *slash = strrchr(self.dli_fname, '/');
    int n = slash ? (int)(slash - self.dli_fname + 1) : 0;
    if (snprintf(path, sizeof path, "%.*slibcuda.so.1", n, self.dli_fname) < (int)sizeof path)
        driver = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
}

static int version_suffix(const char *name)
{
    const char *at = strrchr(name, '_');
    int version = 1;
    if (at && at[1] == 'v') (void)sscanf(at, "_v%d", &version);
    return version;
}

/* The newest ABI of a function that is not newer than version, the one that its caller was compiled for. */
static int find(const char *symbol, void **out, int version, uint64_t flags)
{
    const struct hc_fn_info *best = NULL;
    bool later = false;
    *out = NULL;
    for (int i = 0; i < HC_FN_COUNT; i++) {
        const struct hc_fn_info *f = &hc_functions[i];
        if (f->library != HC_LIB_DRV || f->since > hc_topology.cuda || strcmp(f->base, symbol) != 0) continue;
        if (f->since > version) {
            later = true;
            continue;
        }
        if (!best || f->since > best->since ||
            (f->since == best->since && version_suffix(f->name) > version_suffix(best->name)))
            best = f;
    }
    if (!best) return later ? TOO_OLD : NOT_FOUND;
    char name[128];
    const char *variant = flags & PER_THREAD && best->variant ? best->variant : NULL;
    snprintf(name, sizeof name, "%s%s%s", best->name, variant ? "_" : "", variant ? variant : "");
    pthread_once(&once, load);
    *out = driver ? dlsym(driver, name) : NULL;
    return *out ? FOUND : NOT_FOUND;
}

static bool asked_rightly(int version, uint64_t flags)
{
    return version <= hc_topology.cuda && (flags == 0 || flags == LEGACY || flags == PER_THREAD);
}

/* Without a place for the status, the first form of the function reports it through its result. */
CUresult hc_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    if (!symbol || !pfn || !asked_rightly(cudaVersion, flags)) return PSM_CUDA_INVALID_VALUE;
    return find(symbol, pfn, cudaVersion, flags) == FOUND ? 0 : PSM_CUDA_NOT_FOUND;
}

CUresult hc_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                CUdriverProcAddressQueryResult *symbolStatus)
{
    if (!symbol || !pfn || !asked_rightly(cudaVersion, flags)) return PSM_CUDA_INVALID_VALUE;
    int status = find(symbol, pfn, cudaVersion, flags);
    if (symbolStatus) *symbolStatus = (CUdriverProcAddressQueryResult)status;
    return 0;
}

static int entry_point(const char *symbol, void **out, int version, uint64_t flags,
                       enum cudaDriverEntryPointQueryResult *status)
{
    if (!symbol || !*symbol || !out || !asked_rightly(version, flags)) return PSM_CUDA_INVALID_VALUE;
    if (!flags && hc_current_call() && hc_current_call()->per_thread_default) flags = PER_THREAD;
    int found = find(symbol, out, version, flags);
    if (status) *status = (enum cudaDriverEntryPointQueryResult)found;
    return 0;
}

/* By the version of the runtime that is asked. */
cudaError_t hc_cudaGetDriverEntryPoint(const char *symbol, void **funcPtr, unsigned long long flags,
                                       enum cudaDriverEntryPointQueryResult *driverStatus)
{
    int version = hc_runtime_version();
    return entry_point(symbol, funcPtr, version < hc_topology.cuda ? version : hc_topology.cuda, flags, driverStatus);
}

cudaError_t hc_cudaGetDriverEntryPointByVersion(const char *symbol, void **funcPtr, unsigned int cudaVersion,
                                                unsigned long long flags,
                                                enum cudaDriverEntryPointQueryResult *driverStatus)
{
    return entry_point(symbol, funcPtr, (int)cudaVersion, flags, driverStatus);
}

/* Private tables between NVIDIA's own libraries. */
CUresult hc_cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    if (!ppExportTable || !pExportTableId) return PSM_CUDA_INVALID_VALUE;
    *ppExportTable = hc_export_table(pExportTableId);
    return *ppExportTable ? 0 : PSM_CUDA_NOT_FOUND;
}

/* The runtime's own private tables: there are none. */
cudaError_t hc_cudaGetExportTable(const void **ppExportTable, const cudaUUID_t *pExportTableId)
{
    if (!ppExportTable || !pExportTableId) return PSM_CUDA_INVALID_VALUE;
    *ppExportTable = NULL;
    return PSM_CUDA_NOT_FOUND;
}
