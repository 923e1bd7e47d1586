/* A tour of the host side of CUDA that a transport uses, without kernels. It runs on a GPU and over hostcuda:

       cc -std=gnu11 -I $CUDA/include examples/cuda_roundtrip.c -o cuda_roundtrip -L $CUDA/lib -l:libcudart.so.13
       ./cuda_roundtrip

   1. Data go host -> device -> device -> host through two streams that an event orders, and a host function looks at
   them.
   2. Memory that another process can map: created, exported as a file descriptor, sent over a socket to a child, which
      imports it, finds what the parent wrote, and answers through it. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            fprintf(stderr, "%s:%d: %s returned %d (%s)\n", __FILE__, __LINE__, #call, rc_,                            \
                    cudaGetErrorName((cudaError_t)rc_));                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- 1. streams and events */

struct look {
    const unsigned char *data;
    size_t n;
    uint64_t sum;
};

static void look_at(void *argument)
{
    struct look *look = argument;
    for (size_t i = 0; i < look->n; i++) look->sum += look->data[i];
}

static void streams_and_events(void)
{
    const size_t n = 8u << 20;
    unsigned char *source, *target;
    void *one, *other;
    cudaStream_t in, out;
    cudaEvent_t begin, arrived, end;
    float milliseconds;
    uint64_t sum = 0;
    CHECK(cudaMallocHost((void **)&source, n));
    CHECK(cudaMallocHost((void **)&target, n));
    CHECK(cudaMalloc(&one, n));
    CHECK(cudaMalloc(&other, n));
    CHECK(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreateWithFlags(&arrived, cudaEventDisableTiming));
    CHECK(cudaEventCreate(&end));
    for (size_t i = 0; i < n; i++) sum += source[i] = (unsigned char)(i * 2654435761u >> 13);

    struct look look = {target, n, 0};
    CHECK(cudaEventRecord(begin, in));
    CHECK(cudaMemcpyAsync(one, source, n, cudaMemcpyHostToDevice, in));
    CHECK(cudaEventRecord(arrived, in));
    CHECK(cudaStreamWaitEvent(out, arrived, 0));
    CHECK(cudaMemcpyAsync(other, one, n, cudaMemcpyDeviceToDevice, out));
    CHECK(cudaMemcpyAsync(target, other, n, cudaMemcpyDeviceToHost, out));
    CHECK(cudaLaunchHostFunc(out, look_at, &look));
    CHECK(cudaEventRecord(end, out));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (look.sum != sum || memcmp(source, target, n) || milliseconds < 0) {
        fprintf(stderr, "the data came back changed\n");
        exit(1);
    }
    printf("streams: %zu bytes went host, device, device, host\n", n);

    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(arrived));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaStreamDestroy(in));
    CHECK(cudaStreamDestroy(out));
    CHECK(cudaFree(one));
    CHECK(cudaFree(other));
    CHECK(cudaFreeHost(source));
    CHECK(cudaFreeHost(target));
}

/* ---- 2. memory for another process. The program asks for the driver's functions by version, as NCCL does: no libcuda to
 * link. */

#define DRIVER(X)                                                                                                      \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuMemAddressReserve)                                                                                             \
    X(cuMemAddressFree)                                                                                                \
    X(cuMemMap)                                                                                                        \
    X(cuMemUnmap)                                                                                                      \
    X(cuMemSetAccess)                                                                                                  \
    X(cuMemGetAllocationGranularity)                                                                                   \
    X(cuMemExportToShareableHandle)                                                                                    \
    X(cuMemImportFromShareableHandle)
#define SLOT(name) static __typeof__(&name) p_##name;
DRIVER(SLOT)

static void load_driver(void)
{
    enum cudaDriverEntryPointQueryResult found;
#define LOAD(name)                                                                                                     \
    CHECK(cudaGetDriverEntryPointByVersion(#name, (void **)&p_##name, 12000, cudaEnableDefault, &found));              \
    if (found != cudaDriverEntryPointSuccess) {                                                                        \
        fprintf(stderr, "this driver has no %s\n", #name);                                                             \
        exit(1);                                                                                                       \
    }
    DRIVER(LOAD)
}

static void send_descriptor(int socket, int fd, size_t size)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec data = {&size, sizeof size};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) < 0) perror("sendmsg"), exit(1);
}

static int receive_descriptor(int socket, size_t *size)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec data = {size, sizeof *size};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *size) perror("recvmsg"), exit(1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS) fprintf(stderr, "no descriptor came\n"), exit(1);
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

/* Map an allocation at an address that this process's device may use. */
static CUdeviceptr map(CUmemGenericAllocationHandle memory, size_t size)
{
    CUdeviceptr at;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(p_cuMemAddressReserve(&at, size, 0, 0, 0));
    CHECK(p_cuMemMap(at, size, 0, memory, 0));
    CHECK(p_cuMemSetAccess(at, size, &access, 1));
    return at;
}

static void unmap(CUmemGenericAllocationHandle memory, CUdeviceptr at, size_t size)
{
    CHECK(p_cuMemUnmap(at, size));
    CHECK(p_cuMemAddressFree(at, size));
    CHECK(p_cuMemRelease(memory));
}

static const char question[] = "is anybody there?", answer[] = "yes, another process";

static int child(int socket)
{
    size_t size;
    char text[sizeof question];
    CHECK(cudaSetDevice(0));
    load_driver();
    int fd = receive_descriptor(socket, &size);
    CUmemGenericAllocationHandle memory;
    CHECK(p_cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CUdeviceptr at = map(memory, size);
    CHECK(cudaMemcpy(text, (void *)(uintptr_t)at, sizeof text, cudaMemcpyDeviceToHost));
    if (memcmp(text, question, sizeof text)) return 1;
    CHECK(cudaMemcpy((void *)(uintptr_t)(at + size - sizeof answer), answer, sizeof answer, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    unmap(memory, at, size);
    return 0;
}

static void memory_for_another_process(const char *program)
{
    extern char **environ;
    int ends[2], status = 0, fd;
    size_t granularity;
    char text[sizeof answer], number[16];
    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    load_driver();
    CHECK(p_cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    size_t size = 2 * granularity;
    CHECK(p_cuMemCreate(&memory, size, &properties, 0));
    CUdeviceptr at = map(memory, size);
    CHECK(cudaMemcpy((void *)(uintptr_t)at, question, sizeof question, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    CHECK(p_cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

    /* Start a new program: CUDA does not work in a process that was only forked. */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) perror("socketpair"), exit(1);
    snprintf(number, sizeof number, "%d", ends[1]);
    char *arguments[] = {(char *)program, number, NULL};
    pid_t pid;
    if (posix_spawn(&pid, program, NULL, NULL, arguments, environ))
        fprintf(stderr, "cannot start %s\n", program), exit(1);
    close(ends[1]);
    send_descriptor(ends[0], fd, size);
    close(fd);
    if (waitpid(pid, &status, 0) != pid || status) fprintf(stderr, "the child failed: %x\n", (unsigned)status), exit(1);
    CHECK(cudaMemcpy(text, (void *)(uintptr_t)(at + size - sizeof text), sizeof text, cudaMemcpyDeviceToHost));
    if (memcmp(text, answer, sizeof text)) fprintf(stderr, "the child's answer is not there\n"), exit(1);
    printf("memory: a child found \"%s\" and answered \"%s\"\n", question, text);
    close(ends[0]);
    unmap(memory, at, size);
}

int main(int argc, char **argv)
{
    int devices, version;
    if (argc > 1) return child(atoi(argv[1]));
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaRuntimeGetVersion(&version));
    printf("CUDA %d.%d, %d devices\n", version / 1000, version % 1000 / 10, devices);
    CHECK(cudaSetDevice(0));
    streams_and_events();
    memory_for_another_process("/proc/self/exe");
    puts("ok");
    return 0;
}
