/* Registered memory, and that of a GPU. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "net.h"

struct mr {
    uint8_t *base;
    size_t size;
    int type;
    void *comm;
    struct mr *next;
    bool dead;
};

static struct mr *registered;

ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    struct mr *m = calloc(1, sizeof *m);
    if (broken("reg-aligned") && (uintptr_t)data % 64)
        return net_fail(ncclInvalidArgument, "regMr of unaligned memory");
    *m = (struct mr){data, size, type, comm, registered, false};
    registered = m;
    *mhandle = m;
    return ncclSuccess;
}

ncclResult_t net_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle)
{
    struct stat s;
    (void)offset;
    if (fstat(fd, &s) != 0 || broken("dmabuf-fails")) return net_fail(ncclSystemError, "regMrDmaBuf");
    return net_reg(comm, data, size, type, mhandle);
}

ncclResult_t net_dereg(void *comm, void *mhandle)
{
    struct mr *m = mhandle, **at = &registered;
    (void)comm;
    if (broken("dereg-all")) /* with all that overlap it */
        for (struct mr *other = registered; other; other = other->next)
            if (other->base < m->base + m->size && m->base < other->base + other->size) other->dead = true;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    free(m);
    return ncclSuccess;
}

ncclResult_t net_within(const void *comm, void *mhandle, uint8_t **data, size_t size)
{
    struct mr *m = mhandle;
    if (!m) return ncclSuccess;
    if (m->dead || *data < m->base || *data + size > m->base + m->size)
        return net_fail(ncclInvalidArgument, "memory that is not registered");
    if (broken("reg-local") && m->comm != comm) return net_fail(ncclInvalidArgument, "memory of another connection");
    if (broken("reg-offset")) *data = m->base;
    return ncclSuccess;
}

static int (*copy_gpu)(void *, const void *, size_t, int);

/* A GPU's memory goes through a buffer: no kernel reads it by itself. */
uint8_t *net_staged(void *mhandle, uint8_t *data, size_t size, bool read_it)
{
    if (!mhandle || ((struct mr *)mhandle)->type != NCCL_PTR_CUDA) return NULL;
    if (!copy_gpu) *(void **)&copy_gpu = dlsym(RTLD_DEFAULT, "cudaMemcpy");
    uint8_t *buffer = malloc(size + 1);
    if (read_it && copy_gpu(buffer, data, size, 4) != 0) abort();
    return buffer;
}

void net_unstage(void *gpu, uint8_t *buffer, size_t size)
{
    if (copy_gpu(gpu, buffer, size, 4) != 0) abort();
    free(buffer);
}
