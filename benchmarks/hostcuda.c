/* What hostcuda costs: see hostcuda.py, which compiles and runs this.

   hostcuda LIBCUDART copy BYTES REPEAT   seconds of memcpy and of cudaMemcpyAsync, by turns, on the same kind of memory
   hostcuda LIBCUDART small REPEAT        seconds of an 8 byte copy with its event, and of single small calls
   hostcuda LIBCUDART start STREAMS       uses that many streams, says "ready", and stays until standard input ends */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "types.h"
#include "types_memory.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cudaMalloc, (void **, size_t))                                                                                   \
    X(cudaFree, (void *))                                                                                              \
    X(cudaFreeHost, (void *))                                                                                          \
    X(cudaHostAlloc, (void **, size_t, unsigned))                                                                      \
    X(cudaMemcpyAsync, (void *, const void *, size_t, int, cudaStream_t))                                              \
    X(cudaMemsetAsync, (void *, int, size_t, cudaStream_t))                                                            \
    X(cudaStreamCreateWithFlags, (cudaStream_t *, unsigned))                                                           \
    X(cudaStreamDestroy, (cudaStream_t))                                                                               \
    X(cudaStreamSynchronize, (cudaStream_t))                                                                           \
    X(cudaStreamQuery, (cudaStream_t))                                                                                 \
    X(cudaEventCreateWithFlags, (cudaEvent_t *, unsigned))                                                             \
    X(cudaEventDestroy, (cudaEvent_t))                                                                                 \
    X(cudaEventRecord, (cudaEvent_t, cudaStream_t))                                                                    \
    X(cudaEventQuery, (cudaEvent_t))
/* Of the driver beside the runtime. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(cuMemCreate, (unsigned long long *, size_t, const CUmemAllocationProp *, unsigned long long))                    \
    X(cuMemRelease, (unsigned long long))
#define POINTER(name, parameters) static int(*name) parameters;
FUNCTIONS(POINTER)
DRIVER_FUNCTIONS(POINTER)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        int rc_ = (call);                                                                                              \
        if (rc_) {                                                                                                     \
            fprintf(stderr, "%s returned %d\n", #call, rc_);                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void *pinned(size_t n)
{
    void *memory;
    CHECK(cudaHostAlloc(&memory, n, 0));
    return memory;
}

static void *device(size_t n)
{
    void *memory;
    CHECK(cudaMalloc(&memory, n));
    return memory;
}

static void copies(size_t n, int repeat)
{
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, 1));
    char *from = pinned(n), *to = pinned(n), *pageable = malloc(n);
    if (!pageable) exit(1);
    memset(from, 1, n);
    memset(to, 2, n);
    memset(pageable, 3, n);
    void *one = device(n), *other = device(n);
    struct {
        const char *name;
        void *to, *from;
    } way[] = {{"pinned-device", one, from},
               {"device-pinned", to, one},
               {"device-device", other, one},
               {"pageable-device", one, pageable}};
    size_t ways = sizeof way / sizeof *way;
    for (int i = -1; i < repeat; i++) { /* the first round touches the pages */
        double start = now();
        memcpy(to, from, n);
        if (i >= 0) printf("memcpy %.9f\n", now() - start);
        for (size_t w = 0; w < ways; w++) {
            start = now();
            CHECK(cudaMemcpyAsync(way[w].to, way[w].from, n, 4, stream));
            CHECK(cudaStreamSynchronize(stream));
            if (i >= 0) printf("%s %.9f\n", way[w].name, now() - start);
        }
    }
    /* Memory that nobody has touched yet. Both sides free it again, so that both get pages of the same kind. */
    for (int i = -1; i < repeat / 2; i++) {
        char *memory = pinned(n);
        double start = now();
        memcpy(memory, from, n);
        if (i >= 0) printf("memcpy-untouched %.9f\n", now() - start);
        CHECK(cudaFreeHost(memory));
        void *fresh = device(n);
        start = now();
        CHECK(cudaMemcpyAsync(fresh, from, n, 4, stream));
        CHECK(cudaStreamSynchronize(stream));
        if (i >= 0) printf("pinned-untouched-device %.9f\n", now() - start);
        CHECK(cudaFree(fresh));
    }
}

/* `calls` of one statement, timed together. */
#define TIME(name, statement)                                                                                          \
    for (int i_ = 0; i_ < repeat; i_++) {                                                                              \
        double start_ = now();                                                                                         \
        for (int k_ = 0; k_ < calls; k_++) statement;                                                                  \
        printf("%s %.9f\n", name, (now() - start_) / calls);                                                           \
    }

static void small(int repeat)
{
    const int calls = 1000;
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaStreamCreateWithFlags(&stream, 1));
    CHECK(cudaEventCreateWithFlags(&event, 2));
    void *to = device(64), *from = pinned(64);
    char pageable[64] = "";
    CHECK(cudaMemcpyAsync(to, from, 8, 4, stream));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaStreamSynchronize(stream));
    TIME("round-trip", {
        CHECK(cudaMemcpyAsync(to, from, 8, 4, stream));
        CHECK(cudaEventRecord(event, stream));
        while (cudaEventQuery(event)) continue;
    })
    TIME("cudaMemcpyAsync-8-pinned", CHECK(cudaMemcpyAsync(to, from, 8, 4, stream)))
    TIME("cudaMemcpyAsync-8-pageable", CHECK(cudaMemcpyAsync(to, pageable, 8, 1, stream)))
    TIME("cudaMemsetAsync-8", CHECK(cudaMemsetAsync(to, 0, 8, stream)))
    TIME("cudaEventRecord", CHECK(cudaEventRecord(event, stream)))
    TIME("cudaEventQuery", cudaEventQuery(event))
    TIME("cudaStreamQuery", cudaStreamQuery(stream))
    TIME("cudaMalloc-cudaFree-64", {
        void *memory;
        CHECK(cudaMalloc(&memory, 64));
        CHECK(cudaFree(memory));
    })
    TIME("cudaStreamCreate-cudaStreamDestroy", {
        cudaStream_t made;
        CHECK(cudaStreamCreateWithFlags(&made, 1));
        CHECK(cudaStreamDestroy(made));
    })
    TIME("cudaEventCreate-cudaEventDestroy", {
        cudaEvent_t made;
        CHECK(cudaEventCreateWithFlags(&made, 2));
        CHECK(cudaEventDestroy(made));
    })
    const CUmemAllocationProp prop = {.type = 1 /* pinned */, .location = {.type = 1 /* device */}};
    TIME("cuMemCreate-cuMemRelease-2M", {
        unsigned long long handle;
        CHECK(cuMemCreate(&handle, 2 << 20, &prop, 0));
        CHECK(cuMemRelease(handle));
    })
}

/* Copies that are too large for the calling thread, so that workers come. */
static void start(int streams)
{
    const size_t n = 128 << 10;
    cudaStream_t *stream = calloc((size_t)streams, sizeof *stream);
    char out[8] = "";
    if (!stream) exit(1);
    char *to = device(n * (size_t)streams), *from = pinned(n);
    for (int i = 0; i < streams; i++) CHECK(cudaStreamCreateWithFlags(&stream[i], 1));
    for (int i = 0; i < streams; i++) CHECK(cudaMemcpyAsync(to + n * (size_t)i, from, n, 4, stream[i]));
    for (int i = 0; i < streams; i++) CHECK(cudaStreamSynchronize(stream[i]));
    puts("ready");
    fflush(stdout);
    if (!fread(out, 1, sizeof out, stdin)) return;
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#define LOAD(name, parameters)                                                                                         \
    *(void **)&name = dlsym(library, #name);                                                                           \
    if (!name) return 1;
    FUNCTIONS(LOAD)
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    DRIVER_FUNCTIONS(LOAD)
    if (!strcmp(argv[2], "copy") && argc == 5)
        copies(strtoul(argv[3], NULL, 10), atoi(argv[4]));
    else if (!strcmp(argv[2], "small"))
        small(atoi(argv[3]));
    else if (!strcmp(argv[2], "start"))
        start(atoi(argv[3]));
    else
        return 2;
    return 0;
}
