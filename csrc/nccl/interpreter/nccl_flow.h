/* The flow of data through NCCL's connections, as its kernels keep it: steps, credits, slices and lines. */
#ifndef PSM_NCCL_FLOW_H
#define PSM_NCCL_FLOW_H

#include "arithmetic.h"
#include "nccl_memory.h"

#include <functional>
#include <memory>
#include <variant>
#include <vector>

namespace psm
{

enum { STEPS = 8 }; /* slots of a connection's buffer */
enum class Protocol { LL, LL128, Simple };
enum { LL_LINE = 16, LL_DATA = 8, LL128_LINE = 128, LL128_DATA = 120, LL128_SLICE_LINES = 16 };
/* Where flags of LL wrap around, all of a slot is written once. */
constexpr uint64_t LL_CLEAN = 0x7ffffff8;

/* Where a slot is in a shared buffer, as the tree declares it: 64 bits wide from 2.31.2 on. */
using Offset = std::variant<int *, int64_t *>;
inline int64_t offset_in(const Offset &offset)
{
    return std::visit([](const auto *at) { return static_cast<int64_t>(__atomic_load_n(at, __ATOMIC_RELAXED)); },
                      offset);
}

/* One direction of a connection to a peer, and the part of it that a proxy thread reads. */
struct End {
    char *buffer = nullptr;        /* slots of the protocol */
    char *device_buffer = nullptr; /* its address on the device */
    size_t slot = 0;               /* bytes from one slot to the next */
    size_t room = 0;               /* bytes of buffer */
    uint64_t *head = nullptr, *tail = nullptr;
    uint64_t *saved = nullptr; /* where the step is kept between operations */
    uint64_t step = 0;
    struct {
        int *mode;
        Offset offset;
        int64_t *size; /* signed: proxies write -1 */
    } fifo[STEPS] = {};
    bool has_fifo = false, in_use = false;
};

/* One call of a primitive. */
struct Move {
    size_t n = 0; /* elements */
    const char *in = nullptr;
    char *out = nullptr;
    bool receive = false, send = false;
    bool input = false;  /* in is the rank's own input: factors apply */
    bool result = false; /* the sum is complete: divisors apply */
};

struct Schedule {
    size_t length = 0;
    std::function<Move(size_t)> at;
};

struct Flow {
    Protocol protocol;
    unsigned slices, steps; /* of a chunk and of a slice; Simple only */
    size_t step_bytes;      /* what a slot is filled with at most; Simple only */
    Reduction reduction;
    size_t element;
    std::vector<End *> from, to;
    Schedule schedule;
};

/* One sequence of primitives over the same connections. It never blocks: whoever runs it calls it again. */
class Lane
{
  public:
    Lane(Flow flow, Memory *memory) : flow_(std::move(flow)), memory_(memory) {}
    void begin();
    /* Goes on until it has to wait. True: something was done. */
    bool advance();
    bool done() const { return at_ == flow_.schedule.length && !moving_; }
    void end(); /* keeps the steps for the next operation */
    const Flow &flow() const { return flow_; }

  private:
    bool credit(unsigned steps) const;
    bool next();
    bool advance_simple();
    void begin_lines(size_t bytes, size_t sent);
    bool advance_lines();
    void slice(size_t n);
    char *place(End &end, size_t bytes, bool write);
    /* Of the rank's own elements and those of sources to the first destination, and from there to the others. */
    void combine(size_t offset, size_t n, const std::vector<const char *> &sources, std::vector<char *> &destinations);
    size_t lines_ready(End &end, size_t first, size_t n, char *out) const;
    void lines_write(End &end, size_t first, size_t n, const char *data, size_t bytes) const;

    Flow flow_;
    Memory *memory_;
    size_t at_ = 0;
    Move move_;
    bool moving_ = false;
    unsigned slice_ = 0;
    size_t slice_size_ = 0, offset_ = 0;
    size_t line_ = 0;
    std::vector<char> scratch_, received_;
};

} // namespace psm
#endif
