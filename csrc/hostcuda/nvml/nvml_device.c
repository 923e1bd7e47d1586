/* NVML's queries of a GPU. */
#define _GNU_SOURCE
#include "nvml/hc_nvml.h"

#include <stdio.h>
#include <string.h>

static const struct hc_gpu *gpu_of(int index)
{
    return &hc_topology.gpu[index];
}

nvmlReturn_t hc_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    int i, rc = hc_nvml_check(device, name, &i);
    return rc ? rc : hc_nvml_text(name, length, gpu_of(i)->name);
}

nvmlReturn_t hc_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    char text[48];
    int i, rc = hc_nvml_check(device, uuid, &i);
    if (rc) return rc;
    hc_format_uuid(gpu_of(i)->uuid, text);
    return hc_nvml_text(uuid, length, text);
}

nvmlReturn_t hc_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    int i, rc = hc_nvml_check(device, index, &i);
    if (!rc) *index = (unsigned)i;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
    int i, rc = hc_nvml_check(device, minorNumber, &i);
    if (!rc) *minorNumber = (unsigned)i;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *boardId)
{
    int i, rc = hc_nvml_check(device, boardId, &i);
    if (!rc) *boardId = gpu_of(i)->domain << 16 | gpu_of(i)->bus << 8 | gpu_of(i)->slot;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *onSameBoard)
{
    int a, b, rc = hc_nvml_check(device1, onSameBoard, &a);
    if (!rc) rc = hc_nvml_check(device2, onSameBoard, &b);
    if (!rc) *onSameBoard = a == b;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *type)
{
    int i, rc = hc_nvml_check(device, type, &i);
    if (!rc) *type = gpu_of(i)->major >= 8 ? NVML_BRAND_NVIDIA : NVML_BRAND_TESLA;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
    int i, rc = hc_nvml_check(device, arch, &i);
    if (rc) return rc;
    int capability = gpu_of(i)->major * 10 + gpu_of(i)->minor;
    *arch = capability >= 100  ? 10
            : capability >= 90 ? 9
            : capability >= 89 ? 8
            : capability >= 80 ? 7
            : capability >= 75 ? 6
            : capability >= 70 ? 5
            : capability >= 60 ? 4
                               : 3;
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    int i, rc = hc_nvml_check(device, major && minor ? major : NULL, &i);
    if (rc) return rc;
    *major = gpu_of(i)->major;
    *minor = gpu_of(i)->minor;
    return 0;
}

/* ---- PCI ---- */

static int pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    int i, rc = hc_nvml_check(device, pci, &i);
    if (rc) return rc;
    const struct hc_gpu *gpu = gpu_of(i);
    *pci = (nvmlPciInfo_t){.domain = gpu->domain,
                           .bus = gpu->bus,
                           .device = gpu->slot,
                           .pciDeviceId = hc_gpu_pci_id(gpu),
                           .pciSubSystemId = HC_PCI_SUBSYSTEM};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff, gpu->bus & 0xff,
             gpu->slot & 0x1f);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->slot);
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return pci_info(device, pci);
}

/* The older ones have no room for the long id at the end. */
static int short_pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t whole;
    int i, rc = hc_nvml_check(device, pci, &i);
    if (!rc) rc = pci_info(device, &whole);
    if (!rc) memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return short_pci_info(device, pci);
}

nvmlReturn_t hc_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return short_pci_info(device, pci);
}

nvmlReturn_t hc_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    int i, rc = hc_nvml_check(device, pci, &i);
    if (rc) return rc;
    if (pci->version != HC_NVML_VERSION(nvmlPciInfoExt_v1_t, 1)) return HC_NVML_VERSION_MISMATCH;
    const struct hc_gpu *gpu = gpu_of(i);
    *pci = (nvmlPciInfoExt_t){.version = pci->version,
                              .domain = gpu->domain,
                              .bus = gpu->bus,
                              .device = gpu->slot,
                              .pciDeviceId = hc_gpu_pci_id(gpu),
                              .pciSubSystemId = HC_PCI_SUBSYSTEM,
                              .baseClass = 3,
                              .subClass = 2};
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->slot);
    return 0;
}

static unsigned generation(int index)
{
    int major = gpu_of(index)->major;
    return major >= 9 ? 5 : major == 8 ? 4 : 3;
}

nvmlReturn_t hc_nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *maxLinkGen)
{
    int i, rc = hc_nvml_check(device, maxLinkGen, &i);
    if (!rc) *maxLinkGen = generation(i);
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *maxLinkWidth)
{
    int i, rc = hc_nvml_check(device, maxLinkWidth, &i);
    if (!rc) *maxLinkWidth = 16;
    return rc;
}

/* In Mbit/s per lane: 8000 for generation 3, and twice that for each further one. */
nvmlReturn_t hc_nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int *maxSpeed)
{
    int i, rc = hc_nvml_check(device, maxSpeed, &i);
    if (!rc) *maxSpeed = 8000u << (generation(i) - 3);
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *pcieSpeed)
{
    int i, rc = hc_nvml_check(device, pcieSpeed, &i);
    if (!rc) *pcieSpeed = 8000u << (generation(i) - 3);
    return rc;
}

/* ---- memory and modes ---- */

/* Memory use of this process only; other processes count their own. */
static uint64_t used(int index)
{
    for (int device = 0; device < hc_topology.devices; device++)
        if (hc_topology.visible[device] == index) return hc_device_memory_in_use(device);
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    int i, rc = hc_nvml_check(device, memory, &i);
    if (rc) return rc;
    memory->total = gpu_of(i)->memory;
    memory->used = used(i);
    memory->free = memory->total - memory->used;
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    int i, rc = hc_nvml_check(device, memory, &i);
    if (rc) return rc;
    if (memory->version != HC_NVML_VERSION(nvmlMemory_v2_t, 2)) return HC_NVML_VERSION_MISMATCH;
    memory->total = gpu_of(i)->memory;
    memory->used = used(i);
    memory->reserved = 0;
    memory->free = memory->total - memory->used;
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *busWidth)
{
    int i, value = 0, rc = hc_nvml_check(device, busWidth, &i);
    if (rc) return rc;
    (void)hc_gpu_attribute(gpu_of(i), cudaDevAttrGlobalMemoryBusWidth, &value);
    *busWidth = (unsigned)value;
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    int i, rc = hc_nvml_check(device, mode, &i);
    if (!rc) *mode = NVML_COMPUTEMODE_DEFAULT;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    int i, rc = hc_nvml_check(device, mode, &i);
    if (!rc) *mode = NVML_FEATURE_ENABLED;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    int i, rc = hc_nvml_check(device, current && pending ? current : NULL, &i);
    if (!rc) *current = *pending = NVML_FEATURE_ENABLED;
    return rc;
}

/* There is no MIG. */
nvmlReturn_t hc_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    int i, rc = hc_nvml_check(device, currentMode && pendingMode ? currentMode : NULL, &i);
    if (!rc) *currentMode = *pendingMode = 0;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    int i, rc = hc_nvml_check(device, count, &i);
    if (!rc) *count = 0;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    int i, rc = hc_nvml_check(device, isMigDevice, &i);
    if (!rc) *isMigDevice = 0;
    return rc;
}
