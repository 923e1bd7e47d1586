/* CUDA types of one area (memory); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_MEMORY_H
#define PSM_CUDA_TYPES_MEMORY_H
/* A place of memory: type 1 device, 2 host, 3 NUMA node `id`, 4 the calling thread's NUMA node. CUDA 13 overlays id with
   two bytes for locality domains. */
struct cudaMemLocation {
    int type;
    int id;
};
typedef struct CUmemLocation_st {
    int type;
    int id;
} CUmemLocation;
#endif
