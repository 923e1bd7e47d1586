/* CUDA types of one area (device); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_DEVICE_H
#define PSM_CUDA_TYPES_DEVICE_H
#endif
