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

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#define PSM_NCCL_FIFO_CREDITS 1 /* kernels say how much of the work FIFO they have read */
#define PSM_NCCL_WORK_TIMES   0
#elif NCCL_VERSION_CODE == NCCL_VERSION(2, 21, 5) /* the binary, by wheel/facts_2_21.h */
#elif NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0) && NCCL_VERSION_CODE < NCCL_VERSION(2, 31, 0)
#define PSM_NCCL_FIFO_CREDITS 0
#define PSM_NCCL_WORK_TIMES   1 /* for a profiler kernels write a ring of counters with times, not one counter */
#else
#error                                                                                                                 \
    "psmkit knows what the kernels of NCCL 2.26 and 2.30 do, and this tree is of another release: see docs/linking.md"
#endif

static_assert(NCCL_STEPS == 8 && NCCL_MODE_OFFSET == 1, "the connections of this tree have other buffers");
static_assert(NCCL_LL_CLEAN_MASK == 0x7ffffff8, "the LL protocol of this tree wraps around elsewhere");

#endif
