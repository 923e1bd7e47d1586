/* Stream memory operations: writes of a value, and waits until memory has a value. A wait is blocking work: it polls
 * the memory less and less often, because the writer may be another process, or a device emulated by one of its
 * threads. */
#define _GNU_SOURCE
#include "base.h"
#include "device/hc_device.h"
#include "stream/hc_stream.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FEW = 4, MOST = 255, SPINS = 64, YIELDS = 64, LONGEST_NS = 200000, NODE_BATCH = 12 };
typedef CUstreamBatchMemOpParams operation;

/* A small batch is stored in the work's argument, others on the heap. */
struct batch {
    unsigned count;
    operation *heap;
    operation few[FEW];
};
_Static_assert(sizeof(struct batch) <= HC_ARGUMENT, "fits an argument");

/* CUDA_BATCH_MEM_OP_NODE_PARAMS. */
struct node_parameters {
    CUcontext context;
    unsigned count;
    const operation *operations;
    unsigned flags;
};

static bool is_wait(const operation *op)
{
    return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

/* Bytes that an operation accesses, 0: none; -1: no such operation. */
static int width_of(const operation *op)
{
    switch (op->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return 4;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return 8;
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION:
        return op->atomicReduction.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32   ? 4
               : op->atomicReduction.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64 ? 8
                                                                                        : -1;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER:
        return 0;
    default:
        return -1;
    }
}

static uintptr_t address_of(const operation *op)
{
    if (op->operation == CU_STREAM_MEM_OP_ATOMIC_REDUCTION) return (uintptr_t)op->atomicReduction.address;
    return (uintptr_t)op->waitValue.address; /* in the same place for writes */
}

/* ---- at work ---- */

static bool satisfied(const operation *op, const void *memory)
{
    bool narrow = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
    uint64_t mask = narrow ? UINT32_MAX : UINT64_MAX;
    uint64_t seen = narrow ? __atomic_load_n((const uint32_t *)memory, __ATOMIC_ACQUIRE)
                           : __atomic_load_n((const uint64_t *)memory, __ATOMIC_ACQUIRE);
    uint64_t value = narrow ? op->waitValue.value : op->waitValue.value64;
    switch (op->waitValue.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* the sign of the difference, in the width of the operation */
        return narrow ? (int32_t)(seen - value) >= 0 : (int64_t)(seen - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return seen == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (seen & value) != 0;
    default:
        return (~(seen | value) & mask) != 0;
    }
}

/* A batch that runs: what it has said of its waits, and since when one of them has not been satisfied (0: none yet). */
struct waits {
    const operation *operations;
    unsigned count;
    int device;
    uint64_t since;
    uint32_t told[MOST]; /* of hc_say_value_wait; 0: nothing */
};

static void say_state(struct waits *waits, unsigned index, const void *memory, const struct hc_stream *stream)
{
    const operation *op = &waits->operations[index];
    bool narrow = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32, came = satisfied(op, memory);
    if (came != (waits->told[index] != 0)) return;
    struct hc_place place;
    hc_place_of(address_of(op), &place, NULL);
    struct hc_value_wait said = {
        .address = address_of(op),
        .offset = address_of(op) - place.base,
        .wanted = narrow ? op->waitValue.value : op->waitValue.value64,
        .seen = narrow ? __atomic_load_n((const uint32_t *)memory, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((const uint64_t *)memory, __ATOMIC_ACQUIRE),
        .seconds = (psm_clock_ns() - waits->since) / 1000000000u,
        .condition = op->waitValue.flags & 3,
        .bits = narrow ? 32 : 64,
    };
    if (came) {
        hc_say_value_came(stream, &said, waits->told[index]);
        waits->told[index] = 0;
    } else {
        waits->told[index] = hc_say_value_wait(stream, &said);
    }
}

/* Says which values the batch still needs, and which of those that it named have come: the waits one after the other
 * may be for different processes, and the first one hides the others. What the batch itself writes comes later. */
static void say_waits(struct waits *waits, unsigned index, const struct hc_stream *stream)
{
    for (; index < waits->count && is_wait(&waits->operations[index]); index++) {
        const operation *op = &waits->operations[index];
        struct hc_piece piece;
        if (hc_piece_of(address_of(op), (size_t)width_of(op), waits->device, false, &piece)) continue;
        say_state(waits, index, piece.host, stream);
        hc_piece_end(&piece);
    }
}

static void wait_for(struct waits *waits, unsigned index, const void *memory)
{
    const operation *op = &waits->operations[index];
    const struct hc_stream *stream = hc_current_stream();
    struct timespec pause = {0, 1000};
    uint64_t patience = stream ? hc_stall_patience() : 0, next = 0;
    for (unsigned round = 0; !satisfied(op, memory); round++) {
        if (stream && hc_stream_stopped(stream)) return;
        if (round < SPINS) {
            __builtin_ia32_pause();
        } else if (round < SPINS + YIELDS) {
            sched_yield();
        } else {
            nanosleep(&pause, NULL);
            if (pause.tv_nsec < LONGEST_NS) pause.tv_nsec *= 2;
            uint64_t now = patience ? psm_clock_ns() : 0;
            if (!waits->since) waits->since = now;
            if (!next) next = now + patience;
            if (now < next || !patience) continue;
            say_waits(waits, index, stream);
            next = now + patience;
        }
    }
    if (waits->told[index]) say_state(waits, index, memory, stream);
}

static void reduce(const operation *op, void *memory, int width)
{
    uint64_t value = op->atomicReduction.value;
    switch (op->atomicReduction.reductionOp) {
    case CU_ATOMIC_OPERATION_INTEGER_ADD:
        if (width == 4)
            __atomic_fetch_add((uint32_t *)memory, (uint32_t)value, __ATOMIC_ACQ_REL);
        else
            __atomic_fetch_add((uint64_t *)memory, value, __ATOMIC_ACQ_REL);
        break;
    case CU_ATOMIC_OPERATION_AND:
        if (width == 4)
            __atomic_fetch_and((uint32_t *)memory, (uint32_t)value, __ATOMIC_ACQ_REL);
        else
            __atomic_fetch_and((uint64_t *)memory, value, __ATOMIC_ACQ_REL);
        break;
    default:
        if (width == 4)
            __atomic_fetch_or((uint32_t *)memory, (uint32_t)value, __ATOMIC_ACQ_REL);
        else
            __atomic_fetch_or((uint64_t *)memory, value, __ATOMIC_ACQ_REL);
        break;
    }
}

static int run_one(struct waits *waits, unsigned index)
{
    const operation *op = &waits->operations[index];
    int width = width_of(op), device = waits->device;
    if (width == 0) { /* memory here is coherent: a flush or a barrier is only a fence */
        __sync_synchronize();
        return 0;
    }
    struct hc_piece piece;
    /* The memory was valid at the call: any error now is the access of a GPU that faults. */
    if (hc_piece_of(address_of(op), (size_t)width, device, !is_wait(op), &piece)) return PSM_CUDA_ILLEGAL_ADDRESS;
    if (is_wait(op))
        wait_for(waits, index, piece.host);
    else if (op->operation == CU_STREAM_MEM_OP_ATOMIC_REDUCTION)
        reduce(op, piece.host, width);
    else if (width == 4)
        __atomic_store_n((uint32_t *)piece.host, op->writeValue.value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)piece.host, op->writeValue.value64, __ATOMIC_RELEASE);
    hc_piece_end(&piece);
    return 0;
}

static int run_batch(void *argument, int device)
{
    const struct batch *batch = argument;
    struct waits waits = {
        .operations = batch->heap ? batch->heap : batch->few, .count = batch->count, .device = device};
    const struct hc_stream *stream = hc_current_stream();
    for (unsigned i = 0; i < batch->count; i++) {
        if (stream && hc_stream_stopped(stream)) return 0; /* a wait was given up: work after it must not run */
        int rc = run_one(&waits, i);
        if (rc) return rc;
    }
    return 0;
}

static void end_batch(void *argument)
{
    free(((struct batch *)argument)->heap);
}

bool hc_batch_address(const struct hc_item *item, unsigned index, uintptr_t *address)
{
    const struct batch *batch = (const void *)item->argument;
    if (item->run != run_batch || index >= batch->count) return false;
    const operation *op = &(batch->heap ? batch->heap : batch->few)[index];
    *address = width_of(op) > 0 ? address_of(op) : 0;
    return true;
}

/* ---- at the call ---- */

static int check(const operation *op, int device)
{
    int width = width_of(op);
    if (width < 0) return PSM_CUDA_INVALID_VALUE;
    unsigned flush = 0;
    if (is_wait(op)) {
        if (op->waitValue.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) return PSM_CUDA_INVALID_VALUE;
        flush = op->waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH;
    } else if (op->operation == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES) {
        if (op->flushRemoteWrites.flags) return PSM_CUDA_INVALID_VALUE;
        flush = 1;
    } else if (op->operation == CU_STREAM_MEM_OP_BARRIER) {
        if (op->memoryBarrier.flags > 1) return PSM_CUDA_INVALID_VALUE;
    } else if (op->operation == CU_STREAM_MEM_OP_ATOMIC_REDUCTION) {
        int what = op->atomicReduction.reductionOp;
        if (op->atomicReduction.flags || (what != CU_ATOMIC_OPERATION_INTEGER_ADD && what != CU_ATOMIC_OPERATION_AND &&
                                          what != CU_ATOMIC_OPERATION_OR))
            return PSM_CUDA_INVALID_VALUE;
    } else if (op->writeValue.flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
        return PSM_CUDA_INVALID_VALUE;
    }
    if (flush && !hc_attribute(device, cudaDevAttrCanFlushRemoteWrites)) return PSM_CUDA_NOT_SUPPORTED;
    if (width == 0) return 0;
    uintptr_t address = address_of(op);
    struct hc_place place;
    if (address % (unsigned)width) return PSM_CUDA_INVALID_VALUE;
    if (!hc_place_of(address, &place, NULL) || place.space == HC_MANAGED) return PSM_CUDA_INVALID_VALUE;
    return hc_span_check(address, (size_t)width, device, !is_wait(op)) ? PSM_CUDA_INVALID_VALUE : 0;
}

/* Checks a batch and makes work of it; `argument` has room for HC_ARGUMENT bytes. `heap`: the operations are on the
 * heap (work->end frees them), so that the work may outlive the argument. */
static int batch_work(const CUstreamBatchMemOpParams *operations, unsigned count, int device, bool heap,
                      struct hc_work *work, void *argument)
{
    if (!operations || !count || count > MOST) return PSM_CUDA_INVALID_VALUE;
    bool waits = false;
    for (unsigned i = 0; i < count; i++) {
        int rc = check(&operations[i], device);
        if (rc) return rc;
        waits |= is_wait(&operations[i]);
    }
    struct batch *batch = argument;
    *batch = (struct batch){.count = count};
    if (heap || count > FEW) {
        batch->heap = malloc(count * sizeof *operations);
        if (!batch->heap) return PSM_CUDA_OUT_OF_MEMORY;
    }
    memcpy(batch->heap ? batch->heap : batch->few, operations, count * sizeof *operations);
    *work = (struct hc_work){.run = run_batch,
                             .end = batch->heap ? end_batch : NULL,
                             .size = sizeof *batch,
                             .argument = batch,
                             .flags = waits ? HC_WORK_BLOCKS : HC_WORK_QUICK,
                             .node_type = NODE_BATCH};
    return 0;
}

static int submit(CUstream handle, unsigned count, const operation *operations)
{
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    bool captured = hc_is_captured(stream);
    struct hc_work work;
    struct batch batch;
    rc = batch_work(operations, count, hc_stream_device(stream), captured, &work, &batch);
    if (!rc) {
        struct node_parameters parameters = {hc_primary_context(hc_stream_device(stream)), count, batch.heap, 0};
        if (captured) {
            work.node_parameters = &parameters;
            work.node_parameters_size = sizeof parameters;
        }
        rc = hc_submit(stream, &work, NULL);
        if (rc) free(batch.heap);
    }
    hc_stream_put(stream);
    return rc;
}

static int submit_one(CUstream stream, int what, CUdeviceptr address, uint64_t value, unsigned flags)
{
    operation op;
    memset(&op, 0, sizeof op);
    op.operation = what;
    op.waitValue.address = address;
    if (what == CU_STREAM_MEM_OP_WAIT_VALUE_32 || what == CU_STREAM_MEM_OP_WRITE_VALUE_32)
        op.waitValue.value = (uint32_t)value;
    else
        op.waitValue.value64 = value;
    op.waitValue.flags = flags;
    return submit(stream, 1, &op);
}

CUresult hc_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}

CUresult hc_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}

CUresult hc_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}

CUresult hc_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}

CUresult hc_cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
                                  unsigned int flags)
{
    return flags ? PSM_CUDA_INVALID_VALUE : submit(stream, count, paramArray);
}
