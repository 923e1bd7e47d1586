/* The releases of NCCL whose trees were built with psmkit and compared byte by byte (docs/kernels.md). What differs
 * between them is read from the tree's own declarations, so a newer release is an entry here once it was tried. CMake
 * reads these lines, too. */
#ifndef PSM_NCCL_RELEASES_H
#define PSM_NCCL_RELEASES_H

#define PSM_NCCL_OLDEST_MAJOR 2
#define PSM_NCCL_OLDEST_MINOR 26
#define PSM_NCCL_NEWEST_MAJOR 2
#define PSM_NCCL_NEWEST_MINOR 31

#endif
