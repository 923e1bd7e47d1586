/* Names of streams in log lines, and the line about work that failed after its call. */
#include "psm_messages.h"
#include "stream/hc_stream.h"

const char *hc_stream_kind_name(const struct hc_stream *stream)
{
    if (stream->kind == HC_LEGACY) return "legacy";
    if (stream->per_thread) return "per-thread";
    return stream->kind == HC_BLOCKING ? "blocking" : "non-blocking";
}

void hc_say_failed_later(const struct hc_stream *stream, int fn, int tid, int code)
{
    psm_msg_hostcuda_failed_later(fn >= 0 ? hc_functions[fn].name : "work", tid, hc_cudaGetErrorName(code), code,
                                  hc_stream_kind_name(stream),
                                  atomic_load_explicit(&stream->handle, memory_order_relaxed), stream->device);
}
