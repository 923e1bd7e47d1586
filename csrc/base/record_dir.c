/* The directory of record files, and the checks that it can be trusted. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "record_format.h"

/* NCCL needs the memory of a shm file system, and files left there stay until the next boot. */
static bool in_shm(const char *path)
{
    return strncmp(path, "/dev/shm", 8) == 0 && (path[8] == 0 || path[8] == '/');
}

/* Makes the path absolute: the process may change its working directory later. */
static void absolute(int fd, char *path, size_t size)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, size - 1);
    if (n > 0) path[n] = 0;
}

int psm_record_directory(bool make, char *path, size_t size, const char **why)
{
    const char *given = getenv("PSM_RECORD_DIR"), *temp = getenv("TMPDIR");
    bool own = !given || !*given;
    if (own) {
        if (!temp || *temp != '/' || in_shm(temp)) temp = "/tmp";
        snprintf(path, size, "%s/psm-%u", temp, (unsigned)geteuid());
    } else {
        snprintf(path, size, "%s", given);
    }
    if (in_shm(path)) {
        *why = "records are not written to /dev/shm; name another folder";
        return -1;
    }
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST) {
        *why = strerror(errno);
        return -1;
    }
    /* A link at the default path was created by another user. */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (own ? O_NOFOLLOW : 0));
    if (fd < 0) {
        *why = own && errno == ENOTDIR ? "is not a folder, or is a symbolic link" : strerror(errno);
        return -1;
    }
    absolute(fd, path, size);
    struct stat st;
    *why = NULL;
    if (fstat(fd, &st) != 0)
        *why = strerror(errno);
    else if (st.st_uid != geteuid())
        *why = "owned by another user";
    else if (own && (st.st_mode & 077))
        *why = "other users can open it; set its mode to 0700";
    else if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
        *why = "other users can write to it; set its mode to 0700";
    else if (in_shm(path))
        *why = "records are not written to /dev/shm; name another folder";
    if (!*why) return fd;
    close(fd);
    return -1;
}
