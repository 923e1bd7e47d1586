/* Which profiler is wrapped. It is loaded when this library is: NCCL takes the newest version whose symbol it finds and
 * tries no other after it, so only the versions of the wrapped profiler may be found (exports.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static struct {
    bool wanted;
    char path[4096], trouble[600];
    const void *tables[PROFILER_VERSIONS + 1];
} wrap;
static struct contract *contracts[PROFILER_VERSIONS + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *open_as_nccl(const char *name)
{
    /* NCCL opens the name as it is, then as libnccl-profiler-NAME.so. */
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    snprintf(wrap.path, sizeof wrap.path, "%s", name);
    if (library) return library;
    const char *why = dlerror();
    snprintf(wrap.trouble, sizeof wrap.trouble, "%s", why ? why : "dlopen failed");
    if (strchr(name, '/')) return NULL;
    snprintf(wrap.path, sizeof wrap.path, "libnccl-profiler-%s.so", name);
    library = dlopen(wrap.path, RTLD_NOW | RTLD_LOCAL);
    return library;
}

__attribute__((constructor)) static void load(void)
{
    const char *name = getenv("PSM_PROFILER_WRAP");
    if (!name || !*name) return;
    wrap.wanted = true;
    void *library = open_as_nccl(name);
    if (!library) return;
    wrap.trouble[0] = 0;
    Dl_info self;
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && dladdr((void *)(uintptr_t)&load, &self) &&
        (uintptr_t)self.dli_fbase == map->l_addr) {
        snprintf(wrap.trouble, sizeof wrap.trouble, "it is this library itself");
        return;
    }
    int found = 0;
    for (int v = 1; v <= PROFILER_VERSIONS; v++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", v);
        wrap.tables[v] = dlsym(library, symbol);
        found += wrap.tables[v] != NULL;
    }
    if (!found)
        snprintf(wrap.trouble, sizeof wrap.trouble, "it has no table ncclProfiler_v%d to _v%d", PSM_ABI_PROFILER_FIRST,
                 PROFILER_VERSIONS);
}

bool check_has(int version)
{
    /* If the library cannot be used, init fails and says why: if NCCL found no version, it would give no reason. */
    return !wrap.wanted || wrap.trouble[0] || wrap.tables[version];
}

const void *check_wrapped(int version)
{
    return wrap.tables[version];
}

const char *check_trouble(void)
{
    return wrap.trouble[0] ? wrap.trouble : NULL;
}

const char *check_path(void)
{
    return wrap.path;
}

const char *check_name(int version)
{
    /* The name is the first member in all versions. */
    const ncclProfiler_v1_t *table = wrap.tables[version];
    return !table ? "PSM check" : table->name ? table->name : "(null)";
}

struct contract *check_contract(int version)
{
    struct contract *c = __atomic_load_n(&contracts[version], __ATOMIC_ACQUIRE);
    if (c) return c;
    pthread_mutex_lock(&lock);
    if (!contracts[version])
        __atomic_store_n(&contracts[version], contract_new(version, check_say_breach, NULL), __ATOMIC_RELEASE);
    c = contracts[version];
    pthread_mutex_unlock(&lock);
    return c;
}

void *check_own(void)
{
    static _Atomic uintptr_t last;
    /* Never reused, so that every use after a stop is detected. It is not an address. */
    return (void *)(++last << 4);
}
