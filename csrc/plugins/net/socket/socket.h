/* The socket backend: TCP, one or more streams a connection.
 *
 * Messages go in order. Each has a header on stream 0 and its bytes behind it, or, where it is large and there are more
 * streams, an equal share on each of the first ones. With maxRecvs 1 a message is for the next receive, and the sender
 * asks nobody. With more, tags choose: the receiver tells each receive that is posted on a connection of its own (a
 * close with unread bytes resets a connection, and would take messages with it), and the sender sends into those. */
#ifndef PSM_NET_SOCKET_H
#define PSM_NET_SOCKET_H

#include <netinet/in.h>

#include "net_plugin.h"
#include "psm/psm.h"

enum {
    SOCKET_VERSION = 1,
    SOCKET_STREAMS = 16,
    SOCKET_AHEAD = 4096, /* bytes that are read beyond what is asked for: small messages take one call */
    SOCKET_IOV = 16
};
#define SOCKET_HANDLE_MAGIC  0x484e5350u /* "PSNH" */
#define SOCKET_HELLO_MAGIC   0x4c4e5350u
#define SOCKET_MESSAGE_MAGIC 0x4d4e5350u
#define SOCKET_POSTED_MAGIC  0x504e5350u
#define SOCKET_REFUSED_MAGIC 0x524e5350u

union socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct socket_device {
    char name[16];
    char *pci; /* NULL: on no bus */
    union socket_address address;
    int speed;
};
int socket_devices(void);
const struct socket_device *socket_device(int dev);
ncclResult_t socket_find_devices(void);
void socket_forget_devices(void);
void socket_properties(int dev, ncclNetProperties_v12_t *props);
socklen_t socket_length(const union socket_address *address);
/* "10.0.0.2<45001>" */
void socket_text(const union socket_address *address, char text[NET_ADDRESS]);

/* ---- on the wire; all are of one byte order, which the magic tells ---- */

/* What listen gives. pending is the caller's own: which of its connections this is, 0 at first. */
struct socket_handle {
    uint32_t magic;
    uint16_t version;
    uint8_t family; /* 4, 6 */
    uint8_t streams;
    uint16_t port; /* as in a sockaddr */
    uint8_t max_recvs;
    uint8_t unused;
    int32_t rank;
    uint8_t address[16];
    uint8_t secret[NET_SECRET];
    int32_t dev;
    uint32_t zero;
    uint64_t pending;
};
PSM_SHAREABLE(socket_handle, NET_HANDLE); /* NCCL up to 2.11 gives no more */

/* The first bytes on each stream. */
struct socket_hello {
    uint32_t magic;
    uint16_t version, size;
    uint8_t secret[NET_SECRET];
    uint64_t connection;
    uint16_t stream, streams; /* the last one is for notices, where max_recvs is more than 1 */
    int32_t rank, dev;
    uint32_t pid;
    uint32_t max_recvs;
    uint32_t unused[2];
};
PSM_SHAREABLE(socket_hello, 64);

struct socket_message {
    uint32_t magic;
    uint16_t part, shares; /* shares 0: refused by the sender already, no bytes follow */
    uint64_t group;
    uint64_t size;
    int32_t tag;
    uint32_t pad; /* bytes behind a small one, 0 or 1: see move.c */
};
PSM_SHAREABLE(socket_message, 32);

/* A grouped receive is posted. n slots follow. */
struct socket_posted {
    uint32_t magic;
    uint32_t n;
    uint64_t group;
};
PSM_SHAREABLE(socket_posted, 16);
struct socket_slot {
    uint64_t size;
    int32_t tag;
    uint32_t unused;
};
PSM_SHAREABLE(socket_slot, 16);

/* The receiver cannot take a message; on stream 0, against its direction. Then it closes. */
struct socket_refused {
    uint32_t magic;
    int32_t tag;
    uint64_t size, room;
};
PSM_SHAREABLE(socket_refused, 24);

/* ---- a connection ---- */

/* A message that is on its way. Sends: number n is at n % capacity of outgoing[]. Receives: in the order of headers. */
struct socket_moving {
    struct net_request *request;
    struct net_part *part;
    struct socket_message header;
};

struct socket_stream {
    int fd;
    uint64_t at;   /* which of moving[] */
    size_t offset; /* in its share; on a sender's stream 0 the header counts, too */
};

struct socket_known {
    uint64_t group;
    uint32_t n, used;
    struct socket_slot slot[NET_RECVS];
};

struct socket_comm {
    struct net_comm net;
    uint32_t streams;
    struct socket_stream stream[SOCKET_STREAMS];
    int notices; /* -1: none */
    struct socket_moving *moving;
    uint32_t capacity;
    uint64_t begun; /* of moving[] */
    uint32_t full;  /* times that a stream of a sender took nothing */
    /* receiver */
    struct net_request *group[NET_REQUESTS]; /* posted, by number; those whose slots are all taken are passed */
    uint64_t first_open, posted;
    uint32_t ahead_at, ahead_n; /* bytes of stream 0 that are read already */
    uint32_t pads;              /* of those that come next */
    bool ended;                 /* stream 0 */
    char ahead[SOCKET_AHEAD];
    /* notices, as they are written or read */
    struct socket_known known[NET_REQUESTS];
    uint64_t known_first, known_n;
    uint32_t notice_at, notice_n;
    char notice[NET_REQUESTS * (sizeof(struct socket_posted) + NET_RECVS * sizeof(struct socket_slot))];
};

struct socket_listener {
    struct net_listener net;
    int fd;
    int traffic_class;
    uint32_t streams, max_recvs;
    uint8_t secret[NET_SECRET];
    struct socket_arrival *arrivals; /* sockets whose hello is not read yet */
    struct socket_partial *partials; /* connections of which streams are missing */
    uint32_t narrivals, npartials;
};

ncclResult_t socket_listen(const struct net_context *context, int dev, void *handle, struct net_listener **listener);
void socket_close_listen(struct net_listener *listener);
ncclResult_t socket_connect(const struct net_context *context, int dev, void *handle, struct net_comm **comm);
ncclResult_t socket_accept(struct net_listener *listener, struct net_comm **comm);
/* Which connections were begun by connect and are neither made nor given up: closed by fini. */
void socket_forget_pending(void);

/* The rest of what a comm needs, where its streams are connected. NULL: no memory. */
struct socket_comm *socket_comm_new(bool sends, int dev, int max_recvs, uint32_t streams);
void socket_close(struct net_comm *comm);

#endif
