/* One connection of the shm backend in this process. */
#ifndef PSM_NET_SHM_COMM_H
#define PSM_NET_SHM_COMM_H

#include "shm/ring.h"

struct shm_message {
    struct net_request *request;
    struct net_part *part;
    uint32_t group;
    uint16_t index; /* of the part */
    bool too_large;
};

struct shm_comm {
    struct net_comm net;
    int fd; /* the Unix socket */
    uint32_t slots, half, slot_bytes;
    uint64_t stride;
    struct psm_segment segment;
    struct shm_head *head;
    char *ring, *end, *at; /* at: the current slot */
    uint64_t step;         /* slots that this end is done with */
    uint64_t free_until;   /* sender: slots known to be empty; receiver: the number last published to the sender */
    uint64_t offset;       /* in the message */
    uint32_t idle;         /* unsuccessful looks */
    /* sender: messages from the first unfinished one; receiver: the current one, if request is not NULL */
    struct shm_message *queue, coming;
    uint64_t first, begun;
    uint64_t group, used; /* sender: the first open group and its slots */
    /* receiver */
    struct net_request *open[NET_REQUESTS];
    uint64_t first_open, nposted;
};

struct shm_comm *shm_comm_new(bool sends, int dev, int max_recvs);
void shm_use(struct shm_comm *comm, uint32_t slots, uint32_t slot_bytes);
bool shm_possible(uint32_t slots, uint32_t slot_bytes);
uint64_t shm_bytes(uint32_t slots, uint32_t slot_bytes); /* of a segment */
ncclResult_t shm_post(struct net_comm *comm, struct net_request *request, bool *taken);
ncclResult_t shm_progress(struct net_comm *comm, struct net_request *request);
void shm_cut(struct net_comm *comm);
void shm_close(struct net_comm *comm);

#endif
