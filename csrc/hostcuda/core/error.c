/* Names and texts of errors, and the runtime's last error. The names are CUDA's, the texts are our own. */
#define _GNU_SOURCE
#include "core/hc.h"

struct error {
    int code;
    const char *runtime, *driver, *text;
};

/* By code. */
static const struct error errors[] = {
    {0, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "cudaErrorCudartUnloading", "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {5, "cudaErrorProfilerDisabled", "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled"},
    {6, "cudaErrorProfilerNotInitialized", "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized"},
    {7, "cudaErrorProfilerAlreadyStarted", "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started"},
    {8, "cudaErrorProfilerAlreadyStopped", "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped"},
    {9, "cudaErrorInvalidConfiguration", NULL, "invalid configuration argument"},
    {10, "cudaErrorVersionTranslation", NULL, "version translation"},
    {12, "cudaErrorInvalidPitchValue", NULL, "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", NULL, "invalid device symbol"},
    {16, "cudaErrorInvalidHostPointer", NULL, "invalid host pointer"},
    {17, "cudaErrorInvalidDevicePointer", NULL, "invalid device pointer"},
    {18, "cudaErrorInvalidTexture", NULL, "invalid texture"},
    {19, "cudaErrorInvalidTextureBinding", NULL, "invalid texture binding"},
    {20, "cudaErrorInvalidChannelDescriptor", NULL, "invalid channel descriptor"},
    {21, "cudaErrorInvalidMemcpyDirection", NULL, "invalid copy direction"},
    {22, "cudaErrorAddressOfConstant", NULL, "address of constant"},
    {23, "cudaErrorTextureFetchFailed", NULL, "texture fetch failed"},
    {24, "cudaErrorTextureNotBound", NULL, "texture not bound"},
    {25, "cudaErrorSynchronizationError", NULL, "synchronization error"},
    {26, "cudaErrorInvalidFilterSetting", NULL, "invalid filter setting"},
    {27, "cudaErrorInvalidNormSetting", NULL, "invalid norm setting"},
    {28, "cudaErrorMixedDeviceExecution", NULL, "mixed device execution"},
    {31, "cudaErrorNotYetImplemented", NULL, "not yet implemented"},
    {32, "cudaErrorMemoryValueTooLarge", NULL, "memory value too large"},
    {34, "cudaErrorStubLibrary", "CUDA_ERROR_STUB_LIBRARY", "stub library"},
    {35, "cudaErrorInsufficientDriver", NULL, "the driver is older than this runtime needs"},
    {36, "cudaErrorCallRequiresNewerDriver", "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "call requires newer driver"},
    {37, "cudaErrorInvalidSurface", NULL, "invalid surface"},
    {43, "cudaErrorDuplicateVariableName", NULL, "duplicate variable name"},
    {44, "cudaErrorDuplicateTextureName", NULL, "duplicate texture name"},
    {45, "cudaErrorDuplicateSurfaceName", NULL, "duplicate surface name"},
    {46, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE", "device busy or unavailable"},
    {47, NULL, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", "multicast resource full"},
    {49, "cudaErrorIncompatibleDriverContext", NULL, "incompatible driver context"},
    {52, "cudaErrorMissingConfiguration", NULL, "missing configuration"},
    {53, "cudaErrorPriorLaunchFailure", NULL, "prior launch failure"},
    {65, "cudaErrorLaunchMaxDepthExceeded", NULL, "launch max depth exceeded"},
    {66, "cudaErrorLaunchFileScopedTex", NULL, "launch file scoped tex"},
    {67, "cudaErrorLaunchFileScopedSurf", NULL, "launch file scoped surf"},
    {68, "cudaErrorSyncDepthExceeded", NULL, "sync depth exceeded"},
    {69, "cudaErrorLaunchPendingCountExceeded", NULL, "launch pending count exceeded"},
    {98, "cudaErrorInvalidDeviceFunction", NULL, "invalid device function"},
    {100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA device is there"},
    {101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device number"},
    {102, "cudaErrorDeviceNotLicensed", "CUDA_ERROR_DEVICE_NOT_LICENSED", "device not licensed"},
    {103, "cudaErrorSoftwareValidityNotEstablished", NULL, "software validity not established"},
    {127, "cudaErrorStartupFailure", NULL, "startup failure"},
    {200, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE", "invalid image"},
    {201, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {202, NULL, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current"},
    {205, "cudaErrorMapBufferObjectFailed", "CUDA_ERROR_MAP_FAILED", "mapping failed"},
    {206, "cudaErrorUnmapBufferObjectFailed", "CUDA_ERROR_UNMAP_FAILED", "unmapping failed"},
    {207, "cudaErrorArrayIsMapped", "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped"},
    {208, "cudaErrorAlreadyMapped", "CUDA_ERROR_ALREADY_MAPPED", "already mapped"},
    {209, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image for this device"},
    {210, "cudaErrorAlreadyAcquired", "CUDA_ERROR_ALREADY_ACQUIRED", "already acquired"},
    {211, "cudaErrorNotMapped", "CUDA_ERROR_NOT_MAPPED", "not mapped"},
    {212, "cudaErrorNotMappedAsArray", "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "not mapped as array"},
    {213, "cudaErrorNotMappedAsPointer", "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "not mapped as pointer"},
    {214, "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE", "ECC uncorrectable"},
    {215, "cudaErrorUnsupportedLimit", "CUDA_ERROR_UNSUPPORTED_LIMIT", "unsupported limit"},
    {216, "cudaErrorDeviceAlreadyInUse", "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "context already in use"},
    {217, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "no peer access between these devices"},
    {218, "cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX", "invalid PTX"},
    {219, "cudaErrorInvalidGraphicsContext", "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid graphics context"},
    {220, "cudaErrorNvlinkUncorrectable", "CUDA_ERROR_NVLINK_UNCORRECTABLE", "NVLink uncorrectable"},
    {221, "cudaErrorJitCompilerNotFound", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "JIT compiler not found"},
    {222, "cudaErrorUnsupportedPtxVersion", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "unsupported PTX version"},
    {223, "cudaErrorJitCompilationDisabled", "CUDA_ERROR_JIT_COMPILATION_DISABLED", "JIT compilation disabled"},
    {224, "cudaErrorUnsupportedExecAffinity", "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "unsupported exec affinity"},
    {225, "cudaErrorUnsupportedDevSideSync", "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "unsupported devside sync"},
    {226, "cudaErrorContained", "CUDA_ERROR_CONTAINED", "contained"},
    {227, "cudaErrorInsufficientLoaderVersion", "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
     "insufficient loader version"},
    {300, "cudaErrorInvalidSource", "CUDA_ERROR_INVALID_SOURCE", "invalid source"},
    {301, "cudaErrorFileNotFound", "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {302, "cudaErrorSharedObjectSymbolNotFound", "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
     "shared object symbol not found"},
    {303, "cudaErrorSharedObjectInitFailed", "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object init failed"},
    {304, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM", "operating system call failed"},
    {400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "CUDA_ERROR_ILLEGAL_STATE", "operation not possible in the current state"},
    {402, "cudaErrorLossyQuery", "CUDA_ERROR_LOSSY_QUERY", "the answer would leave something out"},
    {500, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "symbol not found"},
    {600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"},
    {701, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources asked for by a launch"},
    {702, "cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timed out"},
    {703, "cudaErrorLaunchIncompatibleTexturing", "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
     "launch incompatible texturing"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is enabled already"},
    {705, "cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access is not enabled"},
    {708, "cudaErrorSetOnActiveProcess", "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     "cannot be set while the device is in use"},
    {709, "cudaErrorContextIsDestroyed", "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "cudaErrorAssert", "CUDA_ERROR_ASSERT", "assert"},
    {711, "cudaErrorTooManyPeers", "CUDA_ERROR_TOO_MANY_PEERS", "too many peers"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "host memory is registered already"},
    {713, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "host memory is not registered"},
    {714, "cudaErrorHardwareStackError", "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction"},
    {716, "cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "cudaErrorInvalidAddressSpace", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "invalid address space"},
    {718, "cudaErrorInvalidPc", "CUDA_ERROR_INVALID_PC", "invalid pc"},
    {719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "launch failed"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks for a cooperative launch"},
    {721, "cudaErrorTensorMemoryLeak", "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory leak"},
    {800, "cudaErrorNotPermitted", "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "cudaErrorSystemNotReady", "CUDA_ERROR_SYSTEM_NOT_READY", "system not ready"},
    {803, "cudaErrorSystemDriverMismatch", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "driver and library do not fit together"},
    {804, "cudaErrorCompatNotSupportedOnDevice", "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "compat not supported on device"},
    {805, "cudaErrorMpsConnectionFailed", "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS connection failed"},
    {806, "cudaErrorMpsRpcFailure", "CUDA_ERROR_MPS_RPC_FAILURE", "MPS RPC failure"},
    {807, "cudaErrorMpsServerNotReady", "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server not ready"},
    {808, "cudaErrorMpsMaxClientsReached", "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "MPS max clients reached"},
    {809, "cudaErrorMpsMaxConnectionsReached", "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "MPS max connections reached"},
    {810, "cudaErrorMpsClientTerminated", "CUDA_ERROR_MPS_CLIENT_TERMINATED", "MPS client terminated"},
    {811, "cudaErrorCdpNotSupported", "CUDA_ERROR_CDP_NOT_SUPPORTED", "CDP not supported"},
    {812, "cudaErrorCdpVersionMismatch", "CUDA_ERROR_CDP_VERSION_MISMATCH", "CDP version mismatch"},
    {900, "cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted while a stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "a previous error has invalidated the capture"},
    {902, "cudaErrorStreamCaptureMerge", "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures would be merged"},
    {903, "cudaErrorStreamCaptureUnmatched", "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "the capture was not begun in this stream"},
    {904, "cudaErrorStreamCaptureUnjoined", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "the capture has forked work that was not joined"},
    {905, "cudaErrorStreamCaptureIsolation", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency on work outside the capture"},
    {906, "cudaErrorStreamCaptureImplicit", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "the legacy default stream depends on a capturing stream"},
    {907, "cudaErrorCapturedEvent", "CUDA_ERROR_CAPTURED_EVENT", "the last record of this event was captured"},
    {908, "cudaErrorStreamCaptureWrongThread", "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "the capture was begun by another thread"},
    {909, "cudaErrorTimeout", "CUDA_ERROR_TIMEOUT", "timed out"},
    {910, "cudaErrorGraphExecUpdateFailure", "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph does not fit the executable graph"},
    {911, "cudaErrorExternalDevice", "CUDA_ERROR_EXTERNAL_DEVICE", "external device"},
    {912, "cudaErrorInvalidClusterSize", "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size"},
    {913, "cudaErrorFunctionNotLoaded", "CUDA_ERROR_FUNCTION_NOT_LOADED", "function not loaded"},
    {914, "cudaErrorInvalidResourceType", "CUDA_ERROR_INVALID_RESOURCE_TYPE", "invalid resource type"},
    {915, "cudaErrorInvalidResourceConfiguration", "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
     "invalid resource configuration"},
    {916, NULL, "CUDA_ERROR_KEY_ROTATION", "key rotation"},
    {917, "cudaErrorStreamDetached", "CUDA_ERROR_STREAM_DETACHED", "stream detached"},
    {918, "cudaErrorGraphRecaptureFailure", "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "graph recapture failure"},
    {919, "cudaErrorFabricNotReady", "CUDA_ERROR_FABRIC_NOT_READY", "fabric not ready"},
    {999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error *find(int code)
{
    size_t low = 0, high = sizeof errors / sizeof *errors;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (errors[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof errors / sizeof *errors && errors[low].code == code ? &errors[low] : NULL;
}

static const char unrecognized[] = "unrecognized error code";

const char *hc_cudaGetErrorName(cudaError_t error)
{
    const struct error *known = find(error);
    return known && known->runtime ? known->runtime : unrecognized;
}

const char *hc_cudaGetErrorString(cudaError_t error)
{
    const struct error *known = find(error);
    return known && known->runtime ? known->text : unrecognized;
}

CUresult hc_cuGetErrorName(CUresult error, const char **pStr)
{
    const struct error *known = find(error);
    if (!pStr) return PSM_CUDA_INVALID_VALUE;
    *pStr = known ? known->driver : NULL;
    return *pStr ? 0 : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuGetErrorString(CUresult error, const char **pStr)
{
    const struct error *known = find(error);
    if (!pStr) return PSM_CUDA_INVALID_VALUE;
    *pStr = known && known->driver ? known->text : NULL;
    return *pStr ? 0 : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaGetLastError(void)
{
    int error = *hc_last_error();
    *hc_last_error() = 0;
    return error;
}

cudaError_t hc_cudaPeekAtLastError(void)
{
    return *hc_last_error();
}
