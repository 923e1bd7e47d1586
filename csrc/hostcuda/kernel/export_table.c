/* Private tables of functions, through which a statically linked CUDA runtime talks to the driver: those that the
 * runtime of CUDA 11.0 calls. Newer ones request more tables, to identify the driver, and get none: that of 12 asks for
 * 7 and ends at f8cff951-2146-8b4e-b9e2-fb469e7c0dd9 (NCCL 2.32.3: "named symbol not found"), that of 13.4 also for
 * a094798c-2e74-2e74-93f2-0800200c0a66, and calls the driver too old.
 * Slots are numbered by their place in a table; place 0 holds its size. */
#include "kernel/hc_kernel.h"
#include "psm_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Once per process: a static runtime asks for several tables, repeatedly. */
static void say_private_table(const char *id)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true)) psm_msg_hostcuda_private_table(id);
}

static void say_private_function(void)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true)) psm_msg_hostcuda_private_function();
}

typedef void entry(void);
#define SLOT(n) [(n) - 1]

static CUresult not_provided(void)
{
    say_private_function();
    return PSM_CUDA_NOT_SUPPORTED;
}
#define OTHER ((entry *)not_provided)

/* ---- 6bd5fb6c-...: contexts and modules ---- */

static CUresult primary_context(CUcontext *context, CUdevice device)
{
    if (!context) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    *context = hc_context_primary(device)->handle; /* the runtime retains it itself */
    return 0;
}

/* The descriptor of a fat binary registered by code that nvcc generated. */
static CUresult module_of_fat_binary(CUmodule *module, const void *descriptor)
{
    return hc_module_registered(module, descriptor);
}

/* Called once per context; its arguments have no effect here. */
static CUresult nothing(void)
{
    return 0;
}

static const struct {
    size_t size;
    entry *slots[9];
} runtime = {sizeof runtime,
             {SLOT(1) = OTHER, SLOT(2) = (entry *)primary_context, SLOT(3) = OTHER, SLOT(4) = OTHER, SLOT(5) = OTHER,
              SLOT(6) = (entry *)module_of_fat_binary, SLOT(7) = (entry *)nothing, SLOT(8) = OTHER, SLOT(9) = OTHER}};

/* ---- a094798c-...: room for callbacks of tools, by address and size. Nobody hooks in ---- */

static void *hooks[512];
static uint8_t marks[16];

static void hook_room(void ***room, size_t *size)
{
    *room = hooks;
    *size = sizeof hooks / sizeof *hooks;
}

static void mark_room(uint8_t **room, size_t *size)
{
    *room = marks;
    *size = sizeof marks;
}

static const struct {
    size_t size;
    entry *slots[6];
} callbacks = {sizeof callbacks,
               {SLOT(1) = OTHER, SLOT(2) = (entry *)hook_room, SLOT(3) = OTHER, SLOT(4) = OTHER, SLOT(5) = OTHER,
                SLOT(6) = (entry *)mark_room}};

/* ---- c693336e-...: what the runtime keeps with a context. This one has no size in front ---- */

struct kept {
    struct kept *next;
    CUcontext context;
    const void *key;
    void *value;
};
static struct kept *all_kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct kept **find(CUcontext context, const void *key)
{
    struct kept **at = &all_kept;
    while (*at && ((*at)->context != context || (*at)->key != key)) at = &(*at)->next;
    return at;
}

/* Context 0 is the current one. */
static bool known(CUcontext *context)
{
    struct hc_context *found = hc_context_get(*context);
    if (found) *context = found->handle;
    return found;
}

/* `end` would be called when the context ends. A primary context is reused as the same object, and the runtime finds
 * its data there. */
static CUresult keep(CUcontext context, const void *key, void *value, entry *end)
{
    (void)end;
    if (!known(&context)) return PSM_CUDA_INVALID_CONTEXT;
    struct kept *item = malloc(sizeof *item);
    if (!item) return PSM_CUDA_OUT_OF_MEMORY;
    *item = (struct kept){NULL, context, key, value};
    pthread_mutex_lock(&lock);
    struct kept **at = find(context, key), *old = *at;
    item->next = old ? old->next : NULL;
    *at = item;
    pthread_mutex_unlock(&lock);
    free(old);
    return 0;
}

static CUresult forget(CUcontext context, const void *key)
{
    if (!known(&context)) return PSM_CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct kept **at = find(context, key), *old = *at;
    if (old) *at = old->next;
    pthread_mutex_unlock(&lock);
    free(old);
    return old ? 0 : PSM_CUDA_INVALID_VALUE;
}

static CUresult look_up(void **value, CUcontext context, const void *key)
{
    if (!value) return PSM_CUDA_INVALID_VALUE;
    if (!known(&context)) return PSM_CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    const struct kept *item = *find(context, key);
    *value = item ? item->value : NULL;
    pthread_mutex_unlock(&lock);
    return item ? 0 : PSM_CUDA_INVALID_VALUE;
}

static entry *const storage[4] = {(entry *)keep, (entry *)forget, (entry *)look_up, OTHER};

/* ---- 42d85a81-...: thread-local storage of tools. It is asked for, and no slot is called ---- */

static const struct {
    size_t size;
    entry *slots[3];
} tools = {sizeof tools, {OTHER, OTHER, OTHER}};

const void *hc_export_table(const CUuuid *id)
{
    static const struct {
        uint8_t id[16];
        const void *table;
    } tables[] = {
        {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, &runtime},
        {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, &callbacks},
        {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, storage},
        {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, &tools},
    };
    uint8_t asked[16];
    char name[2 * sizeof asked + 1];
    memcpy(asked, id, sizeof asked);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (memcmp(tables[i].id, asked, sizeof asked) == 0) return tables[i].table;
    for (size_t i = 0; i < sizeof asked; i++) snprintf(name + 2 * i, 3, "%02x", asked[i]);
    say_private_table(name);
    return NULL;
}
