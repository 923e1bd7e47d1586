/* NVML: the GPUs of this process's node, whichever of them CUDA_VISIBLE_DEVICES makes visible to CUDA. */
#define _GNU_SOURCE
#include "nvml/hc_nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static atomic_int begun; /* nvmlInit calls without their nvmlShutdown */

static int ready(void)
{
    return atomic_load_explicit(&begun, memory_order_relaxed) > 0 ? 0 : HC_NVML_UNINITIALIZED;
}

/* A handle is a number of this process, as in CUDA. */
static nvmlDevice_t handle_of(int index)
{
    return (nvmlDevice_t)(uintptr_t)((uint64_t)hc_process_tag() << 31 | 0x6d6cull << 12 | (uint64_t)(index + 1) << 4);
}

static int index_of(nvmlDevice_t device)
{
    for (int i = 0; device && i < hc_topology.gpus; i++)
        if (device == handle_of(i)) return i;
    return -1;
}

int hc_nvml_check(nvmlDevice_t device, const void *out, int *index)
{
    int rc = ready();
    if (rc) return rc;
    *index = index_of(device);
    return *index < 0 || !out ? HC_NVML_INVALID_ARGUMENT : 0;
}

/* ---- life ---- */

static int begin(unsigned flags)
{
    if (flags & ~3u) return HC_NVML_INVALID_ARGUMENT; /* NO_GPUS, NO_ATTACH */
    atomic_fetch_add(&begun, 1);
    return 0;
}

nvmlReturn_t hc_nvmlInit(void)
{
    return begin(0);
}

nvmlReturn_t hc_nvmlInit_v2(void)
{
    return begin(0);
}

nvmlReturn_t hc_nvmlInitWithFlags(unsigned int flags)
{
    return begin(flags);
}

nvmlReturn_t hc_nvmlShutdown(void)
{
    int now = atomic_load(&begun);
    do {
        if (!now) return HC_NVML_UNINITIALIZED;
    } while (!atomic_compare_exchange_weak(&begun, &now, now - 1));
    return 0;
}

/* Our own words. */
const char *hc_nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "success",
        "NVML was not initialized, or shut down",
        "invalid argument",
        "not supported",
        "no permission",
        "initialized already",
        "not found",
        "the buffer is too small",
        "external power is missing",
        "the driver is not loaded",
        "timed out",
        "interrupt problem",
        "a library was not found",
        "a function was not found",
        "the infoROM is damaged",
        "the GPU is lost",
        "the GPU needs a reset",
        "the operating system refuses",
        "driver and library have different versions",
        "in use",
        "out of memory",
        "no data",
        "not with ECC on virtual GPUs",
        "out of resources",
        "frequency not supported",
        "the version of an argument is not known",
        "deprecated",
        "not ready",
        "no such GPU",
        "invalid state",
        "this kind of reset is not supported",
    };
    if (result >= 0 && (size_t)result < sizeof texts / sizeof *texts) return texts[result];
    return "unknown error";
}

/* ---- the system ---- */

int hc_nvml_text(char *out, unsigned size, const char *text)
{
    if (strlen(text) >= size) return HC_NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return 0;
}

nvmlReturn_t hc_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    int rc = ready();
    if (rc) return rc;
    return version ? hc_nvml_text(version, length, hc_topology.driver) : HC_NVML_INVALID_ARGUMENT;
}

/* Major version of CUDA, then the driver's, in NVML's format. */
nvmlReturn_t hc_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[64];
    if (!version) return HC_NVML_INVALID_ARGUMENT;
    snprintf(text, sizeof text, "%d.%s", hc_topology.cuda / 1000, hc_topology.driver);
    return hc_nvml_text(version, length, text);
}

static int cuda_version(int *out)
{
    if (!out) return HC_NVML_INVALID_ARGUMENT;
    *out = hc_topology.cuda;
    return 0;
}

nvmlReturn_t hc_nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    return cuda_version(cudaDriverVersion);
}

nvmlReturn_t hc_nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
    return cuda_version(cudaDriverVersion);
}

/* Confidential computing is off. */
nvmlReturn_t hc_nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    int rc = ready();
    if (rc) return rc;
    if (!state) return HC_NVML_INVALID_ARGUMENT;
    *state = (nvmlConfComputeSystemState_t){0};
    return 0;
}

nvmlReturn_t hc_nvmlSystemGetConfComputeCapabilities(nvmlConfComputeSystemCaps_t *capabilities)
{
    int rc = ready();
    if (rc) return rc;
    if (!capabilities) return HC_NVML_INVALID_ARGUMENT;
    *capabilities = (nvmlConfComputeSystemCaps_t){0};
    return 0;
}

nvmlReturn_t hc_nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *settings)
{
    int rc = ready();
    if (rc) return rc;
    if (!settings) return HC_NVML_INVALID_ARGUMENT;
    if (settings->version != HC_NVML_VERSION(nvmlSystemConfComputeSettings_v1_t, 1)) return HC_NVML_VERSION_MISMATCH;
    *settings = (nvmlSystemConfComputeSettings_t){.version = settings->version};
    return 0;
}

/* ---- handles ---- */

static int count(unsigned *out)
{
    int rc = ready();
    if (rc) return rc;
    if (!out) return HC_NVML_INVALID_ARGUMENT;
    *out = (unsigned)hc_topology.gpus;
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetCount(unsigned int *deviceCount)
{
    return count(deviceCount);
}

nvmlReturn_t hc_nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    return count(deviceCount);
}

static int by_index(unsigned index, nvmlDevice_t *device)
{
    int rc = ready();
    if (rc) return rc;
    if (!device || index >= (unsigned)hc_topology.gpus) return HC_NVML_INVALID_ARGUMENT;
    *device = handle_of((int)index);
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return by_index(index, device);
}

nvmlReturn_t hc_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return by_index(index, device);
}

static int by_pci(const char *text, nvmlDevice_t *device)
{
    unsigned domain, bus, slot;
    int rc = ready();
    if (rc) return rc;
    if (!text || !device || !hc_parse_pci(text, &domain, &bus, &slot)) return HC_NVML_INVALID_ARGUMENT;
    for (int i = 0; i < hc_topology.gpus; i++) {
        const struct hc_gpu *gpu = &hc_topology.gpu[i];
        if (gpu->domain == domain && gpu->bus == bus && gpu->slot == slot) {
            *device = handle_of(i);
            return 0;
        }
    }
    return HC_NVML_NOT_FOUND;
}

nvmlReturn_t hc_nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
    return by_pci(pciBusId, device);
}

nvmlReturn_t hc_nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    return by_pci(pciBusId, device);
}

nvmlReturn_t hc_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char text[48];
    int rc = ready();
    if (rc) return rc;
    if (!uuid || !device) return HC_NVML_INVALID_ARGUMENT;
    for (int i = 0; i < hc_topology.gpus; i++) {
        hc_format_uuid(hc_topology.gpu[i].uuid, text);
        if (strcasecmp(text, uuid) == 0) {
            *device = handle_of(i);
            return 0;
        }
    }
    return HC_NVML_NOT_FOUND;
}
