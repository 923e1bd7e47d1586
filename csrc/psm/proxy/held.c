/* Messages that a fault holds back, so that the next message overtakes them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proxy/proxy.h"

bool psm_held_keep(struct psm_held **held, const char *to, const void *bytes, size_t size, int fd)
{
    struct psm_held *kept = *held ? NULL : malloc(sizeof *kept + size);
    if (!kept) return false;
    kept->until = psm_clock_ns() + PSM_FAULT_HELD_NS;
    kept->size = size;
    kept->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0 && kept->fd < 0) {
        free(kept);
        return false;
    }
    snprintf(kept->to, sizeof kept->to, "%s", to ? to : "");
    memcpy(kept->bytes, bytes, size);
    *held = kept;
    return true;
}

void psm_held_drop(struct psm_held **held)
{
    if (!*held) return;
    if ((*held)->fd >= 0) close((*held)->fd);
    free(*held);
    *held = NULL;
}

bool psm_client_hold(struct psm_client *client, const void *bytes, size_t size)
{
    pthread_mutex_lock(&client->lock);
    bool held = psm_held_keep(&client->held, NULL, bytes, size, -1);
    if (held) atomic_store(&client->held_until, client->held->until);
    pthread_mutex_unlock(&client->lock);
    return held;
}

void psm_client_flush(struct psm_client *client, bool now)
{
    int number;
    pthread_mutex_lock(&client->lock);
    bool over = atomic_load(&client->gone) != 0;
    /* A full socket accepts it later; a failed one reports that to the next send or read. */
    if ((now || psm_held_due(client->held, psm_clock_ns())) && client->held &&
        (over || psm_socket_send(atomic_load(&client->fd), client->held->bytes, client->held->size, &number) !=
                     PSM_IN_PROGRESS))
        psm_held_drop(&client->held);
    atomic_store(&client->held_until, client->held ? client->held->until : 0);
    pthread_mutex_unlock(&client->lock);
}
