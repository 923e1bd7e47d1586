/* A stream: the calls that reached a profiler, one per line, with numbers instead of handles and contexts.
 *
 *     psmkit-profiler-stream 1 v6
 *     init T COMM comm=HASH nodes=N ranks=N rank=N name=WORD
 *     start T COMM EVENT KIND parent=EVENT group=EVENT ...
 *     state T EVENT NUMBER ...
 *     stop T EVENT
 *     finalize T COMM
 *
 * T numbers the threads; COMM and EVENT count from 1, 0 means NULL. Members that are 0 are omitted. The lines are in
 * the order of the calls. libnccl-profiler-check.so writes streams, psm_profiler_drive replays them. */
#ifndef PSM_PROFILER_STREAM_H
#define PSM_PROFILER_STREAM_H

#include "event.h"

enum stream_what { STREAM_INIT, STREAM_START, STREAM_STATE, STREAM_STOP, STREAM_FINALIZE };
enum { STREAM_LINE = 1024, STREAM_NAME = 64 };
#define STREAM_HEAD "psmkit-profiler-stream 1 v"

struct stream_line {
    enum stream_what what;
    int thread, state;
    bool foreign; /* the event comes from another process, with that process's parent and context */
    uint64_t comm, id, parent, group;
    struct event e; /* of start; its pointers are not used */
    struct event_args args;
    uint64_t hash;
    int nodes, ranks, rank;
    char name[STREAM_NAME]; /* empty: NULL */
};

/* Includes the line end; size is at least STREAM_LINE. */
size_t stream_put(const struct stream_line *line, char *out, size_t size);
/* NULL, or what is wrong with it. */
const char *stream_get(const char *text, struct stream_line *line);

#endif
