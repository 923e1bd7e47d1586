/* Internals of memory. Four layers: memfds with a trailer (trailer.c), ranges of addresses (range.c), allocations in
 * ranges (malloc.c, slab.c), and the APIs over them (malloc.c, host.c, managed.c, vmm.c, ipc.c, pool.c). */
#ifndef HC_MEMORY_H
#define HC_MEMORY_H

#include "device/hc_device.h"

#define HC_PAGE    4096u
#define HC_GRANULE (2u << 20) /* granularity of addresses; VMM allocations are multiples of it */

static inline uint64_t hc_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- memfds (trailer.c) */

enum hc_memfd_kind {
    HC_MEMFD_ALLOCATION = 1, /* of cudaMalloc and pools: what IPC handles refer to */
    HC_MEMFD_VMM,            /* of cuMemCreate */
    HC_MEMFD_POOL,           /* represents a memory pool: has no data */
    HC_MEMFD_SHARED_PAGE,    /* of an interprocess event */
    HC_MEMFD_PRIVATE,        /* host and managed memory: never shared */
};

/* The page after the data of every memfd. Importers trust nothing else, and this only after hc_memfd_check. */
struct hc_trailer {
    char magic[8];
    uint32_t version, bytes; /* of this layout */
    uint64_t size;           /* of the data; a multiple of HC_PAGE */
    uint64_t id;             /* unique on this machine */
    uint64_t start_time;     /* of the owner, field 22 of /proc/PID/stat */
    int32_t pid;
    int32_t node; /* pretended node: memory is not shared between nodes */
    uint32_t kind;
    uint32_t handle_types; /* requestedHandleTypes, handleTypes of a pool */
    uint32_t location_type;
    int32_t location_id;
    unsigned char device[16]; /* UUID of the GPU; another process may number it differently */
    uint32_t rdma_capable, usage;
};

/* Creates a sealed memfd of t->size bytes of data plus the trailer; fills in the owner and the id. Returns the
 * descriptor, or -1 with errno. `device` -1: host memory. */
int hc_memfd_new(struct hc_trailer *t, int device);
/* Whether fd is such a memfd. 0, or: INVALID_VALUE (not one, or damaged), INVALID_DEVICE (of another node). `t` is a
 * copy, so that the owner cannot change it later; reasons are logged. */
int hc_memfd_check(int fd, enum hc_memfd_kind kind, struct hc_trailer *t);
/* Once, before the first memfd: raises the limit of descriptors. */
void hc_descriptors_start(void);
int hc_descriptor_dup(int fd);                       /* for descriptors that hostcuda keeps; -1 with errno */
int hc_device_of_uuid(const unsigned char uuid[16]); /* -1: not visible here */
uint64_t hc_start_time(int pid);                     /* 0: no such process, or a zombie */
uint64_t hc_buffer_id(void);                         /* the next id of an allocation in this process */

/* Log lines for refusals of memory code, in NCCL's format (memory_say.c). */
void hc_say_import(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hc_say_ipc(int pid, const char *reason);
void hc_say_no_memory(uint64_t bytes, int error);
void hc_say_no_descriptor(int error); /* for the current call */
void hc_say_no_peer(int device, int owner);

/* ---- handles for other processes (ipc_name.c)
 *
 * 64 bytes that name a memfd of a living process, and a part of it. */
struct hc_ipc_name {
    uint32_t magic;
    uint16_t kind; /* enum hc_memfd_kind */
    uint16_t spare;
    int32_t pid, fd;
    uint64_t start_time, inode;
    uint64_t offset, size;
    uint64_t id;    /* of the trailer */
    uint64_t extra; /* of the kind: buffer id, flags */
};
_Static_assert(sizeof(struct hc_ipc_name) == CU_IPC_HANDLE_SIZE, "fits a CUDA IPC handle");

/* Logs why it is refused; returns `code`. */
int hc_ipc_refuse(const struct hc_ipc_name *name, int code, const char *why);
int hc_ipc_name_of(int memfd, uint64_t offset, uint64_t size, uint64_t extra, struct hc_ipc_name *name);
/* Opens what a name refers to: a new descriptor in *fd and its checked trailer. Errors: INVALID_CONTEXT (of this very
 * process), INVALID_HANDLE (not a name, or its owner is gone, or has closed it), INVALID_DEVICE (another node),
 * MAP_FAILED (no permission). */
int hc_ipc_open(const struct hc_ipc_name *name, enum hc_memfd_kind kind, int *fd, struct hc_trailer *t);

/* A zeroed page that several processes share, for interprocess events. Its handle names the memfd
 * (hc_ipc_name_of(memfd, 0, HC_PAGE, extra, ..)); it stays open until hc_shared_page_end. */
struct hc_shared_page {
    void *page;
    int memfd;
};
int hc_shared_page_new(int device, struct hc_shared_page *shared);
int hc_shared_page_open(const struct hc_ipc_name *name, struct hc_shared_page *shared, struct hc_trailer *t);
void hc_shared_page_end(struct hc_shared_page *shared);
/* ipc.c: a range, not yet published, over the part of fd that a checked name refers to. */
struct hc_range;
int hc_map_named(const struct hc_ipc_name *name, int fd, int device, struct hc_range **range);

/* ---- ranges (range.c)
 *
 * A range is a run of granules of the reserved region, or registered host memory. All fields except `holds` change only
 * under the write lock. */
struct hc_slab;
struct hc_pool;
struct hc_memory;

enum hc_range_state {
    HC_RANGE_NEW,      /* addresses are taken, but not visible yet */
    HC_RANGE_LIVE,     /* an allocation or a mapping */
    HC_RANGE_RESERVED, /* cuMemAddressReserve, nothing mapped */
    HC_RANGE_DEAD,     /* freed; the addresses return when the last hold is dropped */
};

struct hc_range {
    struct hc_range *next, **link; /* of all ranges */
    uintptr_t base;                /* of the allocation, and its requested size */
    size_t size;
    uintptr_t start; /* of the granules */
    size_t span;
    unsigned char *alias; /* where workers access `base` */
    void *map;            /* to unmap at the end, NULL: nothing */
    size_t map_size;
    enum hc_range_state state;
    enum hc_space space;
    enum hc_origin origin;
    int device;
    unsigned flags;
    int memfd; /* -1 if nobody can request it; closed at the end unless it belongs to a VMM allocation */
    uint64_t offset;
    uint64_t id;
    uint64_t memfd_id;                          /* of the trailer */
    uint64_t accounted;                         /* returned to hc_device_account at the end */
    atomic_uint holds;                          /* one of the owner, one of each pin */
    struct hc_slab *slab;                       /* it contains allocations */
    struct hc_pool *pool;                       /* origin HC_FROM_POOL */
    struct hc_range *kept;                      /* link in the list of kept ranges of the pool */
    bool freeing;                               /* cudaFreeAsync was called */
    struct hc_memory *memory;                   /* VMM mapping */
    void (*unmapped)(struct hc_range *mapping); /* VMM mapping: its last hold was dropped */
    struct hc_range *reserved;                  /* VMM mapping: the reservation around it */
    uint64_t readable, writable;                /* VMM mapping: by which devices */
    unsigned host_access;                       /* VMM mapping: cudaMemAccessFlags of a host location */
    unsigned host_protection;                   /* VMM mapping: host protection of the device address (PROT_*) */
    unsigned opens;                             /* IPC mapping: number of opens */
    uint64_t ipc_inode, ipc_offset;
    struct hc_advice *advice; /* managed.c */
};

extern pthread_rwlock_t hc_ranges_lock;
/* Takes addresses: a zeroed range with start and span set, state NEW, in no list. NULL: none left. `at` 0: anywhere. */
struct hc_range *hc_range_new(size_t bytes, size_t alignment, uintptr_t at);
void hc_range_publish(struct hc_range *range);
/* Under the lock: the live or reserved range around an address, or NULL. */
struct hc_range *hc_range_at(uintptr_t address);
/* Takes the lock once for everything that a copy needs to know about an operand: where it is, and whether a copy of a
 * device that starts there may access the whole span. INVALID_VALUE if it may not, or if the memory was freed. Does not
 * look at pageable memory. */
int hc_operand_of(uintptr_t address, size_t span, int device, bool write, struct hc_place *place);
/* Both operands of a copy at once. The second one is not looked at if the first one is wrong. */
int hc_operands_of(uintptr_t dst, size_t to, uintptr_t src, size_t from, int device, struct hc_place places[2]);
/* Copies n bytes between memory of ours, under the lock, so that nothing has to be held; for few bytes. False: it has
 * done nothing, because an operand is pageable or managed memory, not one piece, or not accessible. */
bool hc_ranges_copy(uintptr_t dst, int dst_device, uintptr_t src, int src_device, size_t n);
bool hc_in_region(uintptr_t address);
/* Hides it from lookups. Under the write lock; the caller drops its hold afterwards, without the lock. */
void hc_range_retire(struct hc_range *range);
void hc_range_release(struct hc_range *range); /* a hold */
/* Maps into the region, for the host. False: out of mappings. */
bool hc_region_map(uintptr_t at, size_t size, int protection, int memfd, uint64_t offset);
void hc_region_clear(uintptr_t at, size_t size);
/* VMM: puts a mapping (start, span) over granules of a reservation, and removes it. Under the write lock. */
void hc_range_overlay(struct hc_range *mapping);
void hc_range_overlay_end(struct hc_range *mapping);
bool hc_range_is(const struct hc_range *range, uintptr_t start, size_t span); /* all its granules, none overlaid */
/* Calls back for each live range, including registered memory. Under the lock. */
void hc_ranges_each(void (*visit)(struct hc_range *range, void *context), void *context);
/* Registered host memory. Under the write lock; false: overlaps. */
bool hc_registered_add(struct hc_range *range);
struct hc_range *hc_registered_at(uintptr_t address); /* under the lock */
void hc_registered_remove(struct hc_range *range);
bool hc_registered_overlaps(uintptr_t address, size_t size);

/* ---- allocations (malloc.c, slab.c) */

enum { HC_UNIT = 512, HC_SMALL = 1 << 20 }; /* up to HC_SMALL: several allocations share a slab of one granule */

struct hc_block {
    uint32_t offset, units; /* offset in HC_UNIT */
    uint32_t size;
    bool freeing; /* cudaFreeAsync was called */
    uint64_t id;
};
struct hc_slab {
    struct hc_range *range;
    struct hc_slab *next, **link;
    struct hc_block *blocks; /* by offset */
    uint32_t count, room;
    uint32_t free_units, cursor; /* the search continues after the last one, so that freed addresses are reused late */
};

struct hc_request {
    enum hc_space space;
    enum hc_origin origin;
    int device;
    unsigned flags;
    size_t size;
    struct hc_pool *pool;
};
/* 0, or OUT_OF_MEMORY. */
int hc_allocate(const struct hc_request *request, uintptr_t *address);
/* What an application may free at an address. False: nothing starts there. */
struct hc_allocation {
    enum hc_space space;
    enum hc_origin origin;
    int device;
    unsigned flags;
    size_t size;
    bool freeing;
    struct hc_pool *pool;
};
bool hc_allocation_at(uintptr_t address, struct hc_allocation *allocation);
/* Frees what starts at the address if `allowed` (may be NULL) returns true; only one caller gets true. */
bool hc_allocation_free(uintptr_t address, bool (*allowed)(const struct hc_allocation *));
/* Marks it as being freed in stream order, or not; false: nothing there, not allowed, or already marked. */
bool hc_allocation_mark(uintptr_t address, bool (*allowed)(const struct hc_allocation *), bool freeing);

/* A range of its own with its memfd. 0, or OUT_OF_MEMORY. */
int hc_range_allocate(const struct hc_request *request, uint64_t bytes, struct hc_range **range);
/* slab.c: under the write lock. */
bool hc_slab_take(const struct hc_request *request, uintptr_t *address);
bool hc_slab_start(struct hc_range *range);
struct hc_block *hc_slab_block(struct hc_slab *slab, uintptr_t address); /* the slab around an address, or NULL */
bool hc_slab_free(struct hc_slab *slab, struct hc_block *block);         /* true: it is empty now, and unlinked */
void hc_slab_unlink(struct hc_slab *slab);

/* pool.c, for allocations of pools: the counts behind the attributes; hc_pool_freed may end the pool. */
void hc_pool_freed(struct hc_pool *pool, size_t size);
void hc_pool_reserved(struct hc_pool *pool, int64_t bytes);
bool hc_pool_room(const struct hc_pool *pool, uint64_t bytes);
/* Under the write lock: whether the pool keeps an empty range, which then belongs to no slab and is hidden. */
bool hc_pool_keep(struct hc_pool *pool, struct hc_range *range);
struct hc_range *hc_pool_reuse(struct hc_pool *pool, size_t span); /* a kept one, or NULL */

#endif
