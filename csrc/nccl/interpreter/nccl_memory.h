/* Device memory as the host may touch it during one launch, and what stops a launch. */
#ifndef PSM_NCCL_MEMORY_H
#define PSM_NCCL_MEMORY_H

#include "psm_hostcuda.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace psm
{

/* Why a launch fails: one line, and the CUDA error that sticks to the device. */
struct Refusal {
    int code;
    std::string text;
};

/* Work that no host code of NCCL leaves: its memory was written over. */
struct Damage : Refusal {};

enum { NOT_SUPPORTED = 801, LAUNCH_FAILURE = 719 };

[[noreturn]] void refuse(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void refuse_damaged(const char *format, ...) __attribute__((format(printf, 1, 2)));

class Memory
{
  public:
    explicit Memory(const psm_kernel_launch *launch) : launch_(launch) {}
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    /* An alias of n > 0 bytes that stays until the launch ends; it refuses what is no memory of this device, and what
     * does not lie in one piece. what: for the message. */
    char *at(const void *address, size_t n, bool write, const char *what);
    template <typename T> T *of(T *address, const char *what, bool write = false, size_t n = 1)
    {
        return reinterpret_cast<T *>(at(address, n * sizeof(T), write, what));
    }
    /* The same for bytes [begin, end) from an address on: what it returns is the alias of the address itself, and only
     * those bytes may be touched. Nothing is looked up for no bytes. */
    char *window(const void *address, size_t begin, size_t end, bool write, const char *what);

  private:
    const psm_kernel_launch *launch_;
    std::vector<psm_kernel_span> spans_;
    std::map<std::pair<uintptr_t, bool>, size_t> longest_; /* index of the longest span at an address */
};

} // namespace psm
#endif
