// Kernels of all kinds, launched in all ways. A function of the host stands in for each and prints what it was called with.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "other.h"
#include "psm_hostcuda.h"

#define CHECK(call) (printf("%s: %d\n", #call, (int)(call)))

__device__ int counter = 5;
__constant__ float table[4] = {1, 2, 3, 4};
static __device__ unsigned long long total;
__shared__ double everywhere[32];

struct Pair {
    int a;
    float b;
};

__device__ __forceinline__ int lane()
{
    int lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

__device__ int outside(int x) { return __shfl_sync(0xffffffffu, x, lane()); }

template <typename T> struct Sum {
    T value;
    __device__ explicit Sum(T start) : value(start) { __syncwarp(); }
    __device__ T operator()(T more) const { return value + more + atomicAdd(&counter, 1); }
    __host__ __device__ T twice() const { return value + value; }
    __device__ __host__ explicit Sum(T *start) : value(*start) {}
};

template <typename T, int N>
__global__ void __launch_bounds__(256, 2) fill(T *__restrict__ out, const T value, Pair pair, int = 1)
{
    __shared__ T part[N];
    part[threadIdx.x] = value;
    __syncthreads();
    asm volatile("bar.sync 0;");
    if (out && pair.a > N) out[blockIdx.x * blockDim.x + threadIdx.x] = part[threadIdx.x] + Sum<T>(value)(value);
}

namespace inner
{
namespace
{
__global__ void hidden(int (*function)(int), unsigned) { printf("%d", threadIdx.x); }
} // namespace
__global__ void overloaded(int) {}
__global__ void overloaded(double) {}
} // namespace inner

static __global__ void alone() { everywhere[threadIdx.x] = outside(counter); }
extern "C" __global__ void named(int a);
extern "C" __global__ void named(int a) { total += a; }
template <typename... A> __global__ void many(A... all) {}
template <typename F> __global__ void run(F function) { function(threadIdx.x); }

template <typename T> void launch(T value, cudaStream_t stream)
{
    fill<T, (sizeof(T) > 4) ? 16 : 32><<<dim3(2, 3), 64, 128, stream>>>((T *)nullptr, value, Pair{1, 2.5f});
}

// ---- what the host does in their place ----

static int print(const struct psm_kernel_launch *l, void *)
{
    printf("%s <%u,%u,%u> <%u,%u,%u> %zu:", l->name, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1],
           l->block[2], l->shared_memory);
    for (unsigned i = 0; i < l->parameters; i++) printf(" %d", *(const int *)l->arguments[i]);
    printf("\n");
    return 0;
}

static void stand_in()
{
    auto add = (int (*)(const char *, psm_kernel_fn, void *))dlsym(RTLD_DEFAULT, "psm_hostcuda_register_kernel");
    auto sizes = (int (*)(const char *, unsigned, const size_t *))dlsym(RTLD_DEFAULT, "psm_hostcuda_kernel_parameters");
    static const size_t fill_sizes[] = {8, 4, sizeof(Pair), 4}, one[] = {4}, three[] = {4, 4, 4};
    add("*", print, nullptr);
    sizes("_Z4fillIiLi32EEvPT_S0_4Pairi", 4, fill_sizes);
    sizes("named", 1, one);
    sizes("_Z4manyIJiijEEvDpT_", 3, three);
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    setbuf(stdout, nullptr);
    if (argc > 1 && !strcmp(argv[1], "run")) stand_in();
    CHECK(cudaStreamCreate(&stream));
    launch(7, stream);
    launch(7.0, stream);
    fill<float, (3 > 2)><<<1, 32>>>(nullptr, 1.f, Pair());
    inner::hidden<<<1, 1>>>(nullptr, 2u);
    ::inner::overloaded<<<1, 2>>>(1);
    inner::overloaded<<<1, 3>>>(1.0);
    alone<<<2, 2>>>();
    if (argc > 100)
        named<<<9, 9>>>(9);
    else
        named<<<1, 1, 0, stream>>>(11);
    void (*pointer)(int) = named;
    (*pointer)<<<4, 1>>>(12);
    many<<<1, 1>>>(1, 2, 3u);
    many<<<1, 1>>>("<<<", 'c');
    run<<<1, 1>>>([] __device__(int i) { return i + lane(); });
    other<<<5, 5>>>(8);
    from_other(stream);

    int value = 13, size = 0;
    void *arguments[] = {&value};
    cudaLaunchConfig_t config = {};
    config.gridDim = 6, config.blockDim = 7, config.stream = stream;
    cudaLaunchAttribute cooperative;
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.attrs = &cooperative, config.numAttrs = 1;
    CHECK(cudaLaunchKernelExC(&config, (const void *)named, arguments));
    CHECK(cudaLaunchKernelEx(&config, named, 14));
    CHECK(cudaLaunchCooperativeKernel((const void *)named, 8, 1, arguments, 0, stream));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&size, many<char>, 64, 0));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaDeviceSynchronize());

    float last = 0;
    CHECK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    CHECK(cudaMemcpyFromSymbol(&last, table, sizeof last, 3 * sizeof last));
    printf("counter %d, table %g\n", value, last);
    value = 6;
    CHECK(cudaMemcpyToSymbol(counter, &value, sizeof value));
    CHECK(cudaMemcpyFromSymbol(&size, counter, sizeof size));
    printf("counter %d, twice %d\n", size, Sum<int>(&value).twice());
    return 0;
}
