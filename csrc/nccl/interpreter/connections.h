/* What the work of every release leads to: connections of a channel, and the schedules that run over them. */
#ifndef PSM_NCCL_CONNECTIONS_H
#define PSM_NCCL_CONNECTIONS_H

#include "functions.h"
#include "layouts.h"
#include "nccl_work.h"
#include "schedules.h"

#include <type_traits>

namespace psm
{

using Comm = std::remove_pointer<decltype(ncclDevKernelArgs::comm)>::type;

struct Reader {
    const psm_kernel_launch *launch;
    Memory &memory;
    Plan &plan;
    Comm comm;
    bool kernel_suits = false;
};

/* What one channel knows of the ring, the tree and its peers. */
struct Place {
    int number;
    ncclDevChannel channel;
    const int *ring;
};

[[noreturn]] void refuse_registered(const char *what);
/* It reads the communicator of a launch, and refuses one that cannot be it. */
void read_comm(Reader &r, Comm *address);
/* on_device: the channel's alias. */
Place read_place(Reader &r, int number, ncclDevChannel **on_device);
/* After all channels were read: blocks is how many. */
void check_launch(const Reader &r, size_t blocks);
/* Where sends and receives of a channel begin in its list of connections to a peer: 1; collectives: 0. */
End *end_of(Reader &r, const Place &place, int peer, bool send, int index, Protocol protocol);
/* What several lanes at a time may not share. */
void check_distinct(const Stage &stage);
/* A rank's message to a peer, or one from it. */
void add_message(Reader &r, const Place &place, int peer, bool sends, Protocol protocol, char *buffer, size_t bytes,
                 size_t chunk, Stage &stage);
/* The argument of a reduction lies in the work, or where that says. */
uint64_t argument_of(Reader &r, uint64_t value, bool is_pointer, const Reduction &reduction);
/* What a channel does of a collective. The caller knows the counts and the root of part. */
void add_collective(Reader &r, const Place &place, const Function &f, Part part, const void *sendbuff, void *recvbuff,
                    Stage &stage);
int number_of(Protocol protocol);
/* No buffer has more. Sums and products of such sizes do not overflow. */
constexpr size_t MOST_BYTES = size_t(1) << 48;

} // namespace psm
#endif
