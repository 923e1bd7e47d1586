/* Internals of libnccl-profiler-check.so: the wrapped profiler, and how breaches are reported. */
#ifndef PSM_PROFILER_CHECK_H
#define PSM_PROFILER_CHECK_H

#include "contract.h"
#include "stream.h"

/* Whether NCCL can be offered a table of this version. */
bool check_has(int version);
/* The table of the wrapped profiler; NULL: none is wrapped, only NCCL is checked. */
const void *check_wrapped(int version);
/* Why PSM_PROFILER_WRAP cannot be used, or NULL. */
const char *check_trouble(void);
const char *check_path(void);
const char *check_name(int version);
struct contract *check_contract(int version);

void check_logger(ncclDebugLogger_t logger);
void check_say_begin(int version, const char *name);
void check_say_trouble(const char *why);
void check_say_no_stream(const char *path, const char *why);
void check_say_end(int version, struct contract *c);
contract_report check_say_breach;

/* The recorder of streams: PSM_PROFILER_STREAM. Assigns numbers to contexts and handles. */
bool check_streams(void);
void check_stream_init(int version, const void *context, const struct stream_line *line);
void check_stream_finalize(const void *context);
void check_stream_start(uint64_t id, const void *context, const struct event *e, uint64_t parent, uint64_t group);
void check_stream_state(uint64_t id, int state, const struct event_args *args);
void check_stream_stop(uint64_t id);

/* The built-in profiler, used if none is wrapped. */
void *check_own(void); /* a handle or context that is never reused */

#endif
