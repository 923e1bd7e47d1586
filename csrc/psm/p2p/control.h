/* What the two ends of a connection share besides the FIFO (the control segment), and the requests to a proxy.
 *
 * Steps count the slots of the FIFO from the first byte of the connection on; a slot is step % steps. The receiver
 * publishes recvTail, the number of steps that may be filled; the sender publishes sendHead, the number that are
 * filled. An operation starts when the receiver offers it: how many bytes it expects and, for zero-copy, where. The
 * sender takes the offer, once, and compares. It answers a zero-copy offer, once: declined, which means the FIFO, or
 * done. So both ends agree before a byte moves. Each word has one writer, except for the two flags, which their reader
 * resets to 0. */
#ifndef PSM_P2P_CONTROL_H
#define PSM_P2P_CONTROL_H

#include "psm/psm_p2p.h"
#include "shm/line.h"

#define PSM_P2P_MAGIC 0x50534d50u /* "PSMP" */

/* The low bits of a flag are its kind; the rest is the number of the operation, from 1. */
enum psm_p2p_flag {
    PSM_FLAG_NONE = 0,
    PSM_FLAG_FIFO = 1,      /* offer: through the FIFO */
    PSM_FLAG_ZERO_COPY = 2, /* offer: into the receiver's buffer */
    PSM_FLAG_DECLINED = 3,  /* answer: use the FIFO instead */
    PSM_FLAG_DONE = 4,      /* answer: the data is in the buffer */
    PSM_FLAG_BITS = 3
};
static inline uint64_t psm_flag(uint64_t seq, enum psm_p2p_flag what)
{
    return seq << PSM_FLAG_BITS | (uint64_t)what;
}
static inline uint64_t psm_flag_seq(uint64_t flag)
{
    return flag >> PSM_FLAG_BITS;
}
static inline int psm_flag_what(uint64_t flag)
{
    return (int)(flag & ((1u << PSM_FLAG_BITS) - 1));
}

/* Written before the flag, read after it: the flag orders them. */
struct psm_p2p_offer {
    PSM_ALIGNED(64) uint64_t seq;
    uint64_t nbytes;
    uint64_t id;     /* id of the registration; 0: FIFO */
    uint64_t offset; /* offset of the buffer in the registered memory */
    uint64_t unused[4];
};
PSM_SHAREABLE(psm_p2p_offer, 64);

/* The control segment: created by the sender, initially zero. */
struct psm_p2p_control {
    struct psm_line recvTail, sendHead;
    struct psm_line offer, answer; /* flags */
    struct psm_p2p_offer offered;  /* written by the receiver */
    struct psm_line sendEnded,
        recvEnded; /* a negated psm_status, with the CUDA code of its reason << 32: that side has ended */
};
PSM_SHAREABLE(psm_p2p_control, 448);

/* Request of Setup, from the caller to its own proxy. */
struct psm_p2p_setup {
    uint32_t magic;
    uint16_t version;
    uint8_t mode, role;
    int32_t peer;
    uint16_t channel, connIndex;
    uint16_t control_kind, fifo_kind; /* enum psm_share_kind; PSM_SHARE_NONE: an intermediate rank has the FIFO */
    uint32_t zero_copy;
    uint32_t steps, chunk;
    uint64_t buffer_size;
};
PSM_SHAREABLE(psm_p2p_setup, 40);

/* The role of an intermediate rank, next to 0 (recv) and 1 (send): it creates the FIFO and moves no data. */
enum { PSM_P2P_LENDER = 2 };

/* Request of Connect, to the own proxy. given: the result of QueryFd, -1 if the share needs no descriptor. */
struct psm_p2p_attach {
    struct psm_p2p_connect peer;
    struct psm_share fifo; /* recv through an intermediate rank: its FIFO */
    int32_t given, fifo_given;
    int32_t fifo_rank; /* rank that created the FIFO */
    uint32_t same_process;
};
PSM_SHAREABLE(psm_p2p_attach, 240);

/* Request of Register, to the proxy of the peer that will copy into the buffer; and of Deregister, which uses only the
 * id and keep: the mapping may stay open until the connection is freed. */
struct psm_p2p_registration {
    uint32_t magic;
    uint16_t version, keep;
    int32_t given;
    int32_t rank;
    uint64_t id; /* of the registration: the same memory may be registered several times */
    struct psm_share share;
};
PSM_SHAREABLE(psm_p2p_registration, 120);

#endif
