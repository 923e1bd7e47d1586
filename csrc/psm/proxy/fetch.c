/* Requests for descriptors: sent at once, and again until an answer arrives or the deadline passes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libc.h"
#include "proxy/fd.h"
#include "psm_lib_messages.h"

#define FULL_NS        UINT64_C(200000)   /* the receiver's queue is full (it holds ten) */
#define RESEND_NS      UINT64_C(10000000) /* no answer; doubles each time */
#define RESEND_LAST_NS UINT64_C(1000000000)
#define FLAGS_NS       UINT64_C(500000000)

PSM_FAULT_SITE_OF(ask_site, "proxy.askfd", "a rank requests a descriptor, or sends one; op is GetFd or QueryFd",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN_MESSAGE);

static const char *stage_of(const struct psmProxyFetch *job)
{
    return psm_proxy_stage(job->type);
}

/* uds.lock is held, as below. */
static void end(struct psmProxyFetch *job, psm_status status, int number, const char *text)
{
    job->done = true;
    job->error = (struct psm_error){.status = status, .sys_errno = number, .rank = job->state->rank, .peer = job->rank};
    job->error.op_id = job->op_id;
    job->error.detail = psm_detail_of(status, job->rank);
    snprintf(job->error.stage, sizeof job->error.stage, "%s", stage_of(job));
    snprintf(job->error.text, sizeof job->error.text, "%.255s", text);
    if (job->give >= 0) close(job->give);
    job->give = -1;
    if (job->handler)
        psm_event_set(job->state->direct->event); /* the service calls its handlers again */
    else
        pthread_cond_broadcast(&job->state->uds.ended);
}

static void ask(psmProxyState *state, struct psmProxyFetch *job, uint64_t now)
{
    struct psm_wire_fd_ask message = {.type = job->type, .rank = state->rank, .op_id = job->op_id, .share = job->share};
    struct psm_fault fault;
    struct psm_fault_args here = psm_fault_here(state, job->rank, job->type);
    char text[256];
    if (job->attempts > 0) PSM_COUNT(state, resent);
    psm_wire_begin(&message.head, PSM_WIRE_FD_ASK, sizeof message);
    if (psm_fault_before(&ask_site, &here, stage_of(job), &fault) < 0) {
        struct psm_error error = *psm_last_error();
        end(job, error.status, error.sys_errno, error.text);
        job->error.detail = error.detail;
        return;
    }
    if (fault.action == PSM_FAULT_CORRUPT) message.head.magic ^= 0xff;
    struct psm_uds *uds = &state->uds;
    int number = 0;
    if (fault.action != PSM_FAULT_DROP &&
        (fault.action != PSM_FAULT_REORDER ||
         !psm_held_keep(&uds->held_ask, job->name, &message, sizeof message, job->give))) {
        number = psm_datagram_send(uds->fd, job->name, &message, sizeof message, job->give);
        if (number == 0 && fault.action == PSM_FAULT_DUPLICATE)
            psm_datagram_send(uds->fd, job->name, &message, sizeof message, job->give);
        if (number == 0 && uds->held_ask && strcmp(uds->held_ask->to, job->name) == 0)
            psm_datagram_held(state, &uds->held_ask);
    }
    if (number == 0) {
        uint64_t pause = RESEND_NS << (job->attempts < 8 ? job->attempts : 8);
        job->attempts++;
        job->next_send = now + (pause < RESEND_LAST_NS ? pause : RESEND_LAST_NS);
    } else if (number == EAGAIN || number == ENOBUFS || number == ENOMEM || number == ETOOMANYREFS) {
        job->next_send = now + FULL_NS;
    } else if (number == ECONNREFUSED || number == ENOENT) {
        snprintf(text, sizeof text,
                 "nobody listens at @%s, where rank %d (process %u) hands out descriptors: the process has died or "
                 "stopped, or is in another network namespace",
                 job->name, job->rank, job->pid);
        end(job, PSM_ERR_PEER_DEAD, number, text);
    } else {
        psm_msg_uds_send_failed(job->name, psm_errno_text(number), number);
        snprintf(text, sizeof text, "cannot send to @%s of rank %d: %s", job->name, job->rank, psm_errno_text(number));
        end(job, PSM_ERR_SYSTEM, number, text);
    }
    psm_fault_act_after(&fault);
}

static psm_status begin(psmProxyState *state, int type, const struct psmProxyAddress *owner, uint64_t share, int give,
                        bool handler, struct psmProxyFetch **fetch)
{
    struct psm_uds *uds = &state->uds;
    struct psmProxyFetch *job = calloc(1, sizeof *job);
    if (!job)
        return psm_fail(PSM_ERR_NO_MEMORY, psm_proxy_stage(type), state->rank, owner->rank, 0,
                        "no memory for a request for a descriptor");
    job->state = state;
    job->type = type;
    job->rank = owner->rank;
    job->pid = owner->pid;
    job->share = share;
    memcpy(job->name, owner->uds, sizeof job->name);
    job->name[sizeof job->name - 1] = 0;
    job->handler = handler;
    job->got = job->number = job->give = -1;
    if (give >= 0 && (job->give = fcntl(give, F_DUPFD_CLOEXEC, 0)) < 0) {
        int number = errno;
        free(job);
        return psm_fail_errno(number, psm_proxy_stage(type), state->rank, owner->rank, "cannot duplicate fd %d", give);
    }
    job->op_id = (uint64_t)(atomic_fetch_add(&uds->generation, 1) | 1u << 31) << 32 | (uint32_t)psm_random64();
    uint64_t now = psm_clock_ns();
    job->begun = now;
    job->deadline = now + state->settings.timeout_ms * UINT64_C(1000000);
    psm_msg_proxy_fd_asked((uintptr_t)state, state->rank, job->rank, strtoull(job->name + 4, NULL, 16),
                           type == psmProxyMsgGetFd ? 8 : 0, type == psmProxyMsgGetFd ? 0 : 4,
                           type == psmProxyMsgGetFd ? (uintptr_t)&job->got : 0, job->op_id);
    pthread_mutex_lock(&uds->lock);
    if (psm_state_ended(state) || atomic_load(&state->stop) || !state->have_uds)
        end(job, PSM_ERR_ABORTED, 0,
            "the proxy of this rank is not running: it was aborted, has stopped or was not created");
    else
        ask(state, job, now);
    job->next = uds->jobs;
    uds->jobs = job;
    bool done = job->done;
    pthread_mutex_unlock(&uds->lock);
    if (!done) psm_event_set(uds->event); /* when its next message is due */
    *fetch = job;
    return PSM_OK;
}

void psm_fetch_answered(psmProxyState *state, const char *from, const struct psm_wire_fd_answer *a, int *fd, bool cut)
{
    struct psm_uds *uds = &state->uds;
    char text[256];
    pthread_mutex_lock(&uds->lock);
    struct psmProxyFetch *job = uds->jobs;
    while (job && (job->op_id != a->op_id || job->done || job->type != a->type || strcmp(job->name, from) != 0))
        job = job->next;
    if (!job) {
        PSM_COUNT(state, late);
    } else if (a->status < 0) {
        snprintf(text, sizeof text, "rank %d answered: %s", job->rank, a->text);
        end(job, (psm_status)a->status, a->sys_errno, text);
        job->error.detail =
            psm_error_detail(PSM_CAUSE_PEER_FAILED, job->rank); /* the status is of what that rank did */
    } else if (job->type == psmProxyMsgGetFd && *fd < 0) {
        psm_msg_uds_recv_failed(from);
        snprintf(text, sizeof text, "the answer of rank %d arrived without its descriptor: %s", job->rank,
                 cut ? "this process has no free descriptor (ulimit -n)" : "none was sent");
        end(job, cut ? PSM_ERR_NO_RESOURCE : PSM_ERR_PROTOCOL, cut ? EMFILE : 0, text);
    } else {
        job->got = *fd;
        *fd = -1;
        job->number = a->number;
        if (job->type == psmProxyMsgGetFd) PSM_COUNT(state, fds_received);
        end(job, PSM_OK, 0, "");
    }
    pthread_mutex_unlock(&uds->lock);
    if (!job) psm_msg_libpsm_proxy_fd_late(a->op_id);
}

uint64_t psm_fetch_work(psmProxyState *state)
{
    struct psm_uds *uds = &state->uds;
    uint64_t now = psm_clock_ns(), until = now + FLAGS_NS;
    char text[256];
    pthread_mutex_lock(&uds->lock);
    bool ended = psm_state_ended(state);
    for (struct psmProxyFetch *job = uds->jobs; job; job = job->next) {
        if (job->done) continue;
        if (ended) {
            end(job, PSM_ERR_ABORTED, 0, "the operation was aborted");
        } else if (now >= job->deadline) {
            snprintf(text, sizeof text,
                     "rank %d got no answer to %s from rank %d (process %u) in %u ms, after %u requests: check what "
                     "that process is doing, or raise PSM_TIMEOUT",
                     state->rank, psm_proxy_type_name(job->type), job->rank, job->pid, state->settings.timeout_ms,
                     job->attempts);
            end(job, PSM_ERR_TIMEOUT, 0, text);
        } else if (now >= job->next_send) {
            ask(state, job, now);
        }
        if (!job->done && job->next_send < until) until = job->next_send;
        if (!job->done && job->deadline < until) until = job->deadline;
    }
    struct psm_held **held[] = {&uds->held_ask, &uds->held_answer};
    for (int i = 0; i < 2; i++) {
        if (psm_held_due(*held[i], now)) psm_datagram_held(state, held[i]);
        if (*held[i] && (*held[i])->until < until) until = (*held[i])->until;
    }
    pthread_mutex_unlock(&uds->lock);
    return until > now ? until - now : 0;
}

void psm_fetch_end_all(psmProxyState *state)
{
    pthread_mutex_lock(&state->uds.lock);
    for (struct psmProxyFetch *job = state->uds.jobs; job; job = job->next)
        if (!job->done) end(job, PSM_ERR_ABORTED, 0, "the proxy of this rank was stopped");
    pthread_mutex_unlock(&state->uds.lock);
}

/* uds.lock is held. */
static void unlink_job(struct psm_uds *uds, struct psmProxyFetch *job)
{
    for (struct psmProxyFetch **at = &uds->jobs; *at; at = &(*at)->next)
        if (*at == job) {
            *at = job->next;
            return;
        }
}

static void say_done(const struct psmProxyFetch *job)
{
    psmProxyState *state = job->state;
    bool get = job->type == psmProxyMsgGetFd;
    uint64_t hash = strtoull(job->name + 4, NULL, 16);
    if (job->error.status < 0) {
        psm_msg_proxy_uds_call_failed(job->rank, hash, job->error.status);
        if (get) psm_msg_proxy_get_fd_failed(job->rank, job->share, job->error.status);
        return;
    }
    psm_msg_proxy_fd_done((uintptr_t)state, state->rank, job->rank, hash, get ? 8 : 0, get ? 0 : 4, job->got,
                          job->op_id);
    if (get) psm_msg_proxy_fd_returned(job->share, job->rank, job->got, job->pid == (uint32_t)psm_proc_self()->pid);
}

static psm_status finish(struct psmProxyFetch *job, int *fd, int *number)
{
    struct psm_error error = job->error;
    say_done(job);
    if (error.status == PSM_OK) {
        if (fd)
            *fd = job->got;
        else if (job->got >= 0)
            close(job->got);
        if (number) *number = job->number;
    }
    free(job);
    return error.status < 0 ? psm_fail_again(&error) : PSM_OK;
}

static psm_status wait_for(struct psmProxyFetch *job, int *fd, int *number)
{
    struct psm_uds *uds = &job->state->uds;
    pthread_mutex_lock(&uds->lock);
    /* The UDS thread ends it, at its deadline at the latest. */
    while (!job->done) psm_cond_wait(&uds->ended, &uds->lock, FLAGS_NS);
    unlink_job(uds, job);
    pthread_mutex_unlock(&uds->lock);
    return finish(job, fd, number);
}

psm_status psmProxyFetchFd(psmProxyState *state, const struct psmProxyAddress *owner, uint64_t id,
                           psmProxyFetch **fetch)
{
    if (!state || !owner || !fetch || id == 0)
        return psm_fail(PSM_ERR_INVALID, "getfd", state ? state->rank : -1, -1, 0,
                        "psmProxyFetchFd: expected a state, an address, an id that is not 0 and a place for the fetch");
    return begin(state, psmProxyMsgGetFd, owner, id, -1, true, fetch);
}

psm_status psmProxyFetchPoll(psmProxyFetch *fetch, int *fd)
{
    struct psm_uds *uds = &fetch->state->uds;
    pthread_mutex_lock(&uds->lock);
    bool done = fetch->done;
    if (done) unlink_job(uds, fetch);
    pthread_mutex_unlock(&uds->lock);
    return done ? finish(fetch, fd, NULL) : PSM_IN_PROGRESS;
}

void psmProxyFetchCancel(psmProxyFetch *fetch)
{
    if (!fetch) return;
    struct psm_uds *uds = &fetch->state->uds;
    pthread_mutex_lock(&uds->lock);
    unlink_job(uds, fetch);
    pthread_mutex_unlock(&uds->lock);
    if (fetch->give >= 0) close(fetch->give);
    if (fetch->got >= 0) close(fetch->got);
    free(fetch);
}

psm_status psmProxyClientGetFdBlocking(psmProxyConnector *connector, uint64_t id, int *fd)
{
    struct psmProxyFetch *job = NULL;
    if (!connector || !connector->initialized || id == 0 || !fd)
        return psm_fail(PSM_ERR_INVALID, "getfd", -1, -1, 0,
                        "GetFd: expected a connected connector, an id that is not 0 and a place for the fd");
    psmProxyState *state = connector->state;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    PSM_TRY(begin(state, psmProxyMsgGetFd, &client->address, id, -1, false, &job));
    return wait_for(job, fd, NULL);
}

psm_status psmProxyClientQueryFdBlocking(psmProxyConnector *connector, int fd, int *remote)
{
    struct psmProxyFetch *job = NULL;
    if (!connector || !connector->initialized || fd < 0 || !remote)
        return psm_fail(PSM_ERR_INVALID, "queryfd", -1, -1, 0,
                        "QueryFd: expected a connected connector, an open fd and a place for its number");
    psmProxyState *state = connector->state;
    struct psm_client *client = atomic_load(&state->clients[connector->peer]);
    PSM_TRY(begin(state, psmProxyMsgQueryFd, &client->address, 0, fd, false, &job));
    psm_status status = wait_for(job, NULL, remote);
    if (status == PSM_OK)
        psm_msg_proxy_fd_query_returned(fd, client->rank, *remote, connector->sameProcess);
    else
        psm_msg_proxy_query_fd_failed(client->rank, fd, status);
    return status;
}
