/* CUDA types of one area (memory); see types.h for the rules. The driver's structs have the same layout as the
 * runtime's, so one declaration serves both. */
#ifndef PSM_CUDA_TYPES_MEMORY_H
#define PSM_CUDA_TYPES_MEMORY_H
#include "types.h"

/* Flags of cudaHostAlloc, cudaHostRegister, cudaIpcOpenMemHandle, cudaMallocManaged. */
#define cudaHostAllocDefault           0
#define cudaHostAllocPortable          1
#define cudaHostAllocMapped            2
#define cudaHostAllocWriteCombined     4
#define cudaHostRegisterDefault        0
#define cudaHostRegisterPortable       1
#define cudaHostRegisterMapped         2
#define cudaHostRegisterIoMemory       4
#define cudaHostRegisterReadOnly       8
#define cudaIpcMemLazyEnablePeerAccess 1
#define cudaMemAttachGlobal            1
#define cudaMemAttachHost              2
#define cudaMemAttachSingle            4

enum cudaMemoryAdvise {
    cudaMemAdviseSetReadMostly = 1,
    cudaMemAdviseUnsetReadMostly = 2,
    cudaMemAdviseSetPreferredLocation = 3,
    cudaMemAdviseUnsetPreferredLocation = 4,
    cudaMemAdviseSetAccessedBy = 5,
    cudaMemAdviseUnsetAccessedBy = 6
};
typedef enum cudaMemoryAdvise CUmem_advise;

enum cudaMemRangeAttribute {
    cudaMemRangeAttributeReadMostly = 1,
    cudaMemRangeAttributePreferredLocation = 2,
    cudaMemRangeAttributeAccessedBy = 3,
    cudaMemRangeAttributeLastPrefetchLocation = 4,
    cudaMemRangeAttributePreferredLocationType = 5,
    cudaMemRangeAttributePreferredLocationId = 6,
    cudaMemRangeAttributeLastPrefetchLocationType = 7,
    cudaMemRangeAttributeLastPrefetchLocationId = 8
};
typedef enum cudaMemRangeAttribute CUmem_range_attribute;

enum cudaMemLocationType {
    cudaMemLocationTypeInvalid = 0,
    cudaMemLocationTypeDevice = 1,
    cudaMemLocationTypeHost = 2,
    cudaMemLocationTypeHostNuma = 3,
    cudaMemLocationTypeHostNumaCurrent = 4,
    cudaMemLocationTypeInvisible = 5
};
struct cudaMemLocation {
    enum cudaMemLocationType type;
    int id;
};
typedef struct cudaMemLocation CUmemLocation;

enum cudaMemAccessFlags {
    cudaMemAccessFlagsProtNone = 0,
    cudaMemAccessFlagsProtRead = 1,
    cudaMemAccessFlagsProtReadWrite = 3
};
typedef enum cudaMemAccessFlags CUmemAccess_flags;
struct cudaMemAccessDesc {
    struct cudaMemLocation location;
    enum cudaMemAccessFlags flags;
};
typedef struct cudaMemAccessDesc CUmemAccessDesc;

enum cudaMemAllocationType {
    cudaMemAllocationTypeInvalid = 0,
    cudaMemAllocationTypePinned = 1,
    cudaMemAllocationTypeManaged = 2,
    cudaMemAllocationTypeMax = 0x7fffffff
};
typedef enum cudaMemAllocationType CUmemAllocationType;
enum cudaMemAllocationHandleType {
    cudaMemHandleTypeNone = 0,
    cudaMemHandleTypePosixFileDescriptor = 1,
    cudaMemHandleTypeWin32 = 2,
    cudaMemHandleTypeWin32Kmt = 4,
    cudaMemHandleTypeFabric = 8
};
typedef enum cudaMemAllocationHandleType CUmemAllocationHandleType;

/* Memory pools. */
enum cudaMemPoolAttr {
    cudaMemPoolReuseFollowEventDependencies = 1,
    cudaMemPoolReuseAllowOpportunistic = 2,
    cudaMemPoolReuseAllowInternalDependencies = 3,
    cudaMemPoolAttrReleaseThreshold = 4,
    cudaMemPoolAttrReservedMemCurrent = 5,
    cudaMemPoolAttrReservedMemHigh = 6,
    cudaMemPoolAttrUsedMemCurrent = 7,
    cudaMemPoolAttrUsedMemHigh = 8,
    cudaMemPoolAttrAllocationType = 9,
    cudaMemPoolAttrExportHandleTypes = 10,
    cudaMemPoolAttrLocationId = 11,
    cudaMemPoolAttrLocationType = 12,
    cudaMemPoolAttrMaxPoolSize = 13,
    cudaMemPoolAttrHwDecompressEnabled = 14
};
typedef enum cudaMemPoolAttr CUmemPool_attribute;
struct cudaMemPoolProps {
    enum cudaMemAllocationType allocType;
    enum cudaMemAllocationHandleType handleTypes;
    struct cudaMemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
};
typedef struct cudaMemPoolProps CUmemPoolProps;
struct cudaMemPoolPtrExportData {
    unsigned char reserved[64];
};
typedef struct cudaMemPoolPtrExportData CUmemPoolPtrExportData;

/* Virtual memory management (driver only). */
#define CU_MEM_ALLOC_GRANULARITY_MINIMUM     0
#define CU_MEM_ALLOC_GRANULARITY_RECOMMENDED 1
#define CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD  1
typedef int CUmemAllocationGranularity_flags;
typedef int CUmemRangeHandleType;
struct CUmemAllocationFlags {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
};
typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct CUmemAllocationFlags allocFlags;
} CUmemAllocationProp;

/* Handles between processes. */
#define CU_IPC_HANDLE_SIZE 64
typedef struct cudaIpcMemHandle_st {
    char reserved[64];
} cudaIpcMemHandle_t;
typedef cudaIpcMemHandle_t CUipcMemHandle;
typedef struct cudaIpcEventHandle_st {
    char reserved[64];
} cudaIpcEventHandle_t;
typedef cudaIpcEventHandle_t CUipcEventHandle;
#endif
