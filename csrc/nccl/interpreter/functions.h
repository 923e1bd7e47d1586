/* Device functions by the ids that work batches name them with: those of the tree that this is built against. */
#ifndef PSM_NCCL_FUNCTIONS_H
#define PSM_NCCL_FUNCTIONS_H

#include "arithmetic.h"
#include "nccl_flow.h"

namespace psm
{

enum class Collective { SendRecv, AllReduce, AllGather, ReduceScatter, Broadcast, Reduce };
enum class Algorithm { Ring, Tree };

struct Function {
    Collective collective;
    Algorithm algorithm;
    Protocol protocol;
    Reduction reduction; /* its argument comes with the work */
    const char *name;    /* as NCCL's table has it: "AllReduce Sum f32 RING LL" */
};

/* It refuses what there is no schedule for. */
Function function_of(unsigned id);
/* Whether a kernel (its mangled name) may have been chosen for a function: NCCL takes one of the same collective and
 * type. A kernel for which that is not so belongs to another build than the table. */
bool kernel_suits(const char *kernel, const Function &function);

} // namespace psm
#endif
