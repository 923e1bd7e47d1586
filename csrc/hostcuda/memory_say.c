/* What memory code tells about refusals, in NCCL's log format. */
#include "memory.h"
#include "psm_messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

void hc_say_no_memory(uint64_t bytes, int error)
{
    psm_msg_hostcuda_no_memory(bytes, strerror(error));
}

void hc_say_no_peer(int device, int owner)
{
    psm_msg_hostcuda_no_peer(device, owner);
}
