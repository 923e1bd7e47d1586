/* The workers: none until there is work that cannot run in the calling thread; as many unblocked ones as processors,
 * and one more for each that is blocked in a host function or a wait. */
#define _GNU_SOURCE
#include "stream/hc_stream.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Host functions of the application run on workers and may need the stack of a normal thread. Pages are allocated on
 * use. */
enum { STACK = 8 << 20, WATCH_STACK = 256 << 10, IDLE_SECONDS = 2, LEAST = 2, MOST = 8, EXIT_SECONDS = 5 };

static pthread_cond_t wake, quiet;
static int limit = LEAST; /* maximum number of workers that compute at the same time */
/* Under hc_queue_lock. */
static int workers, blocked, sleeping;
static int coming;  /* signalled or started, not running yet */
static int running; /* work that must end before the memory is freed: everything but host functions */

void hc_workers_busy(int change)
{
    running += change;
    if (!running && atomic_load_explicit(&hc_stopping, memory_order_relaxed)) pthread_cond_broadcast(&quiet);
}

static struct timespec from_now(int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    return until;
}

static void run_one(struct hc_stream *stream)
{
    struct hc_item *item = hc_queue_take(stream);
    unsigned flags = item->flags;
    uint64_t number = item->number;
    bool may_block = flags & (HC_WORK_BLOCKS | HC_WORK_HOST_FUNCTION);
    bool abandoned = flags & HC_WORK_HOST_FUNCTION;
    if (may_block) {
        blocked++;
        if (hc_queue_ready()) hc_workers_kick(0);
    }
    if (!abandoned) hc_workers_busy(1);
    stream->in_host_function = abandoned;
    if (abandoned) memcpy(&stream->host_function, item->argument, sizeof stream->host_function); /* see hostfn.c */
    pthread_mutex_unlock(&hc_queue_lock);
    hc_queue_run(stream, item);
    pthread_mutex_lock(&hc_queue_lock);
    if (!abandoned) hc_workers_busy(-1);
    stream->in_host_function = false;
    if (may_block) blocked--;
    hc_queue_finish(stream, item, number);
    if (hc_queue_ready()) hc_workers_kick(1);
}

static void *worker(void *nothing)
{
    (void)nothing;
    pthread_mutex_lock(&hc_queue_lock);
    if (coming > 0) coming--;
    for (;;) {
        struct hc_stream *stream = NULL;
        if (!atomic_load_explicit(&hc_stopping, memory_order_relaxed)) stream = hc_queue_pop_ready();
        if (stream) {
            run_one(stream);
            continue;
        }
        struct timespec until = from_now(IDLE_SECONDS);
        sleeping++;
        int rc = pthread_cond_timedwait(&wake, &hc_queue_lock, &until);
        sleeping--;
        if (coming > 0) coming--;
        if (rc && !hc_queue_ready()) break;
    }
    workers--;
    pthread_mutex_unlock(&hc_queue_lock);
    return NULL;
}

/* Signals of the application are for its own threads; faults of a worker itself are still delivered. */
static bool start_thread(void *(*run)(void *), size_t stack, void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGTRAP);
    sigdelset(&all, SIGABRT);
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes)) return false;
    pthread_attr_setstacksize(&attributes, stack);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return rc == 0;
}

static bool start_worker(void)
{
    if (!start_thread(worker, STACK, NULL)) return false;
    if (hc_stall_wanted() && !start_thread(hc_stall_watch, WATCH_STACK, &workers)) hc_stall_not_started();
    return true;
}

void hc_workers_kick(int self)
{
    if (atomic_load_explicit(&hc_stopping, memory_order_relaxed)) return;
    int need = hc_queue_ready_count() - self - coming;
    for (; need > 0; need--) {
        int signalled = coming < sleeping ? coming : sleeping;
        if (sleeping > signalled)
            pthread_cond_signal(&wake);
        else if (workers - blocked < limit && start_worker())
            workers++;
        else
            break;
        coming++;
    }
}

void hc_workers_start(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &monotonic);
    pthread_cond_init(&quiet, &monotonic);
    pthread_condattr_destroy(&monotonic);
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    limit = processors < LEAST ? LEAST : processors > MOST ? MOST : (int)processors;
}

/* Drops queued work, as an exiting process on a GPU does. Blocked host functions are left alone; all other work ends by
 * itself, and is waited for because its memory is freed next. */
void hc_workers_stop(void)
{
    pthread_mutex_lock(&hc_queue_lock);
    atomic_store(&hc_stopping, true);
    struct timespec until = from_now(EXIT_SECONDS);
    while (running > 0 && pthread_cond_timedwait(&quiet, &hc_queue_lock, &until) == 0) {
    }
    pthread_mutex_unlock(&hc_queue_lock);
}
