#include "nccl_memory.h"

#include <cstdarg>
#include <cstdio>

namespace psm
{

void refuse(int code, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    throw Refusal{code, text};
}

void refuse_damaged(const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    throw Damage{{LAUNCH_FAILURE, text}};
}

Memory::~Memory()
{
    for (psm_kernel_span &span : spans_) psm_hostcuda_unmap(&span);
}

char *Memory::at(const void *address, size_t n, bool write, const char *what)
{
    const auto key = std::make_pair(reinterpret_cast<uintptr_t>(address), write);
    if (!address) refuse(LAUNCH_FAILURE, "%s is NULL", what);
    auto found = longest_.find(key);
    if (found != longest_.end() && spans_[found->second].n >= n) return static_cast<char *>(spans_[found->second].host);
    psm_kernel_span span;
    const int rc = psm_hostcuda_map(launch_, address, n, write, &span);
    if (rc)
        refuse(rc, "%s: device %d cannot %s %zu bytes at %p", what, launch_->device, write ? "write" : "read", n,
               address);
    if (span.n < n) {
        const size_t piece = span.n;
        psm_hostcuda_unmap(&span);
        refuse(NOT_SUPPORTED,
               "%s: of %zu bytes at %p only %zu lie in one allocation: give it a buffer that is not "
               "mapped from several",
               what, n, address, piece);
    }
    longest_[key] = spans_.size();
    spans_.push_back(span);
    return static_cast<char *>(span.host);
}

char *Memory::window(const void *address, size_t begin, size_t end, bool write, const char *what)
{
    if (end <= begin) return nullptr;
    char *first = at(static_cast<const char *>(address) + begin, end - begin, write, what);
    return reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(first) - begin);
}

} // namespace psm
