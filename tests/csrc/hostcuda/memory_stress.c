/* Memory of many threads: allocations of all kinds come and go, mappings and pools among them, while others copy; every
   byte stays where its owner put it, and nothing is left at the end. */
#include <string.h>

#include "cuda_calls.h"
#include "types_memory.h"

enum { THREADS = 6, GRANULE = 2 << 20 };

cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream);
cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t stream);
cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t stream);
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep);
cudaError_t cudaMallocManaged(void **devPtr, size_t size, unsigned flags);
cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size);
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size);
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);

static int rounds;
static cudaMemPool_t shared_pool;

static void put(void *at, int mark, size_t n)
{
    OK(cudaMemset(at, mark, n));
}

static void expect(const void *at, int mark, size_t n)
{
    unsigned char seen[2];
    OK(cudaMemcpy(&seen[0], at, 1, cudaMemcpyDefault));
    OK(cudaMemcpy(&seen[1], (const char *)at + n - 1, 1, cudaMemcpyDefault));
    CHECK(seen[0] == mark && seen[1] == mark);
}

static size_t some_size(unsigned *seed)
{
    static const size_t sizes[] = {1, 700, 4096, 100 << 10, 1 << 20, 3 << 20};
    return sizes[next_random(seed) % (sizeof sizes / sizeof *sizes)];
}

static void *malloc_thread(void *which)
{
    enum { LIVE = 8 };
    unsigned seed = 3u + (unsigned)(intptr_t)which;
    void *at[LIVE] = {0};
    size_t n[LIVE] = {0};
    int mark = 1 + (int)(intptr_t)which;
    for (int i = 0; i < rounds; i++) {
        unsigned k = next_random(&seed) % LIVE;
        if (at[k]) {
            CUdeviceptr base;
            size_t size;
            expect(at[k], mark, n[k]);
            OK(cuMemGetAddressRange_v2(&base, &size, (CUdeviceptr)(uintptr_t)at[k] + n[k] - 1));
            CHECK(base == (CUdeviceptr)(uintptr_t)at[k] && size == n[k]);
            OK(cudaFree(at[k]));
        }
        n[k] = some_size(&seed);
        if (next_random(&seed) % 8)
            OK(cudaMalloc(&at[k], n[k]));
        else
            OK(cudaMallocManaged(&at[k], n[k], cudaMemAttachGlobal));
        put(at[k], mark, n[k]);
    }
    for (int k = 0; k < LIVE; k++) OK(cudaFree(at[k]));
    return NULL;
}

static void *pool_thread(void *which)
{
    unsigned seed = 5u + (unsigned)(intptr_t)which;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    for (int i = 0; i < rounds; i++) {
        struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned, .location = {1, 0}};
        cudaMemPool_t own = NULL;
        void *at[3];
        size_t n = some_size(&seed);
        uint64_t value = next_random(&seed) % 2 ? 16 << 20 : 0;
        if (i % 4 == 0) {
            OK(cudaMemPoolCreate(&own, &props));
            OK(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &value));
        }
        OK(cudaMallocAsync(&at[0], n, stream));
        OK(cudaMallocFromPoolAsync(&at[1], n, shared_pool, stream));
        OK(cudaMallocFromPoolAsync(&at[2], n, own ? own : shared_pool, stream));
        if (own) OK(cudaMemPoolDestroy(own));
        for (int k = 0; k < 3; k++) OK(cudaMemsetAsync(at[k], 7, n, stream));
        OK(cudaMemPoolTrimTo(shared_pool, 4 << 20));
        OK(cudaStreamSynchronize(stream));
        for (int k = 0; k < 3; k++) expect(at[k], 7, n);
        for (int k = 0; k < 3; k++) OK(cudaFreeAsync(at[k], stream));
    }
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void *mapping_thread(void *which)
{
    unsigned seed = 9u + (unsigned)(intptr_t)which;
    CUmemAllocationProp prop = {.type = cudaMemAllocationTypePinned, .location = {cudaMemLocationTypeDevice, 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = cudaMemAccessFlagsProtReadWrite};
    for (int i = 0; i < rounds / 4 + 1; i++) {
        CUdeviceptr at;
        CUmemGenericAllocationHandle handle, again;
        size_t n = (1 + next_random(&seed) % 3) * (size_t)GRANULE;
        OK(cuMemCreate(&handle, n, &prop, 0));
        OK(cuMemAddressReserve(&at, 2 * n, 0, 0, 0));
        for (int half = 0; half < 2; half++) OK(cuMemMap(at + (size_t)half * n, n, 0, handle, 0));
        OK(cuMemSetAccess(at, 2 * n, &access, 1));
        OK(cuMemRelease(handle));
        put((void *)(uintptr_t)at, 21, n);
        expect((void *)(uintptr_t)(at + n), 21, n);
        OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 5)));
        CHECK(again == handle);
        OK(cuMemUnmap(at, 2 * n));
        OK(cuMemRelease(again));
        CHECK(cuMemRelease(handle) != SUCCESS);
        OK(cuMemAddressFree(at, 2 * n));
    }
    return NULL;
}

static void *host_thread(void *which)
{
    unsigned seed = 13u + (unsigned)(intptr_t)which;
    enum { ROOM = 256 << 10 };
    unsigned char *memory = malloc(ROOM);
    CHECK(memory);
    for (int i = 0; i < rounds; i++) {
        void *pinned;
        size_t n = 1 + next_random(&seed) % ROOM;
        memset(memory, 33, n);
        OK(cudaHostAlloc(&pinned, n, 0));
        OK(cudaHostRegister(memory, n, 0));
        OK(cudaMemcpy(pinned, memory, n, cudaMemcpyDefault));
        OK(cudaHostUnregister(memory));
        CHECK(((unsigned char *)pinned)[0] == 33 && ((unsigned char *)pinned)[n - 1] == 33);
        OK(cudaFreeHost(pinned));
    }
    free(memory);
    return NULL;
}

static void *any_thread(void *which)
{
    static void *(*const all[])(void *) = {malloc_thread, pool_thread, mapping_thread, host_thread};
    return all[(size_t)(intptr_t)which % (sizeof all / sizeof *all)](which);
}

int main(int argc, char **argv)
{
    struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned, .location = {1, 0}};
    size_t before, after, total;
    uint64_t keep = 64 << 20, used;
    rounds = argc > 1 ? atoi(argv[1]) : 100;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMemPoolCreate(&shared_pool, &props));
    OK(cudaMemPoolSetAttribute(shared_pool, cudaMemPoolAttrReleaseThreshold, &keep));
    in_threads(THREADS, any_thread);
    OK(cudaMemPoolGetAttribute(shared_pool, cudaMemPoolAttrUsedMemCurrent, &used));
    CHECK(used == 0);
    OK(cudaMemPoolDestroy(shared_pool));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == before);
    printf("all orders held\n");
    return 0;
}
