/* For the exports made from api.def. */
#include "core/hc.h"
#include "san.h"
#include "san_copy.h"
#define HC_EXPORT __attribute__((visibility("default")))
