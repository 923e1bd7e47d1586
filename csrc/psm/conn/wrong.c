#include "conn/wrong.h"

psm_status psm_conn_free_nothing(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    connection->transportResources = NULL;
    return PSM_OK;
}

void *psm_conn_running(const struct psmProxySubArgs *sub)
{
    struct psm_conn *conn = sub->connection->transportResources;
    return conn && conn->active == sub ? conn : NULL;
}

enum { SPARE = PSM_CONN_MAX_STEPS / 2 }; /* of the slots beyond */

psm_status psm_conn_check_spare(const psmProxyConnection *connection, const char *variant)
{
    const struct psm_conn *conn = connection->transportResources;
    if (!conn || conn->steps <= SPARE) return PSM_OK;
    return psm_fail(PSM_ERR_UNSUPPORTED, "connect", conn->rank, conn->peer, 0,
                    "%s has room for %d steps: set PSM_STEPS", variant, SPARE);
}

psm_status psm_conn_make_spare(const psmProxyConnection *connection)
{
    struct psm_conn *conn = connection->transportResources;
    for (uint32_t i = 0; conn->connected && i < conn->steps; i++)
        PSM_CUDA(conn->cuda, "connect", conn->rank, conn->peer,
                 cudaEventCreateWithFlags(&conn->events[SPARE + i], cudaEventDisableTiming));
    return PSM_OK;
}

void psm_conn_free_spare(const psmProxyConnection *connection)
{
    const struct psm_conn *conn = connection->transportResources;
    for (uint32_t i = 0; conn && conn->connected && i < conn->steps; i++)
        conn->cuda->cudaEventDestroy(conn->events[SPARE + i]);
}

void psm_conn_swap_spare(struct psm_conn *conn, const struct psmProxySubArgs *sub, uint64_t n)
{
    for (; n < sub->transmitted; n++) {
        uint64_t slot = (sub->base + n) % conn->steps;
        cudaEvent_t recorded = conn->events[slot];
        conn->events[slot] = conn->events[SPARE + slot];
        conn->events[SPARE + slot] = recorded;
    }
}
