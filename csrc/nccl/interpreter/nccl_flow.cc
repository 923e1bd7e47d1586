/* A slot is filled when the receiver's head allows it, and read when the sender's tail (Simple) or the flags in its
 * lines (LL, LL128) say that it is there. Peers and proxies look at the same counters, so they are loaded and stored as
 * they are on the device: data first, then the counter. */
#include "nccl_flow.h"

#include <algorithm>
#include <cstring>

namespace psm
{

enum { BATCH = 512 }; /* lines that are looked at together */

static uint64_t load(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *counter, uint64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t line_size(Protocol p)
{
    return p == Protocol::LL ? LL_LINE : LL128_LINE;
}

static size_t line_data(Protocol p)
{
    return p == Protocol::LL ? LL_DATA : LL128_DATA;
}

void Lane::begin()
{
    const bool simple = flow_.protocol == Protocol::Simple;
    const uint64_t unit = simple ? flow_.slices * flow_.steps : 1;
    for (End *end : flow_.from) {
        end->step = divide_up(*end->saved, unit) * unit;
        if (simple) store(end->head, end->step); /* credits for what the rounding skips */
    }
    for (End *end : flow_.to) end->step = divide_up(*end->saved, unit) * unit;
    if (simple) return;
    scratch_.resize(BATCH * LL128_DATA);
    received_.resize(flow_.from.size() * BATCH * LL128_DATA);
}

void Lane::end()
{
    for (End *end : flow_.from) *end->saved = end->step;
    for (End *end : flow_.to) *end->saved = end->step;
}

bool Lane::next()
{
    if (moving_) return true;
    if (at_ == flow_.schedule.length) return false;
    move_ = flow_.schedule.at(at_);
    slice_ = 0;
    offset_ = line_ = 0;
    return true;
}

bool Lane::credit(unsigned steps) const
{
    if (move_.receive && flow_.protocol == Protocol::Simple)
        for (const End *end : flow_.from)
            if (load(end->tail) < end->step + steps) return false;
    if (move_.send)
        for (const End *end : flow_.to)
            if (load(end->head) + STEPS < end->step + steps) return false;
    return true;
}

bool Lane::advance()
{
    return flow_.protocol == Protocol::Simple ? advance_simple() : advance_lines();
}

void Lane::combine(size_t offset, size_t n, const std::vector<const char *> &sources, std::vector<char *> &destinations)
{
    const Reduction &r = flow_.reduction;
    const size_t bytes = n * flow_.element;
    if (destinations.empty() || n == 0) return;
    char *first = destinations[0];
    const char *have = nullptr;
    if (move_.in) {
        have = move_.in + offset * flow_.element;
        if (move_.input && changes_input(r)) {
            reduce_input(r, first, have, n);
            have = first;
        }
    }
    for (const char *source : sources) {
        if (have) {
            reduce_two(r, first, have, source, n);
            have = first;
        } else {
            have = source;
        }
    }
    if (move_.result && changes_result(r)) {
        reduce_result(r, first, have, n);
        have = first;
    }
    if (have != first) memmove(first, have, bytes);
    for (size_t i = 1; i < destinations.size(); i++)
        if (destinations[i] != first) memmove(destinations[i], first, bytes);
}

/* ---- Simple: slots are filled and read as a whole ---- */

char *Lane::place(End &end, size_t bytes, bool write)
{
    const auto &entry = end.fifo[end.step % STEPS];
    if (end.has_fifo && __atomic_load_n(entry.mode, __ATOMIC_RELAXED) == 1 /* NCCL_MODE_OFFSET: a shared buffer */)
        return memory_->at(end.device_buffer + offset_in(entry.offset), bytes, write, "a shared connection buffer");
    const size_t at = end.step % STEPS * end.slot;
    if (!end.buffer || at + bytes > end.room)
        refuse(LAUNCH_FAILURE, "%zu bytes do not fit into slot %u of a connection buffer of %zu", bytes,
               static_cast<unsigned>(end.step % STEPS), end.room);
    return end.buffer + at;
}

void Lane::slice(size_t n)
{
    const size_t bytes = n * flow_.element;
    std::vector<const char *> sources;
    std::vector<char *> destinations;
    if (move_.send)
        for (End *end : flow_.to)
            if (end->has_fifo)
                __atomic_store_n(end->fifo[end->step % STEPS].size, static_cast<int64_t>(bytes), __ATOMIC_RELAXED);
    if (n) {
        if (move_.out) destinations.push_back(move_.out + offset_ * flow_.element);
        if (move_.send)
            for (End *end : flow_.to) destinations.push_back(place(*end, bytes, true));
        if (move_.receive)
            for (End *end : flow_.from) sources.push_back(place(*end, bytes, false));
        combine(offset_, n, sources, destinations);
    }
    if (move_.receive)
        for (End *end : flow_.from) store(end->head, end->step += flow_.steps);
    if (move_.send)
        for (End *end : flow_.to) store(end->tail, end->step += flow_.steps);
}

bool Lane::advance_simple()
{
    bool moved = false;
    while (next()) {
        if (!moving_) {
            const size_t most = flow_.step_bytes / flow_.element * flow_.steps;
            slice_size_ = std::max(divide_up(move_.n, 16 * flow_.slices) * 16, most / 32);
            if (std::min(slice_size_, move_.n) > most)
                refuse(LAUNCH_FAILURE, "a chunk of %zu elements is more than %u slices of %zu", move_.n, flow_.slices,
                       most);
            moving_ = true;
        }
        for (; slice_ < flow_.slices; slice_++) {
            if (!credit(flow_.steps)) return moved;
            const size_t n = std::min(slice_size_, move_.n - offset_);
            slice(n);
            offset_ += n;
            moved = true;
        }
        if (offset_ != move_.n)
            refuse(LAUNCH_FAILURE, "%zu of %zu elements are left after the last slice", move_.n - offset_, move_.n);
        moving_ = false;
        at_++;
    }
    return moved;
}

/* ---- LL and LL128: each line says by its flag whether it is there ---- */

/* How many of n lines have come, from the first on; their data goes to out. */
size_t Lane::lines_ready(End &end, size_t first, size_t n, char *out) const
{
    const char *at = end.buffer + end.step % STEPS * end.slot + first * line_size(flow_.protocol);
    size_t i = 0;
    if (flow_.protocol == Protocol::LL) {
        const uint64_t flag = static_cast<uint32_t>(end.step + 1);
        for (; i < n; i++, at += LL_LINE) {
            /* Each half of a line is 4 bytes of data and its own flag, and is loaded at once. */
            const uint64_t *words = reinterpret_cast<const uint64_t *>(at);
            const uint64_t low = load(words), high = load(words + 1);
            if (low >> 32 != flag || high >> 32 != flag) break;
            const uint64_t data = (low & 0xffffffff) | high << 32;
            memcpy(out + i * LL_DATA, &data, LL_DATA);
        }
        return i;
    }
    const uint64_t flag = end.step + 1;
    for (; i < n; i++, at += LL128_LINE) {
        if (load(reinterpret_cast<const uint64_t *>(at + LL128_DATA)) != flag) break;
        memcpy(out + i * LL128_DATA, at, LL128_DATA);
    }
    return i;
}

/* Lines that data does not reach have the flag and no data. */
void Lane::lines_write(End &end, size_t first, size_t n, const char *data, size_t bytes) const
{
    const size_t each = line_data(flow_.protocol);
    char *at = end.buffer + end.step % STEPS * end.slot + first * line_size(flow_.protocol);
    for (size_t i = 0; i < n; i++, at += line_size(flow_.protocol)) {
        const size_t done = std::min(i * each, bytes), part = std::min(each, bytes - done);
        if (flow_.protocol == Protocol::LL) {
            const uint64_t flag = static_cast<uint32_t>(end.step + 1);
            uint64_t value = 0;
            memcpy(&value, data + done, part);
            uint64_t *words = reinterpret_cast<uint64_t *>(at);
            store(words, flag << 32 | (value & 0xffffffff));
            store(words + 1, flag << 32 | value >> 32);
        } else {
            memcpy(at, data + done, part);
            store(reinterpret_cast<uint64_t *>(at + LL128_DATA), end.step + 1);
        }
    }
}

/* Begins a move: checks that its lines fit into the slots, and passes its size to a proxy that waits for it. */
void Lane::begin_lines(size_t bytes, size_t sent)
{
    const size_t line = line_size(flow_.protocol);
    for (const std::vector<End *> *ends : {&flow_.from, &flow_.to})
        for (const End *end : *ends)
            if (sent > end->slot / line)
                refuse(LAUNCH_FAILURE, "a chunk of %zu bytes needs %zu lines, and a slot has %zu", bytes, sent,
                       end->slot / line);
    if (!move_.send) return;
    for (End *end : flow_.to)
        if (end->has_fifo) {
            const bool clean = flow_.protocol == Protocol::LL && (end->step & LL_CLEAN) == LL_CLEAN;
            const size_t size = clean ? end->slot : sent * line;
            __atomic_store_n(end->fifo[end->step % STEPS].size, static_cast<int64_t>(size), __ATOMIC_RELAXED);
        }
}

bool Lane::advance_lines()
{
    const bool ll = flow_.protocol == Protocol::LL;
    const size_t each = line_data(flow_.protocol);
    bool moved = false;
    while (next()) {
        const size_t bytes = move_.n * flow_.element, lines = divide_up(bytes, each);
        /* LL128 writes whole slices of 16 lines. */
        const size_t sent = ll ? lines : divide_up(lines, LL128_SLICE_LINES) * LL128_SLICE_LINES;
        if (!moving_) {
            if (!credit(1)) return moved;
            begin_lines(bytes, sent);
            moving_ = moved = true;
        }
        while (line_ < lines) {
            size_t n = std::min<size_t>(BATCH, lines - line_);
            std::vector<const char *> sources;
            if (move_.receive) {
                char *into = received_.data();
                for (End *end : flow_.from) {
                    n = lines_ready(*end, line_, n, into);
                    sources.push_back(into);
                    into += BATCH * LL128_DATA;
                }
                if (n == 0) return moved;
            }
            const size_t begin = line_ * each, part = std::min(n * each, bytes - begin);
            const size_t elements = part / flow_.element, offset = begin / flow_.element;
            char *result = scratch_.data();
            std::vector<char *> destinations = {result};
            if (move_.out) destinations.push_back(move_.out + begin);
            combine(offset, elements, sources, destinations);
            if (move_.send)
                for (End *end : flow_.to) lines_write(*end, line_, n, result, part);
            line_ += n;
            moved = true;
        }
        if (move_.receive)
            for (End *end : flow_.from) store(end->head, ++end->step);
        if (move_.send)
            for (End *end : flow_.to) {
                const bool clean = ll && (end->step & LL_CLEAN) == LL_CLEAN;
                const size_t all = clean ? end->slot / LL_LINE : sent;
                if (all > lines) lines_write(*end, lines, all - lines, nullptr, 0);
                end->step++;
                if (!ll && end->has_fifo) store(end->tail, end->step); /* a proxy waits for it */
            }
        moving_ = false;
        at_++;
        moved = true;
    }
    return moved;
}

} // namespace psm
