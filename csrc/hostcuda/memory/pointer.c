/* Queries of a pointer. */
#include "copy/hc_copy.h"
#include "memory/hc_memory.h"
#include "stream/hc_stream.h"

#include <stdlib.h>
#include <string.h>

#define NO_DEVICE (-2) /* cudaInvalidDeviceId, CU_DEVICE_INVALID */

/* ---- allocations whose synchronous copies always synchronise. Buffer ids are never reused, so those of freed
 * allocations may stay. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *ids; /* sorted */
static size_t room;
static _Atomic size_t count;

/* Under the lock: the index of an id, or where to insert it. */
static size_t place_of_id(uint64_t id)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_id(uint64_t id)
{
    pthread_mutex_lock(&lock);
    size_t i = place_of_id(id);
    bool has = i < count && ids[i] == id;
    pthread_mutex_unlock(&lock);
    return has;
}

static int set_id(uint64_t id, bool on)
{
    int rc = 0;
    pthread_mutex_lock(&lock);
    size_t i = place_of_id(id), n = count;
    bool has = i < n && ids[i] == id;
    if (on && !has && n == room) {
        uint64_t *more = realloc(ids, (2 * room + 16) * sizeof *more);
        rc = more ? 0 : PSM_CUDA_OUT_OF_MEMORY;
        if (more) ids = more, room = 2 * room + 16;
    }
    if (on && !has && !rc) {
        memmove(ids + i + 1, ids + i, (n - i) * sizeof *ids);
        ids[i] = id;
        count = n + 1;
    } else if (!on && has) {
        memmove(ids + i, ids + i + 1, (n - i - 1) * sizeof *ids);
        count = n - 1;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

bool hc_sync_memops(uintptr_t address)
{
    struct hc_place place;
    return count && hc_place_of(address, &place, NULL) && has_id(place.id);
}

/* The latest synchronous operations that returned before they were done. Setting the attribute waits only for those of
 * the allocation: other work may depend on what the caller does next. */
enum { PENDING = 64 };
static struct {
    struct hc_ticket ticket;
    uintptr_t a, b;
} pending[PENDING];
static size_t next_pending;

void hc_sync_memop_note(const struct hc_ticket *ticket, uintptr_t a, uintptr_t b)
{
    if (hc_ticket_done(ticket)) return;
    pthread_mutex_lock(&lock);
    size_t i = next_pending++ % PENDING;
    struct hc_ticket oldest = pending[i].ticket;
    pending[i].ticket = *ticket, pending[i].a = a, pending[i].b = b;
    pthread_mutex_unlock(&lock);
    if (!hc_ticket_done(&oldest)) hc_ticket_wait(&oldest); /* none is forgotten */
}

static int wait_pending(const struct hc_place *place)
{
    int rc = 0;
    for (size_t i = 0; i < PENDING && !rc; i++) {
        pthread_mutex_lock(&lock);
        struct hc_ticket ticket = pending[i].ticket;
        bool ours = pending[i].a - place->base < place->size || pending[i].b - place->base < place->size;
        pthread_mutex_unlock(&lock);
        if (ours && !hc_ticket_done(&ticket)) rc = hc_ticket_wait(&ticket);
    }
    return rc;
}

/* ---- facts */

struct facts {
    struct hc_place place;
    bool known;                 /* an allocation, mapping, or registered memory */
    uintptr_t range;            /* of all its addresses: the reservation around a mapping */
    size_t range_size;          /* 0: neither an allocation nor a reservation */
    unsigned long long exports; /* handle types it may be exported as */
    uint64_t block;             /* id of the physical memory */
    void *pool;
};

struct pool_search {
    const struct hc_pool *pool;
    uint64_t handle;
};

static void find_pool(uint64_t handle, void *object, void *context)
{
    struct pool_search *search = context;
    if (object == search->pool) search->handle = handle;
}

static void look(uintptr_t address, struct facts *f)
{
    memset(f, 0, sizeof *f);
    f->known = hc_place_of(address, &f->place, NULL);
    f->range = f->place.base;
    f->range_size = f->known ? f->place.size : 0;
    f->block = f->place.id;
    const struct hc_pool *pool = NULL;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    const struct hc_range *range = hc_range_at(address);
    const struct hc_range *around = range && range->reserved ? range->reserved : range;
    if (range && (range->memory || range->state == HC_RANGE_RESERVED)) {
        f->range = around->base;
        f->range_size = around->size;
    }
    if (range && f->known) {
        struct hc_trailer t;
        if (range->memory) {
            f->block = range->memfd_id;
            if (hc_memfd_check(range->memfd, HC_MEMFD_VMM, &t) == 0) f->exports = t.handle_types;
        }
        pool = range->pool;
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    struct pool_search search = {pool, 0};
    if (pool) hc_handle_each(HC_POOL, find_pool, &search);
    f->pool = (void *)(uintptr_t)search.handle;
}

/* What a device may do with the memory: 0, 1 (read) or 3. Copies may do more than kernels. */
static unsigned access_of(const struct facts *f, uintptr_t address, int device)
{
    if (f->place.origin == HC_FROM_VMM) {
        if (hc_span_check(address, 1, device, false)) return 0;
        return hc_span_check(address, 1, device, true) ? 1 : 3;
    }
    if (f->place.space == HC_DEVICE && f->place.device != device && !hc_peer_enabled(device, f->place.device)) return 0;
    return hc_span_check(address, 1, device, true) ? 1 : 3;
}

cudaError_t hc_cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    struct facts f;
    uintptr_t address = (uintptr_t)ptr;
    if (!attributes) return PSM_CUDA_INVALID_VALUE;
    look(address, &f);
    struct cudaPointerAttributes a = {cudaMemoryTypeUnregistered, NO_DEVICE, NULL, (void *)ptr, -1, {0}};
    if (f.known) {
        a.type = f.place.space == HC_DEVICE    ? cudaMemoryTypeDevice
                 : f.place.space == HC_MANAGED ? cudaMemoryTypeManaged
                                               : cudaMemoryTypeHost;
        a.device = f.place.device;
        if (access_of(&f, address, hc_current_device()))
            a.devicePointer = (void *)(f.place.device_address + (address - f.place.base));
        if (f.place.space == HC_DEVICE) a.hostPointer = NULL;
    }
    const struct hc_call *call = hc_current_call();
    if (call && call->api == HC_API_CUDART12) /* its struct ends here */
        memcpy(attributes, &a, offsetof(struct cudaPointerAttributes, localityDomainOrdinal));
    else
        *attributes = a;
    return 0;
}

/* ---- the driver's attributes */

union value {
    uint32_t number;
    uint64_t wide;
    void *pointer;
};

/* Bytes of an attribute's value; 0: there is no such attribute. */
static size_t size_of(CUpointer_attribute attribute)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return sizeof(uint64_t);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
        return sizeof(uint32_t);
    default:
        return 0;
    }
}

/* What is known of a reservation without memory, too. False: the attribute is another one. */
static bool value_of_range(const struct facts *f, CUpointer_attribute attribute, union value *value)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        value->wide = f->range;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        value->wide = f->range_size;
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        value->number = f->known;
        return true;
    default:
        return false;
    }
}

/* Errors: the results of cuPointerGetAttribute. */
static int value_of(const struct facts *f, uintptr_t address, CUpointer_attribute attribute, union value *value)
{
    const struct hc_place *place = &f->place;
    bool host = place->space == HC_PINNED;
    if (!f->known && !f->range_size) return PSM_CUDA_INVALID_VALUE;
    if (value_of_range(f, attribute, value)) return 0;
    if (!f->known) return PSM_CUDA_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* mappings and pools belong to no context */
        value->pointer =
            place->origin == HC_FROM_VMM || place->origin == HC_FROM_POOL ? NULL : hc_primary_context(place->device);
        return 0;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        value->number = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!access_of(f, address, hc_current_device())) return PSM_CUDA_INVALID_VALUE;
        value->wide = place->device_address + (address - place->base);
        return 0;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (place->space == HC_DEVICE) return PSM_CUDA_INVALID_VALUE;
        value->wide = address;
        return 0;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        value->number = count && has_id(place->id);
        return 0;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        value->wide = place->id;
        return 0;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        value->number = place->space == HC_MANAGED;
        return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        value->number = (uint32_t)place->device;
        return 0;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        value->number = place->origin == HC_FROM_MALLOC && place->space == HC_DEVICE;
        return 0;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        value->wide = f->exports;
        return 0;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        value->number = 0;
        return 0;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        value->number = access_of(f, address, hc_current_device());
        return 0;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        value->pointer = f->pool;
        return 0;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        value->wide = place->size;
        return 0;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        value->wide = place->base;
        return 0;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        value->wide = f->block;
        return 0;
    case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
        value->number = (uint32_t)-1;
        return 0;
    default:
        return PSM_CUDA_INVALID_VALUE;
    }
}

CUresult hc_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct facts f;
    union value value;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return PSM_CUDA_NOT_SUPPORTED; /* no nv-p2p here */
    if (!data || !size_of(attribute)) return PSM_CUDA_INVALID_VALUE;
    look(ptr, &f);
    int rc = value_of(&f, ptr, attribute, &value);
    if (!rc) memcpy(data, &value, size_of(attribute));
    return rc;
}

CUresult hc_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                   CUdeviceptr ptr)
{
    struct facts f;
    if (!numAttributes || !attributes || !data) return PSM_CUDA_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; i++)
        if (!data[i] || !size_of(attributes[i])) return PSM_CUDA_INVALID_VALUE;
    look(ptr, &f);
    for (unsigned i = 0; i < numAttributes; i++) { /* an attribute without a value is 0 here, not an error */
        union value value = {.wide = 0};
        int rc = value_of(&f, ptr, attributes[i], &value);
        if (rc) value.wide = 0;
        if (rc && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) value.number = (uint32_t)NO_DEVICE;
        if (rc && attributes[i] == CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL) value.number = (uint32_t)-1;
        memcpy(data[i], &value, size_of(attributes[i]));
    }
    return 0;
}

CUresult hc_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    struct hc_place place;
    uint32_t on;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !hc_place_of(ptr, &place, NULL) ||
        place.space != HC_DEVICE)
        return PSM_CUDA_INVALID_VALUE;
    memcpy(&on, value, sizeof on);
    int rc = set_id(place.id, on != 0);
    return rc || !on ? rc : wait_pending(&place);
}
