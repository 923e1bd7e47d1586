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

bool kernel_suits(const char *kernel, const Function &function)
{
    const char *at = strstr(kernel, "ncclDevKernel_");
    if (!at) return false;
    at += strlen("ncclDevKernel_");
    if (strncmp(at, "Generic", 7) == 0) return true;
    const std::vector<std::string> word = words(function.name);
    std::string want = word[0] + "_";
    /* The mangled name goes on with the length of a type: "...SendRecv24ncclDevKernelArgs..." */
    if (function.collective == Collective::SendRecv) return strncmp(at, "SendRecv", 8) == 0;
    /* Kernels for sums of signed integers are those of unsigned ones. */
    if (word.size() == 5) want += "Sum_" + (word[2][0] == 'i' ? "u" + word[2].substr(1) : word[2]) + "_";
    return strncmp(at, want.c_str(), want.size()) == 0;
}

} // namespace psm
