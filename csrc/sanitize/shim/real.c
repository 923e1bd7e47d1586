/* Finds the C library's dlsym. dlsym itself cannot be used, since this process has ours: read the symbol table of the C
 * library instead. The runtime of ASan calls dlsym to find the functions that it replaces, so no function of strings is
 * called here: until then they lead nowhere. */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>

#include "shim.h"

struct lookup {
    const char *name;
    void *found;
};

static bool same(const char *a, const char *b)
{
    for (; *a && *a == *b; a++) b++;
    return *a == *b;
}

static const char *file_of(const char *path)
{
    const char *file = path;
    for (const char *c = path; *c; c++)
        if (*c == '/') file = c + 1;
    return file;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) h = h * 33 + *c;
    return h;
}

struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *hash;
};

/* glibc relocates these entries in place; the kernel's vdso does not. */
static ElfW(Addr) address_of(const struct dl_phdr_info *info, ElfW(Addr) value)
{
    return value < info->dlpi_addr ? value + info->dlpi_addr : value;
}

static bool read_tables(const struct dl_phdr_info *info, struct tables *t)
{
    *t = (struct tables){0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (const ElfW(Dyn) *d = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag; d++) {
            void *at = (void *)address_of(info, d->d_un.d_ptr);
            if (d->d_tag == DT_SYMTAB) t->symbols = at;
            if (d->d_tag == DT_STRTAB) t->strings = at;
            if (d->d_tag == DT_GNU_HASH) t->hash = at;
        }
    }
    return t->symbols && t->strings && t->hash;
}

static void *search(const struct dl_phdr_info *info, const char *name)
{
    struct tables t;
    if (!read_tables(info, &t)) return NULL;
    uint32_t buckets = t.hash[0], first = t.hash[1], words = t.hash[2], h = gnu_hash(name);
    const uint32_t *bucket = t.hash + 4 + words * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t i = buckets ? bucket[h % buckets] : 0;
    if (i < first) return NULL;
    for (;; i++) {
        uint32_t value = chain[i - first];
        const ElfW(Sym) *s = &t.symbols[i];
        if ((value | 1) == (h | 1) && s->st_shndx != SHN_UNDEF && same(t.strings + s->st_name, name))
            return (void *)(info->dlpi_addr + s->st_value);
        if (value & 1) return NULL;
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    struct lookup *lookup = context;
    const char *file = info->dlpi_name ? file_of(info->dlpi_name) : "";
    /* Before glibc 2.34 it is in libdl. */
    if (!same(file, "libc.so.6") && !same(file, "libdl.so.2")) return 0;
    lookup->found = search(info, lookup->name);
    return lookup->found != NULL;
}

static void *real(const char *name, void *_Atomic *kept)
{
    void *found = atomic_load(kept);
    if (found) return found;
    struct lookup lookup = {name, NULL};
    dl_iterate_phdr(visit, &lookup);
    atomic_store(kept, lookup.found);
    return lookup.found;
}

static void *_Atomic kept_dlsym, *_Atomic kept_dlvsym;

shim_dlsym_t shim_real_dlsym(void)
{
    return (shim_dlsym_t)real("dlsym", &kept_dlsym);
}

shim_dlvsym_t shim_real_dlvsym(void)
{
    return (shim_dlvsym_t)real("dlvsym", &kept_dlvsym);
}
