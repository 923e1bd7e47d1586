/* The lines in which this process reports that CUDA is emulated, in NCCL's log format. */
#define _GNU_SOURCE
#include "base.h"
#include "device/hc_device.h"
#include "psm_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Printed as NCCL's own lines are: with NCCL_DEBUG=INFO or PSM_LOG=info. */
void hc_say_banner(void)
{
    const char *wanted = getenv("PSM_HOSTCUDA_BANNER");
    char version[16];
    if (wanted && strcmp(wanted, "0") == 0) return;
    snprintf(version, sizeof version, "%d.%d", hc_topology.cuda / 1000, hc_topology.cuda % 1000 / 10);
    int rank = psm_proc_self()->rank;
    const char *mode = hc_options.strict ? "strict" : "lax";
    if (rank >= 0)
        psm_msg_hostcuda_banner_2(version, rank, hc_topology.devices, mode, hc_topology.source);
    else
        psm_msg_hostcuda_banner(version, hc_topology.devices, mode, hc_topology.source);
}

void hc_say_topology(const char *reason)
{
    psm_msg_hostcuda_topology(reason);
}

void hc_say_real_driver(void)
{
    psm_msg_hostcuda_real_driver();
}

void hc_say_kernel_refused(const char *name)
{
    psm_msg_hostcuda_kernel_refused(name);
}

void hc_say_kernels_library(const char *library, const char *reason)
{
    psm_msg_hostcuda_kernels_library(library, reason);
}

/* Once per process: a static runtime asks for several tables, repeatedly. */
void hc_say_private_table(const char *id)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true)) psm_msg_hostcuda_private_table(id);
}

void hc_say_private_function(void)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true)) psm_msg_hostcuda_private_function();
}
