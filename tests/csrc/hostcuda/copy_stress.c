/* Copies and fills of many threads: every one's data arrive, while memory comes and goes and attributes change. */
#include <string.h>

#include "cuda_calls.h"
#include "types_copy.h"

enum { THREADS = 4, ROOM = 192 << 10, SYNC_MEMOPS = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS };

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy_ptds(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream);
cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, int *status);

static int rounds;
static CUresult (*set_attribute)(const void *value, CUpointer_attribute attribute, CUdeviceptr pointer);

static int all_are(const unsigned char *data, size_t n, int value)
{
    for (size_t i = 0; i < n; i++)
        if (data[i] != (unsigned char)value) return 0;
    return 1;
}

/* Small ones run in this thread, larger ones on workers, pageable ones are staged or waited for. */
static size_t some_size(unsigned *seed)
{
    static const size_t sizes[] = {8, 100, 4096, 60 << 10, 70 << 10, ROOM};
    return sizes[next_random(seed) % (sizeof sizes / sizeof *sizes)];
}

/* Down a chain of its own, changed by fills on the way. */
static void *chain_thread(void *which)
{
    unsigned seed = 11u + (unsigned)(intptr_t)which;
    unsigned char *pageable = malloc(ROOM), *pinned;
    void *one, *other;
    cudaStream_t stream;
    CHECK(pageable);
    OK(cudaHostAlloc((void **)&pinned, ROOM, 0));
    OK(cudaMalloc(&one, ROOM));
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    for (int i = 0; i < rounds; i++) {
        size_t n = some_size(&seed);
        OK(cudaMalloc(&other, n)); /* comes and goes */
        memset(pageable, i, n);
        OK(cudaMemcpyAsync(one, pageable, n, cudaMemcpyHostToDevice, stream));
        memset(pageable, i + 1, n); /* was read */
        OK(cudaMemcpy2DAsync(other, n / 4, one, n / 4, n / 4, 4, cudaMemcpyDeviceToDevice, stream));
        OK(cudaMemcpyAsync(pinned, other, n, cudaMemcpyDefault, stream));
        OK(cudaMemsetAsync(other, i + 2, n, stream));
        OK(cudaMemcpyAsync(pageable, other, n, cudaMemcpyDeviceToHost, stream));
        CHECK(all_are(pageable, n, i + 2)); /* returned when it was done, and all before it */
        CHECK(all_are(pinned, n, i));
        OK(cudaFree(other));
    }
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(one));
    OK(cudaFreeHost(pinned));
    free(pageable);
    return NULL;
}

/* Synchronous forms, in the legacy and the per-thread default stream; those on the device return early or late. */
static void *synchronous_thread(void *which)
{
    unsigned seed = 23u + (unsigned)(intptr_t)which;
    unsigned char *target = malloc(ROOM);
    void *one, *other;
    CHECK(target);
    OK(cudaMalloc(&one, ROOM));
    OK(cudaMalloc(&other, ROOM));
    for (int i = 0; i < rounds; i++) {
        size_t n = some_size(&seed);
        unsigned wait = next_random(&seed) % 2;
        struct cudaPointerAttributes known;
        OK(set_attribute(&wait, SYNC_MEMOPS, (CUdeviceptr)(uintptr_t)other));
        OK(cudaMemset(one, i, n));
        OK(cudaMemcpy(other, one, n, cudaMemcpyDeviceToDevice));
        OK(cudaMemcpy(target, other, n, cudaMemcpyDeviceToHost));
        CHECK(all_are(target, n, i));
        OK(cudaMemcpy_ptds(other, target, n, cudaMemcpyHostToDevice));
        OK(cudaMemcpy_ptds(target, other, n, cudaMemcpyDeviceToHost));
        CHECK(all_are(target, n, i));
        OK(cudaPointerGetAttributes(&known, other));
        CHECK(known.type == cudaMemoryTypeDevice && known.device == 0);
    }
    OK(cudaFree(one));
    OK(cudaFree(other));
    free(target);
    return NULL;
}

int main(int argc, char **argv)
{
    int status;
    pthread_t threads[2 * THREADS];
    rounds = argc > 1 ? atoi(argv[1]) : 400;
    CHECK(rounds > 0);
    OK(cudaGetDriverEntryPointByVersion("cuPointerSetAttribute", (void **)&set_attribute, 12000, 0, &status));
    for (intptr_t i = 0; i < THREADS; i++) {
        CHECK(!pthread_create(&threads[2 * i], NULL, chain_thread, (void *)i));
        CHECK(!pthread_create(&threads[2 * i + 1], NULL, synchronous_thread, (void *)i));
    }
    for (int i = 0; i < 2 * THREADS; i++) CHECK(!pthread_join(threads[i], NULL));
    puts("all orders held");
    return 0;
}
