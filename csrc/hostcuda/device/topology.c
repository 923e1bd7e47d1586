/* The GPUs that this process pretends to have: PSM_TOPOLOGY, PSM_NODE and CUDA_VISIBLE_DEVICES, read once. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "device/hc_device.h"
#include "psm_messages.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct hc_topology hc_topology = {.cuda = 13050};

/* A GPU by "3" or by the start of its UUID; -1: none, or ambiguous. */
static int find_gpu(const struct hc_topology *t, const char *text, size_t n)
{
    char uuid[48];
    int found = -1;
    if (n && isdigit((unsigned char)*text)) {
        int index = 0;
        for (size_t i = 0; i < n; i++) {
            if (!isdigit((unsigned char)text[i])) return -1;
            index = index * 10 + text[i] - '0';
            if (index >= t->gpus) return -1;
        }
        return index;
    }
    if (n <= 4 || strncmp(text, "GPU-", 4) != 0) return -1;
    for (int i = 0; i < t->gpus; i++) {
        hc_format_uuid(t->gpu[i].uuid, uuid);
        if (n <= strlen(uuid) && strncasecmp(uuid, text, n) == 0) {
            if (found >= 0) return -1;
            found = i;
        }
    }
    return found;
}

/* As CUDA documents it: devices after the first invalid one are not visible. If a device is listed twice, none is
 * visible. */
static void make_visible(struct hc_topology *t, const char *list)
{
    t->devices = 0;
    if (!list) {
        for (; t->devices < t->gpus; t->devices++) t->visible[t->devices] = t->devices;
        return;
    }
    while (true) {
        while (*list == ' ') list++;
        size_t n = strcspn(list, ",");
        size_t next = n;
        while (n && list[n - 1] == ' ') n--;
        int index = find_gpu(t, list, n);
        if (index < 0) return;
        for (int i = 0; i < t->devices; i++)
            if (t->visible[i] == index) {
                t->devices = 0;
                return;
            }
        t->visible[t->devices++] = index;
        if (!list[next]) return;
        list += next + 1;
    }
}

static int start(void)
{
    const char *path = getenv("PSM_TOPOLOGY"), *node = getenv("PSM_NODE");
    char error[512];
    char *end;
    long number = node && *node ? strtol(node, &end, 10) : 0;
    if (node && *node && (*end || number < 0 || number > 4095)) {
        snprintf(error, sizeof error, "PSM_NODE must be the number of a node, found '%.80s'", node);
        psm_msg_hostcuda_topology(error);
        return PSM_CUDA_NOT_INITIALIZED;
    }
    if (!hc_topology_read(&hc_topology, path && *path ? path : NULL, (int)number, error, sizeof error)) {
        hc_topology.gpus = hc_topology.devices = 0;
        psm_msg_hostcuda_topology(error);
        return PSM_CUDA_NOT_INITIALIZED;
    }
    make_visible(&hc_topology, getenv("CUDA_VISIBLE_DEVICES"));
    return 0;
}

HC_LIFE(HC_MODULE_TOPOLOGY, .start = start)

void hc_format_uuid(const unsigned char uuid[16], char text[48])
{
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
        at += sprintf(at, "%02x", uuid[i]);
    }
}

int hc_device_count(void)
{
    return hc_topology.devices;
}

uint64_t hc_device_total_memory(int device)
{
    return hc_device_valid(device) ? hc_gpu_of(device)->memory : 0;
}

bool hc_peer_possible(int from, int to)
{
    return hc_device_valid(from) && hc_device_valid(to) && from != to && hc_link_of(from, to)->peer;
}

/* The memory is pretended: nothing is allocated, only the sum is kept. */
static _Atomic int64_t in_use[HC_MAX_DEVICES];

int hc_device_account(int device, int64_t n)
{
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    int64_t total = (int64_t)hc_gpu_of(device)->memory;
    int64_t now = atomic_load_explicit(&in_use[device], memory_order_relaxed), then;
    do {
        if (n > 0 && (n > total || now > total - n)) return PSM_CUDA_OUT_OF_MEMORY;
        then = now + n < 0 ? 0 : now + n;
    } while (!atomic_compare_exchange_weak(&in_use[device], &now, then));
    return 0;
}

uint64_t hc_device_memory_in_use(int device)
{
    return hc_device_valid(device) ? (uint64_t)atomic_load(&in_use[device]) : 0;
}
