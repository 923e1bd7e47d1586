/* How the GPUs of the node are connected, as NVML reports it. */
#define _GNU_SOURCE
#include "nvml/hc_nvml.h"

#include <stdio.h>

static int links_of(int index)
{
    return hc_topology.gpu[index].links;
}

/* The GPU at the other end of a link; -1: a switch; -2: there is no such link. */
static int remote_of(int index, unsigned link)
{
    if (link >= (unsigned)links_of(index)) return -2;
    unsigned passed = 0;
    for (int peer = 0; peer < hc_topology.gpus; peer++) {
        const struct hc_link *l = &hc_topology.link[index][peer];
        if (peer == index || l->kind != HC_LINK_NVLINK) continue;
        passed += (unsigned)l->count;
        if (link < passed) return peer;
    }
    return -1;
}

/* MB/s per link and direction. */
static unsigned speed_of(int index)
{
    int major = hc_topology.gpu[index].major;
    return major >= 10 ? 53125 : major == 9 ? 26562 : 25781;
}

static unsigned version_of(int index)
{
    int major = hc_topology.gpu[index].major;
    return major >= 10 ? 7 : major == 9 ? 6 : major == 8 ? 5 : 2;
}

/* As hc_nvml_check, and the GPU has NVLinks, and the link may exist. */
static int check(nvmlDevice_t device, unsigned link, const void *out, int *index)
{
    int rc = hc_nvml_check(device, out, index);
    if (rc) return rc;
    if (!links_of(*index)) return HC_NVML_NOT_SUPPORTED;
    return link >= HC_MAX_NVLINKS ? HC_NVML_INVALID_ARGUMENT : 0;
}

nvmlReturn_t hc_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
    int i, rc = check(device, link, isActive, &i);
    if (!rc) *isActive = link < (unsigned)links_of(i) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    int i, rc = check(device, link, version, &i);
    if (!rc) *version = version_of(i);
    return rc;
}

nvmlReturn_t hc_nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability,
                                              unsigned int *capResult)
{
    int i, rc = check(device, link, capResult, &i);
    if (rc) return rc;
    if ((unsigned)capability >= NVML_NVLINK_CAP_COUNT) return HC_NVML_INVALID_ARGUMENT;
    bool there = link < (unsigned)links_of(i);
    int peer = remote_of(i, link);
    bool direct = peer < 0 || hc_topology.link[i][peer].peer;
    switch (capability) {
    case NVML_NVLINK_CAP_P2P_SUPPORTED:
    case NVML_NVLINK_CAP_P2P_ATOMICS:
        *capResult = there && direct;
        return 0;
    case NVML_NVLINK_CAP_VALID:
        *capResult = there;
        return 0;
    default: /* links to the host's memory, SLI */
        *capResult = 0;
        return 0;
    }
}

nvmlReturn_t hc_nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                    nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType)
{
    int i, rc = check(device, link, pNvLinkDeviceType, &i);
    if (rc) return rc;
    int peer = remote_of(i, link);
    *pNvLinkDeviceType = peer >= 0    ? NVML_NVLINK_DEVICE_TYPE_GPU
                         : peer == -1 ? NVML_NVLINK_DEVICE_TYPE_SWITCH
                                      : NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    return 0;
}

static int remote_pci(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    int i, rc = check(device, link, pci, &i);
    if (rc) return rc;
    int peer = remote_of(i, link);
    if (peer == -2) return HC_NVML_INVALID_ARGUMENT;
    nvmlDevice_t other;
    if (peer >= 0)
        return hc_nvmlDeviceGetHandleByIndex_v2((unsigned)peer, &other) ? HC_NVML_NOT_FOUND
                                                                        : hc_nvmlDeviceGetPciInfo_v3(other, pci);
    /* A GPU's links are spread over four switches. */
    *pci = (nvmlPciInfo_t){.domain = 0, .bus = HC_SWITCH_BUS + link % HC_SWITCHES, .pciDeviceId = 0x22a310de};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0", 0u, pci->bus & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", 0u, pci->bus & 0xff);
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    return remote_pci(device, link, pci);
}

nvmlReturn_t hc_nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    return remote_pci(device, link, pci);
}

/* ---- pairs ---- */

nvmlReturn_t hc_nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t p2pIndex,
                                       nvmlGpuP2PStatus_t *p2pStatus)
{
    int a, b, rc = hc_nvml_check(device1, p2pStatus, &a);
    if (!rc) rc = hc_nvml_check(device2, p2pStatus, &b);
    if (rc) return rc;
    const struct hc_link *link = &hc_topology.link[a][b];
    bool fine;
    switch (p2pIndex) {
    case NVML_P2P_CAPS_INDEX_READ:
    case NVML_P2P_CAPS_INDEX_WRITE:
    case NVML_P2P_CAPS_INDEX_PCI:
        fine = a == b || link->peer;
        break;
    case NVML_P2P_CAPS_INDEX_NVLINK:
    case NVML_P2P_CAPS_INDEX_ATOMICS:
        fine = a == b || (link->peer && link->kind != HC_LINK_PCIE);
        break;
    default:
        return HC_NVML_INVALID_ARGUMENT;
    }
    *p2pStatus = fine ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                    nvmlGpuTopologyLevel_t *pathInfo)
{
    int a, b, rc = hc_nvml_check(device1, pathInfo, &a);
    if (!rc) rc = hc_nvml_check(device2, pathInfo, &b);
    if (rc) return rc;
    *pathInfo = a == b                                               ? NVML_TOPOLOGY_INTERNAL
                : hc_topology.gpu[a].numa == hc_topology.gpu[b].numa ? NVML_TOPOLOGY_NODE
                                                                     : NVML_TOPOLOGY_SYSTEM;
    return 0;
}

/* ---- the fabric: behind a switch the registration is complete; NVLink does not leave the node ---- */

static bool behind_switch(int index)
{
    for (int peer = 0; peer < hc_topology.gpus; peer++)
        if (peer != index && hc_topology.link[index][peer].kind == HC_LINK_NVSWITCH) return true;
    return false;
}

nvmlReturn_t hc_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *gpuFabricInfo)
{
    int i, rc = hc_nvml_check(device, gpuFabricInfo, &i);
    if (rc) return rc;
    *gpuFabricInfo = (nvmlGpuFabricInfo_t){.state = behind_switch(i) ? NVML_GPU_FABRIC_STATE_COMPLETED
                                                                     : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED};
    return 0;
}

nvmlReturn_t hc_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *gpuFabricInfo)
{
    int i, rc = hc_nvml_check(device, gpuFabricInfo, &i);
    if (rc) return rc;
    unsigned version = gpuFabricInfo->version;
    unsigned char state = behind_switch(i) ? NVML_GPU_FABRIC_STATE_COMPLETED : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
    if (version == HC_NVML_VERSION(nvmlGpuFabricInfo_v2_t, 2)) { /* the shorter struct: do not write beyond its end */
        *(nvmlGpuFabricInfo_v2_t *)gpuFabricInfo = (nvmlGpuFabricInfo_v2_t){.version = version, .state = state};
        return 0;
    }
    if (version != HC_NVML_VERSION(nvmlGpuFabricInfo_v3_t, 3)) return HC_NVML_VERSION_MISMATCH;
    *gpuFabricInfo = (nvmlGpuFabricInfo_v3_t){.version = version, .state = state};
    return 0;
}

/* ---- field values ---- */

static void number(nvmlFieldValue_t *v, unsigned value)
{
    v->nvmlReturn = 0;
    v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    v->value.ullVal = value;
}

/* For one link; a missing link returns the same as an inactive one. */
static void link_value(nvmlFieldValue_t *v, int index, unsigned link, unsigned value)
{
    if (!links_of(index))
        v->nvmlReturn = HC_NVML_NOT_SUPPORTED;
    else if (link >= HC_MAX_NVLINKS)
        v->nvmlReturn = HC_NVML_INVALID_ARGUMENT;
    else
        number(v, link < (unsigned)links_of(index) ? value : 0);
}

static void field(nvmlFieldValue_t *v, int index)
{
    unsigned id = v->fieldId;
    if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L5) {
        link_value(v, index, id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, speed_of(index));
    } else if (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L11) {
        link_value(v, index, id - NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 + 6, speed_of(index));
    } else {
        switch (id) {
        case NVML_FI_DEV_ECC_CURRENT:
            number(v, 1);
            break;
        case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
            link_value(v, index, 0, speed_of(index));
            break;
        case NVML_FI_DEV_NVLINK_LINK_COUNT:
            number(v, (unsigned)links_of(index));
            break;
        case NVML_FI_DEV_NVLINK_GET_SPEED:
            link_value(v, index, v->scopeId, speed_of(index));
            break;
        case NVML_FI_DEV_NVLINK_GET_STATE:
            link_value(v, index, v->scopeId, 1);
            break;
        case NVML_FI_DEV_NVLINK_GET_VERSION:
            link_value(v, index, v->scopeId, version_of(index));
            break;
        case NVML_FI_DEV_C2C_LINK_COUNT:
            number(v, 0);
            break;
        default:
            v->nvmlReturn = HC_NVML_NOT_SUPPORTED;
        }
    }
}

/* Each value has its own result; the result of the call is about the arguments. */
nvmlReturn_t hc_nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    int i, rc = hc_nvml_check(device, values, &i);
    if (rc) return rc;
    if (valuesCount <= 0) return HC_NVML_INVALID_ARGUMENT;
    for (int k = 0; k < valuesCount; k++) {
        values[k].timestamp = 0;
        values[k].latencyUsec = 0;
        values[k].value.ullVal = 0;
        field(&values[k], i);
    }
    return 0;
}
