/* Weak stand-ins so that the libraries load while rooms are still missing. This file goes when they are there. */
#include "hc.h"
#define WEAK __attribute__((weak))
WEAK int hc_topology_start(void)
{
    return 0;
}
WEAK int hc_memory_start(void)
{
    return 0;
}
WEAK int hc_streams_start(void)
{
    return 0;
}
WEAK void hc_streams_stop(void) {}
WEAK void hc_memory_stop(void) {}
WEAK void hc_streams_reset(int device)
{
    (void)device;
}
WEAK void hc_memory_reset(int device)
{
    (void)device;
}
WEAK bool hc_in_host_function(void)
{
    return false;
}
WEAK int hc_current_device(void)
{
    return 0;
}
WEAK int hc_capture_forbids(bool legacy_stream)
{
    (void)legacy_stream;
    return 0;
}
WEAK int hc_capture_work(struct hc_stream *stream, const struct hc_work *work)
{
    (void)stream, (void)work;
    return HC_NOT_CAPTURED;
}
WEAK int hc_capture_event_record(struct hc_stream *stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return HC_NOT_CAPTURED;
}
WEAK int hc_capture_event_wait(struct hc_stream *stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return HC_NOT_CAPTURED;
}
WEAK int hc_capture_forbids_stream(struct hc_stream *stream)
{
    (void)stream;
    return 0;
}
WEAK int hc_capture_forbids_device(int device)
{
    (void)device;
    return 0;
}
WEAK int hc_capture_event_forbids(CUevent event)
{
    (void)event;
    return 0;
}
WEAK void hc_capture_stream_gone(struct hc_stream *stream)
{
    (void)stream;
}
struct hc_event;
WEAK void hc_capture_event_gone(struct hc_event *event)
{
    (void)event;
}
