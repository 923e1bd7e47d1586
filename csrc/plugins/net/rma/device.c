/* Copies between messages and the memory of a region. */
#define _GNU_SOURCE
#include <string.h>

#include "core/internal.h"
#include "net_say.h"
#include "psm_cuda.h"
#include "rma/rma_comm.h"

static ncclResult_t failed(const struct rma_comm *c, int code, const char *call)
{
    NET_SAY(PSM_NET_RMA_CUDA, psm_net_rma_cuda, NCCL_NET, c->rank, call, c->cuda->cudaGetErrorName(code), code);
    return ncclUnhandledCudaError;
}

ncclResult_t rma_device_open(struct rma_comm *c)
{
    if (c->stream) return ncclSuccess;
    c->cuda = psm_cuda_get();
    if (!c->cuda) return net_misuse("regMrSym", "there is no CUDA library, and this is GPU memory");
    int code = c->cuda->cudaGetDevice(&c->device);
    if (code) return failed(c, code, "cudaGetDevice");
    /* A blocking stream would wait for the application's legacy one, which may wait for a signal. */
    cudaStream_t stream;
    code = c->cuda->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code) return failed(c, code, "cudaStreamCreateWithFlags");
    c->stream = stream;
    return ncclSuccess;
}

void rma_device_close(struct rma_comm *c)
{
    if (c->stream) c->cuda->cudaStreamDestroy(c->stream);
    c->stream = NULL;
}

int rma_device_now(const struct rma_comm *c)
{
    int device = -1;
    if (c->stream && c->cuda->cudaGetDevice(&device) != 0) return -1;
    return device == c->device ? -1 : device;
}

void rma_device_again(const struct rma_comm *c, int device)
{
    if (device >= 0) c->cuda->cudaSetDevice(device);
}

/* The thread may have another device, or none: NCCL's own thread sets none. */
static ncclResult_t copy(struct rma_comm *c, void *to, const void *from, size_t size)
{
    int device = -1, code = c->cuda->cudaGetDevice(&device);
    if (code == 0 && device != c->device) code = c->cuda->cudaSetDevice(c->device);
    if (code) return failed(c, code, "cudaSetDevice");
    /* Another thread may capture a graph, which this stream is no part of. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (c->cuda->cudaThreadExchangeStreamCaptureMode) c->cuda->cudaThreadExchangeStreamCaptureMode(&mode);
    code = c->cuda->cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, c->stream);
    if (code == 0) code = c->cuda->cudaStreamSynchronize(c->stream);
    if (c->cuda->cudaThreadExchangeStreamCaptureMode) c->cuda->cudaThreadExchangeStreamCaptureMode(&mode);
    return code ? failed(c, code, "cudaMemcpyAsync") : ncclSuccess;
}

ncclResult_t rma_read(struct rma_comm *c, const struct rma_region *from, uint64_t at, void *to, size_t size)
{
    if (from->gpu) return copy(c, to, from->data + at, size);
    memcpy(to, from->data + at, size);
    return ncclSuccess;
}

ncclResult_t rma_write(struct rma_comm *c, const struct rma_region *to, uint64_t at, const void *from, size_t size)
{
    if (to->gpu) return copy(c, to->data + at, from, size);
    memcpy(to->data + at, from, size);
    return ncclSuccess;
}

/* Only this thread adds to signals in GPU memory: the lock of the communicator is held. */
ncclResult_t rma_add(struct rma_comm *c, const struct rma_region *to, uint64_t at, uint64_t value)
{
    if (!to->gpu) {
        __atomic_fetch_add((uint64_t *)(void *)(to->data + at), value, __ATOMIC_RELEASE);
        return ncclSuccess;
    }
    uint64_t now;
    ncclResult_t result = copy(c, &now, to->data + at, sizeof now);
    now += value;
    return result == ncclSuccess ? copy(c, to->data + at, &now, sizeof now) : result;
}
