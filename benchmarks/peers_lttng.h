/* The tracepoints of peers_lttng.c: what a profiler keeps of an event at its start, and at its end. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER psm_bench
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "peers_lttng.h"

#if !defined(PSM_BENCHMARKS_PEERS_LTTNG_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define PSM_BENCHMARKS_PEERS_LTTNG_H

#include <lttng/tracepoint.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_EVENT(psm_bench, begin, LTTNG_UST_TP_ARGS(uint64_t, event, uint64_t, parent, uint8_t, type),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer_hex(uint64_t, event, event)
                                                   lttng_ust_field_integer_hex(uint64_t, parent, parent)
                                                       lttng_ust_field_integer(uint8_t, type, type)))
LTTNG_UST_TRACEPOINT_EVENT(psm_bench, begin_coll,
                           LTTNG_UST_TP_ARGS(uint64_t, event, uint64_t, parent, const char *, func, const char *,
                                             datatype, uint64_t, count),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer_hex(uint64_t, event, event)
                                                   lttng_ust_field_integer_hex(uint64_t, parent, parent)
                                                       lttng_ust_field_string(func, func)
                                                           lttng_ust_field_string(datatype, datatype)
                                                               lttng_ust_field_integer(uint64_t, count, count)))
LTTNG_UST_TRACEPOINT_EVENT(psm_bench, end, LTTNG_UST_TP_ARGS(uint64_t, event),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer_hex(uint64_t, event, event)))

#endif

#include <lttng/tracepoint-event.h>
