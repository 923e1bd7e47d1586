/* The p2p transport's own types: the local info of a connection's proxy end, and the functions of the correct variant,
 * `split`, from which the broken variants are built. */
#ifndef PSM_P2P_P2P_H
#define PSM_P2P_P2P_H

#include "core/internal.h"
#include "p2p/control.h"
#include "p2p/memory.h"
#include "p2p/step.h"
#include "psm/psm_launch.h"
#include "psm/psm_p2p.h"
#include "psm_cuda.h"

enum psm_p2p_stage {
    PSM_STAGE_IDLE,
    PSM_STAGE_OFFER,     /* send: the receiver has not posted yet; recv: the offer is not written yet */
    PSM_STAGE_FIFO,      /* data goes through the slots */
    PSM_STAGE_ZERO_COPY, /* send: copies; recv: waits for the answer */
    PSM_STAGE_ENDED
};

/* The proxy's end of a connection. Local: neither it nor any part of it leaves the process. */
struct psmP2pLocalInfo {
    cudaStream_t stream;
    cudaEvent_t events[PSM_P2P_MAX_STEPS];
    struct psm_memory fifo;     /* recv: created here. send: the peer's, mapped */
    struct psm_segment control; /* send: created here. recv: the peer's, attached */
    struct psm_p2p_control *shared;

    const struct psm_host *host;
    const struct psm_cuda *cuda;
    uint64_t connection;
    int rank, peer, channel, connIndex;
    int mode, role;       /* role 1: send; 2: provides the FIFO */
    uint32_t steps, made; /* slots; created events */
    uint32_t chunk;
    uint32_t stall_ms, zero_copy;
    bool connected, used, same_process;

    /* progress thread only */
    struct psmProxySubArgs *active; /* the operation that is running on the connection */
    enum psm_p2p_stage stage;
    uint64_t seq;              /* operations started */
    uint64_t step;             /* steps finished: base of the next operation */
    struct psm_import *import; /* send, zero-copy: destination of the data */
    uint64_t import_offset;
    uint64_t now_ns;                          /* start time of this turn */
    uint64_t moved_ns, looked_ns, stalled_ns; /* last progress; last look at the peer; last report */
    int suspect;                              /* consecutive looks that found the peer gone and nothing to do */
    void *recorder;                           /* psm_step_recorder's */
};

/* ---- proxy side: handlers of `split`, on the service thread ---- */

extern const struct psmTransportComm psm_p2p_split_send, psm_p2p_split_recv;
psm_status psm_p2p_proxy_setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done);
psm_status psm_p2p_proxy_connect(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done);
psm_status psm_p2p_proxy_free(psmProxyConnection *connection, psmProxyState *state);
psm_status psm_p2p_proxy_register(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                  void *resp, int respSize, int *done);
psm_status psm_p2p_proxy_deregister(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                    int *done);
/* The stream and events of this end, created and used only in this process. */
psm_status psm_p2p_make_stream(struct psmP2pLocalInfo *local);

/* ---- proxy side: progress ----
 * The operation has ended when args->state is None; the call that ends it returns its error. The proxy decrements
 * args->sync for ended operations. */

psm_status psm_p2p_send_progress(psmProxyState *state, struct psmProxyArgs *args);
psm_status psm_p2p_recv_progress(psmProxyState *state, struct psmProxyArgs *args);

/* progress.c: what both directions do around their steps. */
typedef psm_status psm_p2p_step(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, bool *moved, bool *ended);
psm_status psm_p2p_progress(struct psmProxyArgs *args, psm_p2p_step *step);
psm_status psm_p2p_copy(struct psmP2pLocalInfo *local, void *to, const void *from, uint64_t bytes, int event);
/* 1: the copy before that event is complete; 0: not yet; else the failure. */
int psm_p2p_copied(struct psmP2pLocalInfo *local, int event, psm_status *status);
/* The event that marks the copy of a step: that of its slot. PSM_NO_EVENT if the operation has one slot: its copy is
 * alone on the stream, so query the stream. A short message then needs neither to record an event nor to wait for it.
 */
enum { PSM_NO_EVENT = -1 };
static inline int psm_p2p_event_of(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub,
                                   uint64_t step)
{
    if (sub->nsteps == 1 && local->stage == PSM_STAGE_FIFO) return PSM_NO_EVENT;
    return (int)(step % local->steps);
}
/* Adds an entry to the step recorder and the log. */
void psm_p2p_moved(struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                   uint64_t step);
/* Adds an entry to the log only: the recorder keeps the last transition, and another one follows at once. */
void psm_p2p_passed(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                    uint64_t step);
static inline uint64_t psm_p2p_nsteps(uint64_t nbytes, uint32_t chunk)
{
    return nbytes == 0 ? 1 : (nbytes + chunk - 1) / chunk; /* an operation of 0 bytes is one step without a copy */
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
psm_status psm_p2p_connect_right(psmP2pConnector *connector, const struct psm_p2p_connect *peer);
/* Of a connector, for group launch. */
int psm_p2p_connector_role(const psmP2pConnector *connector);
const struct psm_host *psm_p2p_connector_host(const psmP2pConnector *connector);

#endif
