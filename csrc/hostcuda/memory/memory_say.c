/* Log lines for refusals of memory code, in NCCL's format. */
#include "memory/hc_memory.h"
#include "psm_messages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

void hc_say_import(int fd, const char *format, ...)
{
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    psm_msg_hostcuda_import_refused(fd, reason);
}

void hc_say_ipc(int pid, const char *reason)
{
    if (pid)
        psm_msg_hostcuda_ipc_refused(pid, reason);
    else
        psm_msg_hostcuda_ipc_refused_2(reason);
}

/* Which resource is exhausted, and what to do. */
static const char *limit_of(int error, char *text, size_t size)
{
    struct rlimit limit;
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(text, size,
                 "all %llu file descriptors of this process are in use, and each allocation of more than 1 MiB takes "
                 "one; raise the limit (ulimit -Hn), or suballocate from larger allocations",
                 (unsigned long long)limit.rlim_cur);
    else if (error == ENFILE)
        snprintf(text, size, "all file descriptors of this machine are in use; raise fs.file-max");
    else if (error == ENOMEM)
        snprintf(
            text, size,
            "the system has no memory, or no further mapping for this process; see vm.max_map_count and ulimit -v");
    else
        snprintf(text, size, "%s", strerror(error));
    return text;
}

void hc_say_no_memory(uint64_t bytes, int error)
{
    char text[256];
    psm_msg_hostcuda_no_memory(bytes, limit_of(error, text, sizeof text));
}

void hc_say_no_descriptor(int error)
{
    char text[256];
    const struct hc_call *call = hc_current_call();
    psm_msg_hostcuda_no_descriptor(call ? hc_functions[call->fn].name : "hostcuda", limit_of(error, text, sizeof text));
}

void hc_say_no_peer(int device, int owner)
{
    psm_msg_hostcuda_no_peer(device, owner);
}
