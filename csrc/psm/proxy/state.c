/* The life of a proxy: created, running, stopped; and how it ends early. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/proxy.h"
#include "psm_cuda.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(start_site, "proxy.start", "a rank starts its proxy's threads");

static psm_status check_options(const struct psmProxyOptions *o)
{
    if (!o || o->size < sizeof *o)
        return psm_fail(PSM_ERR_INVALID, "init", -1, -1, 0,
                        "psmProxyInit: options->size is %u; set it to sizeof(struct psmProxyOptions), which is %zu",
                        o ? o->size : 0, sizeof *o);
    if (o->nranks < 1 || o->nranks > 1 << 20 || o->rank < 0 || o->rank >= o->nranks)
        return psm_fail(PSM_ERR_INVALID, "init", o->rank, -1, 0,
                        "psmProxyInit: bad rank %d of %d ranks, expected 0 to nranks - 1", o->rank, o->nranks);
    return PSM_OK;
}

static psm_status make_sockets(psmProxyState *state)
{
    PSM_TRY(psm_uds_init(state));
    PSM_TRY(psm_socket_listen(SOCK_SEQPACKET, state->rank, state->address.service, &state->listen_fd));
    if (listen(state->listen_fd, 4096) != 0)
        return psm_fail_errno(errno, "init", state->rank, -1, "cannot listen at @%s", state->address.service);
    state->abort_event = psm_event_make();
    if (state->abort_event < 0) return psm_fail_errno(errno, "init", state->rank, -1, "cannot make an eventfd");
    state->direct = psm_direct_make(state->address.service, state->rank);
    if (!state->direct) return psm_fail_errno(errno, "init", state->rank, -1, "cannot make an eventfd");
    return PSM_OK;
}

static void destroy(psmProxyState *state)
{
    psm_alive_remove(&state->alive);
    if (state->direct) psm_direct_forget(state->direct);
    for (int i = 0; state->fetchers && i < state->nranks; i++) free(state->fetchers[i]);
    free(state->fetchers);
    psm_clients_free(state);
    psm_calls_free(state);
    for (uint32_t i = 0; i < state->connections.count; i++) free(state->connections.slots[i]);
    free(state->connections.slots);
    psm_progress_free(state);
    psm_uds_free(state);
    psm_direct_drop(state->direct);
    if (state->listen_fd >= 0) psm_stranger_close(state->listen_fd);
    if (state->abort_event >= 0) close(state->abort_event);
    pthread_mutex_destroy(&state->connections.lock);
    pthread_mutex_destroy(&state->calls.lock);
    pthread_mutex_destroy(&state->lock);
    pthread_mutex_destroy(&state->connect_lock);
    pthread_mutex_destroy(&state->fetch_lock);
    pthread_mutex_destroy(&state->stop_lock);
    free((void *)state->lost);
    free(state->addresses);
    free(state);
}

static unsigned processors(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0; /* fails above 1024 processors */
    return n > 0 ? (unsigned)n : 1024;
}

psm_status psmProxyInit(psmProxyState **out, const struct psmProxyOptions *options)
{
    PSM_TRY(check_options(options));
    if (!out) return psm_fail(PSM_ERR_INVALID, "init", options->rank, -1, 0, "psmProxyInit: state is NULL");
    struct psm_settings settings = {.size = sizeof settings};
    if (options->settings)
        memcpy(&settings, options->settings,
               options->settings->size < sizeof settings ? options->settings->size : sizeof settings);
    else
        PSM_TRY(psm_settings_read(&settings));
    psmProxyState *state = calloc(1, sizeof *state);
    if (!state) return psm_fail(PSM_ERR_NO_MEMORY, "init", options->rank, -1, 0, "no memory for a proxy");
    const struct psm_proc *self = psm_proc_self();
    state->rank = options->rank;
    state->nranks = options->nranks;
    state->device = options->device;
    state->settings = settings;
    memcpy(state->transports, options->transports, sizeof state->transports);
    state->abort_flag = options->abortFlag;
    state->host = options->host;
    state->listen_fd = state->abort_event = state->uds.fd = state->uds.event = -1;
    state->address.rank = options->rank;
    state->address.pid = (uint32_t)self->pid;
    state->address.start_time = self->start_time;
    state->client_id = psm_random64();
    state->calls.free_head = 0xffffffff;
    pthread_mutex_init(&state->lock, NULL);
    pthread_mutex_init(&state->connect_lock, NULL);
    pthread_mutex_init(&state->fetch_lock, NULL);
    pthread_mutex_init(&state->stop_lock, NULL);
    pthread_mutex_init(&state->connections.lock, NULL);
    pthread_mutex_init(&state->calls.lock, NULL);
    psm_progress_init(state);
    state->processors = processors();
    state->clients = calloc((size_t)options->nranks, sizeof *state->clients);
    state->lost = calloc((size_t)options->nranks, sizeof *state->lost);
    state->fetchers = calloc((size_t)options->nranks, sizeof *state->fetchers);
    psm_status status = make_sockets(state);
    if (status == PSM_OK && (!state->clients || !state->lost || !state->fetchers))
        status = psm_fail(PSM_ERR_NO_MEMORY, "init", options->rank, -1, 0, "no memory for %d ranks", options->nranks);
    if (status < 0) {
        destroy(state);
        return status;
    }
    psm_alive_add(&state->alive, PSM_ALIVE_PROXY);
    *out = state;
    return PSM_OK;
}

static psm_status start_thread(psmProxyState *state, pthread_t *thread, bool *have, void *(*run)(void *),
                               const char *name)
{
    int number = pthread_create(thread, NULL, run, state);
    if (number != 0)
        return psm_fail_errno(number, "init", state->rank, -1, "cannot start the thread \"%s\" of the proxy", name);
    *have = true;
    pthread_setname_np(*thread, name);
    return PSM_OK;
}

psm_status psmProxyCreate(psmProxyState *state)
{
    if (!state) return psm_fail(PSM_ERR_INVALID, "init", -1, -1, 0, "psmProxyCreate: state is NULL");
    struct psm_fault fault;
    struct psm_fault_args here = psm_fault_here(state, PSM_FAULT_UNKNOWN, 0);
    PSM_TRY(psm_fault_before(&start_site, &here, "init", &fault));
    pthread_mutex_lock(&state->stop_lock);
    psm_status status = PSM_OK;
    if (state->phase != PSM_PHASE_MADE)
        status = psm_fail(PSM_ERR_INVALID, "init", state->rank, -1, 0, "the proxy of rank %d was already started",
                          state->rank);
    if (status == PSM_OK) {
        state->phase = PSM_PHASE_RUNNING;
        psm_msg_proxy_fd_service_start((uintptr_t)state, state->rank, strtoull(state->address.uds + 4, NULL, 16));
        /* have_uds is read by callers of GetFd: they may call once this function has returned. */
        status = start_thread(state, &state->uds_thread, &state->have_uds, psm_uds_main, "psm uds");
    }
    if (status == PSM_OK)
        status = start_thread(state, &state->progress_thread, &state->have_progress, psm_progress_main, "psm progress");
    if (status == PSM_OK)
        status = start_thread(state, &state->service, &state->have_service, psm_service_main, "psm service");
    pthread_mutex_unlock(&state->stop_lock);
    psm_fault_act_after(&fault);
    return status; /* psmProxyStop joins the threads that run */
}

/* Runs before every thread's loop. */
void psm_thread_device(psmProxyState *state, const char *thread)
{
    if (state->device < 0) return;
    int core = sched_getcpu();
    if (strcmp(thread, "Proxy Service UDS") == 0)
        psm_msg_proxy_thread_cpu(state->device, core);
    else if (strcmp(thread, "Proxy Service") == 0)
        psm_msg_proxy_thread_cpu_2(state->device, core);
    else
        psm_msg_proxy_thread_progress(state->device, core);
    const struct psm_cuda *cuda = psm_cuda_get();
    /* What a thread of the proxy allocates or queries must not be part of a capture of the application. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cuda && cuda->cudaThreadExchangeStreamCaptureMode) cuda->cudaThreadExchangeStreamCaptureMode(&mode);
    if (!cuda || cuda->cudaSetDevice(state->device) == 0) return;
    if (strcmp(thread, "Proxy Service UDS") == 0)
        psm_msg_proxy_thread_context_failed_5(state->device);
    else if (strcmp(thread, "Proxy Service") == 0)
        psm_msg_proxy_thread_context_failed_4(state->device);
    else
        psm_msg_proxy_thread_context_failed_3(state->device);
}

psm_status psmProxyAddress(const psmProxyState *state, struct psmProxyAddress *address)
{
    if (!state || !address) return psm_fail(PSM_ERR_INVALID, "init", -1, -1, 0, "psmProxyAddress: an argument is NULL");
    *address = state->address;
    return PSM_OK;
}

psm_status psmProxySetAddresses(psmProxyState *state, const struct psmProxyAddress *addresses, int nranks)
{
    if (!state || !addresses || nranks != state->nranks)
        return psm_fail(PSM_ERR_INVALID, "init", state ? state->rank : -1, -1, 0,
                        "psmProxySetAddresses: %d addresses, expected %d", nranks, state ? state->nranks : 0);
    for (int i = 0; i < nranks; i++)
        if (addresses[i].rank != i)
            return psm_fail(PSM_ERR_INVALID, "init", state->rank, i, 0,
                            "psmProxySetAddresses: the address at index %d is that of rank %d; expected addresses in "
                            "the order of ranks",
                            i, addresses[i].rank);
    struct psmProxyAddress *copy = malloc((size_t)nranks * sizeof *copy);
    if (!copy) return psm_fail(PSM_ERR_NO_MEMORY, "init", state->rank, -1, 0, "no memory for %d addresses", nranks);
    memcpy(copy, addresses, (size_t)nranks * sizeof *copy);
    pthread_mutex_lock(&state->lock);
    struct psmProxyAddress *before = state->addresses;
    state->addresses = copy;
    state->naddresses = nranks;
    pthread_mutex_unlock(&state->lock);
    free(before);
    return PSM_OK;
}

/* ---- early ends ---- */

const struct psm_error psm_no_error = {.status = PSM_OK, .rank = -1, .peer = -1};

bool psm_state_ended(const psmProxyState *state)
{
    return atomic_load_explicit(&state->aborted, memory_order_relaxed) != 0 || psm_aborted() ||
           (state->abort_flag && __atomic_load_n(state->abort_flag, __ATOMIC_ACQUIRE) != 0);
}

uint64_t psm_state_spin_ns(const psmProxyState *state)
{
    uint64_t peers = atomic_load_explicit(&state->counts.peers, memory_order_relaxed);
    return peers > state->processors ? 0 : state->settings.spin_us * UINT64_C(1000);
}

static void wake_all(psmProxyState *state)
{
    psm_event_set(state->abort_event);
    psm_event_set(state->direct->event);
    psm_event_set(state->uds.event);
    psmProxyWake(state);
}

void psm_state_abort(psmProxyState *state, const struct psm_error *error)
{
    pthread_mutex_lock(&state->lock);
    bool first = !atomic_load(&state->aborted);
    if (first) {
        state->async_error = *error;
        atomic_store(&state->async_status, error->status);
        atomic_store(&state->aborted, 1);
        if (state->abort_flag) __atomic_store_n(state->abort_flag, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&state->lock);
    if (!first) return;
    psm_msg_libpsm_proxy_aborted(state->rank, psm_status_name(error->status), psm_cause_name(psm_error_cause(error)),
                                 psm_error_names(error), error->text);
    wake_all(state);
}

struct psm_error psm_state_ending(psmProxyState *state)
{
    struct psm_error error = {.status = PSM_OK, .text = "the proxy was stopped"};
    if (!psm_state_ended(state)) return error;
    pthread_mutex_lock(&state->lock);
    error = state->async_error;
    pthread_mutex_unlock(&state->lock);
    if (error.status == PSM_OK) strcpy(error.text, "the operation was aborted");
    error.status = PSM_ERR_ABORTED;
    return error;
}

void psm_state_lost(psmProxyState *state, int rank)
{
    if (rank < 0 || rank >= state->nranks) return;
    atomic_store(&state->lost[rank], 1);
    psmProxyWake(state);
}

psm_status psmProxyAbort(psmProxyState *state, const char *reason)
{
    if (!state) return psm_fail(PSM_ERR_INVALID, "abort", -1, -1, 0, "psmProxyAbort: state is NULL");
    struct psm_error error = {.status = PSM_ERR_ABORTED, .rank = state->rank, .peer = -1, .stage = "abort"};
    snprintf(error.text, sizeof error.text, "%s", reason && *reason ? reason : "the application aborted the operation");
    /* Who aborts because of the last failure passes its text: the cause goes with it. */
    const struct psm_error *why = psm_last_error();
    if (why->status != PSM_OK && strcmp(why->text, error.text) == 0) error.detail = why->detail;
    psm_state_abort(state, &error);
    return PSM_OK;
}

void psmProxyFail(psmProxyState *state, psm_status status, const char *text)
{
    struct psm_error error = *psm_last_error();
    if (error.status != status) error = (struct psm_error){.status = status, .rank = state->rank, .peer = -1};
    if (text) snprintf(error.text, sizeof error.text, "%s", text);
    psm_state_abort(state, &error);
}

psm_status psmProxyAsyncError(const psmProxyState *state)
{
    psmProxyState *writable = (psmProxyState *)(uintptr_t)state; /* only to lock it */
    if (atomic_load(&writable->async_status) == PSM_OK) return PSM_OK;
    pthread_mutex_lock(&writable->lock);
    struct psm_error error = state->async_error;
    pthread_mutex_unlock(&writable->lock);
    return psm_fail_again(&error);
}

psm_status psmProxyStop(psmProxyState *state)
{
    if (!state) return psm_fail(PSM_ERR_INVALID, "stop", -1, -1, 0, "psmProxyStop: state is NULL");
    pthread_mutex_lock(&state->stop_lock);
    if (state->phase != PSM_PHASE_STOPPED) {
        /* First the thread that uses connections, then the one that frees them. */
        atomic_store(&state->stop_progress, 1);
        psmProxyWake(state);
        if (state->have_progress) pthread_join(state->progress_thread, NULL);
        psm_progress_cancel(state);
        atomic_store(&state->stop, 1);
        psm_event_set(state->direct->event);
        psm_event_set(state->uds.event);
        if (state->have_service) {
            psm_msg_proxy_call_begun("Stop", 0);
            pthread_join(state->service, NULL);
        } else {
            struct psm_error ending = psm_state_ending(state);
            psm_clients_close(state, ending.status, ending.text);
            psm_direct_forget(state->direct);
        }
        if (state->have_uds) pthread_join(state->uds_thread, NULL);
        psm_progress_cancel(state); /* operations saved meanwhile */
        psm_uds_stop(state);
        psm_stranger_close(state->listen_fd);
        state->listen_fd = -1;
        state->have_service = state->have_uds = state->have_progress = false;
        state->phase = PSM_PHASE_STOPPED;
    }
    pthread_mutex_unlock(&state->stop_lock);
    return PSM_OK;
}

psm_status psmProxyDestroy(psmProxyState *state)
{
    if (!state) return PSM_OK;
    psmProxyStop(state);
    destroy(state);
    return PSM_OK;
}

/* ---- queries of other threads ---- */

int psmProxyRank(const psmProxyState *state)
{
    return state->rank;
}

int psmProxyDevice(const psmProxyState *state)
{
    return state->device;
}

const struct psm_settings *psmProxySettings(const psmProxyState *state)
{
    return &state->settings;
}

int psmProxyAborted(const psmProxyState *state)
{
    return psm_state_ended(state);
}

void *psmProxyHost(const psmProxyState *state)
{
    return state->host;
}

int psmProxyPeerAlive(const psmProxyState *state, int rank)
{
    if (rank < 0 || rank >= state->nranks) return 0;
    return atomic_load_explicit(&state->lost[rank], memory_order_acquire) == 0;
}

psm_status psmProxyCount(psmProxyState *state, struct psmProxyCounters *counters)
{
    if (!state || !counters || counters->size < sizeof(uint32_t) * 2)
        return psm_fail(PSM_ERR_INVALID, "count", -1, -1, 0, "psmProxyCount: bad size %u, expected %zu",
                        counters ? counters->size : 0, sizeof *counters);
    struct psmProxyCounters now = {.size = counters->size};
#define TAKE(what) now.what = atomic_load_explicit(&state->counts.what, memory_order_relaxed)
    TAKE(calls);
    TAKE(served);
    TAKE(retried);
    TAKE(late);
    TAKE(refused);
    TAKE(resent);
    TAKE(fds_sent);
    TAKE(fds_received);
    TAKE(peers);
#undef TAKE
    pthread_mutex_lock(&state->connections.lock);
    now.connections = state->connections.live;
    pthread_mutex_unlock(&state->connections.lock);
    now.ops = atomic_load(&state->progress.live);
    memcpy(counters, &now, counters->size < sizeof now ? counters->size : sizeof now);
    return PSM_OK;
}
