/* What the checker knows: communicators, and events by their handles. Whoever calls holds the checker's lock. */
#ifndef PSM_PROFILER_KNOWN_H
#define PSM_PROFILER_KNOWN_H

#include "event.h"

/* Stopped events are kept so that their handles are known again: children name them for long. */
enum { BUCKETS = 1 << 14, KEPT = 1 << 12, ENDED = 64 };

/* A communicator: what init gave. Contexts need not differ. */
struct member {
    struct member *next;
    void *context;
    uint64_t comm;
    int rank;
    unsigned refs; /* events, and calls of startEvent that are under way */
};

/* An event. Referred to by its bucket and by each event below it. */
struct entry {
    struct entry *next;            /* of the bucket */
    struct entry *older, *younger; /* of the stopped ones */
    struct entry *parent;
    struct member *member;
    void *handle;
    struct event e;
    uint64_t id;
    uint64_t past; /* kinds that the handle had before */
    unsigned refs;
    unsigned holders;                 /* open events with this handle: more than 1 is the profiler's fault */
    int kind, place;                  /* place: of the last state */
    bool open, foreign, kept, shared; /* shared: several open events had the handle */
};

struct known {
    struct entry *buckets[BUCKETS];
    struct entry *oldest, *youngest, *spare;
    struct member *members, *ended; /* ended: the last that were finalized first */
    uint64_t stopped, forgotten;    /* how many are kept, and how many are not any more */
};

/* The place of the chain that a handle is in. */
struct entry **known_bucket(struct known *k, const void *handle);
/* The newest event with this handle, or NULL. */
struct entry *known_find(struct known *k, const void *handle);
/* Gives back a reference. */
void known_release(struct known *k, struct entry *e);
/* Out of its bucket, and of the stopped ones. */
void known_forget(struct known *k, struct entry *e);
/* A stopped event is known until it is the oldest of too many. */
void known_keep(struct known *k, struct entry *e);
struct member *known_member(struct member *list, const void *context);
/* The last are kept to be known again, and those that have events. */
void known_end(struct known *k, struct member *m);
void known_free(struct known *k);

#endif
