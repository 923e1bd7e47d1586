/* The bug that psmkit was written for, in sixty lines. Two processes share a buffer. The owner sends its whole private struct, stream
   handle included. The peer uses the struct as it is: its proxy thread copies on that stream, while the application's stream waits in a
   host function until the proxy is done.

       seed_bug foreign legacy        the owner's handle is invalid in the peer: the copy fails
       seed_bug zero legacy|blocking  the owner has no stream and sends handle 0: the copy queues behind the host function that waits for it
       seed_bug zero nonblocking      the same mistake, but it passes */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct resources { /* should be two types: what the peer needs, and what is private */
    cudaIpcMemHandle_t buffer;
    size_t size;
    cudaStream_t stream;
};
static struct resources remote;
static void *mapped, *mine;
static int device;      /* of the peer: the second one where there are two */
static atomic_int done; /* 1: copied, -1: failed */

void *proxy(void *unused)
{
    cudaEvent_t event;
    cudaError_t rc = cudaSetDevice(device);
    if (!rc) rc = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (!rc) rc = cudaMemcpyAsync(mine, mapped, remote.size, cudaMemcpyDefault, remote.stream);
    if (!rc) rc = cudaEventRecord(event, remote.stream);
    while (!rc && (rc = cudaEventQuery(event)) == cudaErrorNotReady) rc = cudaSuccess, usleep(100);
    if (rc) fprintf(stderr, "proxy: %s\n", cudaGetErrorName(rc));
    done = rc ? -1 : 1;
    return unused;
}

void wait_for_proxy(void *unused)
{
    (void)unused;
    while (!done) usleep(100);
}

int main(int argc, char **argv)
{
    int zero = argc > 1 && !strcmp(argv[1], "zero"), ends[2];
    const char *kind = argc > 2 ? argv[2] : "legacy";
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) return 2;
    if (fork()) { /* the owner: rank 0 */
        struct resources own = {.size = 1 << 20};
        setenv("PSM_RANK", "0", 1);
        if (cudaMalloc(&mine, own.size) || cudaMemset(mine, 42, own.size) || cudaIpcGetMemHandle(&own.buffer, mine)) return 2;
        if (!zero && cudaStreamCreate(&own.stream)) return 2;
        int status = write(ends[0], &own, sizeof own) == sizeof own ? 0 : 2;
        return wait(&status) < 0 || !WIFEXITED(status) ? 2 : WEXITSTATUS(status);
    }
    setenv("PSM_RANK", "1", 1);
    cudaStream_t stream = 0;
    pthread_t thread;
    if (read(ends[1], &remote, sizeof remote) != sizeof remote || cudaGetDeviceCount(&device)) return 2;
    device = device > 1;
    if (cudaSetDevice(device) || cudaMalloc(&mine, remote.size)) return 2;
    if (cudaIpcOpenMemHandle(&mapped, remote.buffer, cudaIpcMemLazyEnablePeerAccess)) return 2;
    if (!strcmp(kind, "blocking") && cudaStreamCreate(&stream)) return 2;
    if (!strcmp(kind, "nonblocking") && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) return 2;
    if (cudaLaunchHostFunc(stream, wait_for_proxy, NULL)) return 2;
    pthread_create(&thread, NULL, proxy, NULL);
    if (cudaStreamSynchronize(stream)) return 2;
    puts(done == 1 ? "passed" : "failed");
    return done == 1 ? 0 : 1;
}
