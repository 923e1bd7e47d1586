/* What the proxies of two processes of a host send each other. SOCK_SEQPACKET and SOCK_DGRAM keep message boundaries,
 * so a message is one struct, followed by what its kind adds. Everything is native-endian.
 *
 * Decoding trusts nothing: it relies only on the received size. All functions here are pure. */
#ifndef PSM_PROXY_WIRE_H
#define PSM_PROXY_WIRE_H

#include "psm/psm_proxy.h"

#define PSM_WIRE_MAGIC 0x50584d50u /* "PMXP" in memory */

enum psm_wire_kind {
    PSM_WIRE_HELLO = 1,    /* first message, in both directions */
    PSM_WIRE_REQUEST = 2,  /* followed by a payload of req_size bytes */
    PSM_WIRE_RESPONSE = 3, /* followed by a payload of resp_size bytes, and by psm_wire_reason if status is an error */
    PSM_WIRE_BYE = 4,      /* the last message: the sender closes */
    PSM_WIRE_FD_ASK = 5,   /* datagrams */
    PSM_WIRE_FD_ANSWER = 6
};

struct psm_wire_head {
    uint32_t magic;
    uint16_t version; /* PSM_WIRE_VERSION */
    uint16_t kind;
    uint32_t size;   /* of the whole message */
    uint32_t detail; /* of a response that is an error: psm_error.detail; else 0 */
};
PSM_SHAREABLE(psm_wire_head, 16);

struct psm_wire_hello {
    struct psm_wire_head head;
    int32_t rank, nranks;
    uint32_t pid;
    uint32_t tag; /* of the process, see psm_proc */
    uint64_t start_time;
    uint64_t pid_ns;
    char service[24]; /* the name of the intended proxy, so that nobody talks to another one by mistake */
    uint64_t reserved;
};
PSM_SHAREABLE(psm_wire_hello, 80);

struct psm_wire_request {
    struct psm_wire_head head;
    int32_t type;
    uint32_t req_size, resp_size;
    uint32_t reserved;
    uint64_t connection;
    uint64_t op_id;
};
PSM_SHAREABLE(psm_wire_request, 48);

struct psm_wire_response {
    struct psm_wire_head head;
    uint64_t op_id;
    int32_t status;
    uint32_t resp_size;
    int32_t sys_errno, cuda;
};
PSM_SHAREABLE(psm_wire_response, 40);

/* Why a call failed: the service's psm_error. */
struct psm_wire_reason {
    char stage[24];
    char text[256];
};
PSM_SHAREABLE(psm_wire_reason, 280);

struct psm_wire_bye {
    struct psm_wire_head head;
    int32_t
        status; /* PSM_OK: a regular end; else why the sender ends the operation on all ranks, or refuses the peer */
    int32_t refused; /* 1: only this peer is refused */
    char text[256];
};
PSM_SHAREABLE(psm_wire_bye, 280);

struct psm_wire_fd_ask {
    struct psm_wire_head head;
    int32_t type; /* GetFd, QueryFd */
    int32_t rank;
    uint64_t op_id;
    uint64_t share; /* GetFd */
};
PSM_SHAREABLE(psm_wire_fd_ask, 40);

struct psm_wire_fd_answer {
    struct psm_wire_head head;
    int32_t type;
    int32_t status;
    uint64_t op_id;
    int32_t number; /* QueryFd: of the descriptor in the proxy's process */
    int32_t sys_errno;
    char text[128];
};
PSM_SHAREABLE(psm_wire_fd_answer, 168);

enum {
    PSM_WIRE_MAX = (int)sizeof(struct psm_wire_request) + PSM_PROXY_PAYLOAD + (int)sizeof(struct psm_wire_reason),
    PSM_WIRE_TEXT = 256
};

/* Fills in a head. */
void psm_wire_begin(struct psm_wire_head *head, enum psm_wire_kind kind, size_t size);
/* A message as received: aligned, and of its exact size. Texts are NUL-ended after decoding. */
struct psm_wire_message {
    enum psm_wire_kind kind;
    union {
        struct psm_wire_hello hello;
        struct psm_wire_request request;
        struct psm_wire_response response;
        struct psm_wire_bye bye;
        struct psm_wire_fd_ask fd_ask;
        struct psm_wire_fd_answer fd_answer;
    };
    const uint8_t *payload; /* points into the decoded bytes; NULL: none */
    size_t payload_size;
    struct psm_wire_reason reason; /* empty: none */
};
/* kinds: bits 1 << kind that are allowed here. PSM_ERR_PROTOCOL (magic, size, kind) or PSM_ERR_VERSION, and in `text`
 * one line that says what was received and what was expected. */
psm_status psm_wire_decode(const void *bytes, size_t size, unsigned kinds, struct psm_wire_message *message,
                           char text[PSM_WIRE_TEXT]);
/* Encodes a whole message with what follows the struct. Returns its size; the buffer has PSM_WIRE_MAX bytes. Returns 0
 * if a size is out of bounds. */
size_t psm_wire_encode_request(uint8_t *out, int type, uint64_t connection, uint64_t op_id, const void *req,
                               size_t req_size, size_t resp_size);
size_t psm_wire_encode_response(uint8_t *out, uint64_t op_id, const struct psm_error *error, const void *resp,
                                size_t resp_size);

/* NCCL's name of a message type; "Unknown" for others. */
__attribute__((const)) const char *psm_proxy_type_name(int type);

#endif
