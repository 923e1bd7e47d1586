/* CUDA types of one area (copy); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_COPY_H
#define PSM_CUDA_TYPES_COPY_H
#endif
