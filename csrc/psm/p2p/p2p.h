/* The p2p transport's own types: the local info of a connection's proxy end, and the functions of the correct variant,
 * `split`, from which the broken variants are built. */
#ifndef PSM_P2P_P2P_H
#define PSM_P2P_P2P_H

#include "conn/conn.h"
#include "p2p/control.h"
#include "p2p/memory.h"
#include "psm/psm_p2p.h"

/* The proxy's end of a connection. Local: neither it nor any part of it leaves the process. Role 2 provides the FIFO.
 */
struct psmP2pLocalInfo {
    struct psm_conn conn;
    struct psm_memory fifo;     /* recv: created here. send: the peer's, mapped */
    struct psm_segment control; /* send: created here. recv: the peer's, attached */
    struct psm_p2p_control *shared;
    uint32_t zero_copy;
    bool same_process;

    /* progress thread only */
    struct psm_import *import; /* send, zero-copy: destination of the data */
    uint64_t import_offset;
};
_Static_assert(offsetof(struct psmP2pLocalInfo, conn) == 0, "psm_conn_progress sees the base");

/* ---- proxy side: handlers of `split`, on the service thread ---- */

extern const struct psmTransportComm psm_p2p_split_send, psm_p2p_split_recv;
psm_conn_request psm_p2p_proxy_setup, psm_p2p_proxy_connect, psm_p2p_proxy_register;
psm_conn_free psm_p2p_proxy_free;
psm_conn_turn psm_p2p_send_progress, psm_p2p_recv_progress;
psm_status psm_p2p_proxy_deregister(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                    int *done);
#define PSM_P2P_COMM(setup, connect, free, progress)                                                                   \
    PSM_CONN_COMM(setup, connect, free, progress, .proxyRegister = psm_p2p_proxy_register,                             \
                  .proxyDeregister = psm_p2p_proxy_deregister)

/* ---- proxy side: progress ---- */

extern const struct psm_conn_ops psm_p2p_conn_ops;
psm_status psm_p2p_copy(struct psmP2pLocalInfo *local, void *to, const void *from, uint64_t bytes, int event);
/* The event that marks the copy of a step: that of its slot. PSM_NO_EVENT if the operation has one slot: its copy is
 * alone on the stream, so query the stream. A short message then needs neither to record an event nor to wait for it.
 */
static inline int psm_p2p_event_of(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub,
                                   uint64_t step)
{
    if (sub->nsteps == 1 && local->conn.stage == PSM_STAGE_FIFO) return PSM_NO_EVENT;
    return (int)(step % local->conn.steps);
}
/* Whether the oldest copy of the operation is complete; *status: the failure. */
static inline bool psm_p2p_copied(struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, psm_status *status)
{
    return sub->nbytes == 0 ||
           psm_conn_copied(&local->conn, psm_p2p_event_of(local, sub, sub->base + sub->done), status) > 0;
}
/* Publishes the steps whose copy is complete, in order. publish is known where this is compiled, so it is no call
 * through a pointer. */
static inline __attribute__((always_inline)) psm_status
psm_p2p_publish_copied(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub,
                       psm_status (*publish)(struct psmP2pLocalInfo *, struct psmProxySubArgs *), bool *moved)
{
    while (sub->done < sub->transmitted) {
        psm_status status = PSM_OK;
        if (!psm_p2p_copied(local, sub, &status)) return status;
        PSM_TRY(publish(local, sub));
        *moved = true;
    }
    return PSM_OK;
}
static inline char *psm_p2p_slot(const struct psmP2pLocalInfo *local, uint64_t step)
{
    return (char *)local->fifo.ptr + step % local->conn.steps * local->conn.chunk;
}
/* Adds an entry to the step recorder and the log. */
void psm_p2p_moved(struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what, uint64_t step);
/* Adds an entry to the log only: the recorder keeps the last transition, and another one follows at once. */
void psm_p2p_passed(const struct psm_conn *conn, const struct psmProxySubArgs *sub, enum psm_step_what what,
                    uint64_t step);
/* The copy of the last done step is published, as the fault at that site left it. */
static inline void psm_p2p_published(struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub,
                                     const struct psm_fault *fault)
{
    uint64_t step = sub->base + sub->done - 1;
    if (sub->done == sub->nsteps && fault->action == PSM_FAULT_NONE) /* the operation ends */
        psm_p2p_passed(&local->conn, sub, PSM_STEP_PUBLISHED, step);
    else
        psm_p2p_moved(&local->conn, sub, PSM_STEP_PUBLISHED, step);
    psm_fault_act_after(fault);
}

/* ---- registrations ---- */

/* One buffer of the application, registered on a connector of this process. */
struct psm_registered {
    uint64_t handle, begin, size;
    bool mapped; /* registered by the peer, with the handle as its id; false: send side */
};
psm_status psm_registered_add(const struct psm_registered *entry);
bool psm_registered_find(uint64_t handle, struct psm_registered *entry);
bool psm_registered_take(uint64_t handle, struct psm_registered *entry);

/* A peer's registered buffer, mapped once. Held while a copy writes to it. */
struct psm_import;
psm_status psm_import_add(const struct psm_host *host, void *owner, uint64_t id, const struct psm_share *share, int fd,
                          int owner_rank);
struct psm_import *psm_import_hold(const struct psm_host *host, uint64_t id);
void *psm_import_at(const struct psm_import *import, uint64_t offset, uint64_t bytes); /* NULL: outside */
psm_status psm_import_release(const struct psm_host *host, struct psm_import *import);
/* Release one (id), or all that came over one connection (id 0). keep: its mapping may stay open, see kept.c. */
psm_status psm_import_remove(const struct psm_host *host, void *owner, uint64_t id, bool keep, bool *found);

/* ---- caller side ---- */

/* psmP2pDeregister() at the end of a group that registered the buffer itself: the next one may register it again. */
psm_status psm_p2p_deregister_for_now(psmP2pConnector *connector, uint64_t handle);

const char *psm_p2p_mode_name(int mode);
/* The kinds of share that a mode implies for two ranks: pure. */
void psm_p2p_kinds(const struct psm_peer_info *a, const struct psm_peer_info *b, int mode, int *control, int *fifo);
/* The kind of share by which both ranks can reach a FIFO on via's device; PSM_SHARE_NONE: none. */
int psm_p2p_via_kind(const struct psm_peer_info *a, const struct psm_peer_info *b, const struct psm_peer_info *via);

#endif
