/* The list of objects that a debugger starts from. */
#include "core/alive.h"

#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* psmkit/live/state/libpsm.py knows this name. */
struct psm_alive *psm_alive_first;

void psm_alive_add(struct psm_alive *alive, enum psm_alive_kind kind)
{
    pthread_mutex_lock(&lock);
    *alive = (struct psm_alive){.next = psm_alive_first, .kind = kind};
    if (psm_alive_first) psm_alive_first->before = alive;
    psm_alive_first = alive;
    pthread_mutex_unlock(&lock);
}

void psm_alive_remove(struct psm_alive *alive)
{
    if (!alive->kind) return;
    pthread_mutex_lock(&lock);
    if (alive->next) alive->next->before = alive->before;
    if (alive->before)
        alive->before->next = alive->next;
    else
        psm_alive_first = alive->next;
    *alive = (struct psm_alive){0};
    pthread_mutex_unlock(&lock);
}
