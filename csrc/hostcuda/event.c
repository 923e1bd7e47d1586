#include "stream.h"
void hc_events_reset(int device)
{
    (void)device;
}
