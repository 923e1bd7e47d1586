#ifndef PSM_TEST_CANCONNECT_H
#define PSM_TEST_CANCONNECT_H

#include <stdint.h>

/* Asks canConnect about so many pairs, and prints how often each mode came. Returns the exit status. */
int draw_pairs(uint64_t pairs);

#endif
