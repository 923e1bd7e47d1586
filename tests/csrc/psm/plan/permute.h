/* Threads that meet in an order that a seed decides, and a trace that orders nothing. */
#ifndef PERMUTE_H
#define PERMUTE_H

#include <stdbool.h>
#include <stdint.h>

enum thread_name { MAIN, LAUNCH, SECOND, DEVICE, HOST, PROXY, DESTRUCTOR, ABORTER, THREADS };

/* A thread's own random numbers: of the seed and of who it is. */
void permute_thread(enum thread_name me);
uint64_t permute_random(void);
void permute_begin(uint64_t seed);
/* The threads that are here go on in the order of the seed. Nothing is ordered by it but time: whatever a thread wrote
 * before is no more visible to others than without it. */
void permute_meet(void *unused, int point);
/* Of the order in which threads went on. */
uint64_t permute_order(void);
/* Waits a little for whatever may happen, and orders nothing. */
void permute_pause(void);

#endif
