/* What a case leaves open. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rank.h"

/* A real CUDA driver opens this socket when a process first uses a device, and keeps it. */
static bool is_of_driver(const char *number)
{
    static const char name[] = "cuda-uvmfd-";
    struct sockaddr_un address = {.sun_family = AF_UNSPEC};
    socklen_t size = sizeof address;
    return getsockname(atoi(number), (struct sockaddr *)&address, &size) == 0 && address.sun_family == AF_UNIX &&
           memcmp(address.sun_path + 1, name, sizeof name - 1) == 0; /* behind the 0 of an abstract name */
}

int64_t lab_private(void)
{
    long long kib = 0;
    char line[200];
    FILE *status = fopen("/proc/self/status", "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "RssAnon: %lld", &kib) == 1) break;
    if (status) fclose(status);
    return kib * 1024;
}

int lab_descriptors(char *what, size_t size)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    char name[300], target[300];
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
        ssize_t n = readlink(name, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        bool socket = strncmp(target, "socket:", 7) == 0;
        if (socket ? is_of_driver(entry->d_name) : (!strstr(target, "memfd:") || strstr(target, "hostcuda"))) continue;
        count++;
        snprintf(what, size, "%.100s", target);
    }
    if (folder) closedir(folder);
    return count;
}
