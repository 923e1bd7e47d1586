/* Batches of copies, and single copies with the attributes of batches. Runtime and driver, and the sonames of CUDA 12
 * and 13, differ in types and in whether they report the index of a wrong copy; their layouts are the same, as
 * tests/hostcuda/test_copy_batch.py checks. */
#include "copy/hc_copy.h"

_Static_assert(sizeof(struct cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes), "one layout for both libraries");
_Static_assert(sizeof(struct cudaMemcpy3DBatchOp) == sizeof(CUDA_MEMCPY3D_BATCH_OP), "one layout for both libraries");

#define ALL SIZE_MAX /* no particular copy of the batch is wrong */

/* What one entry requires, or -1. */
static int mode_of(int order, unsigned flags)
{
    if (flags & ~(unsigned)cudaMemcpyFlagPreferOverlapWithCompute) return -1;
    switch (order) {
    case cudaMemcpySrcAccessOrderStream:
    case cudaMemcpySrcAccessOrderAny:
        return HC_COPY_STREAM;
    case cudaMemcpySrcAccessOrderDuringApiCall:
        return HC_COPY_DURING;
    default:
        return -1;
    }
}

/* The NULL stream and the legacy stream are rejected, as documented. */
static int batch_stream(CUstream handle, struct hc_stream **stream)
{
    const struct hc_call *call = hc_current_call();
    bool per_thread = call && call->per_thread_default;
    if ((!handle && !per_thread) || handle == (CUstream)PSM_CUDA_STREAM_LEGACY) return PSM_CUDA_INVALID_VALUE;
    return hc_copy_stream(handle, false, stream);
}

struct batch {
    void *const *dsts;
    const void *const *srcs;
    const size_t *sizes;
    size_t count;
    const struct cudaMemcpyAttributes *attributes;
    const size_t *first;
    size_t n_attributes;
};

static bool attributes_fit(const struct batch *b)
{
    if (!b->attributes || !b->first || !b->n_attributes || b->n_attributes > b->count || b->first[0]) return false;
    for (size_t k = 0; k < b->n_attributes; k++)
        if (b->first[k] >= b->count || (k && b->first[k] <= b->first[k - 1]) ||
            mode_of((int)b->attributes[k].srcAccessOrder, b->attributes[k].flags) < 0)
            return false;
    return true;
}

/* Checks all copies before it submits the first one. */
static int copy_batch(const struct batch *b, size_t *fail, CUstream handle)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    *fail = ALL;
    if (!b->dsts || !b->srcs || !b->sizes || !b->count || !attributes_fit(b)) return PSM_CUDA_INVALID_VALUE;
    int rc = batch_stream(handle, &stream);
    if (rc) return rc;
    for (int submit = 0; submit < 2 && !rc; submit++)
        for (size_t i = 0, k = 0; i < b->count && !rc; i++) {
            if (k + 1 < b->n_attributes && b->first[k + 1] == i) k++;
            rc = hc_copy_line(&copy, b->dsts[i], b->srcs[i], b->sizes[i], cudaMemcpyDefault, hc_stream_device(stream));
            if (rc) *fail = i;
            if (!rc && submit) {
                const struct cudaMemcpyAttributes *a = &b->attributes[k];
                rc = hc_copy_submit(stream, &copy, (enum hc_copy_mode)mode_of((int)a->srcAccessOrder, a->flags));
            }
        }
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaMemcpyBatchAsync__12(void **dsts, void **srcs, size_t *sizes, size_t count,
                                        struct cudaMemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                        size_t *failIdx, cudaStream_t stream)
{
    struct batch b = {dsts, (const void *const *)srcs, sizes, count, attrs, attrsIdxs, numAttrs};
    size_t fail;
    return copy_batch(&b, failIdx ? failIdx : &fail, stream);
}

cudaError_t hc_cudaMemcpyBatchAsync__13(void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,
                                        struct cudaMemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs,
                                        cudaStream_t stream)
{
    struct batch b = {dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs};
    size_t fail;
    return copy_batch(&b, &fail, stream);
}

CUresult hc_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                               CUstream hStream)
{
    struct batch b = {(void *const *)dsts,
                      (const void *const *)srcs,
                      sizes,
                      count,
                      (const struct cudaMemcpyAttributes *)attrs,
                      attrsIdxs,
                      numAttrs};
    size_t fail;
    return copy_batch(&b, failIdx ? failIdx : &fail, hStream);
}

CUresult hc_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                  CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream)
{
    return hc_cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL, hStream);
}

/* ---- one copy with attributes; these accept the NULL stream, too */

static int copy_with_attributes(void *dst, const void *src, size_t size, const struct cudaMemcpyAttributes *a,
                                CUstream handle)
{
    struct hc_stream *stream;
    struct hc_copy copy;
    int mode = a ? mode_of((int)a->srcAccessOrder, a->flags) : -1;
    if (mode < 0) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_copy_stream(handle, false, &stream);
    if (rc) return rc;
    rc = hc_copy_line(&copy, dst, src, size, cudaMemcpyDefault, hc_stream_device(stream));
    return hc_copy_finish(stream, &copy, (enum hc_copy_mode)mode, rc);
}

cudaError_t hc_cudaMemcpyWithAttributesAsync(void *dst, const void *src, size_t size, struct cudaMemcpyAttributes *attr,
                                             cudaStream_t stream)
{
    return copy_with_attributes(dst, src, size, attr, stream);
}

CUresult hc_cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr,
                                        CUstream hStream)
{
    return copy_with_attributes((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, size,
                                (const struct cudaMemcpyAttributes *)attr, hStream);
}

/* ---- 3D */

/* Lengths of 0: packed as the extent says. Elements are bytes. */
static int operand(const struct cudaMemcpy3DOperand *o, const struct cudaExtent *extent, uintptr_t *address,
                   size_t *pitch, size_t *slice)
{
    if (o->type == cudaMemcpyOperandTypeArray) return PSM_CUDA_NOT_SUPPORTED;
    if (o->type != cudaMemcpyOperandTypePointer) return PSM_CUDA_INVALID_VALUE;
    size_t rows = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : extent->height;
    *address = (uintptr_t)o->op.ptr.ptr;
    *pitch = o->op.ptr.rowLength ? o->op.ptr.rowLength : extent->width;
    if (*pitch < extent->width || rows < extent->height || __builtin_mul_overflow(*pitch, rows, slice))
        return PSM_CUDA_INVALID_VALUE;
    return 0;
}

static int check_op(const struct cudaMemcpy3DBatchOp *op, int device, struct hc_copy *copy)
{
    const size_t extent[3] = {op->extent.width, op->extent.height, op->extent.depth};
    uintptr_t dst, src;
    size_t dst_pitch, dst_slice, src_pitch, src_slice;
    if (!extent[0] || !extent[1] || !extent[2] || mode_of((int)op->srcAccessOrder, op->flags) < 0)
        return PSM_CUDA_INVALID_VALUE;
    int rc = operand(&op->src, &op->extent, &src, &src_pitch, &src_slice);
    if (!rc) rc = operand(&op->dst, &op->extent, &dst, &dst_pitch, &dst_slice);
    if (rc) return rc;
    return hc_copy_fill(copy, dst, dst_pitch, dst_slice, src, src_pitch, src_slice, extent, cudaMemcpyDefault, device);
}

static int copy_ops(const struct cudaMemcpy3DBatchOp *ops, size_t count, size_t *fail, unsigned long long flags,
                    struct hc_stream *stream)
{
    struct hc_copy copy;
    int rc = 0;
    *fail = ALL;
    if (!ops || !count || flags) rc = PSM_CUDA_INVALID_VALUE;
    for (int submit = 0; submit < 2 && !rc; submit++)
        for (size_t i = 0; i < count && !rc; i++) {
            rc = check_op(&ops[i], hc_stream_device(stream), &copy);
            if (rc) *fail = i;
            if (!rc && submit)
                rc =
                    hc_copy_submit(stream, &copy, (enum hc_copy_mode)mode_of((int)ops[i].srcAccessOrder, ops[i].flags));
        }
    hc_stream_put(stream);
    return rc;
}

static int copy_box_batch(size_t count, const void *ops, size_t *fail, unsigned long long flags, CUstream handle)
{
    struct hc_stream *stream;
    *fail = ALL;
    int rc = batch_stream(handle, &stream);
    return rc ? rc : copy_ops(ops, count, fail, flags, stream);
}

cudaError_t hc_cudaMemcpy3DBatchAsync__12(size_t numOps, struct cudaMemcpy3DBatchOp *opList, size_t *failIdx,
                                          unsigned long long flags, cudaStream_t stream)
{
    size_t fail;
    return copy_box_batch(numOps, opList, failIdx ? failIdx : &fail, flags, stream);
}

cudaError_t hc_cudaMemcpy3DBatchAsync__13(size_t numOps, struct cudaMemcpy3DBatchOp *opList, unsigned long long flags,
                                          cudaStream_t stream)
{
    size_t fail;
    return copy_box_batch(numOps, opList, &fail, flags, stream);
}

CUresult hc_cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
                                 unsigned long long flags, CUstream hStream)
{
    size_t fail;
    return copy_box_batch(numOps, opList, failIdx ? failIdx : &fail, flags, hStream);
}

CUresult hc_cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
                                    CUstream hStream)
{
    size_t fail;
    return copy_box_batch(numOps, opList, &fail, flags, hStream);
}

static int copy_one_box(const void *op, unsigned long long flags, CUstream handle)
{
    struct hc_stream *stream;
    size_t fail;
    int rc = hc_copy_stream(handle, false, &stream);
    return rc ? rc : copy_ops(op, 1, &fail, flags, stream);
}

cudaError_t hc_cudaMemcpy3DWithAttributesAsync(struct cudaMemcpy3DBatchOp *op, unsigned long long flags,
                                               cudaStream_t stream)
{
    return copy_one_box(op, flags, stream);
}

CUresult hc_cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream hStream)
{
    return copy_one_box(op, flags, hStream);
}
