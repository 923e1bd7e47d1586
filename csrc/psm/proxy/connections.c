/* The service's connections: slots with generations, so that the name of a freed one matches nothing. */
#include <stdlib.h>

#include "proxy/proxy.h"

struct psm_connection *psm_connection_new(psmProxyState *state, uint64_t owner)
{
    struct psm_connections *all = &state->connections;
    struct psm_connection *found = NULL;
    pthread_mutex_lock(&all->lock);
    /* Start the search where the last one was found: with few freed ones that is the end. */
    for (uint32_t i = 0; i < all->count && !found && all->live < all->count; i++) {
        uint32_t at = (all->last + i) % all->count;
        if (!all->slots[at]->taken) {
            found = all->slots[at];
            all->last = at;
        }
    }
    if (!found && all->count < PSM_CONNECTIONS) {
        if (all->count == all->capacity) {
            uint32_t capacity = all->capacity ? all->capacity * 2 : 64;
            struct psm_connection **grown = realloc(all->slots, capacity * sizeof(*grown));
            if (grown) {
                all->slots = grown;
                all->capacity = capacity;
            }
        }
        if (all->count < all->capacity && (found = calloc(1, sizeof *found))) {
            found->pub.id = all->count; /* the slot, before the generation is added */
            found->generation = (uint32_t)psm_random64();
            all->slots[all->count++] = found;
        }
    }
    if (found) {
        uint32_t slot = (uint32_t)found->pub.id;
        if (++found->generation == 0) found->generation = 1;
        found->pub = (psmProxyConnection){.state = state, .id = (uint64_t)found->generation << 32 | slot};
        found->host = psm_host_of(state);
        found->pub.host = &found->host;
        atomic_store(&found->running, 0);
        atomic_store(&found->connected, false);
        found->freeing = false;
        found->owner = owner;
        found->taken = true;
        all->live++;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

static struct psm_connection *look(struct psm_connections *all, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= all->count) return NULL;
    struct psm_connection *connection = all->slots[slot];
    return connection->taken && connection->pub.id == id && !connection->freeing ? connection : NULL;
}

struct psm_connection *psm_connection_find(psmProxyState *state, uint64_t id)
{
    pthread_mutex_lock(&state->connections.lock);
    struct psm_connection *found = look(&state->connections, id);
    pthread_mutex_unlock(&state->connections.lock);
    return found;
}

struct psm_connection *psm_connection_enter(psmProxyState *state, uint64_t id)
{
    pthread_mutex_lock(&state->connections.lock);
    struct psm_connection *found = look(&state->connections, id);
    if (found) atomic_fetch_add(&found->running, 1);
    pthread_mutex_unlock(&state->connections.lock);
    return found;
}

struct psm_connection *psm_connection_enter_next(psmProxyState *state, uint32_t *slot)
{
    struct psm_connections *all = &state->connections;
    struct psm_connection *found = NULL;
    pthread_mutex_lock(&all->lock);
    for (; *slot < all->count && !found; (*slot)++) {
        struct psm_connection *c = all->slots[*slot];
        if (!c->taken || c->freeing || !atomic_load(&c->connected)) continue;
        atomic_fetch_add(&c->running, 1);
        found = c;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

struct psm_connection *psm_connection_begin_free(psmProxyState *state, uint64_t owner)
{
    struct psm_connections *all = &state->connections;
    struct psm_connection *found = NULL;
    pthread_mutex_lock(&all->lock);
    for (uint32_t i = 0; i < all->count && !found && all->live; i++) {
        struct psm_connection *c = all->slots[i];
        if (c->taken && !c->freeing && (owner == 0 || c->owner == owner)) {
            found = c;
            c->freeing = true;
        }
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

void psm_connection_begin_free_one(psmProxyState *state, struct psm_connection *connection)
{
    pthread_mutex_lock(&state->connections.lock);
    connection->freeing = true;
    pthread_mutex_unlock(&state->connections.lock);
}

void psm_connection_release(psmProxyState *state, struct psm_connection *connection)
{
    pthread_mutex_lock(&state->connections.lock);
    connection->taken = false;
    state->connections.live--;
    pthread_mutex_unlock(&state->connections.lock);
}
