#define _GNU_SOURCE
#include "say.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base.h"

static _Atomic(ncclDebugLogger_t) current;

void net_say_set(ncclDebugLogger_t logger)
{
    atomic_store(&current, logger);
}

void net_say_put(const struct psm_record_message *message, unsigned long subsystems, const char *function, int line,
                 const struct psm_text *text)
{
    ncclDebugLogger_t logger = atomic_load(&current);
    if (!logger) {
        psm_log_write(message->level, text->at, text->n);
        return;
    }
    /* NCCL's WARN takes a file name, its INFO a function name; most releases print neither. */
    bool warn = message->level == PSM_LEVEL_WARN;
    logger(warn ? NCCL_LOG_WARN : NCCL_LOG_INFO, warn ? (unsigned long)NCCL_ALL : subsystems, function, line, "%.*s",
           (int)text->n, text->at);
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
