/* Copies the members that a version of the properties has. */
#ifndef PSM_NET_PROPERTIES_H
#define PSM_NET_PROPERTIES_H

#include <string.h>

#include "psm_abi_versions.h"

#define NET_PROPERTY(member, to, from) (to)->member = (from)->member;
/* A virtual device has at most as many as fit: those of this table are created through it. */
#define NET_PROPERTY_DEVICES(member, to, from)                                                                         \
    (to)->member.ndevs = (from)->member.ndevs;                                                                         \
    memcpy((to)->member.devs, (from)->member.devs,                                                                     \
           sizeof(to)->member.devs < sizeof(from)->member.devs ? sizeof(to)->member.devs : sizeof(from)->member.devs);
#define NET_COPY_PROPERTIES(version, to, from)                                                                         \
    PSM_ABI_NET_PROPERTIES_V##version(NET_PROPERTY, NET_PROPERTY_DEVICES, to, from)

/* properties_vN, from a function that fills in the newest record. */
#define NET_PROPERTIES(version, newest)                                                                                \
    static ncclResult_t properties_v##version(int dev, ncclNetProperties_v##version##_t *props)                        \
    {                                                                                                                  \
        ncclNetProperties_v12_t p;                                                                                     \
        ncclResult_t result = newest(dev, &p);                                                                         \
        if (result == ncclSuccess) {                                                                                   \
            NET_COPY_PROPERTIES(version, props, &p)                                                                    \
        }                                                                                                              \
        return result;                                                                                                 \
    }

#endif
