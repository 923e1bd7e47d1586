/* Virtual memory management. */
#include "memory.h"
void hc_mapping_end(struct hc_range *mapping)
{
    (void)mapping;
}
