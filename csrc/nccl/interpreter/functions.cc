#include "functions.h"

#include <cstring>
#include <string>

namespace psm
{

static const struct {
    unsigned id;
    const char *name;
} table[] = {
#include "functions.inc"
};

static const struct {
    const char *name;
    Collective collective;
    bool reduces;
} collectives[] = {
    {"SendRecv", Collective::SendRecv, false},   {"AllReduce", Collective::AllReduce, true},
    {"AllGather", Collective::AllGather, false}, {"ReduceScatter", Collective::ReduceScatter, true},
    {"Broadcast", Collective::Broadcast, false}, {"Reduce", Collective::Reduce, true},
};

static std::vector<std::string> words(const char *text)
{
    std::vector<std::string> out;
    std::string word;
    for (;; text++) {
        if (*text && *text != ' ') {
            word += *text;
            continue;
        }
        if (!word.empty()) out.push_back(word);
        word.clear();
        if (!*text) return out;
    }
}

static const char *name_of(unsigned id)
{
    for (const auto &row : table)
        if (row.id == id) return row.name;
    refuse(NOT_SUPPORTED,
           "work names device function %u, which the table of this build does not have: build this library "
           "with the host_table.cc of the libnccl that runs",
           id);
}

Function function_of(unsigned id)
{
    const char *name = name_of(id);
    const std::vector<std::string> word = words(name);
    Function f = {Collective::SendRecv, Algorithm::Ring, Protocol::Simple, {Type::u8, Op::Sum, 0}, name};
    const decltype(&collectives[0]) end = collectives + sizeof collectives / sizeof collectives[0];
    auto row = collectives;
    while (row != end && word[0] != row->name) row++;
    if (word[0] == "AllGatherV") refuse(NOT_SUPPORTED, "%s is not interpreted: set NCCL_ALLGATHERV_ENABLE=0", name);
    if (row == end) refuse(NOT_SUPPORTED, "device function %s is not interpreted", name);
    f.collective = row->collective;
    if (f.collective == Collective::SendRecv) return f;
    if (word.size() != (row->reduces ? 5u : 3u)) refuse(NOT_SUPPORTED, "device function %s is not understood", name);
    if (row->reduces && (!op_of(word[1].c_str(), &f.reduction.op) || !type_of(word[2].c_str(), &f.reduction.type)))
        refuse(NOT_SUPPORTED, "%s: op %s of type %s is not interpreted", name, word[1].c_str(), word[2].c_str());
    const std::string &algorithm = word[word.size() - 2], &protocol = word.back();
    if (algorithm == "TREE" && f.collective == Collective::AllReduce)
        f.algorithm = Algorithm::Tree;
    else if (algorithm != "RING")
        refuse(NOT_SUPPORTED, "%s: algorithm %s is not interpreted: set NCCL_ALGO=Ring", name, algorithm.c_str());
    if (protocol == "LL")
        f.protocol = Protocol::LL;
    else if (protocol == "LL128")
        f.protocol = Protocol::LL128;
    else if (protocol != "SIMPLE")
        refuse(NOT_SUPPORTED, "%s: protocol %s is not interpreted: set NCCL_PROTO=Simple", name, protocol.c_str());
    return f;
}

/* Up to 2.30 a kernel has the words of one function that it is for (AllReduce_Sum_f32_RING_LL), later some of them
 * (AllReduce_f32_RING), or all: the collective comes first, a type is followed by an algorithm. */
bool kernel_suits(const char *kernel, const Function &function)
{
    const char *at = strstr(kernel, "ncclDevKernel_");
    if (!at) return false;
    at += strlen("ncclDevKernel_");
    if (strncmp(at, "Generic", 7) == 0) return true;
    const std::vector<std::string> word = words(function.name);
    /* The mangled name goes on with the length of a type: "...SendRecv24ncclDevKernelArgs..." */
    if (function.collective == Collective::SendRecv) return strncmp(at, "SendRecv", 8) == 0;
    if (strncmp(at, (word[0] + "_").c_str(), word[0].size() + 1) != 0) return false;
    if (word.size() != 5) return true;
    at += word[0].size();
    /* Kernels for sums of signed integers are those of unsigned ones. */
    std::string type = "_" + word[2] + "_";
    if (strstr(at, type.c_str())) return true;
    if (type[1] == 'i') type[1] = 'u';
    return strstr(at, type.c_str()) != nullptr;
}

} // namespace psm
