/* libpsm: statuses, errors, settings. The comment of each function says which threads may call it, who owns its
 * arguments and results, and which statuses it returns. Structs that cross a library boundary start with their size, so
 * that a newer library can read an older caller's. */
#ifndef PSM_PSM_H
#define PSM_PSM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PSM_API           __attribute__((visibility("default")))
#define PSM_VERSION_MAJOR 0
#define PSM_VERSION_MINOR 2
#define PSM_WIRE_VERSION  1 /* of everything that two processes exchange */

/* The headers are C11 and C++11. */
#ifdef __cplusplus
#define PSM_STATIC_ASSERT(condition, text) static_assert(condition, text)
#define PSM_ALIGNED(bytes)                 alignas(bytes)
#else
#define PSM_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#define PSM_ALIGNED(bytes)                 _Alignas(bytes)
#endif

/* Marks a struct that two processes share or send to each other: fixed width, no pointer, no handle, no descriptor, and
 * a size that never changes. tests/psm/test_shareable.py finds the marks in the debug information and checks the
 * members. */
#define PSM_SHAREABLE(name, bytes)                                                                                     \
    PSM_STATIC_ASSERT(sizeof(struct name) == (bytes), "struct " #name " crosses processes");                           \
    typedef struct name psm_shareable_##name

/* Grouped by what is lost. */
typedef enum psm_status {
    PSM_OK = 0,
    PSM_IN_PROGRESS = 1,
    /* lost: the operation; the connection is unchanged */
    PSM_ERR_INVALID = -1, /* a bad argument; nothing was done */
    PSM_ERR_NO_MEMORY = -2,
    PSM_ERR_NO_RESOURCE = -3, /* descriptors, space in a file system, slots: see sys_errno */
    PSM_ERR_UNSUPPORTED = -4,
    PSM_ERR_NOT_FOUND = -5,
    PSM_ERR_REFUSED = -6, /* the peer's handler returned an error: see text */
    /* the connection */
    PSM_ERR_TIMEOUT = -20,
    PSM_ERR_PEER_DEAD = -21,
    PSM_ERR_PEER_CLOSED = -22,
    PSM_ERR_PROTOCOL = -23, /* bad magic, size or order in what the peer sent */
    PSM_ERR_VERSION = -24,
    PSM_ERR_MISMATCH = -25, /* both sides work but disagree: text has both values */
    PSM_ERR_DENIED = -26,   /* the peer runs as another user or does not have the secret */
    /* the service of this rank */
    PSM_ERR_ABORTED = -40,
    PSM_ERR_CUDA = -41,
    PSM_ERR_SYSTEM = -42,
    PSM_ERR_INTERNAL = -43
} psm_status;

/* What kind of failure it is, where more is known than its status: for programs. Which rank it names depends on the
   kind; with 1 to 4 and 9 that rank is the one to look at next. */
enum psm_cause {
    PSM_CAUSE_OTHER = 0,
    PSM_CAUSE_PEER_DIED = 1,   /* the process of that rank ended, or the network to it was lost */
    PSM_CAUSE_PEER_CLOSED = 2, /* that rank stopped, or freed its end */
    PSM_CAUSE_PEER_FAILED = 3, /* that rank ended the operation, because of an error of its own or of another rank */
    PSM_CAUSE_DEADLINE = 4,    /* that rank did not answer in time */
    PSM_CAUSE_MISMATCH = 5,    /* this rank and that rank disagree */
    PSM_CAUSE_DAMAGED_TAIL =
        6, /* recvTail of that rank has an impossible value. This rank or that one may have damaged it */
    PSM_CAUSE_DAMAGED_HEAD = 7, /* the same of sendHead */
    PSM_CAUSE_WRONG_DATA = 8,   /* bytes of that rank are not those that it sent */
    PSM_CAUSE_PEER_SENT = 9     /* that rank sent or published what breaks the protocol */
};

/* Details of the last failure on the calling thread. Valid until the next call that fails on this thread. */
struct psm_error {
    psm_status status;
    int sys_errno;   /* 0: none */
    int cuda;        /* 0: none */
    int rank, peer;  /* -1: none */
    uint32_t detail; /* cause and rank, by the functions below; 0: none */
    uint64_t op_id;  /* 0: none */
    char stage[24];  /* init, setup, connect, getfd, queryfd, send, recv, free, ... */
    char text[256];  /* what was attempted, what was seen, what to do */
};
PSM_API const struct psm_error *psm_last_error(void);
PSM_API enum psm_cause psm_error_cause(const struct psm_error *error);
PSM_API int psm_error_names(const struct psm_error *error); /* the rank that the cause is about; -1: none */
PSM_API uint32_t psm_error_detail(enum psm_cause cause, int names);
PSM_API const char *psm_cause_name(enum psm_cause cause); /* "peer-died", ...; as logs have it */
/* For handlers and variants outside the library: records why they return a failure. Copies *error and returns its
 * status. Any thread; NULL is PSM_ERR_INVALID. */
PSM_API psm_status psm_set_last_error(const struct psm_error *error);
PSM_API const char *psm_status_name(psm_status status);
PSM_API int psm_version(void); /* major * 1000 + minor */

/* Settings: read from the environment once per state (psm_settings_read), or filled in by the caller. 0 never means
 * "default" here. */
struct psm_settings {
    uint32_t size;
    uint32_t timeout_ms;      /* PSM_TIMEOUT (in seconds there): limit of control-plane waits */
    uint32_t stall_report_ms; /* PSM_STALL_REPORT: data-plane waits that last longer are reported */
    uint32_t steps;           /* PSM_STEPS: slots of a FIFO, 1..64 */
    uint64_t buffer_size;     /* PSM_BUFFER_SIZE: bytes of a FIFO, all slots; a multiple of steps */
    uint32_t share;           /* PSM_SHARE: enum psm_share_kind, 0 auto */
    uint32_t zero_copy;       /* PSM_ZERO_COPY: 0 never, 1 if both ends registered, 2 always (registers on the fly) */
    uint32_t channels;        /* PSM_CHANNELS */
    uint32_t spin_us;         /* PSM_SPIN: how long a blocking call polls before it sleeps */
};
PSM_API psm_status psm_settings_read(struct psm_settings *settings);

#ifdef __cplusplus
}
#endif
#endif
