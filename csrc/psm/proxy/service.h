/* The service thread's own data: peers that connected, requests that are not answered yet. */
#ifndef PSM_PROXY_SERVICE_H
#define PSM_PROXY_SERVICE_H

#include "proxy/proxy.h"

/* A message that did not fit into the socket's buffer. */
struct psm_unsent {
    struct psm_unsent *next;
    size_t size;
    uint8_t bytes[];
};

/* One that asks: a socket, or a rank of this process. */
struct psm_peer {
    int fd;    /* -1: of this process */
    int pidfd; /* -1: none */
    int rank;  /* -1: no hello yet */
    uint32_t pid;
    uint64_t id;     /* never used twice; the owner of connections */
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
    uint64_t begun; /* first not done; 0: it was never so */
    bool struck;    /* the fault of its site has been asked for */
    struct psm_fault fault;
    struct psm_connection *closing; /* Close: what is being freed */
    uint8_t *req, *resp;
};

struct psm_service {
    psmProxyState *state;
    struct psm_peer **peers;
    size_t npeers, peers_size;
    struct psm_peer *hot; /* the one that asked last: its next request is looked for first; NULL: none */
    uint64_t last_id;
    struct psm_request *pending, **pending_end;
    struct psm_connection *freed; /* to be freed when their operations have ended */
    uint64_t retry_ns, next_retry;
    bool said_bye;
    bool lost; /* a peer is to be dropped */
    struct psm_limit refusals;
};

/* handlers.c: do what a request asks. PSM_IN_PROGRESS: call it again. A failure's detail is in psm_last_error(). */
psm_status psm_request_do(struct psm_service *service, struct psm_request *request);
/* Frees a connection now or, while operations run, later. */
void psm_service_free_connection(struct psm_service *service, struct psm_connection *connection);
void psm_service_free_later(struct psm_service *service);

/* requests.c */
#define PSM_RETRY_FIRST_NS UINT64_C(20000)
/* To a peer's socket, or kept until it has room. */
void psm_service_send(struct psm_service *service, struct psm_peer *peer, const uint8_t *bytes, size_t size);
void psm_service_send_kept(struct psm_service *service, struct psm_peer *peer);
/* What a fault has held back. */
void psm_service_send_held(struct psm_service *service, struct psm_peer *peer);
/* A request that has come: answers it, or has it pending. Takes it over. */
void psm_service_begin(struct psm_service *service, struct psm_request *request);
bool psm_service_retry(struct psm_service *service);
/* Pending requests of a peer that nobody can answer any more; NULL: of all. */
void psm_service_sweep(struct psm_service *service, const struct psm_peer *peer);

/* service.c */
void psm_peer_lost(struct psm_service *service, struct psm_peer *peer, const char *why);

#endif
