/* Calls whose answer has not been fetched. An opId is a slot and its generation. When a call ends, for any reason, the
 * slot gets a new generation, so that a late or duplicate answer matches nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proxy/proxy.h"
#include "psm_lib_messages.h"

enum { NONE = 0xffffffff };

const char *psm_proxy_stage(int type)
{
    static const char *const names[] = {"call",  "init", "sharedinit", "setup",   "connect",  "start",     "close",
                                        "abort", "stop", "getfd",      "queryfd", "register", "deregister"};
    return type > 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : names[0];
}

static struct psm_call *grow(struct psm_calls *calls)
{
    if (calls->count >= PSM_CALLS) return NULL;
    if (calls->count == calls->capacity) {
        uint32_t capacity = calls->capacity ? calls->capacity * 2 : 64;
        struct psm_call **grown = realloc(calls->slots, capacity * sizeof(*grown));
        if (!grown) return NULL;
        calls->slots = grown;
        calls->capacity = capacity;
    }
    struct psm_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->slot = calls->count;
    call->generation = (uint32_t)psm_random64() | 1; /* differs between processes, so that opIds of two ranks differ */
    calls->slots[calls->count++] = call;
    return call;
}

psm_status psm_calls_take(psmProxyState *state, int peer, int type, uint32_t resp_size, psmOpId *id)
{
    struct psm_calls *calls = &state->calls;
    pthread_mutex_lock(&calls->lock);
    struct psm_call *call = NULL;
    if (calls->free_head < calls->count) {
        call = calls->slots[calls->free_head];
        calls->free_head = call->next_free;
    } else {
        call = grow(calls);
    }
    bool room = call != NULL;
    if (room && resp_size > call->capacity) {
        uint8_t *larger = realloc(call->resp, resp_size);
        if (larger) {
            call->resp = larger;
            call->capacity = resp_size;
        } else {
            room = false;
            call->next_free = calls->free_head;
            calls->free_head = call->slot;
        }
    }
    if (room) {
        call->taken = true;
        call->begun = psm_tick_ns();
        call->done = call->queued = false;
        call->type = type;
        call->peer = peer;
        call->resp_size = resp_size;
        call->error.status = PSM_OK;
        call->direct = NULL;
        *id = (uint64_t)call->generation << 32 | call->slot;
    }
    pthread_mutex_unlock(&calls->lock);
    if (!room)
        return psm_fail(PSM_ERR_NO_MEMORY, psm_proxy_stage(type), state->rank, peer, 0,
                        "no memory for another call to a proxy: %u of at most %d are open; fetch their answers",
                        calls->count, PSM_CALLS);
    PSM_COUNT(state, calls);
    return PSM_OK;
}

struct psm_call *psm_calls_find(psmProxyState *state, psmOpId id)
{
    uint32_t slot = (uint32_t)id, generation = (uint32_t)(id >> 32);
    if (slot >= state->calls.count) return NULL;
    struct psm_call *call = state->calls.slots[slot];
    return call->taken && call->generation == generation ? call : NULL;
}

static void release(struct psm_calls *calls, struct psm_call *call)
{
    call->taken = false;
    if (++call->generation == 0) call->generation = 1;
    call->next_free = calls->free_head;
    calls->free_head = call->slot;
}

void psm_calls_drop(psmProxyState *state, psmOpId id)
{
    struct psm_direct_call *direct = NULL;
    pthread_mutex_lock(&state->calls.lock);
    struct psm_call *call = psm_calls_find(state, id);
    if (call) {
        direct = call->direct;
        release(&state->calls, call);
    }
    pthread_mutex_unlock(&state->calls.lock);
    psm_direct_call_drop(direct);
}

void psm_calls_fail(psmProxyState *state, int peer, const struct psm_error *error)
{
    pthread_mutex_lock(&state->calls.lock);
    for (uint32_t i = 0; i < state->calls.count; i++) {
        struct psm_call *call = state->calls.slots[i];
        if (!call->taken || call->done || call->peer != peer || call->direct) continue;
        call->error = *error;
        call->done = true;
    }
    pthread_mutex_unlock(&state->calls.lock);
}

void psm_calls_store(psmProxyState *state, int peer, const struct psm_wire_message *m, psmOpId expected)
{
    psmOpId id = m->response.op_id;
    psm_msg_proxy_call_received(id);
    pthread_mutex_lock(&state->calls.lock);
    struct psm_call *call = psm_calls_find(state, id);
    bool known = call && call->peer == peer, twice = known && call->done, fits = true;
    /* The slot may belong to another call by now: its generation says which call this answers. */
    if (!known && (uint32_t)id < state->calls.count)
        twice = state->calls.slots[(uint32_t)id]->answered == (uint32_t)(id >> 32);
    const uint8_t *resp = NULL;
    if (known && !twice) {
        struct psm_error *e = &call->error;
        fits = m->payload_size == call->resp_size;
        if (m->response.status < 0 || !fits)
            *e = (struct psm_error){.rank = state->rank, .peer = peer, .op_id = id};
        else
            e->status = PSM_OK;
        if (m->response.status < 0) {
            e->status = (psm_status)m->response.status;
            e->sys_errno = m->response.sys_errno;
            e->cuda = m->response.cuda;
            e->detail = m->response.head.detail;
            if (!e->detail && peer != state->rank) /* the status is of what that rank did */
                e->detail = psm_error_detail(PSM_CAUSE_PEER_FAILED, peer);
            memcpy(e->stage, m->reason.stage, sizeof e->stage);
            memcpy(e->text, m->reason.text, sizeof e->text);
        } else if (!fits) {
            e->status = PSM_ERR_PROTOCOL;
            snprintf(e->stage, sizeof e->stage, "%s", psm_proxy_stage(call->type));
            snprintf(e->text, sizeof e->text, "the answer to %s has %zu bytes, expected %u",
                     psm_proxy_type_name(call->type), m->payload_size, call->resp_size);
        } else if (m->payload_size) {
            memcpy(call->resp, m->payload, m->payload_size);
        }
        resp = call->resp;
        call->queued = fits && id != expected;
        call->done = true;
        call->answered = call->generation;
    }
    pthread_mutex_unlock(&state->calls.lock);
    if (!known || twice) {
        PSM_COUNT(state, late);
        if (twice)
            psm_msg_libpsm_proxy_twice(id, peer);
        else
            psm_msg_libpsm_proxy_late(id, peer);
    } else if (!fits && m->response.status >= 0) {
        psm_msg_proxy_resp_size_mismatch(id);
    } else if (id == expected) {
        psm_msg_proxy_call_matched(id, expected);
    } else {
        psm_msg_proxy_call_queued(id, (uint64_t)(uintptr_t)resp, (int64_t)m->payload_size);
    }
}

/* The answer of a service in this process, handled as one from a socket. */
static void take_direct(psmProxyState *state, struct psm_call *call, psmOpId id)
{
    struct psm_direct_call *direct = call->direct;
    if (!direct || !atomic_load_explicit(&direct->done, memory_order_acquire)) return;
    call->error = direct->error;
    if (direct->error.status < 0) {
        call->error.rank = state->rank;
        call->error.peer = call->peer;
        call->error.op_id = id;
    } else if (call->resp_size) {
        memcpy(call->resp, direct->resp, call->resp_size);
    }
    call->done = true;
    call->direct = NULL;
    psm_direct_call_drop(direct);
}

psm_status psm_calls_fetch(psmProxyState *state, psmOpId id, void *resp, size_t resp_size)
{
    struct psm_error error;
    pthread_mutex_lock(&state->calls.lock);
    struct psm_call *call = psm_calls_find(state, id);
    if (!call) {
        pthread_mutex_unlock(&state->calls.lock);
        return psm_fail(PSM_ERR_NOT_FOUND, "call", state->rank, -1, id,
                        "there is no call with opId %#llx: it was already fetched, or ended by its deadline",
                        (unsigned long long)id);
    }
    if (resp_size != call->resp_size) {
        int peer = call->peer;
        uint32_t meant = call->resp_size;
        pthread_mutex_unlock(&state->calls.lock);
        return psm_fail(PSM_ERR_INVALID, "call", state->rank, peer, id,
                        "the buffer for the answer has %zu bytes, but the call was made for %u", resp_size, meant);
    }
    bool local = call->direct != NULL;
    bool queued = call->queued;
    take_direct(state, call, id);
    if (!call->done) {
        pthread_mutex_unlock(&state->calls.lock);
        return PSM_IN_PROGRESS;
    }
    bool failed = call->error.status < 0;
    if (failed)
        error = call->error;
    else if (resp_size)
        memcpy(resp, call->resp, resp_size);
    release(&state->calls, call);
    pthread_mutex_unlock(&state->calls.lock);
    if (queued) psm_msg_proxy_call_dequeued(id);
    if (local) {
        psm_msg_proxy_call_received(id);
        psm_msg_proxy_call_matched(id, id);
    }
    return failed ? psm_fail_again(&error) : PSM_OK;
}

void psm_calls_free(psmProxyState *state)
{
    for (uint32_t i = 0; i < state->calls.count; i++) {
        struct psm_call *call = state->calls.slots[i];
        if (call->taken) psm_direct_call_drop(call->direct);
        free(call->resp);
        free(call);
    }
    free(state->calls.slots);
    state->calls.slots = NULL;
    state->calls.count = state->calls.capacity = 0;
    state->calls.free_head = NONE;
}
