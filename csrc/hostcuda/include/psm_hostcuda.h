/* Interpreters: host functions that emulated CUDA calls where a GPU would run a kernel.
 *
 * hostcuda runs no device code. A launch of a kernel fails with cudaErrorNotSupported unless a host function is
 * registered for its name; that function then runs in stream order, on a worker thread, with the launch's grid, block
 * and arguments. PSM_HOSTCUDA_KERNELS names libraries (separated by colons) that are loaded when CUDA starts. Each
 * exports a function `int psm_hostcuda_kernels(void)` (0: success), which registers its interpreters. The libraries
 * link to libpsm_hostcuda.so, or find these functions with dlsym(RTLD_DEFAULT, ...). */
#ifndef PSM_HOSTCUDA_H
#define PSM_HOSTCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PSM_HOSTCUDA_API __attribute__((visibility("default")))

struct psm_kernel_launch {
    size_t size;      /* of this struct; newer ones are longer */
    const char *name; /* as registered: mangled */
    int device;
    unsigned grid[3], block[3];
    size_t shared_memory;
    /* Copies of the arguments, made at the launch, each aligned to 16 bytes: as many as
     * psm_hostcuda_kernel_parameters declared. */
    unsigned parameters;
    const void *const *arguments;
    /* The packed arguments of a launch with CU_LAUNCH_PARAM_BUFFER_POINTER, copied at the launch; else NULL. */
    const void *buffer;
    size_t buffer_size;
};

/* Returns 0, or a CUDA error number that sticks to the device like a kernel's own error. It may block, and must not
 * call CUDA. For a captured launch it is called once per launch of the graph. */
typedef int (*psm_kernel_fn)(const struct psm_kernel_launch *launch, void *context);

/* name_pattern: as for fnmatch(3), against the mangled name. If several match, the last one registered is used. Both
 * return 0, or -1: no memory, or an argument is NULL. */
PSM_HOSTCUDA_API int psm_hostcuda_register_kernel(const char *name_pattern, psm_kernel_fn fn, void *context);
/* Declares the sizes of the parameters, which only device code knows. Without it, arguments by pointer (kernelParams,
 * and the
 * <<<>>> syntax) cannot be copied, and the launch has none. */
PSM_HOSTCUDA_API int psm_hostcuda_kernel_parameters(const char *name_pattern, unsigned n, const size_t *sizes);

/* Maps device memory for an interpreter. In strict mode the host cannot access device addresses: *host is an alias of
 * at most n bytes from address on; *n becomes the contiguous size. Release it with _unmap. Returns 0 or a CUDA error
 * number. */
struct psm_kernel_span {
    void *host;
    size_t n;
    void *reserved[4];
};
PSM_HOSTCUDA_API int psm_hostcuda_map(const struct psm_kernel_launch *launch, const void *address, size_t n, int write,
                                      struct psm_kernel_span *span);
PSM_HOSTCUDA_API void psm_hostcuda_unmap(struct psm_kernel_span *span);

#ifdef __cplusplus
}
#endif
#endif
