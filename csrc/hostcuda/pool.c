/* Memory pools. */
#include "memory.h"
void hc_pool_freed(struct hc_pool *pool, size_t size)
{
    (void)pool, (void)size;
}
void hc_pool_reserved(struct hc_pool *pool, int64_t bytes)
{
    (void)pool, (void)bytes;
}
void hc_pools_reset(int device)
{
    (void)device;
}
