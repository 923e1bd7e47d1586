/* The usable interfaces: NCCL's rules for NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_say.h"
#include "socket/socket.h"

enum { DEVICES = 32, UNKNOWN_SPEED = 10000 /* Mbit/s */ };

static struct socket_device devices[DEVICES];
static int ndevices;

int socket_devices(void)
{
    return ndevices;
}

const struct socket_device *socket_device(int dev)
{
    return &devices[dev];
}

socklen_t socket_length(const union socket_address *address)
{
    return address->any.sa_family == AF_INET ? sizeof address->v4 : sizeof address->v6;
}

void socket_text(const union socket_address *address, char text[NET_ADDRESS])
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool v4 = address->any.sa_family == AF_INET;
    inet_ntop(address->any.sa_family, v4 ? (const void *)&address->v4.sin_addr : (const void *)&address->v6.sin6_addr,
              host, sizeof host);
    snprintf(text, NET_ADDRESS, "%s<%u>", host, ntohs(v4 ? address->v4.sin_port : address->v6.sin6_port));
}

/* "eth,ib0:1" selects interfaces with these prefixes; "=eth0" exactly that one; "^docker,lo" all others. A port after a
 * colon is for HCAs and is ignored here. */
static bool wanted(const char *list, const char *name)
{
    bool not = *list == '^';
    list += not;
    bool exact = *list == '=';
    list += exact;
    bool found = !*list, any = false;
    while (*list && !found) {
        size_t n = strcspn(list, ","), prefix = strcspn(list, ",:");
        if (prefix > 0) {
            any = true;
            found = strncmp(name, list, prefix) == 0 && (!exact || name[prefix] == 0);
        }
        list += n + (list[n] == ',');
    }
    if (!any) found = true; /* an empty list is all */
    return found != not;
}

static bool known(const char *name)
{
    for (int i = 0; i < ndevices; i++)
        if (strcmp(devices[i].name, name) == 0) return true;
    return false;
}

static int speed_of(const char *name)
{
    char path[64], text[24] = "";
    if (net_settings.speed) return (int)net_settings.speed;
    snprintf(path, sizeof path, "/sys/class/net/%.15s/speed", name);
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(text, sizeof text, file)) text[0] = 0; /* EINVAL: it is down, or does not know its speed */
        fclose(file);
    }
    long speed = strtol(text, NULL, 10);
    return speed > 0 && speed <= INT_MAX ? (int)speed : UNKNOWN_SPEED;
}

/* Strings of properties stay valid while the library is loaded, and a second init finds the same ones. */
static char *pci_path(const char *name)
{
    static char *paths[DEVICES];
    char link[64];
    snprintf(link, sizeof link, "/sys/class/net/%s/device", name);
    char *path = realpath(link, NULL);
    for (int i = 0; path && i < DEVICES; i++) {
        if (!paths[i]) return paths[i] = path;
        if (strcmp(paths[i], path) != 0) continue;
        free(path);
        return paths[i];
    }
    free(path);
    return NULL;
}

/* Interfaces of the list, each once, with the first address of the family. loopback6: ::1, too. */
static void find(const struct ifaddrs *all, const char *list, bool loopback6)
{
    for (const struct ifaddrs *i = all; i && ndevices < DEVICES; i = i->ifa_next) {
        int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
        if (family != AF_INET && family != AF_INET6) continue;
        if (net_settings.family != AF_UNSPEC && family != net_settings.family) continue;
        if (!(i->ifa_flags & IFF_UP) || !wanted(list, i->ifa_name) || known(i->ifa_name)) continue;
        if (strlen(i->ifa_name) >= sizeof devices[0].name) continue;
        struct socket_device *d = &devices[ndevices];
        *d = (struct socket_device){.speed = 0};
        memcpy(&d->address, i->ifa_addr, family == AF_INET ? sizeof d->address.v4 : sizeof d->address.v6);
        if (family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&d->address.v6.sin6_addr) && !loopback6) continue;
        strcpy(d->name, i->ifa_name);
        d->speed = speed_of(d->name);
        d->pci = pci_path(d->name);
        ndevices++;
    }
}

ncclResult_t socket_find_devices(void)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) return net_system("listing network interfaces (getifaddrs)", errno);
    const char *list = net_settings.ifname;
    ndevices = 0;
    if (*list) {
        /* NCCL never uses ::1; a user who names the interface and the family wants it. */
        find(all, list, *list != '^' && net_settings.family == AF_INET6);
    } else {
        static const char *const order[] = {"ib", "^docker,lo", "docker", "lo"};
        for (size_t i = 0; i < sizeof order / sizeof *order && ndevices == 0; i++) find(all, order[i], false);
    }
    freeifaddrs(all);
    if (ndevices == 0) {
        NET_SAY(PSM_NET_NO_INTERFACE, psm_net_no_interface, NCCL_NET, *list ? list : "(not set)",
                net_settings.family == AF_INET    ? "AF_INET"
                : net_settings.family == AF_INET6 ? "AF_INET6"
                                                  : "any");
        return ncclSystemError;
    }
    char text[1024] = "";
    for (int i = 0; i < ndevices; i++) {
        char address[NET_ADDRESS];
        size_t n = strlen(text);
        socket_text(&devices[i].address, address);
        snprintf(text + n, sizeof text - n, " [%d]%.15s:%.71s", i, devices[i].name, address);
    }
    NET_SAY(PSM_NET_USING, psm_net_using, NCCL_INIT | NCCL_NET, "socket", text + 1);
    return ncclSuccess;
}

void socket_forget_devices(void)
{
    ndevices = 0;
}

/* ns for a small message, one way: on loopback as measured (benchmarks/net.md), over a wire about what TCP takes when
 * both ends poll. NCCL adds it to the time of each step through the network, and compares algorithms by that. */
enum { LOOPBACK_NS = 2500, WIRE_NS = 15000 };

static bool is_loopback(const struct socket_device *d)
{
    if (d->address.any.sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&d->address.v6.sin6_addr);
    return ntohl(d->address.v4.sin_addr.s_addr) >> 24 == 127;
}

void socket_properties(int dev, ncclNetProperties_v12_t *props)
{
    const struct socket_device *d = &devices[dev];
    props->name = (char *)d->name;
    props->pciPath = d->pci;
    props->speed = d->speed;
    props->port = 0;
    uint64_t own_ns = is_loopback(d) ? LOOPBACK_NS : WIRE_NS;
    props->latency = (float)(net_settings.latency_ns ? net_settings.latency_ns : own_ns) / 1e3f;
    props->maxRecvs = net_settings.max_recvs ? (int)net_settings.max_recvs : 1;
}
