/* CUDA types of one area (memory); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_MEMORY_H
#define PSM_CUDA_TYPES_MEMORY_H
#endif
