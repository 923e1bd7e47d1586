/* The service thread's own data: connected peers, and unanswered requests. */
#ifndef PSM_PROXY_SERVICE_H
#define PSM_PROXY_SERVICE_H

#include "proxy/proxy.h"

/* A message that did not fit into the socket's buffer. */
struct psm_unsent {
    struct psm_unsent *next;
    size_t size;
    uint8_t bytes[];
};

/* A requester: a socket, or a rank of this process. */
struct psm_peer {
    int fd;    /* -1: of this process */
    int pidfd; /* -1: none */
    int rank;  /* -1: no hello yet */
    uint32_t pid;
    uint64_t id;     /* never reused; the owner of connections */
    uint64_t client; /* of this process: psmProxyState.client_id */
    uint64_t hello_until;
    unsigned waiting, unsent_count; /* requests, answers */
    struct psm_unsent *unsent, **unsent_end;
    struct psm_held *held;
    bool gone;
};

struct psm_request {
    struct psm_request *next;
    struct psm_peer *peer;
    struct psm_direct_call *direct;
    int type;
    uint32_t req_size, resp_size;
    uint64_t connection, op_id;
    uint64_t begun; /* when it was first found unfinished; 0: never */
    bool struck;    /* the fault of its site was already evaluated */
    struct psm_fault fault;
    struct psm_connection *closing; /* Close: the connection that is being freed */
    uint8_t *req, *resp;
};

struct psm_service {
    psmProxyState *state;
    struct psm_peer **peers;
    size_t npeers, peers_size;
    struct psm_peer *hot; /* the peer of the last request: its next request is looked for first; NULL: none */
    uint64_t last_id;
    struct psm_request *pending, **pending_end;
    struct psm_connection *freed; /* connections to free when their operations have ended */
    uint64_t retry_ns, next_retry;
    bool said_bye;
    bool lost; /* a peer needs to be dropped */
    struct psm_limit refusals;
};

/* handlers.c: carry out a request. PSM_IN_PROGRESS: call it again. psm_last_error() has the details of a failure. */
psm_status psm_request_do(struct psm_service *service, struct psm_request *request);
/* Frees a connection now or, while it has running operations, later. */
void psm_service_free_connection(struct psm_service *service, struct psm_connection *connection);
void psm_service_free_later(struct psm_service *service);

/* requests.c */
#define PSM_RETRY_FIRST_NS UINT64_C(20000)
/* To a peer's socket, or kept until the socket has room. */
void psm_service_send(struct psm_service *service, struct psm_peer *peer, const uint8_t *bytes, size_t size);
void psm_service_send_kept(struct psm_service *service, struct psm_peer *peer);
/* Sends what a fault has held back. */
void psm_service_send_held(struct psm_service *service, struct psm_peer *peer);
/* Handles a received request: answers it, or keeps it pending. Takes ownership. */
void psm_service_begin(struct psm_service *service, struct psm_request *request);
bool psm_service_retry(struct psm_service *service);
/* Drops pending requests of a peer that nobody can answer any more; NULL: of all peers. */
void psm_service_sweep(struct psm_service *service, const struct psm_peer *peer);

/* service.c */
void psm_peer_lost(struct psm_service *service, struct psm_peer *peer, const char *why);

#endif
