/* CUDA types of one area (nvml); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_NVML_H
#define PSM_CUDA_TYPES_NVML_H
#endif
