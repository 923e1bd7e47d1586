/* The library that PSM_HOSTCUDA_KERNELS names: kernels of NCCL, each launch read as a whole, then run channel by
 * channel in turns. A channel never blocks the others, as blocks on a GPU do not. */
#include "layouts.h"
#include "nccl_work.h"

#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <exception>
#include <link.h>
#include <mutex>
#include <sched.h>

extern "C" {
#include "base.h"
#include "log.h"
}

extern "C" PSM_HOSTCUDA_API int psm_hostcuda_kernels(void);

namespace psm
{

namespace
{

void say(enum psm_level level, const psm_kernel_launch *launch, const char *name, const char *middle,
         const std::string &rest)
{
    char line[PSM_LINE_SIZE / 2];
    struct psm_text t = {line, 0, sizeof line, 0};
    static const char before[] = "kernels: ";
    psm_text_literal(&t, before, sizeof before - 1);
    psm_text_str(&t, name, middle);
    psm_text_literal(&t, middle, strlen(middle));
    psm_text_str(&t, rest.c_str(), "");
    psm_log_set_device(launch->device);
    psm_log_write(level, line, t.n);
}

void say_refused(const psm_kernel_launch *launch, const std::string &reason)
{
    say(PSM_LEVEL_WARN, launch, launch->name, " is refused: ", reason);
}

/* Once a function, so that a log tells what was run on the host. */
void say_run(const psm_kernel_launch *launch, const Plan &plan)
{
    static std::mutex lock;
    static std::set<std::string> said;
    for (const std::string &function : plan.functions) {
        {
            std::lock_guard<std::mutex> guard(lock);
            if (!said.insert(function).second) continue;
        }
        say(PSM_LEVEL_INFO, launch, function.c_str(),
            " is run by the CPU, channels: ", std::to_string(plan.channels.size()));
    }
}

int find_nccl(struct dl_phdr_info *info, size_t, void *version)
{
    const char *slash = strrchr(info->dlpi_name, '/');
    if (strncmp(slash ? slash + 1 : info->dlpi_name, "libnccl.so", strlen("libnccl.so")) != 0) return 0;
    void *library = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    int (*get)(int *) = nullptr;
    if (library) *reinterpret_cast<void **>(&get) = dlsym(library, "ncclGetVersion");
    if (get && get(static_cast<int *>(version)) != 0) *static_cast<int *>(version) = 0;
    if (library) dlclose(library);
    return get != nullptr;
}

/* Layouts of another release would be read as nonsense that may look right. */
void check_release()
{
    static const int version = [] {
        int found = 0;
        dl_iterate_phdr(find_nccl, &found);
        return found;
    }();
    if (version && version != NCCL_VERSION_CODE)
        refuse(NOT_SUPPORTED,
               "this library of kernels was built with the headers of release %d, and libnccl is of %d: build it "
               "with that tree",
               NCCL_VERSION_CODE, version);
}

/* Where a channel is. */
struct Run {
    Channel *channel;
    bool begun = false;

    bool done() const { return channel->stages.empty(); }

    bool advance()
    {
        if (done()) return false;
        Stage &stage = channel->stages.front();
        bool moved = !begun, all = true;
        if (!begun) {
            if (!stage.begins.empty()) channel->tell(stage.begins, false);
            for (const Copy &copy : stage.copies)
                if (copy.n) memmove(copy.to, copy.from, copy.n);
            for (Lane &lane : stage.lanes) lane.begin();
            begun = true;
        }
        for (Lane &lane : stage.lanes) {
            if (lane.done()) continue;
            moved |= lane.advance();
            all &= lane.done();
        }
        if (!all) return moved;
        for (Lane &lane : stage.lanes) lane.end();
        if (!stage.ends.empty()) channel->tell(stage.ends, true);
        channel->stages.pop_front();
        begun = false;
        return true;
    }
};

void run(Plan &plan)
{
    std::vector<Run> runs;
    for (Channel &channel : plan.channels) {
        if (channel.consumed) __atomic_store_n(channel.consumed, channel.consumed_to, __ATOMIC_RELEASE);
        runs.push_back({&channel});
    }
    for (unsigned idle = 0;;) {
        bool moved = false, all = true;
        for (Run &one : runs) {
            moved |= one.advance();
            all &= one.done();
        }
        if (all) break;
        if (__atomic_load_n(plan.abort, __ATOMIC_RELAXED)) return;
        if (moved) {
            idle = 0;
        } else if (++idle < 64) {
            sched_yield();
        } else {
            const struct timespec pause = {0, 50000};
            nanosleep(&pause, nullptr);
        }
    }
    for (Channel &channel : plan.channels)
        if (channel.work_counter) *channel.work_counter += channel.works;
}

int launch(const psm_kernel_launch *launch, void *)
{
    try {
        check_release();
        Memory memory(launch);
        Plan plan;
        read_plan(launch, memory, plan);
        say_run(launch, plan);
        run(plan);
        return 0;
    } catch (const Refusal &refusal) {
        say_refused(launch, refusal.text);
        return refusal.code;
    } catch (const std::exception &failure) {
        say_refused(launch, failure.what());
        return LAUNCH_FAILURE;
    }
}

} // namespace

} // namespace psm

int psm_hostcuda_kernels(void)
{
    static const char kernels[] = "*ncclDevKernel_*";
    if (psm::describe_parameters(kernels) != 0) return -1;
    return psm_hostcuda_register_kernel(kernels, psm::launch, nullptr);
}
