/* Statuses and the error record of a thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"
#include "libc.h"
#include "psm_cuda.h"

PSM_STATIC_ASSERT(offsetof(struct psm_error, op_id) == 24 && sizeof(struct psm_error) == 312,
                  "detail fills a gap: callers of earlier releases have a struct psm_error of this size");

static _Thread_local struct psm_error last = {.rank = -1, .peer = -1};

const struct psm_error *psm_last_error(void)
{
    return &last;
}

int psm_version(void)
{
    return PSM_VERSION_MAJOR * 1000 + PSM_VERSION_MINOR;
}

const char *psm_status_name(psm_status status)
{
    /* No default: the compiler reports a missing status. */
    switch (status) {
#define NAME(status_)                                                                                                  \
    case status_:                                                                                                      \
        return #status_;
        NAME(PSM_OK)
        NAME(PSM_IN_PROGRESS)
        NAME(PSM_ERR_INVALID)
        NAME(PSM_ERR_NO_MEMORY)
        NAME(PSM_ERR_NO_RESOURCE)
        NAME(PSM_ERR_UNSUPPORTED)
        NAME(PSM_ERR_NOT_FOUND)
        NAME(PSM_ERR_REFUSED)
        NAME(PSM_ERR_TIMEOUT)
        NAME(PSM_ERR_PEER_DEAD)
        NAME(PSM_ERR_PEER_CLOSED)
        NAME(PSM_ERR_PROTOCOL)
        NAME(PSM_ERR_VERSION)
        NAME(PSM_ERR_MISMATCH)
        NAME(PSM_ERR_DENIED)
        NAME(PSM_ERR_ABORTED)
        NAME(PSM_ERR_CUDA)
        NAME(PSM_ERR_SYSTEM)
        NAME(PSM_ERR_INTERNAL)
#undef NAME
    }
    return "unknown status";
}

enum { CAUSE_BITS = 8, CAUSE_MASK = (1 << CAUSE_BITS) - 1, NAMED_MOST = (1 << (32 - CAUSE_BITS)) - 2 };

const char *psm_cause_name(enum psm_cause cause)
{
    /* No default: the compiler names a cause that is missing here. */
    switch (cause) {
    case PSM_CAUSE_OTHER:
        return "other";
    case PSM_CAUSE_PEER_DIED:
        return "peer-died";
    case PSM_CAUSE_PEER_CLOSED:
        return "peer-closed";
    case PSM_CAUSE_PEER_FAILED:
        return "peer-failed";
    case PSM_CAUSE_DEADLINE:
        return "deadline";
    case PSM_CAUSE_MISMATCH:
        return "mismatch";
    case PSM_CAUSE_DAMAGED_TAIL:
        return "damaged-recvTail";
    case PSM_CAUSE_DAMAGED_HEAD:
        return "damaged-sendHead";
    case PSM_CAUSE_WRONG_DATA:
        return "wrong-data";
    case PSM_CAUSE_PEER_SENT:
        return "peer-sent";
    }
    return "other";
}

/* What is in the detail of an error may come from another process, or from a caller of an earlier release, where it is
 * a gap of the struct. */
enum psm_cause psm_error_cause(const struct psm_error *error)
{
    uint32_t cause = error ? error->detail & CAUSE_MASK : 0;
    return cause <= PSM_CAUSE_PEER_SENT ? (enum psm_cause)cause : PSM_CAUSE_OTHER;
}

int psm_error_names(const struct psm_error *error)
{
    return psm_error_cause(error) == PSM_CAUSE_OTHER ? -1 : (int)(error->detail >> CAUSE_BITS) - 1;
}

uint32_t psm_error_detail(enum psm_cause cause, int names)
{
    uint32_t rank = names >= 0 && names <= NAMED_MOST ? (uint32_t)names + 1 : 0;
    return cause == PSM_CAUSE_OTHER ? 0 : rank << CAUSE_BITS | (uint32_t)cause;
}

/* What a status alone says. */
static enum psm_cause cause_of(psm_status status)
{
    switch (status) {
    case PSM_ERR_PEER_DEAD:
        return PSM_CAUSE_PEER_DIED;
    case PSM_ERR_PEER_CLOSED:
        return PSM_CAUSE_PEER_CLOSED;
    case PSM_ERR_TIMEOUT:
        return PSM_CAUSE_DEADLINE;
    case PSM_ERR_MISMATCH:
        return PSM_CAUSE_MISMATCH;
    default:
        return PSM_CAUSE_OTHER;
    }
}

enum psm_cause psm_refusal(psm_status status)
{
    switch (status) {
    case PSM_ERR_NO_MEMORY:
    case PSM_ERR_NO_RESOURCE:
    case PSM_ERR_CUDA:
    case PSM_ERR_SYSTEM:
    case PSM_ERR_INTERNAL:
        return PSM_CAUSE_PEER_FAILED;
    default:
        return cause_of(status);
    }
}

uint32_t psm_detail_of(psm_status status, int names)
{
    return psm_error_detail(cause_of(status), names);
}

psm_status psm_because(psm_status status, enum psm_cause cause, int names)
{
    last.detail = psm_error_detail(cause, names);
    return status;
}

psm_status psm_peer_sent(psm_status status)
{
    return psm_because(status, PSM_CAUSE_PEER_SENT, last.peer);
}

/* The arguments may point into the record that is being written: callers often report an error again with more context.
 */
static void set(psm_status status, const char *stage, int rank, int peer, uint64_t op_id, const char *format,
                va_list arguments)
{
    struct psm_error error = {
        .status = status, .rank = rank, .peer = peer, .op_id = op_id, .detail = psm_detail_of(status, peer)};
    snprintf(error.stage, sizeof error.stage, "%s", stage ? stage : "");
    vsnprintf(error.text, sizeof error.text, format, arguments);
    last = error;
}

__attribute__((format(printf, 1, 2))) static void append(const char *format, ...)
{
    size_t n = strlen(last.text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last.text + n, sizeof last.text - n, format, arguments);
    va_end(arguments);
}

psm_status psm_fail(psm_status status, const char *stage, int rank, int peer, uint64_t op_id, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(status, stage, rank, peer, op_id, format, arguments);
    va_end(arguments);
    return status;
}

static psm_status status_of(int number)
{
    switch (number) {
    case ENOMEM:
        return PSM_ERR_NO_MEMORY;
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case ENOBUFS:
    case EAGAIN:
        return PSM_ERR_NO_RESOURCE;
    case EACCES:
    case EPERM:
        return PSM_ERR_DENIED;
    case ENOENT:
        return PSM_ERR_NOT_FOUND;
    default:
        return PSM_ERR_SYSTEM;
    }
}

psm_status psm_fail_errno(int number, const char *stage, int rank, int peer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(status_of(number), stage, rank, peer, 0, format, arguments);
    va_end(arguments);
    const char *name = psm_errno_name(number), *text = psm_errno_text(number);
    last.sys_errno = number;
    append(": %s (%s)", text ? text : "unknown error", name ? name : "?");
    return last.status;
}

psm_status psm_cuda_fail(int code, const char *stage, int rank, int peer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(PSM_ERR_CUDA, stage, rank, peer, 0, format, arguments);
    va_end(arguments);
    struct psm_error kept = last; /* reading the error table may fail, too */
    const struct psm_cuda *cuda = psm_cuda_get();
    last = kept;
    last.cuda = code;
    const char *name = cuda ? cuda->cudaGetErrorName(code) : NULL, *text = cuda ? cuda->cudaGetErrorString(code) : NULL;
    append(": %s (%d): %s", name ? name : "CUDA error", code, text ? text : "unknown");
    return PSM_ERR_CUDA;
}

psm_status psm_fail_again(const struct psm_error *error)
{
    if (error != &last) last = *error;
    return last.status;
}

psm_status psm_set_last_error(const struct psm_error *error)
{
    if (!error) return psm_fail(PSM_ERR_INVALID, "error", -1, -1, 0, "psm_set_last_error: the error is NULL");
    struct psm_error copy = *error;
    copy.stage[sizeof copy.stage - 1] = copy.text[sizeof copy.text - 1] = 0;
    copy.detail = psm_error_detail(psm_error_cause(error), psm_error_names(error));
    return psm_fail_again(&copy);
}

psm_status psm_fail_at(const char *stage, int rank, int peer, uint64_t op_id)
{
    if (last.stage[0] == 0 && stage) snprintf(last.stage, sizeof last.stage, "%s", stage);
    if (last.rank < 0) last.rank = rank;
    if (last.peer < 0) last.peer = peer;
    if (psm_error_names(&last) < 0) last.detail = psm_error_detail(psm_error_cause(&last), last.peer);
    if (last.op_id == 0) last.op_id = op_id;
    return last.status;
}
