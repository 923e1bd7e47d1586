/* Layouts of what NCCL's host code leaves for its kernels: the declarations of the tree that this is built against. */
#ifndef PSM_NCCL_LAYOUTS_H
#define PSM_NCCL_LAYOUTS_H

#ifdef PSM_NCCL_FACTS /* tests, where there is no tree */
#include PSM_NCCL_FACTS
#else
#include "bitops.h"
#include "collectives.h"
#include "device.h"
#endif

#ifndef PSM_NCCL_FACTS
#include "../releases.h"
#if NCCL_VERSION_CODE < NCCL_VERSION(PSM_NCCL_OLDEST_MAJOR, PSM_NCCL_OLDEST_MINOR, 0)
#error                                                                                                                 \
    "psmkit knows what the kernels of NCCL 2.26 and newer do, but this tree is of an older release: see docs/linking.md"
#endif
static_assert(sizeof(ncclLLFifoLine) == 16, "a line of the LL protocol has another size in this tree");
static_assert(NCCL_LL128_LINESIZE == 128 && NCCL_LL128_DATAELEMS == 15, "a line of LL128 is another one in this tree");
static_assert(sizeof(ncclDevWorkBatch) == 16, "a batch of work has another size in this tree");
#endif

static_assert(NCCL_STEPS == 8 && NCCL_MODE_OFFSET == 1, "the connections of this tree have other buffers");
static_assert(NCCL_LL_CLEAN_MASK == 0x7ffffff8, "the LL protocol of this tree wraps around elsewhere");

#endif
