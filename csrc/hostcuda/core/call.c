/* What every part may ask about the call that runs in this thread, and the errors that calls leave behind. */
#include "core/hc_life.h"
#include "san.h"

struct hc_options hc_options = {.strict = true, .inline_work = true};
_Thread_local struct hc_call *hc_running;

static _Thread_local int last_error;
static _Atomic int sticky[HC_MAX_DEVICES];

const struct hc_call *hc_current_call(void)
{
    return hc_running;
}

int *hc_last_error(void)
{
    return &last_error;
}

/* Keep the first failure: later ones follow from it. */
bool hc_device_fail(int device, int code)
{
    int none = 0;
    return device >= 0 && device < HC_MAX_DEVICES && atomic_compare_exchange_strong(&sticky[device], &none, code);
}

int hc_device_sticky(int device)
{
    return device >= 0 && device < HC_MAX_DEVICES ? atomic_load_explicit(&sticky[device], memory_order_acquire) : 0;
}

static void clear(int device)
{
    if (device >= 0 && device < HC_MAX_DEVICES) atomic_store(&sticky[device], 0);
}

HC_LIFE(HC_MODULE_ERRORS, .reset = clear)

void hc_say_ended(enum hc_kind kind, uint64_t value)
{
    if (atomic_load_explicit(&psm_san_mode_now, memory_order_relaxed) == PSM_SAN_OFF) return;
    struct psm_san_call call;
    psm_san_enter(&call, hc_running ? hc_functions[hc_running->fn].name : "hostcuda");
    psm_san_end(&call, kind == HC_STREAM ? PSM_SAN_STREAM : PSM_SAN_EVENT, value);
    psm_san_leave(&call, 0);
}
