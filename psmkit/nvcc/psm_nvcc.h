/* Included before every CUDA source that psm-nvcc compiles: what its stubs of kernels call. */
#ifndef PSM_NVCC_H
#define PSM_NVCC_H
#pragma GCC system_header

/* Questions about lambdas that only nvcc's front end can answer: here they are ordinary lambdas. */
#define __nv_is_extended_device_lambda_closure_type(type)               false
#define __nv_is_extended_host_device_lambda_closure_type(type)          false
#define __nv_is_extended_device_lambda_with_preserved_return_type(type) false

#include <cuda_runtime.h>

/* CUDA 12 makes a macro of it, which breaks __attribute__((__noinline__)) in the headers of the host compiler; CUDA 13
 * has none. psm-nvcc replaces the word where it stands alone. */
#undef __noinline__

extern "C" {
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **module);
void __cudaUnregisterFatBinary(void **module);
void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int limit, void *tid,
                            void *bid, void *block, void *grid, int *warp);
void __cudaRegisterVar(void **module, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global);
}

namespace psm_nvcc
{

/* The kernels and device variables of this object. psm-nvcc appends the table to the assembly, where names are mangled.
 */
struct entry {
    void *host;
    const char *name;
    size_t size;   /* of a variable; 0: a kernel */
    size_t memory; /* 1: __constant__ */
};
extern "C" const entry psm_nvcc_here[] __attribute__((visibility("hidden")));

/* Emulated CUDA takes the initial values of variables from the host's. */
static struct {
    unsigned magic, version;
    void *reserved[2];
} binary = {0x4e4d5350, 1, {0, 0}};
static void **module;

__attribute__((constructor)) static void begin()
{
    if (!psm_nvcc_here[0].host) return;
    module = __cudaRegisterFatBinary(&binary);
    for (const entry *e = psm_nvcc_here; e->host; e++) {
        char *host = static_cast<char *>(e->host), *name = const_cast<char *>(e->name);
        if (e->size)
            __cudaRegisterVar(module, host, name, name, 0, e->size, (int)e->memory, 0);
        else
            __cudaRegisterFunction(module, host, name, name, -1, 0, 0, 0, 0, 0);
    }
    __cudaRegisterFatBinaryEnd(module);
}

__attribute__((destructor)) static void end()
{
    if (module) __cudaUnregisterFatBinary(module);
}

/* What <<<>>> becomes: 0, if the configuration was kept for the stub. */
inline unsigned configure(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = 0)
{
    return __cudaPushCallConfiguration(grid, block, shared, stream);
}

inline void launch(const void *self, void **arguments)
{
    dim3 grid(1, 1, 1), block(1, 1, 1);
    size_t shared = 0;
    cudaStream_t stream = 0;
    if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) == cudaSuccess)
        (void)cudaLaunchKernel(self, grid, block, arguments, shared, stream);
}

} // namespace psm_nvcc

#endif
