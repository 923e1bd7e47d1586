/* A library that wraps getpid of the next library in line, as preloaded tools do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

pid_t getpid(void)
{
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getpid");
    return next == NULL || next == getpid ? -1 : next() + 1000000;
}
