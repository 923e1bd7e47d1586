/* The state of the checker: communicators, and events by their handles. Callers hold the checker's lock. */
#ifndef PSM_PROFILER_KNOWN_H
#define PSM_PROFILER_KNOWN_H

#include "event.h"

/* Stopped events are kept so that their handles are recognised: children may name them for a long time. */
enum { BUCKETS = 1 << 14, KEPT = 1 << 12, ENDED = 64 };

/* A communicator: the results of init. Contexts may be equal. */
struct member {
    struct member *next;
    void *context;
    uint64_t comm;
    int rank;
    unsigned refs; /* events, and calls of startEvent in progress */
};

/* An event. Referenced by its bucket and by each event below it. */
struct entry {
    struct entry *next;            /* link in the bucket */
    struct entry *older, *younger; /* link in the list of stopped ones */
    struct entry *parent;
    struct member *member;
    void *handle;
    struct event e;
    uint64_t id;
    uint64_t past; /* kinds that the handle had before */
    unsigned refs;
    unsigned holders;                 /* open events with this handle: more than 1 is the profiler's fault */
    int kind, place;                  /* place: position of the last state */
    bool open, foreign, kept, shared; /* shared: several open events had the handle */
};

struct known {
    struct entry *buckets[BUCKETS];
    struct entry *oldest, *youngest, *spare;
    struct member *members, *ended; /* ended: those that were finalized last come first */
    uint64_t stopped, forgotten;    /* number of kept ones, and number of dropped ones */
};

/* The index of the chain of a handle. */
struct entry **known_bucket(struct known *k, const void *handle);
/* The newest event with this handle, or NULL. */
struct entry *known_find(struct known *k, const void *handle);
/* Drops a reference. */
void known_release(struct known *k, struct entry *e);
/* Removes it from its bucket, and from the stopped ones. */
void known_forget(struct known *k, struct entry *e);
/* A stopped event is kept until it is the oldest of too many. */
void known_keep(struct known *k, struct entry *e);
struct member *known_member(struct member *list, const void *context);
/* Keeps the last ones so that they are recognised, and those that have events. */
void known_end(struct known *k, struct member *m);

#endif
