/* What this process says about its being emulated, in NCCL's log format. */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>

void hc_say_banner(void) {}

void hc_say_topology(const char *reason)
{
    fprintf(stderr, "hostcuda: %s\n", reason);
}
