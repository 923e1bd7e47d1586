/* The line in which this process reports that CUDA is emulated, in NCCL's log format. */
#define _GNU_SOURCE
#include "base.h"
#include "core/hc_life.h"
#include "device/hc_device.h"
#include "psm_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Printed as NCCL's own lines are: with NCCL_DEBUG=INFO or PSM_LOG=info. */
static int say_banner(void)
{
    const char *wanted = getenv("PSM_HOSTCUDA_BANNER");
    char version[16];
    if (wanted && strcmp(wanted, "0") == 0) return 0;
    snprintf(version, sizeof version, "%d.%d", hc_topology.cuda / 1000, hc_topology.cuda % 1000 / 10);
    int rank = psm_proc_self()->rank;
    const char *mode = hc_options.strict ? "strict" : "lax";
    if (rank >= 0)
        psm_msg_hostcuda_banner_2(version, rank, hc_topology.devices, mode, hc_topology.source);
    else
        psm_msg_hostcuda_banner(version, hc_topology.devices, mode, hc_topology.source);
    return 0;
}

HC_LIFE(HC_MODULE_BANNER, .start = say_banner)
