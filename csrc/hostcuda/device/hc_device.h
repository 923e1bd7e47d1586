/* Devices as defined by the topology. An index counts the GPUs of this process's node, as NVML does; a device number
 * counts those that CUDA_VISIBLE_DEVICES leaves. */
#ifndef HC_DEVICE_H
#define HC_DEVICE_H

#include "core/hc.h"

enum hc_link_kind { HC_LINK_PCIE, HC_LINK_NVLINK, HC_LINK_NVSWITCH };
enum { HC_MAX_NVLINKS = 18 };

struct hc_gpu {
    char name[96];
    unsigned domain, bus, slot; /* PCI */
    int major, minor;           /* compute capability */
    uint64_t memory;            /* bytes */
    int numa;
    int links; /* NVLinks of this GPU, to all peers together */
    bool rdma; /* network cards reach its memory */
    unsigned char uuid[16];
};

struct hc_link {
    enum hc_link_kind kind;
    int count; /* NVLinks of this pair; with a switch: those of the GPU */
    bool peer; /* direct access is possible */
};

struct hc_topology {
    int nodes, node; /* number of nodes, and the one this process is on */
    int gpus;        /* of the node */
    int devices;     /* visible ones */
    int cuda;        /* version of the pretended driver, 13050 = 13.5 */
    char driver[40];
    char source[256]; /* "default" or the file */
    struct hc_gpu gpu[HC_MAX_DEVICES];
    struct hc_link link[HC_MAX_DEVICES][HC_MAX_DEVICES];
    int visible[HC_MAX_DEVICES]; /* device -> index */
};

extern struct hc_topology hc_topology; /* constant after the start */

static inline bool hc_device_valid(int device)
{
    return device >= 0 && device < hc_topology.devices;
}
static inline const struct hc_gpu *hc_gpu_of(int device)
{
    return &hc_topology.gpu[hc_topology.visible[device]];
}
static inline const struct hc_link *hc_link_of(int from, int to)
{
    return &hc_topology.link[hc_topology.visible[from]][hc_topology.visible[to]];
}

/* topology_read.c. Fills *t from a file (NULL: defaults); error says what is wrong, with file and line. */
bool hc_topology_read(struct hc_topology *t, const char *path, int node, char *error, size_t size);
bool hc_parse_pci(const char *text, unsigned *domain, unsigned *bus, unsigned *slot);

/* attribute.c. INVALID_VALUE: unknown attribute. */
enum { HC_ATTRIBUTE_LAST = 161, HC_PCI_SUBSYSTEM = 0x16c110de };
enum { HC_SWITCH_BUS = 5, HC_SWITCHES = 4 }; /* PCI bus of the first NVSwitch; they use that many */
int hc_gpu_attribute(const struct hc_gpu *gpu, int attribute, int *value);
int hc_attribute(int device, int attribute);      /* of a device that exists; 0 if the attribute is unknown */
unsigned hc_gpu_pci_id(const struct hc_gpu *gpu); /* device and vendor, as PCI numbers them */

/* device.c */
int hc_runtime_version(void); /* of the soname that the current call came through */
int hc_pci_id_text(char *text, int size, int device);
int hc_pci_id_find(const char *text, int *device);
int hc_peer_attribute(int *value, int which, int from, int to);

/* topology.c */
void hc_format_uuid(const unsigned char uuid[16], char text[48]);
uint64_t hc_device_memory_in_use(int device);

#endif
