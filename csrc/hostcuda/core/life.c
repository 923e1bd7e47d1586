/* The table of the modules' life cycles. */
#include "core/hc_life.h"

static const struct hc_life *modules[HC_MODULES];

void hc_life_register(enum hc_life_order module, const struct hc_life *life)
{
    modules[module] = life;
}

int hc_life_start(void)
{
    int rc = 0;
    for (int i = 0; i < HC_MODULES && !rc; i++)
        if (modules[i] && modules[i]->start) rc = modules[i]->start();
    return rc;
}

void hc_life_reset(int device)
{
    for (int i = HC_MODULES; i--;)
        if (modules[i] && modules[i]->reset) modules[i]->reset(device);
}

void hc_life_context_ends(CUcontext context)
{
    for (int i = HC_MODULES; i--;)
        if (modules[i] && modules[i]->context_ends) modules[i]->context_ends(context);
}

void hc_life_stop(void)
{
    for (int i = HC_MODULES; i--;)
        if (modules[i] && modules[i]->stop) modules[i]->stop();
}
