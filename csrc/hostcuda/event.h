/* Interprocess events (event_ipc.c): a page that the processes share tells which record was the last, whose it is and
   whether it is done. A record is named by its stamp: who (a party of the page) and a number. */
#ifndef HC_EVENT_H
#define HC_EVENT_H

#include "stream.h"

struct hc_shared_event;
int hc_shared_event_new(int device, struct hc_shared_event **event);
void hc_shared_event_end(struct hc_shared_event *event);
int hc_shared_event_name(struct hc_shared_event *event, void *name); /* 64 bytes */
int hc_shared_event_open(const void *name, struct hc_shared_event **event);

uint64_t hc_shared_event_record(struct hc_shared_event *event);
void hc_shared_event_done(struct hc_shared_event *event, uint64_t stamp);
uint64_t hc_shared_event_last(struct hc_shared_event *event); /* 0: never recorded */
/* 0, NOT_READY, or UNKNOWN: who recorded it is gone, so that it will never be done. */
int hc_shared_event_query(struct hc_shared_event *event, uint64_t stamp);
/* Until it is done. `stream` (may be NULL): given up, with 0, when that is reset or the process exits. */
int hc_shared_event_wait(struct hc_shared_event *event, uint64_t stamp, const struct hc_stream *stream);
#endif
