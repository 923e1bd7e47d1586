/* Chooses the path between two ranks, from what both published and nothing else. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conn/connector.h"
#include "p2p/p2p.h"

/* The high half of the capabilities identifies the visible devices and their order: another process can use the bits of
 * peer_access only if it numbers the devices in the same way. */
enum { VISIBLE_SHIFT = 16, CAPABILITIES = (1 << VISIBLE_SHIFT) - 1 };

const char *psm_p2p_mode_name(int mode)
{
    static const char *const names[] = {"none", "direct pointer", "CUMEM", "IPC", "SHM", "indirect"};
    return mode >= 0 && mode < (int)(sizeof names / sizeof *names) ? names[mode] : "unknown";
}

static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    for (const unsigned char *p = data; n > 0; p++, n--) hash = (hash ^ *p) * UINT64_C(0x100000001b3);
    return hash;
}
#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

static uint64_t mix_namespace(uint64_t hash, const char *path)
{
    struct stat s = {0};
    if (stat(path, &s) != 0) return mix(hash, path, strlen(path));
    hash = mix(hash, &s.st_dev, sizeof s.st_dev);
    return mix(hash, &s.st_ino, sizeof s.st_ino);
}

/* If equal, one can open a named segment of the other. The network namespace is that of the abstract sockets. */
static uint64_t host_hash(void)
{
    const struct psm_proc *self = psm_proc_self();
    uint64_t hash = mix(HASH_BEGIN, self->boot_id, strnlen(self->boot_id, sizeof self->boot_id));
    const char *node =
        getenv("PSM_NODE"); /* pretended node of emulated CUDA: a host of its own, except for the first */
    if (node && strcmp(node, "0") != 0) hash = mix(hash, node, strlen(node));
    hash = mix_namespace(hash, "/proc/self/ns/ipc");
    hash = mix_namespace(hash, "/proc/self/ns/mnt");
    return mix_namespace(hash, "/proc/self/ns/net");
}

static uint64_t process_hash(void)
{
    const struct psm_proc *self = psm_proc_self();
    uint64_t hash = mix(HASH_BEGIN, self->boot_id, strnlen(self->boot_id, sizeof self->boot_id));
    hash = mix(hash, &self->pid_ns, sizeof self->pid_ns);
    hash = mix(hash, &self->pid, sizeof self->pid);
    return mix(hash, &self->start_time, sizeof self->start_time);
}

static bool has_cumem(const struct psm_cuda *cuda, int device)
{
    CUdevice handle;
    int managed = 0, fds = 0;
    if (!cuda->cuDeviceGet || !cuda->cuDeviceGetAttribute || !cuda->cuMemCreate ||
        !cuda->cuMemImportFromShareableHandle)
        return false;
    return cuda->cuDeviceGet(&handle, device) == 0 &&
           cuda->cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handle) == 0 &&
           cuda->cuDeviceGetAttribute(&fds, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, handle) ==
               0 &&
           managed && fds;
}

/* Only a test shows whether CUDA IPC works. */
static bool has_ipc(const struct psm_cuda *cuda)
{
    void *piece = NULL;
    cudaIpcMemHandle_t handle;
    if (cuda->cudaMalloc(&piece, 2 << 20) != 0) {
        cuda->cudaGetLastError();
        return false;
    }
    bool works = cuda->cudaIpcGetMemHandle(&handle, piece) == 0;
    if (!works) cuda->cudaGetLastError();
    cuda->cudaFree(piece);
    return works;
}

static uint32_t wanted(uint32_t share)
{
    const uint32_t any = PSM_CAN_MEMFD | PSM_CAN_POSIX_SHM; /* the control segment is host memory in every mode */
    switch (share) {
    case PSM_SHARE_SAME_PROCESS:
        return any | PSM_CAN_DIRECT;
    case PSM_SHARE_MEMFD:
        return PSM_CAN_MEMFD;
    case PSM_SHARE_POSIX:
        return PSM_CAN_POSIX_SHM;
    case PSM_SHARE_CUMEM:
        return any | PSM_CAN_CUMEM_FD;
    case PSM_SHARE_CUDA_IPC:
        return any | PSM_CAN_CUDA_IPC;
    default:
        return any | PSM_CAN_DIRECT | PSM_CAN_CUMEM_FD | PSM_CAN_CUDA_IPC;
    }
}

psm_status psmP2pPeerInfo(const struct psm_host *host, const struct psmProxyAddress *proxy, struct psm_peer_info *info)
{
    const struct psm_cuda *cuda = host->ops->cuda(host->self);
    const struct psm_settings *settings = host->ops->settings(host->self);
    int rank = host->ops->rank(host->self), device = host->ops->device(host->self), count = 0;
    if (!cuda) return psm_fail_at("init", rank, -1, 0);
    *info = (struct psm_peer_info){.size = sizeof *info,
                                   .version = PSM_WIRE_VERSION,
                                   .rank = rank,
                                   .device = device,
                                   .host_hash = host_hash(),
                                   .process_hash = process_hash()};
    if (proxy) info->proxy = *proxy;
    PSM_CUDA(cuda, "init", rank, -1, cudaGetDeviceCount(&count));
    uint64_t visible = HASH_BEGIN;
    for (int d = 0; d < count; d++) {
        char id[32] = "";
        PSM_CUDA(cuda, "init", rank, -1, cudaDeviceGetPCIBusId(id, sizeof id, d));
        visible = mix(visible, id, strnlen(id, sizeof id));
        if (d == device) memcpy(info->bus_id, id, strnlen(id, sizeof info->bus_id - 1));
        int reaches = 0;
        if (d == device || d >= 32) continue;
        PSM_CUDA(cuda, "init", rank, -1, cudaDeviceCanAccessPeer(&reaches, device, d));
        if (reaches) info->peer_access |= UINT32_C(1) << d;
    }
    const char *disable = getenv("PSM_P2P_DISABLE");
    uint32_t can = disable && strcmp(disable, "1") == 0 ? 0 : wanted(settings->share);
    if ((can & PSM_CAN_CUMEM_FD) && !has_cumem(cuda, device)) can &= ~(uint32_t)PSM_CAN_CUMEM_FD;
    if ((can & PSM_CAN_CUDA_IPC) && !has_ipc(cuda)) can &= ~(uint32_t)PSM_CAN_CUDA_IPC;
    if (info->peer_access) can |= PSM_CAN_PEER_ACCESS;
    if (settings->zero_copy) can |= PSM_CAN_ZERO_COPY;
    info->capabilities = can | (uint32_t)(visible ^ visible >> 16 ^ visible >> 32 ^ visible >> 48) << VISIBLE_SHIFT;
    return PSM_OK;
}

static bool reaches(const struct psm_peer_info *a, const struct psm_peer_info *b)
{
    if (memcmp(a->bus_id, b->bus_id, sizeof a->bus_id) == 0 && a->bus_id[0]) return true; /* the same device */
    if (a->capabilities >> VISIBLE_SHIFT != b->capabilities >> VISIBLE_SHIFT) return false;
    if (a->device < 0 || a->device >= 32 || b->device < 0 || b->device >= 32) return false;
    return (a->peer_access >> b->device & 1) && (b->peer_access >> a->device & 1);
}

psm_status psmP2pCanConnect(const struct psm_peer_info *a, const struct psm_peer_info *b, int *mode)
{
    if (!a || !b || !mode)
        return psm_fail(PSM_ERR_INVALID, "canconnect", -1, -1, 0, "psmP2pCanConnect: an argument is NULL");
    *mode = PSM_P2P_NONE;
    PSM_TRY(psm_connector_check_peer(a));
    PSM_TRY(psm_connector_check_peer(b));
    if (a->host_hash != b->host_hash) return PSM_OK;
    uint32_t both = a->capabilities & b->capabilities & CAPABILITIES;
    if (!(both & (PSM_CAN_MEMFD | PSM_CAN_POSIX_SHM))) return PSM_OK; /* the control segment needs one of these */
    bool direct = reaches(a, b);
    if (direct && (both & PSM_CAN_DIRECT) && a->process_hash == b->process_hash)
        *mode = PSM_P2P_DIRECT;
    else if (direct && (both & PSM_CAN_CUMEM_FD))
        *mode = PSM_P2P_CUMEM;
    else if (direct && (both & PSM_CAN_CUDA_IPC) && a->process_hash != b->process_hash)
        *mode = PSM_P2P_IPC; /* a process cannot open its own handle */
    else
        *mode = PSM_P2P_SHM;
    return PSM_OK;
}

void psm_p2p_kinds(const struct psm_peer_info *a, const struct psm_peer_info *b, int mode, int *control, int *fifo)
{
    *control = a->capabilities & b->capabilities & PSM_CAN_MEMFD ? PSM_SHARE_MEMFD : PSM_SHARE_POSIX;
    switch (mode) {
    case PSM_P2P_DIRECT:
        *fifo = PSM_SHARE_SAME_PROCESS;
        break;
    case PSM_P2P_CUMEM:
        *fifo = PSM_SHARE_CUMEM;
        break;
    case PSM_P2P_IPC:
        *fifo = PSM_SHARE_CUDA_IPC;
        break;
    default:
        *fifo = *control;
    }
}

int psm_p2p_via_kind(const struct psm_peer_info *a, const struct psm_peer_info *b, const struct psm_peer_info *via)
{
    uint32_t all = a->capabilities & b->capabilities & via->capabilities & CAPABILITIES;
    if (psm_connector_check_peer(via) != PSM_OK || via->host_hash != a->host_hash || via->host_hash != b->host_hash ||
        via->rank == a->rank || via->rank == b->rank || !reaches(a, via) || !reaches(b, via))
        return PSM_SHARE_NONE;
    if (all & PSM_CAN_CUMEM_FD) return PSM_SHARE_CUMEM;
    bool apart = via->process_hash != a->process_hash && via->process_hash != b->process_hash;
    return (all & PSM_CAN_CUDA_IPC) && apart ? PSM_SHARE_CUDA_IPC : PSM_SHARE_NONE;
}

psm_status psmP2pFindIntermediate(const struct psm_peer_info *infos, size_t count, const struct psm_peer_info *a,
                                  const struct psm_peer_info *b, int *via)
{
    if (!infos || !a || !b || !via)
        return psm_fail(PSM_ERR_INVALID, "canconnect", -1, -1, 0, "psmP2pFindIntermediate: an argument is NULL");
    int mode;
    *via = -1;
    PSM_TRY(psmP2pCanConnect(a, b, &mode));
    if (mode != PSM_P2P_SHM || reaches(a, b)) return PSM_OK;
    for (size_t i = 0; i < count && *via < 0; i++)
        if (psm_p2p_via_kind(a, b, &infos[i]) != PSM_SHARE_NONE) *via = (int)i;
    return PSM_OK;
}
