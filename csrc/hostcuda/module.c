/* What device code a program has: fat binaries and their kernels and variables, as the code that nvcc makes registers
 * them before main, and modules of the driver API. The device code itself is not looked into, but for names. */
#define _GNU_SOURCE
#include "kernel.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BUCKETS = 1024, NO_IMAGE = 200, FILE_NOT_FOUND = 301, INVALID_SYMBOL = 13, INVALID_FUNCTION = 98 };

struct variable {
    struct variable *next;
    const void *host;
    struct hc_module *module;
    size_t size;
    void *address[HC_MAX_DEVICES]; /* made when it is first asked for */
    void **managed;                /* the program's pointer to it */
};

struct hc_module {
    uint64_t handle; /* of the driver API; 0: a fat binary of the program */
    const char *image;
    size_t size;
    char *owned;     /* what a file or a caller's buffer was copied into */
    bool registered; /* by a static runtime, which asks for what the program has and for nothing else */
};

static struct hc_function *functions[BUCKETS];
static struct variable *variables[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of the addresses of variables. Not `lock`: it is held while memory is allocated. Taken first. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static size_t bucket_of(const void *address)
{
    return (size_t)(((uint64_t)(uintptr_t)address * 0x9e3779b97f4a7c15ull) >> 54);
}

static struct hc_function *new_function(struct hc_module *module, const void *host, const char *name)
{
    struct hc_function *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->host = host;
    f->module = module;
    f->name = strdup(name ? name : "?");
    f->handle = hc_handle_new(HC_FUNCTION, f);
    atomic_store(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], 1024);
    atomic_store(&f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS], 32);
    atomic_store(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], 49152);
    atomic_store(&f->attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT], -1);
    if (f->name && f->handle) return f;
    free(f->name);
    free(f);
    return NULL;
}

/* ---- registration by the code that nvcc makes ---- */

void **hc___cudaRegisterFatBinary(void *fatCubin)
{
    struct hc_module *module = calloc(1, sizeof *module);
    if (module) module->image = fatCubin;
    return (void **)module;
}

void hc___cudaRegisterFatBinaryEnd(void **fatCubinHandle)
{
    (void)fatCubinHandle;
}

void hc___cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun, const char *deviceName,
                               int thread_limit, void *tid, void *bid, void *bDim, void *gDim, int *wSize)
{
    (void)deviceFun, (void)tid, (void)bid, (void)bDim, (void)gDim, (void)wSize;
    struct hc_function *f = new_function((struct hc_module *)fatCubinHandle, hostFun, deviceName);
    if (!f) return;
    if (thread_limit > 0) atomic_store(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], thread_limit);
    pthread_mutex_lock(&lock);
    f->next = functions[bucket_of(hostFun)];
    functions[bucket_of(hostFun)] = f;
    pthread_mutex_unlock(&lock);
}

static void add_variable(void **module, const void *host, size_t size, void **managed)
{
    struct variable *v = calloc(1, sizeof *v);
    if (!v) return;
    v->host = host;
    v->module = (struct hc_module *)module;
    v->size = size;
    v->managed = managed;
    pthread_mutex_lock(&lock);
    v->next = variables[bucket_of(host)];
    variables[bucket_of(host)] = v;
    pthread_mutex_unlock(&lock);
}

void hc___cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress, const char *deviceName, int ext,
                          size_t size, int constant, int global)
{
    (void)deviceAddress, (void)deviceName, (void)ext, (void)constant, (void)global;
    add_variable(fatCubinHandle, hostVar, size, NULL);
}

void hc___cudaRegisterManagedVar(void **fatCubinHandle, void **hostVarPtrAddress, char *deviceAddress,
                                 const char *deviceName, int ext, size_t size, int constant, int global)
{
    (void)deviceAddress, (void)deviceName, (void)ext, (void)constant, (void)global;
    add_variable(fatCubinHandle, (const void *)hostVarPtrAddress, size, hostVarPtrAddress);
}

/* Called before the first use of a managed variable. */
char hc___cudaInitModule(void **fatCubinHandle)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        pthread_mutex_lock(&lock);
        struct variable *v = variables[i];
        pthread_mutex_unlock(&lock);
        for (; v; v = v->next) {
            if ((void **)v->module != fatCubinHandle || !v->managed || *v->managed) continue;
            void *memory = NULL;
            if (hc_cudaMallocManaged(&memory, v->size, 1) == 0) *v->managed = memory;
        }
    }
    return 1;
}

void hc___cudaUnregisterFatBinary(void **fatCubinHandle)
{
    struct hc_module *module = (struct hc_module *)fatCubinHandle;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct hc_function **at = &functions[i]; *at;) {
            if ((*at)->module == module) {
                (void)hc_handle_end(HC_FUNCTION, (*at)->handle);
                *at = (*at)->next;
            } else {
                at = &(*at)->next;
            }
        }
        for (struct variable **at = &variables[i]; *at;) {
            if ((*at)->module == module)
                *at = (*at)->next;
            else
                at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- launches by <<<>>> keep their configuration here until the stub takes it ---- */

enum { CONFIGURATIONS = 16 };
static _Thread_local struct {
    struct dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configurations[CONFIGURATIONS];
static _Thread_local int configured;

unsigned int hc___cudaPushCallConfiguration(struct dim3 gridDim, struct dim3 blockDim, size_t sharedMem, void *stream)
{
    if (configured == CONFIGURATIONS) return PSM_CUDA_OUT_OF_MEMORY;
    configurations[configured].grid = gridDim;
    configurations[configured].block = blockDim;
    configurations[configured].shared = sharedMem;
    configurations[configured++].stream = stream;
    return 0;
}

cudaError_t hc___cudaPopCallConfiguration(struct dim3 *gridDim, struct dim3 *blockDim, size_t *sharedMem, void *stream)
{
    enum { MISSING_CONFIGURATION = 52 };
    if (!configured) return MISSING_CONFIGURATION;
    configured--;
    *gridDim = configurations[configured].grid;
    *blockDim = configurations[configured].block;
    *sharedMem = configurations[configured].shared;
    *(cudaStream_t *)stream = configurations[configured].stream;
    return 0;
}

/* ---- kernels ---- */

struct hc_function *hc_function_of(const void *host)
{
    pthread_mutex_lock(&lock);
    struct hc_function *f = functions[bucket_of(host)];
    while (f && f->host != host) f = f->next;
    pthread_mutex_unlock(&lock);
    return f;
}

struct hc_function *hc_function_get(const void *handle)
{
    return hc_handle_get(HC_FUNCTION, (uint64_t)(uintptr_t)handle);
}

static int function_handle(void *out, const void *host)
{
    struct hc_function *f = hc_function_of(host);
    if (!out) return PSM_CUDA_INVALID_VALUE;
    if (!f) return INVALID_FUNCTION;
    *(void **)out = (void *)(uintptr_t)f->handle;
    return 0;
}

cudaError_t hc_cudaGetFuncBySymbol(cudaFunction_t *functionPtr, const void *symbolPtr)
{
    return function_handle(functionPtr, symbolPtr);
}

cudaError_t hc_cudaGetKernel(cudaKernel_t *kernelPtr, const void *entryFuncAddr)
{
    return function_handle(kernelPtr, entryFuncAddr);
}

cudaError_t hc___cudaGetKernel(cudaKernel_t *kernel, const void *entry)
{
    return function_handle(kernel, entry);
}

/* ---- variables ---- */

/* Zeroed: the value it begins with is in the device code. */
static int variable_address(struct variable *v, void **address)
{
    int device = hc_current_device();
    if (v->managed) {
        if (!*v->managed) (void)hc___cudaInitModule((void **)v->module);
        *address = *v->managed;
        return *address ? 0 : PSM_CUDA_OUT_OF_MEMORY;
    }
    if (!v->address[device]) {
        void *memory = NULL;
        int rc = hc_cudaMalloc(&memory, v->size ? v->size : 1);
        if (!rc) rc = hc_cudaMemset(memory, 0, v->size);
        if (rc) return rc;
        v->address[device] = memory;
    }
    *address = v->address[device];
    return 0;
}

int hc_symbol_of(const void *symbol, uintptr_t *address, size_t *size)
{
    void *at = NULL;
    pthread_mutex_lock(&lock);
    struct variable *v = variables[bucket_of(symbol)];
    while (v && v->host != symbol) v = v->next;
    pthread_mutex_unlock(&lock);
    if (!v) return INVALID_SYMBOL;
    pthread_mutex_lock(&making);
    int rc = address ? variable_address(v, &at) : 0;
    pthread_mutex_unlock(&making);
    if (address) *address = (uintptr_t)at;
    if (size) *size = v->size;
    return rc;
}

void hc_modules_reset(int device)
{
    pthread_mutex_lock(&making);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct variable *v = variables[i]; v; v = v->next) v->address[device] = NULL;
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&making);
}

cudaError_t hc_cudaGetSymbolAddress(void **devPtr, const void *symbol)
{
    uintptr_t address;
    if (!devPtr) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_symbol_of(symbol, &address, NULL);
    if (!rc) *devPtr = (void *)address;
    return rc;
}

cudaError_t hc_cudaGetSymbolSize(size_t *size, const void *symbol)
{
    return size ? hc_symbol_of(symbol, NULL, size) : PSM_CUDA_INVALID_VALUE;
}

/* ---- modules of the driver API ---- */

/* How long an image is, by what it begins with: a fat binary, the descriptor of one, a cubin, or PTX text. 0: none of
   them. The caller vouches for its memory, as with CUDA. */
static size_t image_size(const void **image)
{
    struct {
        uint32_t magic, version;
        const void *data;
    } wrapper;
    struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t size;
    } fat;
    memcpy(&fat.magic, *image, sizeof fat.magic);
    if (fat.magic == 0x466243b1) {
        memcpy(&wrapper, *image, sizeof wrapper);
        if (!wrapper.data) return 0;
        *image = wrapper.data;
        memcpy(&fat.magic, *image, sizeof fat.magic);
    }
    if (fat.magic == 0xba55ed50) {
        memcpy(&fat, *image, sizeof fat);
        return (size_t)fat.size + fat.header;
    }
    if (memcmp(*image, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr elf;
        memcpy(&elf, *image, sizeof elf);
        if (elf.e_ident[EI_CLASS] != ELFCLASS64) return 0;
        return (size_t)elf.e_shoff + (size_t)elf.e_shnum * elf.e_shentsize;
    }
    const char *text = *image;
    if (strspn(text, " \t\r\n/.") && strstr(text, ".version")) return strlen(text);
    return 0;
}

static int load(CUmodule *out, const void *image, char *owned)
{
    int rc = hc_context_require();
    size_t size = !rc && image ? image_size(&image) : 0;
    if (!out || !image) rc = PSM_CUDA_INVALID_VALUE;
    if (!rc && !size) rc = NO_IMAGE;
    struct hc_module *module = rc ? NULL : calloc(1, sizeof *module);
    if (module) {
        module->image = image;
        module->size = size;
        module->owned = owned;
        module->handle = hc_handle_new(HC_MODULE, module);
        *out = (CUmodule)(uintptr_t)module->handle;
        return 0;
    }
    free(owned);
    return rc ? rc : PSM_CUDA_OUT_OF_MEMORY;
}

/* A copy: the caller may free its image. */
static int load_data(CUmodule *out, const void *image)
{
    const void *begin = image;
    size_t size = image ? image_size(&begin) : 0;
    char *copy = size ? malloc(size + 1) : NULL;
    if (size && !copy) return PSM_CUDA_OUT_OF_MEMORY;
    if (!copy) return load(out, image, NULL); /* which says what is wrong with it */
    memcpy(copy, begin, size);
    copy[size] = 0;
    return load(out, copy, copy);
}

CUresult hc_cuModuleLoadData(CUmodule *module, const void *image)
{
    return load_data(module, image);
}

CUresult hc_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                               void **optionValues)
{
    if (numOptions && (!options || !optionValues)) return PSM_CUDA_INVALID_VALUE;
    return load_data(module, image);
}

CUresult hc_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return load_data(module, fatCubin);
}

int hc_module_registered(CUmodule *module, const void *descriptor)
{
    int rc = load(module, descriptor, NULL);
    struct hc_module *made = rc ? NULL : hc_handle_get(HC_MODULE, (uint64_t)(uintptr_t)*module);
    if (made) made->registered = true;
    return rc;
}

CUresult hc_cuModuleLoad(CUmodule *module, const char *fname)
{
    struct stat info;
    if (!module || !fname) return PSM_CUDA_INVALID_VALUE;
    FILE *file = fopen(fname, "re");
    if (!file) return FILE_NOT_FOUND;
    char *text = fstat(fileno(file), &info) == 0 && info.st_size > 64 ? calloc(1, (size_t)info.st_size + 1) : NULL;
    bool whole = text && fread(text, 1, (size_t)info.st_size, file) == (size_t)info.st_size;
    fclose(file);
    const void *begin = text;
    if (!whole || image_size(&begin) > (size_t)info.st_size) { /* or the header promises more than is there */
        free(text);
        return NO_IMAGE;
    }
    return load(module, text, text);
}

static struct hc_module *module_of(CUmodule handle)
{
    return hc_handle_get(HC_MODULE, (uint64_t)(uintptr_t)handle);
}

/* Its functions end with it; the image stays, because a thread may be looking for a name in it. */
CUresult hc_cuModuleUnload(CUmodule hmod)
{
    int rc = hc_context_require();
    if (rc) return rc;
    struct hc_module *module = hc_handle_end(HC_MODULE, (uint64_t)(uintptr_t)hmod);
    if (!module) return PSM_CUDA_INVALID_HANDLE;
    hc___cudaUnregisterFatBinary((void **)module);
    return 0;
}

static bool in_word(const struct hc_module *module, const char *at)
{
    if (at < module->image || at >= module->image + module->size) return false;
    return isalnum((unsigned char)*at) || *at == '_' || *at == '$';
}

/* As a whole word in the image: in a symbol table, or in PTX. Compressed images hide their names; what an interpreter
   is registered for is taken to be there. */
static bool has_name(const struct hc_module *module, const char *name)
{
    size_t n = strlen(name);
    const char *at = module->image, *end = at + module->size;
    if (module->registered) return true;
    while (n && at < end && (at = memmem(at, (size_t)(end - at), name, n))) {
        if (!in_word(module, at - 1) && !in_word(module, at + n)) return true;
        at++;
    }
    return hc_kernel_known(name);
}

CUresult hc_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    int rc = hc_context_require();
    if (rc) return rc;
    if (!hfunc || !name) return PSM_CUDA_INVALID_VALUE;
    struct hc_module *module = module_of(hmod);
    if (!module) return PSM_CUDA_INVALID_HANDLE;
    if (!*name || !has_name(module, name)) return PSM_CUDA_NOT_FOUND;
    size_t bucket = bucket_of(module);
    pthread_mutex_lock(&lock);
    struct hc_function *f = functions[bucket];
    while (f && (f->host || f->module != module || strcmp(f->name, name) != 0)) f = f->next;
    if (!f && (f = new_function(module, NULL, name))) {
        f->next = functions[bucket];
        functions[bucket] = f;
    }
    pthread_mutex_unlock(&lock);
    if (!f) return PSM_CUDA_OUT_OF_MEMORY;
    *hfunc = (CUfunction)(uintptr_t)f->handle;
    return 0;
}

/* Where a global lies, and how large it is, is in the device code. */
CUresult hc_cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    int rc = hc_context_require();
    if (rc) return rc;
    if (!name || (!dptr && !bytes)) return PSM_CUDA_INVALID_VALUE;
    return module_of(hmod) ? PSM_CUDA_NOT_FOUND : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode) return PSM_CUDA_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return 0;
}

CUresult hc_cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    struct hc_function *f = hc_function_get(hfunc);
    if (!hmod) return PSM_CUDA_INVALID_VALUE;
    if (!f) return PSM_CUDA_INVALID_HANDLE;
    if (f->host) return PSM_CUDA_NOT_SUPPORTED; /* of the program's own fat binary, which has no handle */
    *hmod = (CUmodule)(uintptr_t)f->module->handle;
    return 0;
}
