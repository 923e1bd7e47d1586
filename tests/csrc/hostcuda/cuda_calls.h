/* The runtime functions that the stress programs call, and what they share. */
#ifndef CUDA_CALLS_H
#define CUDA_CALLS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "types.h"
#include "types_stream.h"

enum { SUCCESS = 0, INVALID_HANDLE = 400, NOT_READY = 600, NON_BLOCKING = 1, NO_TIMING = 2 };

cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *pointer);
cudaError_t cudaMalloc(void **out, size_t n);
cudaError_t cudaFree(void *pointer);

#define LEGACY     ((cudaStream_t)(uintptr_t)1)
#define PER_THREAD ((cudaStream_t)(uintptr_t)2)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_) {                                                                                                   \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, code_);                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline unsigned next_random(unsigned *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static inline void in_threads(int n, void *(*run)(void *))
{
    pthread_t threads[32];
    CHECK(n <= 32);
    for (intptr_t i = 0; i < n; i++) CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
    for (int i = 0; i < n; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}
#endif
