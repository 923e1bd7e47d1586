#define _GNU_SOURCE
#include "net_say.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base.h"

static _Atomic(ncclDebugLogger_t) current;

void net_say_set(ncclDebugLogger_t logger)
{
    atomic_store(&current, logger);
}

ncclDebugLogger_t net_say_logger(void)
{
    return atomic_load(&current);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct psm_limit refusals;

void net_say_refused_rest(void)
{
    pthread_mutex_lock(&lock);
    uint64_t skipped = psm_limit_take_skipped(&refusals);
    pthread_mutex_unlock(&lock);
    if (skipped) NET_SAY(PSM_NET_REFUSED_MORE, psm_net_refused_more, NCCL_NET, skipped);
}

void net_say_refused(int dev, const char *address, const char *why)
{
    pthread_mutex_lock(&lock);
    bool pass = psm_limit_pass(&refusals, psm_clock_ns());
    pthread_mutex_unlock(&lock);
    if (!pass) return;
    net_say_refused_rest();
    NET_SAY(PSM_NET_REFUSED, psm_net_refused, NCCL_NET, dev, address, why);
}
