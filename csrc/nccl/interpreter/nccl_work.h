/* One launch, read and checked as a whole before anything moves. */
#ifndef PSM_NCCL_WORK_H
#define PSM_NCCL_WORK_H

#include "nccl_flow.h"

#include <deque>
#include <set>

namespace psm
{

/* A rank's message to itself. */
struct Copy {
    char *to;
    const char *from;
    size_t n;
};

/* What runs at the same time on a channel; the next stage begins when all of it is done. */
struct Stage {
    std::vector<Lane> lanes;
    std::vector<Copy> copies;
    /* Works that a profiler waits for, by their number in the launch, from 1: told when the stage begins, and when it
     * has ended. */
    std::vector<uint64_t> begins, ends;
};

struct Channel {
    std::deque<Stage> stages;
    uint64_t *work_counter = nullptr; /* NULL: the release has none */
    uint64_t works = 0;
    std::function<void(const std::vector<uint64_t> &works, bool ended)> tell; /* set where a profiler waits */
    uint32_t *consumed = nullptr; /* where the position in the work FIFO is told */
    uint32_t consumed_to = 0;
};

struct Plan {
    std::deque<End> ends;
    std::vector<Channel> channels;
    const uint32_t *abort = nullptr;
    int rank = -1;
    std::set<std::string> functions; /* by their names in NCCL's table */
};

/* How launches of this release pass their parameters, where hostcuda has to know it. 0, or it failed. */
int describe_parameters(const char *kernels);
/* It refuses what is not understood as a whole. */
void read_plan(const psm_kernel_launch *launch, Memory &memory, Plan &plan);

} // namespace psm
#endif
