/* Settings from the environment. A wrong one is an error: a job that silently runs with another value than its author
 * set is worse than one that does not start. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "net_plugin.h"
#include "net_say.h"

struct net_settings net_settings;

static ncclResult_t wrong(const char *name, const char *value, const char *meant)
{
    NET_SAY(PSM_NET_SETTING_WRONG, psm_net_setting_wrong, NCCL_NET, name, value, meant);
    return ncclInvalidUsage;
}

enum unit { COUNT, BYTES, THOUSANDTHS /* three decimal places: seconds are kept as ms, microseconds as ns */ };

static bool number(const char *text, enum unit unit, uint64_t *value)
{
    uint64_t n = 0, scale = unit == THOUSANDTHS ? 1000 : 1;
    const char *p = text;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n)) return false;
    if (__builtin_mul_overflow(n, scale, &n)) return false;
    if (unit == THOUSANDTHS && *p == '.' && p[1])
        for (p++, scale = 100; *p >= '0' && *p <= '9' && scale > 0; p++, scale /= 10) n += (uint64_t)(*p - '0') * scale;
    if (unit == BYTES && *p) {
        static const char letters[] = "KMG";
        const char *letter = strchr(letters, *p & ~0x20);
        if (!letter || !*letter) return false;
        if (__builtin_mul_overflow(n, UINT64_C(1) << 10 * (letter - letters + 1), &n)) return false;
        p++;
    }
    *value = n;
    return *p == 0;
}

static const struct {
    const char *name, *meant;
    uint64_t *value, low, high, otherwise;
    enum unit unit;
} numbers[] = {
    {"PSM_NET_STREAMS", "expected a number from 1 to 16", &net_settings.streams, 1, 16, 1, COUNT},
    {"PSM_NET_MIN_SHARE", "expected bytes from 4K to 1G", &net_settings.min_share, 4096, 1 << 30, 1 << 16, BYTES},
    {"PSM_NET_MAX_RECVS", "expected a number from 1 to 8", &net_settings.max_recvs, 1, NET_RECVS, 0, COUNT},
    {"PSM_NET_SOCKET_BUFFER", "expected bytes up to 1G, or 0 for the kernel's default", &net_settings.buffer, 0,
     1 << 30, 0, BYTES},
    {"PSM_NET_SPEED", "expected Mbit/s from 1 to 10000000", &net_settings.speed, 1, 10000000, 0, COUNT},
    {"PSM_NET_LATENCY", "expected microseconds from 0.001 to 100000, with up to three decimal places",
     &net_settings.latency_ns, 1, 100000000, 0, THOUSANDTHS},
    {"PSM_TIMEOUT", "expected seconds from 0.001 to 86400, with up to three decimal places", &net_settings.timeout_ms,
     1, 86400000, 60000, THOUSANDTHS},
    {"PSM_NET_SHM_SLOTS", "expected a number from 2 to 64", &net_settings.shm_slots, 2, 64, 8, COUNT},
    {"PSM_NET_SHM_SIZE", "expected bytes from 4K to 64M", &net_settings.shm_size, 4096, 64 << 20, 256 << 10, BYTES},
};

/* The first of these that is set and not empty. */
static const char *text_of(const char *own, const char *nccls, const char **name)
{
    *name = own;
    const char *text = getenv(own);
    if ((!text || !*text) && nccls) {
        text = getenv(nccls);
        *name = nccls;
    }
    return text && *text ? text : NULL;
}

static ncclResult_t copy(char *to, size_t size, const char *name, const char *text)
{
    if (strlen(text) >= size) return wrong(name, text, "the value is too long");
    strcpy(to, text);
    return ncclSuccess;
}

ncclResult_t net_settings_read(void)
{
    net_settings = (struct net_settings){.family = AF_UNSPEC};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *text = getenv(numbers[i].name);
        *numbers[i].value = numbers[i].otherwise;
        if (!text || !*text) continue;
        uint64_t value;
        if (!number(text, numbers[i].unit, &value) || value < numbers[i].low || value > numbers[i].high)
            return wrong(numbers[i].name, text, numbers[i].meant);
        *numbers[i].value = value;
    }
    const char *name, *text = text_of("PSM_NET", NULL, &name);
    ncclResult_t result = copy(net_settings.backend, sizeof net_settings.backend, name, text ? text : "socket");
    if (result != ncclSuccess) return result;
    text = text_of("PSM_NET_IFNAME", "NCCL_SOCKET_IFNAME", &name);
    if (text && (result = copy(net_settings.ifname, sizeof net_settings.ifname, name, text)) != ncclSuccess)
        return result;
    text = text_of("PSM_NET_FAMILY", "NCCL_SOCKET_FAMILY", &name);
    if (text) {
        if (strcasecmp(text, "AF_INET") == 0)
            net_settings.family = AF_INET;
        else if (strcasecmp(text, "AF_INET6") == 0)
            net_settings.family = AF_INET6;
        else
            return wrong(name, text, "expected AF_INET or AF_INET6");
    }
    text = text_of("PSM_NET_MERGE", NULL, &name);
    if (text && strcmp(text, "0") != 0 && strcmp(text, "1") != 0 && strcmp(text, "auto") != 0)
        return wrong(name, text, "expected 0, 1 or auto");
    if (text && strcmp(text, "auto") != 0) net_settings.merge = *text == '1' ? NET_MERGE_ALWAYS : NET_MERGE_NEVER;
    text = text_of("PSM_NET_CONGESTION", NULL, &name);
    if (!text || strcmp(text, "auto") == 0) return ncclSuccess;
    net_settings.congestion = strcmp(text, "system") == 0 ? NET_CONGESTION_SYSTEM : NET_CONGESTION_NAMED;
    return copy(net_settings.congestion_name, sizeof net_settings.congestion_name, name, text);
}
