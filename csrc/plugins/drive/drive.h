/* Drives a net plugin as NCCL does: one rank of `psmkit plugin drive`. psmkit/plugins/drive.py starts the ranks and
 * interprets their reports; psmkit/plugins/drive_checks.py has a text for each check. */
#ifndef PSM_NET_DRIVE_H
#define PSM_NET_DRIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psm_abi/net.h"

enum {
    MAX_RANKS = 64,
    MAX_PIECES = 32, /* of one irecv */
    GUARD = 64,      /* guard bytes on both sides of each buffer */
    SLOT_BYTES = 256 /* of a rank in the shared file */
};

/* The state of each rank, in a file that all ranks map: psmkit reads it after a rank has died. */
struct slot {
    _Alignas(SLOT_BYTES) _Atomic uint64_t
        turn; /* odd: inside a call of the plugin; TURN_EXPIRED: that call did not return */
    _Atomic uint32_t failed;
    int32_t pid;
    char check[40];
    char call[24];
};
#define TURN_EXPIRED UINT64_MAX

struct driver {
    int rank, ranks, version;
    uint64_t timeout_ns;
    struct slot *slots; /* of all ranks */
    const char *path, *cuda;
    void *library, *table, *context[2];
    ncclNetProperties_v12_t
        props; /* properties of device 0; members that the version lacks are filled in as by NCCL's adapters */
    int devices;
    bool finalized;
    bool over_limit;             /* post more than NCCL has in flight, if the plugin takes it */
    bool any_order;              /* test requests in any order, not as NCCL does */
    bool check_sizes;            /* test must report the bytes of each receive */
    int threads;                 /* before the library was loaded */
    int max_requests, max_recvs; /* max_recvs: the plugin's value, limited to 1..MAX_PIECES */
};
extern struct driver d;

/* ---- reports: each ends the process, except passed ---- */

#define SAY __attribute__((format(printf, 2, 3)))
/* kind: contract, data, late, blocked, leak, truncated. The report names the last call of the plugin. */
_Noreturn void failed(const char *kind, const char *format, ...) SAY;
/* Another rank failed or died, so this one cannot continue. */
_Noreturn void left(void);
void skipped(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *result_name(ncclResult_t result);
void ok(ncclResult_t result, const char *call); /* a failed check if the result is an error */

/* Waits for all ranks. Use it only if no rank needs calls of another rank's plugin to continue. */
void meet(void);
/* For loops: whether the deadline has passed since the last progress. Yields. */
struct patience {
    uint64_t last;
    unsigned turns;
};
struct patience patience(void);
bool too_long(struct patience *p);

/* ---- the table: any version, with the interface of the newest. Each call is watched ---- */

void watch_start(void);
bool table_find(void);
const char *table_name(void);
bool table_has_init(void);
const char *table_empty(bool cuda, bool dmabuf); /* the first required slot that is NULL, or NULL */
ncclResult_t t_init(int which, uint64_t comm_id);
ncclResult_t t_finalize(int which);
ncclResult_t t_devices(int *n);
/* untouched: the first member that the plugin did not write, or NULL. */
ncclResult_t t_properties(int dev, ncclNetProperties_v12_t *out, const char **untouched);
ncclResult_t t_listen(int which, int dev, void *handle, void **comm);
ncclResult_t t_connect(int which, int dev, void *handle, void **comm);
ncclResult_t t_accept(void *listener, void **comm);
ncclResult_t t_reg(void *comm, void *data, size_t size, int type, void **mhandle);
ncclResult_t t_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
ncclResult_t t_dereg(void *comm, void *mhandle);
ncclResult_t t_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request);
ncclResult_t t_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request);
ncclResult_t t_iflush(void *comm, void *data, int size, void *mhandle, void **request);
ncclResult_t t_test(void *request, int *done, int *sizes);
ncclResult_t t_close_send(void *comm);
ncclResult_t t_close_recv(void *comm);
ncclResult_t t_close_listen(void *comm);
bool t_has_consumed(void), t_has_device_memory(void), t_has_make_device(void);
ncclResult_t t_consumed(void *comm, int n, void *request);
ncclResult_t t_make_device(int *dev, const ncclNetVDeviceProps_v12_t *props);
bool t_has_net_attr(void);
ncclResult_t t_set_net_attr(void);
/* Where the plugin's profiler callbacks go, and the phandles of isend and irecv, if set. */
extern ncclProfilerCallback_t event_hook;
extern void *event_parents[MAX_PIECES];
/* For calls of other tables: the code in between is watched as a call of that name. */
void watch_begin(const char *call);
ncclResult_t watch_end(ncclResult_t result);
void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* ---- memory and messages ---- */

/* Memory whose parts are handed out, each between two guards; registered as a whole unless mhandle is replaced. */
struct arena {
    uint8_t *base;
    size_t size, used;
    void *comm, *mhandle;
};
struct arena arena_of(void *comm, size_t size);
void arena_free(struct arena *a);
void arena_reset(struct arena *a);

#define UNREPORTED SIZE_MAX
struct piece {
    uint8_t *data;
    size_t size;  /* to send, or posted */
    size_t got;   /* as test reports it */
    uint64_t sum; /* of all bytes when test reported it as done, if watched */
    bool watched;
    int tag;
    void *mhandle;
};

struct op {
    bool recv, posted, done;
    int n, refused;   /* refused: number of NULL requests */
    struct op *later; /* posted next on the same comm */
    void *comm, *request;
    void *hint; /* *request on entry */
    struct piece piece[MAX_PIECES];
};

void fill(uint8_t *data, size_t n, uint64_t seed);
/* Ends the process if a byte differs, or if one beyond the posted size was written. */
void compare(const struct piece *p, size_t meant, uint64_t seed, const char *what);

struct op *ops_of(size_t n);
void send_into(struct op *op, void *comm, struct arena *a, size_t size, int tag, uint64_t seed);
void recv_into(struct op *op, void *comm, struct arena *a, size_t size, int tag); /* one piece more */
/* One attempt. Checks the request: NULL is not a request, and one in use must not be returned again. */
bool post(struct op *op);
/* As NCCL, tests only the oldest request of a connection, unless channels share it; false for others. */
bool poll_op(struct op *op);
ncclResult_t try_post(struct op *op);
ncclResult_t try_poll(struct op *op);
/* Posts in order and polls until all are done. */
void finish(struct op *ops, size_t n);
void forget_requests(void);

/* ---- connections ---- */

/* Each rank sends to the next and receives from the previous one. */
struct lane {
    void *listener, *send, *recv;
    struct arena out, in;
    int to, from;
};
struct lane lane_open(int dev, size_t room);
struct lane lane_open_in(int which, int dev, size_t room);
void lane_close(struct lane *l);
void *listen_on(int which, int dev, void *handle);
void exchange_handles(const char *name, int to, int from, const void *mine, void *theirs);
/* NULL: not needed. */
void connect_both(int which, int dev, void *handle, void **send, void *listener, void **recv);
void loopback(void **listener, void **send, void **recv);
/* Counts the entries of a folder of /proc. */
int entries(const char *folder);
uint64_t seed_of(int from, int to, uint64_t number);

/* ---- the checks ---- */

struct check {
    const char *name;
    void (*run)(void);
    int since; /* the first version that it applies to */
};
extern const struct check setup_checks[], data_checks[], device_checks[], coll_checks[], more_checks[];

#endif
