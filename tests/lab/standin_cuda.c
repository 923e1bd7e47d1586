/* Stands in for the CUDA of a machine with a GPU: linked to an emulated runtime, it answers by that, and opens the
   socket that a real driver opens when a process first uses a device. FULL: so many streams can be made, and the next
   one cannot. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int cudaSetDevice(int device)
{
    static int opened;
    if (!opened) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s-%d", SOCKET_NAME, (int)getpid());
        opened = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (bind(opened, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)))
            return 999;
    }
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "cudaSetDevice");
    return next ? next(device) : 35;
}

#ifdef FULL
/* As on a device whose memory is full: the runtime writes a number that is no stream. */
int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    static int calls;
    int (*next)(void **, unsigned) = (int (*)(void **, unsigned))dlsym(RTLD_NEXT, "cudaStreamCreateWithFlags");
    if (calls++ != FULL) return next ? next(stream, flags) : 35;
    *stream = (void *)-1;
    return 2;
}
#endif
