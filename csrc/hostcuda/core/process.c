/* The process: options, start and end, fork, and what happens around every exported call. */
#define _GNU_SOURCE
#include "core/hc.h"
#include "core/hc_life.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/hc_calls.h"
#include "fault.h"
#include "log.h"
#include "psm_messages.h"
#include "san.h"

static struct hc_calls_row *_Atomic rows[HC_FN_COUNT]; /* call counters of functions that are recorded */
static struct hc_calls_row nowhere;
static atomic_bool started;
static atomic_ulong calls[HC_FN_COUNT];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int start_error;
static pid_t owner;
static _Atomic int refusal;      /* result of every call: after fork, and when the process exits */
static atomic_bool driver_ready; /* cuInit was called, or the runtime did it */

/* Every function is a fault site with its name. Filled when the first fault is looked up. */
static struct psm_site sites[HC_FN_COUNT];
static pthread_once_t sites_once = PTHREAD_ONCE_INIT;
static _Thread_local struct psm_fault late; /* of the call that runs in this thread, if it has a late fault */
static _Thread_local const struct hc_call *late_call;

/* Index of an option's value in the list; the first if it is not set. An unknown value is reported, because its author
 * believes that it is in effect. */
static int choice(const char *name, const char *const *words, int n, const char *expected)
{
    const char *text = getenv(name);
    if (!text || !*text) return 0;
    for (int i = 0; i < n; i++)
        if (strcmp(text, words[i]) == 0) return i;
    psm_msg_hostcuda_option(name, expected, text, words[0]);
    return 0;
}

static void read_options(void)
{
    static const char *const yes[] = {"1", "0"}, *const host_functions[] = {"concurrent", "serial"};
    static const char *const force[] = {"0", "force"}, *const sanitize[] = {"off", "warn", "error"};
    hc_options.strict = choice("PSM_HOSTCUDA_STRICT", yes, 2, "1 or 0") == 0;
    hc_options.inline_work = choice("PSM_HOSTCUDA_INLINE", yes, 2, "1 or 0") == 0;
    hc_options.serial_host_functions =
        choice("PSM_HOSTCUDA_HOST_FUNCTIONS", host_functions, 2, "concurrent or serial") == 1;
    hc_options.force = choice("PSM_HOSTCUDA", force, 2, "force, or not set") == 1;
    hc_options.sanitize = choice("PSM_HOSTCUDA_SANITIZE", sanitize, 3, "off, warn or error");
}

/* If a real driver is loaded, the emulated libraries would hide it from an application that wants the GPU. */
static bool real_driver(void)
{
    return access("/proc/driver/nvidia/version", F_OK) == 0;
}

static void after_fork(void)
{
    if (getpid() == owner) return;
    atomic_store(&refusal, PSM_CUDA_NOT_INITIALIZED);
    for (int fn = 0; fn < HC_FN_COUNT; fn++) atomic_store(&rows[fn], NULL); /* the parent's */
}

static void stop(void)
{
    if (getpid() != owner) return;
    atomic_store(&refusal, PSM_CUDA_DEINITIALIZED); /* exit handlers that run later, threads that continue */
    hc_life_stop();
}

/* What the sanitizer needs to know about an address: whether it is ours, and its allocation. */
static bool place_of(uint64_t address, uint64_t *base, uint64_t *size)
{
    struct hc_place place;
    if (!hc_place_of(address, &place, NULL)) return false;
    *base = place.base;
    *size = place.size;
    return true;
}

static void start_sanitizer(void)
{
    const struct psm_san_hooks hooks = {
        .device = hc_current_device, .log_device = hc_current_device, .place = place_of, .every_birth = true};
    psm_san_start((enum psm_san_mode)hc_options.sanitize, "hostcuda", &hooks);
}

/* PSM_FAULTS="cudaFree:error=cudaErrorIllegalAddress": names of the runtime and of the driver. */
static bool error_of_name(const char *site, const char *name, int64_t *value)
{
    (void)site;
    for (int code = 1; code < 1000; code++) {
        const char *driver = NULL;
        if (strcmp(hc_cudaGetErrorName(code), name) != 0 &&
            (hc_cuGetErrorName(code, &driver) != 0 || strcmp(driver, name) != 0))
            continue;
        *value = code;
        return true;
    }
    return false;
}

/* What some functions can do beyond that: drop: success without the work, and of a handle that is made, 0; short: fewer
 * bytes; corrupt: other bytes, or of a handle that is made, one that is gone already; stall: the stream is late. */
#define SITE_TEXT  "a CUDA or NVML function"
#define DROPS(fn)  PSM_FAULT_SITE_OF(site_##fn, #fn, SITE_TEXT, PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP))
#define COPIES(fn) PSM_FAULT_SITE_OF(site_##fn, #fn, SITE_TEXT, PSM_FAULT_CAN_ALL | PSM_FAULT_CAN(PSM_FAULT_STALL))
#define MAKES(fn)                                                                                                      \
    PSM_FAULT_SITE_OF(site_##fn, #fn, SITE_TEXT,                                                                       \
                      PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT))
DROPS(cudaEventRecord);
DROPS(cudaEventQuery);
DROPS(cudaEventDestroy);
DROPS(cudaStreamQuery);
DROPS(cudaStreamDestroy);
DROPS(cudaFree);
COPIES(cudaMemcpyAsync);
MAKES(cudaStreamCreateWithFlags);
MAKES(cudaEventCreateWithFlags);

static void name_sites(void)
{
    static const struct psm_site *const more[] = {
        &site_cudaEventRecord,         &site_cudaEventQuery, &site_cudaEventDestroy, &site_cudaStreamQuery,
        &site_cudaStreamDestroy,       &site_cudaFree,       &site_cudaMemcpyAsync,  &site_cudaStreamCreateWithFlags,
        &site_cudaEventCreateWithFlags};
    for (int fn = 0; fn < HC_FN_COUNT; fn++) {
        uint32_t can = PSM_FAULT_CAN_CALL;
        for (size_t i = 0; i < sizeof more / sizeof *more; i++)
            if (strcmp(more[i]->name, hc_functions[fn].name) == 0) can = more[i]->actions;
        psm_site_init(&sites[fn], hc_functions[fn].name, SITE_TEXT, can);
    }
}

/* What a fault asks of the call that runs in this thread, for the function that does the work. */
static _Thread_local struct psm_fault asked;
static _Thread_local const struct hc_call *asked_call;

bool hc_fault_asks(int action, int64_t *value)
{
    if (!psm_fault_any()) return false;
    if (!asked_call || asked_call != hc_running || (int)asked.action != action) return false;
    if (value) *value = asked.value;
    asked_call = NULL; /* what it calls itself is made well */
    return true;
}

/* Threads of libpsm's proxy say so by their names. */
static const char *kind_of_thread(void)
{
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return strncmp(name, "psm ", 4) == 0 ? "proxy" : "application";
}

/* A fault for an unknown function would never hit, and its author would wait in vain. Names that do not look like
 * CUDA's belong to other libraries. */
static void look_for_site(const char *site, bool prefix, void *context)
{
    (void)context;
    size_t n = strlen(site);
    if (strncmp(site, "cu", 2) != 0 && strncmp(site, "nvml", 4) != 0) return;
    for (int fn = 0; fn < HC_FN_COUNT; fn++)
        if (strncmp(hc_functions[fn].name, site, n) == 0 && (prefix || !hc_functions[fn].name[n])) return;
    psm_msg_fault_nowhere(site);
}

/* Errors that CUDA documents to leave the context unusable, so that all later calls return them too. */
static bool spoils(int code)
{
    switch (code) {
    case 226: /* contained */
    case PSM_CUDA_ILLEGAL_ADDRESS:
    case 702: /* launch timeout */
    case 710: /* assert */
    case 714: /* hardware stack */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid program counter */
    case 719: /* launch failure */
    case 911: /* external device */
        return true;
    default:
        return false;
    }
}

/* The error of a fault, or 0 if the call is to be made. */
static __attribute__((noinline)) int strike(const struct hc_call *call)
{
    struct psm_fault fault;
    pthread_once(&sites_once, name_sites);
    struct psm_fault_args here = {.rank = PSM_FAULT_UNKNOWN, .peer = PSM_FAULT_UNKNOWN, .op = kind_of_thread()};
    if (!psm_fault_hit(&sites[call->fn], &here, &fault)) return 0;
    bool makes = call->fn == HC_FN_cudaStreamCreateWithFlags || call->fn == HC_FN_cudaEventCreateWithFlags;
    if (fault.action == PSM_FAULT_DROP && !makes) return HC_DROPPED;
    if (fault.action == PSM_FAULT_SHORT || fault.action == PSM_FAULT_CORRUPT || fault.action == PSM_FAULT_STALL ||
        fault.action == PSM_FAULT_DROP) {
        asked = fault;
        asked_call = call;
        return 0;
    }
    if (fault.action == PSM_FAULT_ERROR) {
        int code = (int)fault.value;
        if (call->api != HC_API_NVML && spoils(code)) hc_device_fail(hc_current_device(), code);
        return code;
    }
    if (fault.action == PSM_FAULT_LATE) {
        late = fault;
        late_call = call;
    }
    /* Nobody sees the result of a call whose hang was ended by an abort. */
    return psm_fault_act_before(&fault) ? PSM_CUDA_UNKNOWN : 0;
}

static void start(void)
{
    owner = getpid();
    psm_proc_refresh_rank();
    read_options();
    atomic_store_explicit(&started, true, memory_order_release);
    if (real_driver() && !hc_options.force) {
        start_error = PSM_CUDA_SYSTEM_DRIVER_MISMATCH;
        psm_msg_hostcuda_real_driver();
        return;
    }
    pthread_atfork(NULL, NULL, after_fork);
    psm_fault_set_resolver(error_of_name);
    psm_fault_load();
    psm_fault_each(look_for_site, NULL);
    psm_log_set_device_function(hc_current_device);
    start_error = hc_life_start();
    if (start_error) return;
    start_sanitizer();
    atexit(stop);
}

/* What may be called before cuInit, and what works despite a sticky error. */
static bool before_init(int fn)
{
    return fn == HC_FN_cuInit || fn == HC_FN_cuDriverGetVersion || fn == HC_FN_cuGetErrorName ||
           fn == HC_FN_cuGetErrorString || fn == HC_FN_cuGetProcAddress_v2 || fn == HC_FN_cuGetProcAddress ||
           fn == HC_FN_cuGetExportTable;
}

static bool despite_sticky(int fn)
{
    switch (fn) {
    case HC_FN_cudaGetLastError:
    case HC_FN_cudaPeekAtLastError:
    case HC_FN_cudaDeviceReset:
    case HC_FN_cudaGetDevice:
    case HC_FN_cudaSetDevice:
    case HC_FN_cudaGetDeviceCount:
    case HC_FN_cudaDriverGetVersion:
    case HC_FN_cudaRuntimeGetVersion:
    case HC_FN_cuDevicePrimaryCtxReset_v2:
        return true;
    default:
        return before_init(fn);
    }
}

int hc_enter(struct hc_call *call)
{
    call->outer = hc_running;
    hc_running = call;
    pthread_once(&once, start);
    hc_count(call->fn);
    if (start_error) return call->api == HC_API_NVML ? 9 : start_error; /* NVML: driver not loaded */
    int refused = atomic_load_explicit(&refusal, memory_order_relaxed);
    if (refused) return call->api == HC_API_NVML ? 999 : refused;
    if (call->api == HC_API_NVML) return psm_fault_any() ? strike(call) : 0;
    if (hc_in_host_function() || hc_in_destructor()) return PSM_CUDA_NOT_PERMITTED;
    if (call->api == HC_API_CUDA) {
        if (call->fn == HC_FN_cuInit)
            atomic_store(&driver_ready, true);
        else if (!atomic_load_explicit(&driver_ready, memory_order_relaxed) && !before_init(call->fn))
            return PSM_CUDA_NOT_INITIALIZED;
    } else {
        atomic_store_explicit(&driver_ready, true, memory_order_relaxed);
        hc_context_bind(call->fn);
    }
    int stuck = hc_device_sticky(hc_current_device());
    if (stuck && !despite_sticky(call->fn)) return stuck;
    return psm_fault_any() ? strike(call) : 0;
}

int hc_leave(struct hc_call *call, int rc)
{
    hc_running = call->outer;
    if (rc == HC_DROPPED) rc = 0;
    if (asked_call == call) asked_call = NULL;
    if (psm_fault_any() && late_call == call) {
        late_call = NULL;
        psm_fault_act_after(&late);
    }
    /* A query that finds work says so and has not failed: a real runtime keeps it out of the last error, too. */
    if (rc && rc != PSM_CUDA_NOT_READY && call->api <= HC_API_CUDART13 && call->fn != HC_FN_cudaGetLastError &&
        call->fn != HC_FN_cudaPeekAtLastError)
        *hc_last_error() = rc;
    return rc;
}

int hc_unsupported(int fn, int api, int code)
{
    struct hc_call call = {fn, api, 0, NULL};
    int rc = hc_enter(&call);
    if (!rc && atomic_load_explicit(&calls[fn], memory_order_relaxed) == 1) {
        const char *name = hc_functions[fn].name;
        bool multicast = strncmp(name, "cuMulticast", strlen("cuMulticast")) == 0;
        (multicast ? psm_msg_hostcuda_multicast : psm_msg_hostcuda_unsupported)(name, code);
    }
    return hc_leave(&call, rc ? rc : code);
}

/* A relaxed store: if two threads count at once one update may be late; the next call corrects it. */
void hc_count(int fn)
{
    uint64_t n = atomic_fetch_add_explicit(&calls[fn], 1, memory_order_relaxed) + 1;
    struct hc_calls_row *row = atomic_load_explicit(&rows[fn], memory_order_acquire);
    if (!row && atomic_load_explicit(&started, memory_order_acquire)) { /* the record has the rank, read at the start */
        row = hc_calls_record(fn);
        atomic_store_explicit(&rows[fn], row ? row : &nowhere, memory_order_release);
    }
    if (row) __atomic_store_n(&row->calls, n, __ATOMIC_RELAXED);
}
