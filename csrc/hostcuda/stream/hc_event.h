/* Interprocess events (event_ipc.c): a page shared by the processes holds the last record, its owner and whether it is
 * done. A record is identified by its stamp: the owner (a party of the page) and a number. */
#ifndef HC_EVENT_H
#define HC_EVENT_H

#include "stream/hc_stream.h"

struct hc_shared_event;
int hc_shared_event_new(int device, struct hc_shared_event **event);
void hc_shared_event_end(struct hc_shared_event *event);
int hc_shared_event_name(struct hc_shared_event *event, void *name); /* 64 bytes */
int hc_shared_event_open(const void *name, struct hc_shared_event **event);

uint64_t hc_shared_event_record(struct hc_shared_event *event);
void hc_shared_event_done(struct hc_shared_event *event, uint64_t stamp);
uint64_t hc_shared_event_last(struct hc_shared_event *event); /* 0: never recorded */
/* 0, NOT_READY, or UNKNOWN: its owner is gone, so it will never be done. */
int hc_shared_event_query(struct hc_shared_event *event, uint64_t stamp);
/* Waits until it is done. `stream` (may be NULL): stops waiting, with 0, if that is reset or the process exits. */
int hc_shared_event_wait(struct hc_shared_event *event, uint64_t stamp, const struct hc_stream *stream);
#endif
