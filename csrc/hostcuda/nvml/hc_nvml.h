/* NVML's functions; errors are nvmlReturn_t. */
#ifndef HC_NVML_H
#define HC_NVML_H

#include "device/hc_device.h"

enum {
    HC_NVML_UNINITIALIZED = 1,
    HC_NVML_INVALID_ARGUMENT = 2,
    HC_NVML_NOT_SUPPORTED = 3,
    HC_NVML_NOT_FOUND = 6,
    HC_NVML_INSUFFICIENT_SIZE = 7,
    HC_NVML_VERSION_MISMATCH = 25
};

/* Versioned structs carry their size and a number. */
#define HC_NVML_VERSION(type, number) ((unsigned)(sizeof(type) | (number) << 24))

/* Checks before any query of a device: 0, UNINITIALIZED, or INVALID_ARGUMENT if it is not a device or out is NULL. */
int hc_nvml_check(nvmlDevice_t device, const void *out, int *index);
int hc_nvml_text(char *out, unsigned size, const char *text);

#endif
