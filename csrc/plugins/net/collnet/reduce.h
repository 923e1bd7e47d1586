/* Reductions on the processor, for CollNet in software. */
#ifndef PSM_NET_REDUCE_H
#define PSM_NET_REDUCE_H

#include <stdbool.h>

#include "psm_abi/common.h"

/* Integers of 8, 32 and 64 bits, float, double, half, bfloat16; sum, prod, max, min. */
bool reduce_supported(ncclDataType_t type, ncclRedOp_t op);
size_t reduce_size(ncclDataType_t type); /* size of an element; 0: the type is not supported */
/* into[i] = into[i] op from[i]. No alignment is required. */
void reduce_into(void *into, const void *from, size_t bytes, ncclDataType_t type, ncclRedOp_t op);

#endif
