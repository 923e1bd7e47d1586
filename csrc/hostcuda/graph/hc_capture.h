/* Internals of captures: sequences, the streams that take part, and the events recorded in them. Protected by the lock
 * of the graphs. */
#ifndef HC_CAPTURE_H
#define HC_CAPTURE_H

#include "graph/hc_graph.h"

/* The nodes that the next one depends on. The application sees these arrays (cudaStreamGetCaptureInfo). */
struct hc_frontier {
    CUgraphNode *nodes;
    CUgraphEdgeData *data;
    size_t n;
};

/* From cudaStreamBeginCapture to cudaStreamEndCapture. */
struct hc_sequence {
    unsigned long long id;
    struct hc_graph *graph;
    bool borrowed; /* the graph already belonged to the application */
    bool invalid;
    int mode; /* enum cudaStreamCaptureMode */
    pthread_t owner;
    struct hc_capture *origin, *parts;
    struct hc_capture_point *points;
    struct hc_sequence *next;
};

/* A stream's part in a sequence; a stream's slot points to it. */
struct hc_capture {
    struct hc_sequence *sequence; /* NULL: collects one piece of work for hc_payload_record */
    struct hc_payload *collected;
    struct hc_stream *stream; /* held */
    struct hc_frontier frontier;
    struct hc_capture *next;
};

/* The mark of an event that was recorded in a capture; an event's slot points to it. */
struct hc_capture_point {
    struct hc_sequence *sequence; /* NULL: the capture has ended */
    struct hc_frontier frontier;
    struct hc_capture_point *next, *previous;
};

struct hc_capture *hc_capture_of(struct hc_stream *stream);
int hc_frontier_add(struct hc_frontier *frontier, const CUgraphNode *nodes, const CUgraphEdgeData *data, size_t n,
                    bool replace);
int hc_sequence_begin(struct hc_stream *stream, int mode, struct hc_graph *graph, struct hc_sequence **sequence);
void hc_sequence_end(struct hc_sequence *sequence, bool keep);
int hc_sequence_joined(struct hc_sequence *sequence); /* 0 or STREAM_CAPTURE_UNJOINED */
bool hc_capture_blocks_legacy(int device, bool invalidate);
#endif
