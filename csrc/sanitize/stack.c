/* Call stacks: taken at births, symbolised only when somebody reads them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "san_internal.h"

/* The module number of a frame outside all modules, and the number of bits below the module's. */
enum { NO_MODULE = 0xffff };
#define OFFSET_MASK 0xffffffffffffu
_Static_assert((int)SAN_MODULES <= (int)NO_MODULE, "modules fit next to the offset");

/* A loaded file. Kept after it is unloaded: stacks still refer to it. */
struct module {
    uintptr_t begin, end, base;
    bool own;
    char path[240];
};

static struct module modules[SAN_MODULES];
static _Atomic int nmodules;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[256]; /* of the library that the sanitizer is part of */
static char program[240];

#define FIELD(type, member) PSM_FIELD(struct san_module_record, type, member)
static const struct psm_field module_fields[] = {FIELD(PSM_U32, index), FIELD(PSM_HEX64, base), FIELD(PSM_STR, path)};
const struct psm_schema san_module_schema =
    PSM_SCHEMA_SILENT("sanitizer.modules", struct san_module_record, module_fields);

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The sanitizer's library, and the emulated ones next to it. Not a real libcudart. */
static bool is_own(const char *path)
{
    static const char *const ours[] = {"libcudart.so.", "libcuda.so.", "libnvidia-ml.so."};
    const char *name = last_part(path);
    if (strncmp(name, "libpsm_hostcuda.", 16) == 0 || strncmp(name, "libpsm_sanitize_shim.", 21) == 0) return true;
    size_t n = (size_t)(name - path);
    if (n != strlen(folder) || strncmp(path, folder, n) != 0) return false;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strncmp(name, ours[i], strlen(ours[i])) == 0) return true;
    return false;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size, (void)context;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD) continue;
        uintptr_t from = info->dlpi_addr + p->p_vaddr, to = from + p->p_memsz;
        if (from < begin) begin = from;
        if (to > end) end = to;
    }
    if (begin >= end) return 0;
    int n = atomic_load(&nmodules);
    const char *path = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : program;
    for (int i = 0; i < n; i++)
        if (modules[i].begin == begin && modules[i].end == end && strcmp(modules[i].path, path) == 0) return 0;
    if (n == SAN_MODULES) return 1;
    struct module *m = &modules[n];
    m->begin = begin;
    m->end = end;
    m->base = info->dlpi_addr;
    snprintf(m->path, sizeof m->path, "%s", path);
    m->own = is_own(path);
    psm_section *section = psm_record_section(psm_record_self(), &san_module_schema, PSM_TABLE, SAN_MODULES);
    uint32_t slot;
    struct san_module_record *r = psm_table_claim(section, &slot);
    if (r) {
        r->index = (uint32_t)n;
        r->base = m->base;
        memcpy(r->path, m->path, sizeof r->path);
        psm_table_publish(section, slot);
    }
    atomic_store_explicit(&nmodules, n + 1, memory_order_release);
    return 0;
}

static void look_again(void)
{
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(add_module, NULL);
    pthread_mutex_unlock(&lock);
}

/* The newest that contains the address: an older one may have been unloaded. */
static int module_of(uintptr_t pc)
{
    for (int i = atomic_load_explicit(&nmodules, memory_order_acquire) - 1; i >= 0; i--)
        if (pc >= modules[i].begin && pc < modules[i].end) return i;
    return -1;
}

void san_stack_start(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    Dl_info info;
    if (dladdr((void *)(uintptr_t)san_stack_start, &info) && info.dli_fname)
        snprintf(folder, sizeof folder, "%.*s", (int)(last_part(info.dli_fname) - info.dli_fname), info.dli_fname);
    look_again();
    san_unwind_start();
}

/* Return addresses point behind the call: the byte before belongs to it. */
static uint64_t packed(uintptr_t pc, int module)
{
    if (module < 0) return (uint64_t)NO_MODULE << 48 | (pc & OFFSET_MASK);
    return (uint64_t)module << 48 | ((pc - modules[module].base) & OFFSET_MASK);
}

static void keep(struct san_stack *stack, const uintptr_t *pc, int n)
{
    *stack = (struct san_stack){.n = (uint32_t)(n < SAN_FRAMES ? n : SAN_FRAMES)};
    for (uint32_t i = 0; i < stack->n; i++) stack->frame[i] = packed(pc[i] - 1, module_of(pc[i] - 1));
}

void san_stack_set(struct san_stack *stack, const uintptr_t *pc, int n)
{
    bool looked = false;
    int first = 0;
    for (int i = 0; i < n; i++) {
        int m = module_of(pc[i] - 1);
        if (m < 0 && !looked) {
            look_again();
            looked = true;
            m = module_of(pc[i] - 1);
        }
        if (first == i && m >= 0 && modules[m].own) first++;
    }
    keep(stack, pc + first, n - first);
}

void san_stack_take_now(struct san_stack *stack)
{
    uintptr_t pc[SAN_WALK];
    san_stack_set(stack, pc, san_walk(pc));
}

void san_stack_take_from(struct san_stack *stack, void *interrupted)
{
    uintptr_t pc[SAN_WALK];
    int n = san_walk(pc), first = 0;
    while (first < n && pc[first] != (uintptr_t)interrupted) first++;
    if (first == n) {
        first = 0;
        n = 1;
    }
    pc[first] = (uintptr_t)interrupted + 1; /* the others are return addresses, at least one byte after their call */
    keep(stack, pc + first, n - first);
}

static void put(struct psm_text *t, const char *s)
{
    psm_text_literal(t, s, strlen(s));
}

static void put_frame(struct psm_text *t, const char *path, uint64_t offset, const char *symbol)
{
    if (t->n) put(t, " < ");
    if (symbol) {
        put(t, symbol);
        put(t, " (");
    }
    put(t, last_part(path));
    put(t, "+");
    psm_text_ptr(t, offset);
    if (symbol) put(t, ")");
}

/* Drops the first frame that does not fit, and all after it. */
static void render(struct psm_text *t, const char *path, uint64_t offset, uintptr_t here, bool *full)
{
    Dl_info info;
    const char *symbol = here && dladdr((void *)here, &info) ? info.dli_sname : NULL;
    struct psm_text before = *t;
    put_frame(t, path, offset, symbol);
    if (!t->lost) return;
    *t = before;
    *full = true;
}

static struct psm_text begin(char *text, size_t size)
{
    return (struct psm_text){text, 0, size - 1, 0};
}

static void finish(struct psm_text *t)
{
    if (!t->n) put(t, "an unknown place");
    t->at[t->n] = 0;
}

void san_stack_render(const struct san_stack *stack, char *text, size_t size)
{
    struct psm_text t = begin(text, size);
    bool full = false;
    for (uint32_t i = 0; i < stack->n && !full; i++) {
        unsigned m = (unsigned)(stack->frame[i] >> 48);
        uint64_t offset = stack->frame[i] & OFFSET_MASK;
        if (m == NO_MODULE)
            render(&t, "?", offset, offset, &full);
        else
            render(&t, modules[m].path, offset, modules[m].base + offset, &full);
    }
    finish(&t);
}

struct wanted {
    uint32_t index;
    struct san_module_record found;
    bool have;
};

static int match(const struct psm_slot *slot, void *context)
{
    struct wanted *wanted = context;
    const struct san_module_record *r = slot->record;
    if (r->index != wanted->index) return 0;
    wanted->found = *r;
    wanted->found.path[sizeof wanted->found.path - 1] = 0;
    wanted->have = true;
    return 1;
}

void san_stack_render_foreign(const struct san_stack *stack, const struct psm_view *view, char *text, size_t size)
{
    struct psm_text t = begin(text, size);
    bool full = false;
    for (uint32_t i = 0; i < stack->n && i < SAN_FRAMES && !full; i++) {
        struct wanted wanted = {.index = (uint32_t)(stack->frame[i] >> 48)};
        uint64_t offset = stack->frame[i] & OFFSET_MASK;
        psm_view_foreach(view, san_module_schema.name, san_module_schema.version, san_module_schema.record_size, match,
                         &wanted);
        uintptr_t here = 0;
        for (int m = 0; wanted.have && m < atomic_load(&nmodules) && !here; m++)
            if (strcmp(modules[m].path, wanted.found.path) == 0) here = modules[m].base + offset;
        render(&t, wanted.have ? wanted.found.path : "?", offset, here, &full);
    }
    finish(&t);
}
