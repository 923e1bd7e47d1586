/* Address ranges of copies whose areas are described by structs: from the first byte to the last. Included where CUDA's
 * types are known. Arrays have no addresses and are skipped. */
#ifndef PSM_SAN_COPY_H
#define PSM_SAN_COPY_H

#include "san.h"
#include "types_copy.h"

static inline uint64_t psm_san_3d(uint64_t pitch, uint64_t rows, uint64_t width, uint64_t height, uint64_t depth)
{
    return depth ? (depth - 1) * pitch * rows + psm_san_2d(pitch, width, height) : 0;
}

static inline void psm_san_side(struct psm_san_call *call, CUmemorytype type, const void *host, CUdeviceptr device,
                                uint64_t offset, uint64_t n, bool write)
{
    if (!n || type == CU_MEMORYTYPE_ARRAY) return;
    uint64_t base = type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device;
    enum psm_san_side side = type == CU_MEMORYTYPE_HOST     ? PSM_SAN_HOST_SIDE
                             : type == CU_MEMORYTYPE_DEVICE ? PSM_SAN_DEVICE_SIDE
                                                            : PSM_SAN_ANY;
    if (base) psm_san_span(call, base + offset, n, side, write);
}

static inline void psm_san_copy2d(struct psm_san_call *call, const CUDA_MEMCPY2D *c)
{
    psm_san_side(call, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcY * c->srcPitch + c->srcXInBytes,
                 psm_san_2d(c->srcPitch, c->WidthInBytes, c->Height), false);
    psm_san_side(call, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstY * c->dstPitch + c->dstXInBytes,
                 psm_san_2d(c->dstPitch, c->WidthInBytes, c->Height), true);
}

static inline void psm_san_copy3d(struct psm_san_call *call, const CUDA_MEMCPY3D *c)
{
    psm_san_side(call, c->srcMemoryType, c->srcHost, c->srcDevice,
                 (c->srcZ * c->srcHeight + c->srcY) * c->srcPitch + c->srcXInBytes,
                 psm_san_3d(c->srcPitch, c->srcHeight, c->WidthInBytes, c->Height, c->Depth), false);
    psm_san_side(call, c->dstMemoryType, c->dstHost, c->dstDevice,
                 (c->dstZ * c->dstHeight + c->dstY) * c->dstPitch + c->dstXInBytes,
                 psm_san_3d(c->dstPitch, c->dstHeight, c->WidthInBytes, c->Height, c->Depth), true);
}

static inline void psm_san_box(struct psm_san_call *call, const struct cudaPitchedPtr *p, const struct cudaPos *at,
                               const struct cudaExtent *extent, enum psm_san_side side, bool write)
{
    uint64_t offset = (at->z * p->ysize + at->y) * p->pitch + at->x;
    uint64_t n = psm_san_3d(p->pitch, p->ysize, extent->width, extent->height, extent->depth);
    if (p->ptr) psm_san_span(call, (uint64_t)(uintptr_t)p->ptr + offset, n, side, write);
}

/* If one side is an array, the extent counts its elements, whose size is unknown here. */
static inline void psm_san_parms(struct psm_san_call *call, const struct cudaMemcpy3DParms *c)
{
    if (c->srcArray || c->dstArray) return;
    psm_san_box(call, &c->srcPtr, &c->srcPos, &c->extent, psm_san_source((int)c->kind), false);
    psm_san_box(call, &c->dstPtr, &c->dstPos, &c->extent, psm_san_target((int)c->kind), true);
}

static inline void psm_san_fill3d(struct psm_san_call *call, struct cudaPitchedPtr p, struct cudaExtent extent)
{
    const struct cudaPos begin = {0, 0, 0};
    psm_san_box(call, &p, &begin, &extent, PSM_SAN_DEVICE_SIDE, true);
}

static inline void psm_san_alloc3d(struct psm_san_call *call, const struct cudaPitchedPtr *p, struct cudaExtent extent)
{
    psm_san_new(call, PSM_SAN_ALLOC, (uint64_t)(uintptr_t)p->ptr, p->pitch * extent.height * extent.depth);
}

#endif
