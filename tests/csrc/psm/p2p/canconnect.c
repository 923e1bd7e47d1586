#define _GNU_SOURCE
#include "p2p/canconnect.h"

#include <stdio.h>
#include <string.h>

#include "p2p/p2p.h"

/* canConnect on pairs that are drawn at random: symmetric, pure, and what the capabilities admit. */
int draw_pairs(uint64_t pairs)
{
    uint64_t x = 88172645463325252u, seen[6] = {0};
    const uint32_t bits[] = {PSM_CAN_CUMEM_FD, PSM_CAN_CUDA_IPC, PSM_CAN_MEMFD, PSM_CAN_POSIX_SHM, PSM_CAN_DIRECT};
    for (uint64_t n = 0; n < pairs; n++) {
        struct psm_peer_info two[2] = {0}, before[2];
        for (int i = 0; i < 2; i++) {
            struct psm_peer_info *info = &two[i];
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            *info = (struct psm_peer_info){.size = sizeof *info,
                                           .version = PSM_WIRE_VERSION,
                                           .rank = i,
                                           .device = (int)(x & 3),
                                           .host_hash = (x >> 8 & 7) != 0,
                                           .process_hash = x >> 12 & 1,
                                           .peer_access = x >> 16 & 15};
            snprintf(info->bus_id, sizeof info->bus_id, "0000:%02x:00.0", info->device);
            for (int b = 0; b < 5; b++) info->capabilities |= (x >> (24 + 2 * b) & 3) != 0 ? bits[b] : 0;
            if ((x >> 40 & 7) == 0) info->capabilities |= 1u << 16; /* sees other devices */
        }
        memcpy(before, two, sizeof two);
        int there = -1, back = -1;
        if (psmP2pCanConnect(&two[0], &two[1], &there) != PSM_OK || psmP2pCanConnect(&two[1], &two[0], &back) != PSM_OK)
            return 3;
        uint32_t both = two[0].capabilities & two[1].capabilities;
        bool same = two[0].device == two[1].device;
        bool alike = two[0].capabilities >> 16 == two[1].capabilities >> 16;
        bool reach =
            same || (alike && (two[0].peer_access >> two[1].device & 1) && (two[1].peer_access >> two[0].device & 1));
        bool host = two[0].host_hash == two[1].host_hash && (both & (PSM_CAN_MEMFD | PSM_CAN_POSIX_SHM));
        bool process = two[0].process_hash == two[1].process_hash;
        bool right = there == PSM_P2P_NONE     ? !host
                     : there == PSM_P2P_DIRECT ? host && reach && process && (both & PSM_CAN_DIRECT)
                     : there == PSM_P2P_CUMEM  ? host && reach && (both & PSM_CAN_CUMEM_FD)
                     : there == PSM_P2P_IPC    ? host && reach && !process && (both & PSM_CAN_CUDA_IPC)
                                               : there == PSM_P2P_SHM && host;
        /* SHM only where nothing better is open to both. */
        if (there == PSM_P2P_SHM && reach && (both & PSM_CAN_CUMEM_FD)) right = false;
        if (there != back || !right || memcmp(before, two, sizeof two) != 0) {
            printf("pair %llu: %d and %d\n", (unsigned long long)n, there, back);
            return 1;
        }
        seen[there]++;
    }
    for (int mode = 0; mode < 5; mode++) printf("%s %llu\n", psm_p2p_mode_name(mode), (unsigned long long)seen[mode]);
    return 0;
}
