/* What NCCL's kernels compute: elements of twelve types, reduced as a GPU reduces them, bit by bit. */
#ifndef PSM_NCCL_ARITHMETIC_H
#define PSM_NCCL_ARITHMETIC_H

#include <cstddef>
#include <cstdint>

namespace psm
{

enum class Type : uint8_t { i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, f8e4m3, f8e5m2 };

/* MinMax: argument bit 0 says maximum for floats; for integers it is what both are xored with before they are compared
 * as unsigned. PreMulSum: the argument is the factor. SumPostDiv: divisor << 1 | signed. */
enum class Op : uint8_t { Sum, Prod, MinMax, PreMulSum, SumPostDiv };

struct Reduction {
    Type type;
    Op op;
    uint64_t argument;
};

/* By the names in NCCL's function table (u8, SumPostDiv). False: there is none. */
bool type_of(const char *name, Type *out);
bool op_of(const char *name, Op *out);
size_t size_of(Type type);

/* NULL, or what is wrong with it. */
const char *reduction_fault(const Reduction &r);

/* Only these ops change a rank's own elements, or the finished sum. */
inline bool changes_input(const Reduction &r)
{
    return r.op == Op::PreMulSum;
}
inline bool changes_result(const Reduction &r)
{
    return r.op == Op::SumPostDiv;
}

/* n elements. out may be one of the inputs. */
void reduce_input(const Reduction &r, void *out, const void *in, size_t n);
void reduce_two(const Reduction &r, void *out, const void *a, const void *b, size_t n);
void reduce_result(const Reduction &r, void *out, const void *in, size_t n);

} // namespace psm
#endif
