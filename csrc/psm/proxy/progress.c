/* Operations: saved by the application, posted together, moved by the progress thread.
 *
 * Operations of different connections with the same opCount, function and condition are subs of one psmProxyArgs. An
 * operation on a busy connection waits in the chain (nextPeer) of the args that keeps it busy. It starts as soon as
 * that connection's sub is done, even if other subs are not. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "proxy/proxy.h"
#include "psm_lib_messages.h"

#define FLAGS_NS UINT64_C(500000000) /* interval at which flags without a wake-up are polled */
/* A pause is a fraction of the time in which nothing moved, which bounds the added latency to that fraction. */
#define IDLE_PART     8
#define IDLE_LEAST_NS UINT64_C(10000)
#define IDLE_MOST_NS  UINT64_C(200000)

PSM_FAULT_SITE_OF(post_site, "proxy.post", "a rank saves an operation for the progress thread",
                  PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DUPLICATE));
PSM_FAULT_SITE(op_site, "proxy.op", "the progress thread starts an operation");

psm_status psm_progress_init(psmProxyState *state)
{
    struct psm_progress *p = &state->progress;
    pthread_mutex_init(&p->lock, NULL);
    p->saved_end = &p->saved;
    p->posted_end = &p->posted;
    p->active_end = &p->active;
    return PSM_OK;
}

static struct psm_args *own(struct psmProxyArgs *args)
{
    return (struct psm_args *)args;
}
static uint32_t *rows_of(struct psmProxyArgs *args)
{
    return own(args)->rows;
}

static void move_rows(const struct psm_progress *p, struct psmProxyArgs *args, enum psm_op_stand stand)
{
    for (int i = 0; i < args->nsubs; i++) psm_pool_move(p, rows_of(args)[i], stand, args->nsubs);
}

static void free_posted(struct psm_posted *list)
{
    while (list) {
        struct psm_posted *next = list->next;
        free(list);
        list = next;
    }
}

void psm_progress_free(psmProxyState *state)
{
    struct psm_progress *p = &state->progress;
    free_posted(p->free);
    while (p->free_args) {
        struct psmProxyArgs *next = p->free_args->next;
        free(p->free_args);
        p->free_args = next;
    }
    pthread_mutex_destroy(&p->lock);
}

void psmProxyWake(psmProxyState *state)
{
    struct psm_progress *p = &state->progress;
    atomic_fetch_add(&p->word, 1);
    if (atomic_load(&p->sleeping)) psm_futex_wake(&p->word);
}

/* ---- the end of an operation ---- */

/* The condition's owner may free it as soon as the count is 0. */
static void settle(struct psmSyncCondition *sync, int ops, psm_status status)
{
    if (!sync) return;
    uint32_t none = 0;
    if (status < 0)
        __atomic_compare_exchange_n(&sync->failed, &none, (uint32_t)-status, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    if (__atomic_sub_fetch(&sync->proxyOpCount, ops, __ATOMIC_ACQ_REL) <= 0) psm_futex_wake(&sync->proxyOpCount);
}

static void cancel_posted(const struct psm_progress *p, struct psm_posted *list, psm_status status)
{
    for (struct psm_posted *op = list; op; op = op->next) {
        struct psmSyncCondition *sync = op->op.sync;
        psm_pool_end(p, op->row);
        atomic_fetch_sub(&op->connection->running, 1);
        if (op->op.ended)
            op->op.ended(op->op.cookie, status);
        else
            settle(sync, 1, status);
    }
    free_posted(list);
}

static void release_args(psmProxyState *state, struct psmProxyArgs *args, psm_status status)
{
    struct psm_progress *p = &state->progress;
    for (int i = 0; i < args->nsubs; i++) {
        struct psm_connection *c = (struct psm_connection *)args->subs[i].connection;
        if (c->pub.proxyAppend == args) c->pub.proxyAppend = NULL;
        psm_pool_end(p, rows_of(args)[i]);
        atomic_fetch_sub(&c->running, 1); /* the service may free it from now on */
    }
    if (own(args)->ended)
        own(args)->ended(own(args)->cookie, status);
    else
        settle(args->sync, args->nsubs, status);
    args->next = p->free_args;
    p->free_args = args;
    atomic_fetch_sub(&p->live, 1);
}

static void cancel_args(psmProxyState *state, struct psmProxyArgs *args, psm_status status)
{
    while (args) {
        struct psmProxyArgs *next = args->next;
        cancel_args(state, args->nextPeer, status);
        release_args(state, args, status);
        args = next;
    }
}

static struct psm_posted *take_posted(struct psm_progress *p, bool saved, bool posted)
{
    struct psm_posted *list = NULL, **end = &list;
    pthread_mutex_lock(&p->lock);
    if (posted && p->posted) {
        *end = p->posted;
        end = p->posted_end;
        p->posted = NULL;
        p->posted_end = &p->posted;
    }
    if (saved && p->saved) {
        *end = p->saved;
        p->saved = NULL;
        p->saved_end = &p->saved;
    }
    pthread_mutex_unlock(&p->lock);
    return list;
}

void psm_progress_cancel(psmProxyState *state)
{
    struct psm_progress *p = &state->progress;
    struct psmProxyArgs *active = p->active;
    p->active = NULL;
    p->active_end = &p->active;
    cancel_args(state, active, PSM_ERR_ABORTED);
    cancel_posted(p, take_posted(p, true, true), PSM_ERR_ABORTED);
}

/* Tell the peers to which this rank's proxy has no socket: they learn of the abort through the connections. */
static void tell_abort(psmProxyState *state)
{
    if (state->progress.told) return;
    state->progress.told = true;
    uint32_t slot = 0;
    for (struct psm_connection *c; (c = psm_connection_enter_next(state, &slot));) {
        if (c->pub.tcomm->proxyAbort) c->pub.tcomm->proxyAbort(&c->pub, state);
        atomic_fetch_sub(&c->running, 1);
    }
}

/* ---- append ---- */

static void activate(struct psm_progress *p, struct psmProxyArgs *args)
{
    args->next = NULL;
    *p->active_end = args;
    p->active_end = &args->next;
}

static bool sub_done(const struct psmProxyArgs *args, const psmProxyConnection *connection)
{
    for (int i = 0; i < args->nsubs; i++)
        if (args->subs[i].connection == connection)
            return args->state == psmProxyOpProgress && args->subs[i].nsteps > 0 &&
                   args->subs[i].done >= args->subs[i].nsteps;
    return true;
}

static void fill_sub(struct psmProxySubArgs *sub, struct psm_connection *c, const struct psmProxyOp *op)
{
    *sub = (struct psmProxySubArgs){.connection = &c->pub,
                                    .sendbuff = op->sendbuff,
                                    .recvbuff = op->recvbuff,
                                    .nbytes = op->nbytes,
                                    .peer = op->peer,
                                    .channel = op->channel,
                                    .sendHandle = op->sendHandle,
                                    .recvHandle = op->recvHandle,
                                    .reg = op->reg};
}

/* False: no memory. */
static bool append(psmProxyState *state, struct psm_posted *posted)
{
    struct psm_progress *p = &state->progress;
    struct psm_connection *c = posted->connection;
    const struct psmProxyOp *op = &posted->op;
    struct psmProxyArgs *busy = c->pub.proxyAppend;
    if (busy && sub_done(busy, &c->pub)) busy = NULL;
    if (!busy) {
        /* The newest args takes it in if none of its operations has started. */
        struct psmProxyArgs *last = op->ended ? NULL : p->active;
        while (last && last->next) last = last->next;
        if (last && last->state == psmProxyOpReady && last->opCount == op->opCount && last->sync == op->sync &&
            !own(last)->ended && last->subs[0].connection->tcomm == c->pub.tcomm && last->nsubs < PSM_MAX_SUBS) {
            rows_of(last)[last->nsubs] = posted->row;
            fill_sub(&last->subs[last->nsubs++], c, op);
            c->pub.proxyAppend = last;
            psm_pool_move(p, posted->row, PSM_OP_ACTIVE, last->nsubs);
            return true;
        }
    }
    struct psmProxyArgs *args = p->free_args;
    if (args)
        p->free_args = args->next;
    else if (!(args = malloc(sizeof(struct psm_args))))
        return false;
    memset(args, 0, sizeof *args);
    atomic_fetch_add(&p->live, 1);
    fill_sub(&args->subs[0], c, op);
    rows_of(args)[0] = posted->row;
    args->nsubs = 1;
    args->state = psmProxyOpReady;
    args->opCount = op->opCount;
    args->progress = c->pub.tcomm->proxyProgress;
    args->sync = op->ended ? NULL : op->sync;
    own(args)->ready = op->ended ? op->ready : NULL;
    own(args)->ended = op->ended;
    own(args)->cookie = op->cookie;
    c->pub.proxyAppend = args;
    if (busy) { /* after those that already wait for it */
        struct psmProxyArgs **end = &busy->nextPeer;
        while (*end) end = &(*end)->next;
        *end = args;
    } else {
        activate(p, args);
    }
    move_rows(p, args, busy ? PSM_OP_CHAINED : PSM_OP_ACTIVE);
    return true;
}

/* Starts those that waited for a connection that is now free (for all of them if the whole args has ended). */
static void start_waiting(struct psm_progress *p, struct psmProxyArgs *args, bool all)
{
    struct psmProxyArgs **at = &args->nextPeer;
    while (*at) {
        struct psmProxyArgs *waiting = *at;
        if (!all && !sub_done(args, waiting->subs[0].connection)) {
            at = &waiting->next;
            continue;
        }
        *at = waiting->next;
        activate(p, waiting);
        move_rows(p, waiting, PSM_OP_ACTIVE);
    }
}

/* ---- the thread ---- */

static psm_status move_one(psmProxyState *state, struct psmProxyArgs *args)
{
    args->idle = 1;
    if (args->sync && !__atomic_load_n(&args->sync->proxyReadyEvent, __ATOMIC_ACQUIRE)) return PSM_OK;
    if (own(args)->ready && !__atomic_load_n(own(args)->ready, __ATOMIC_ACQUIRE)) return PSM_OK;
    if (args->state == psmProxyOpReady) {
        struct psm_fault fault;
        struct psm_fault_args here = psm_fault_here(state, args->subs[0].peer, 0);
        here.op = args->subs[0].connection->send ? "send" : "recv";
        PSM_TRY(psm_fault_before(&op_site, &here, here.op, &fault));
        psm_fault_act_after(&fault);
    }
    psm_fail_again(&psm_no_error);
    bool begins = args->state == psmProxyOpReady;
    /* Before the call: if the function does not return, this is the state that is seen. */
    if (begins) move_rows(&state->progress, args, PSM_OP_PROGRESS);
    psm_status status = args->progress(state, args);
    if (begins && args->state == psmProxyOpReady) move_rows(&state->progress, args, PSM_OP_ACTIVE);
    return status;
}

static void failed(psmProxyState *state, struct psmProxyArgs *args, psm_status status)
{
    struct psm_error error = *psm_last_error();
    if (error.status != status) {
        psm_fail(status, "progress", state->rank, args->subs[0].peer, 0,
                 "the progress function of operation %llu returned %s", (unsigned long long)args->opCount,
                 psm_status_name(status));
        error = *psm_last_error();
    }
    if (error.rank < 0) error.rank = state->rank;
    if (error.peer < 0) error.peer = args->subs[0].peer;
    psm_msg_proxy_thread_result("progress.c", __LINE__, status);
    psm_state_abort(state, &error);
}

/* One round over all operations. *idle: none of them moved. */
static psm_status move_all(psmProxyState *state, bool *idle)
{
    struct psm_progress *p = &state->progress;
    struct psmProxyArgs **at = &p->active;
    while (*at) {
        struct psmProxyArgs *args = *at;
        psm_status status = move_one(state, args);
        if (status < 0 || args->state == psmProxyOpNone) {
            *at = args->next;
            if (!*at) p->active_end = at;
            *idle = false;
            if (status < 0) {
                failed(state, args, status);
                cancel_args(state, args->nextPeer, PSM_ERR_ABORTED);
                release_args(state, args, status);
                return status;
            }
            start_waiting(p, args, true);
            release_args(state, args, PSM_OK);
            continue;
        }
        if (!args->idle) *idle = false;
        if (args->nextPeer) start_waiting(p, args, false);
        at = &args->next;
    }
    return PSM_OK;
}

static bool take_in(psmProxyState *state)
{
    struct psm_posted *list = take_posted(&state->progress, false, true);
    if (!list) return false;
    while (list) {
        struct psm_posted *op = list;
        if (!append(state, op)) {
            struct psm_error error = {.status = PSM_ERR_NO_MEMORY, .rank = state->rank, .peer = op->op.peer};
            strcpy(error.stage, "progress");
            strcpy(error.text, "no memory for an operation");
            psm_state_abort(state, &error);
            cancel_posted(&state->progress, list, PSM_ERR_NO_MEMORY);
            return true;
        }
        list = op->next;
        free(op);
    }
    return true;
}

void *psm_progress_main(void *argument)
{
    psmProxyState *state = argument;
    struct psm_progress *p = &state->progress;
    uint64_t spin = state->settings.spin_us * UINT64_C(1000), moved = psm_clock_ns(), now;
    psm_thread_device(state, "Proxy Progress");
    /* Steps of other processes wake nobody here: a pause must be as short as requested, without the 50 us that the
     * kernel may add. */
    prctl(PR_SET_TIMERSLACK, 1000UL);
    while (!atomic_load(&state->stop_progress)) {
        uint32_t word = atomic_load(&p->word);
        bool idle = true;
        if (psm_state_ended(state)) {
            tell_abort(state);
            psm_progress_cancel(state);
        } else {
            if (take_in(state)) idle = false;
            if (move_all(state, &idle) < 0) continue;
        }
        now = psm_clock_ns();
        if (!idle) {
            moved = now;
            continue;
        }
        if (p->active && now - moved < spin) {
            sched_yield(); /* the other end may need this processor */
            continue;
        }
        uint64_t pause = (now - moved) / IDLE_PART;
        if (pause < IDLE_LEAST_NS) pause = IDLE_LEAST_NS;
        if (pause > IDLE_MOST_NS) pause = IDLE_MOST_NS;
        atomic_store(&p->sleeping, 1);
        if (atomic_load(&p->word) == word && !atomic_load(&state->stop_progress))
            psm_futex_wait((const volatile uint32_t *)&p->word, word, p->active ? pause : FLAGS_NS);
        atomic_store(&p->sleeping, 0);
    }
    psm_progress_cancel(state);
    return NULL;
}

/* ---- the application's side ---- */

static psm_status save_op(psmProxyState *state, const struct psmProxyOp *op)
{
    if (!state || !op) return psm_fail(PSM_ERR_INVALID, "op", -1, -1, 0, "psmProxySaveOp: an argument is NULL");
    if (psm_state_ended(state))
        return psm_fail(PSM_ERR_ABORTED, "op", state->rank, op->peer, 0, "the operation was aborted: %.200s",
                        psmProxyAsyncError(state) < 0 ? psm_last_error()->text : "through a flag");
    struct psm_posted *saved = malloc(sizeof *saved);
    if (!saved) return psm_fail(PSM_ERR_NO_MEMORY, "op", state->rank, op->peer, 0, "no memory for an operation");
    saved->next = NULL;
    saved->op = *op;
    saved->connection = psm_connection_enter(state, op->connection);
    if (!saved->connection || !saved->connection->pub.tcomm->proxyProgress) {
        if (saved->connection) atomic_fetch_sub(&saved->connection->running, 1);
        bool found = saved->connection != NULL;
        free(saved);
        return psm_fail(
            found ? PSM_ERR_UNSUPPORTED : PSM_ERR_NOT_FOUND, "op", state->rank, op->peer, 0,
            found ? "connection %#llx has a transport without a progress function"
                  : "the proxy of this rank has no connection %#llx: it was freed, or belongs to another rank",
            (unsigned long long)op->connection);
    }
    struct psm_progress *p = &state->progress;
    saved->row = psm_pool_save(state, saved->connection, op);
    pthread_mutex_lock(&p->lock);
    *p->saved_end = saved;
    p->saved_end = &saved->next;
    pthread_mutex_unlock(&p->lock);
    return PSM_OK;
}

psm_status psmProxySaveOp(psmProxyState *state, const struct psmProxyOp *op)
{
    PSM_TRY(save_op(state, op));
    struct psm_fault fault;
    struct psm_fault_args here = psm_fault_here(state, op->peer, 0);
    PSM_TRY(psm_fault_before(&post_site, &here, "op", &fault));
    if (fault.action == PSM_FAULT_DUPLICATE) { /* nobody counts the second one */
        struct psmProxyOp again = *op;
        again.sync = NULL;
        again.ready = NULL;
        again.ended = NULL;
        PSM_TRY(save_op(state, &again));
    }
    psm_fault_act_after(&fault);
    return PSM_OK;
}

psm_status psmProxyStart(psmProxyState *state)
{
    if (!state) return psm_fail(PSM_ERR_INVALID, "op", -1, -1, 0, "psmProxyStart: state is NULL");
    struct psm_progress *p = &state->progress;
    pthread_mutex_lock(&p->lock);
    if (p->saved) {
        for (const struct psm_posted *op = p->saved; op; op = op->next) psm_pool_move(p, op->row, PSM_OP_POSTED, 1);
        *p->posted_end = p->saved;
        p->posted_end = p->saved_end;
        p->saved = NULL;
        p->saved_end = &p->saved;
    }
    pthread_mutex_unlock(&p->lock);
    psmProxyWake(state);
    return PSM_OK;
}
