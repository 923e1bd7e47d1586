#include "schedules.h"

#include <algorithm>

namespace psm
{

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static Move move_of(size_t n, const char *in, char *out, bool receive, bool send)
{
    Move m;
    m.n = n;
    m.in = in;
    m.out = out;
    m.receive = receive;
    m.send = send;
    m.input = in != nullptr;
    return m;
}

/* Each loop brings ranks * chunk elements around the ring twice: sums first, then what came of them. */
Schedule ring_all_reduce(const Part &p)
{
    const size_t ranks = static_cast<size_t>(p.ranks), loop = ranks * p.chunk, calls = 2 * ranks - 1;
    return {divide_up(p.n, loop) * calls, [=](size_t k) {
                const size_t begin = k / calls * loop, rest = p.n - begin, call = k % calls;
                size_t chunk = p.chunk;
                if (rest < loop && p.last_chunk) {
                    chunk = p.last_chunk;
                } else if (rest < loop) {
                    const size_t unit = 16 / p.element;
                    chunk = divide_up(divide_up(rest, ranks), unit) * unit;
                }
                /* Chunks come against the direction of the ring, first for the sums, then for what came of them. */
                const size_t which = (static_cast<size_t>(p.index) + 2 * ranks - call - 1) % ranks;
                const size_t at = which * chunk, n = at < rest ? std::min(chunk, rest - at) : 0;
                const size_t byte = (p.offset + begin + at) * p.element;
                if (call == 0) return move_of(n, p.in + byte, nullptr, false, true);
                if (call < ranks - 1) return move_of(n, p.in + byte, nullptr, true, true);
                if (call == ranks - 1) {
                    Move m = move_of(n, p.in + byte, p.out + byte, true, true);
                    m.result = true;
                    return m;
                }
                return move_of(n, nullptr, p.out + byte, true, call < calls - 1);
            }};
}

Schedule ring_all_gather(const Part &p)
{
    const size_t ranks = static_cast<size_t>(p.ranks);
    return {divide_up(p.n, p.chunk) * ranks, [=](size_t k) {
                const size_t begin = k / ranks * p.chunk, call = k % ranks, n = std::min(p.chunk, p.n - begin);
                const size_t from = p.offset + begin;
                const size_t owner = static_cast<size_t>(p.ring[call == 0 ? 0 : ranks - call]);
                char *out = p.out + (from + owner * p.count) * p.element;
                if (call == 0) return move_of(n, p.in + from * p.element, p.in_place ? nullptr : out, false, true);
                return move_of(n, nullptr, out, true, call < ranks - 1);
            }};
}

Schedule ring_reduce_scatter(const Part &p)
{
    const size_t ranks = static_cast<size_t>(p.ranks);
    return {divide_up(p.n, p.chunk) * ranks, [=](size_t k) {
                const size_t begin = k / ranks * p.chunk, call = k % ranks, n = std::min(p.chunk, p.n - begin);
                const size_t from = p.offset + begin;
                const bool last = call == ranks - 1;
                const size_t owner = static_cast<size_t>(p.ring[last ? 0 : ranks - 1 - call]);
                Move m = move_of(n, p.in + (from + owner * p.count) * p.element,
                                 last ? p.out + from * p.element : nullptr, call > 0, !last);
                m.result = last;
                return m;
            }};
}

static size_t chunks(const Part &p)
{
    return divide_up(p.n, p.chunk);
}

/* The k-th chunk of this channel, from input to output. */
static Move chunk_of(const Part &p, size_t k, bool in, bool out, bool receive, bool send)
{
    const size_t n = std::min(p.chunk, p.n - k * p.chunk), byte = (p.offset + k * p.chunk) * p.element;
    return move_of(n, in ? p.in + byte : nullptr, out ? p.out + byte : nullptr, receive, send);
}

Schedule ring_broadcast(const Part &p)
{
    const bool root = p.rank == p.root, last = p.ring[1] == p.root;
    return {chunks(p), [=](size_t k) { return chunk_of(p, k, root, !(root && p.in_place), !root, root || !last); }};
}

Schedule ring_reduce(const Part &p)
{
    const bool root = p.rank == p.root, first = p.ring[p.ranks - 1] == p.root;
    return {chunks(p), [=](size_t k) {
                Move m = chunk_of(p, k, true, root, !first, !root);
                m.result = root;
                return m;
            }};
}

Schedule tree_reduce(const Part &p, bool leaf)
{
    return {chunks(p), [=](size_t k) { return chunk_of(p, k, true, false, !leaf, true); }};
}

Schedule tree_broadcast(const Part &p, bool leaf)
{
    return {chunks(p), [=](size_t k) { return chunk_of(p, k, false, true, true, !leaf); }};
}

Schedule tree_root(const Part &p)
{
    return {chunks(p), [=](size_t k) {
                Move m = chunk_of(p, k, true, true, true, true);
                m.result = true;
                return m;
            }};
}

static Schedule bytes_of(const char *in, char *out, size_t bytes, size_t chunk, bool sends)
{
    return {std::max<size_t>(1, divide_up(bytes, chunk)), [=](size_t k) {
                return move_of(std::min(chunk, bytes - k * chunk), in ? in + k * chunk : nullptr,
                               out ? out + k * chunk : nullptr, !sends, sends);
            }};
}

Schedule send(const char *from, size_t bytes, size_t chunk)
{
    return bytes_of(from, nullptr, bytes, chunk, true);
}

Schedule receive(char *to, size_t bytes, size_t chunk)
{
    return bytes_of(nullptr, to, bytes, chunk, false);
}

} // namespace psm
