/* The CUDA functions that Python needs for its own side of a transfer, called through libpsm's table. */
#ifndef PSM_CFFI_FACE_H
#define PSM_CFFI_FACE_H

#include "psm/psm_p2p.h"

/* Makes the rank's device current on the calling thread. A rank without a device: does nothing. */
static psm_status psm_py_set_device(const struct psm_host *host);
/* Copies between any host and device memory, and waits for the copy. */
static psm_status psm_py_copy(const struct psm_host *host, void *to, const void *from, size_t bytes);
/* Waits for a stream. */
static psm_status psm_py_synchronize(const struct psm_host *host, void *stream);

/* cdef */
#include <stdio.h>

#include "psm_cuda.h"

static psm_status psm_py_cuda(const struct psm_host *host, const struct psm_cuda *cuda, int code, const char *what)
{
    if (code == 0) return PSM_OK;
    struct psm_error error = {
        .status = PSM_ERR_CUDA, .cuda = code, .rank = host->ops->rank(host->self), .peer = -1, .stage = "cuda"};
    const char *name = cuda->cudaGetErrorName((cudaError_t)code), *text = cuda->cudaGetErrorString((cudaError_t)code);
    snprintf(error.text, sizeof error.text, "%s: %s (%d): %s", what, name ? name : "CUDA error", code,
             text ? text : "unknown");
    return psm_set_last_error(&error);
}

static psm_status psm_py_set_device(const struct psm_host *host)
{
    int device = host->ops->device(host->self);
    if (device < 0) return PSM_OK;
    const struct psm_cuda *cuda = host->ops->cuda(host->self);
    if (!cuda) return psm_last_error()->status;
    return psm_py_cuda(host, cuda, (int)cuda->cudaSetDevice(device), "cudaSetDevice");
}

static psm_status psm_py_copy(const struct psm_host *host, void *to, const void *from, size_t bytes)
{
    const struct psm_cuda *cuda = host->ops->cuda(host->self);
    if (!cuda) return psm_last_error()->status;
    return psm_py_cuda(host, cuda, (int)cuda->cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
}

static psm_status psm_py_synchronize(const struct psm_host *host, void *stream)
{
    const struct psm_cuda *cuda = host->ops->cuda(host->self);
    if (!cuda) return psm_last_error()->status;
    return psm_py_cuda(host, cuda, (int)cuda->cudaStreamSynchronize((cudaStream_t)stream), "cudaStreamSynchronize");
}

#endif
