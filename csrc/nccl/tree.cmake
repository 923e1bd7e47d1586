# What a build against an NCCL tree needs: NCCL_SRC with a header of it, and NCCL_BUILD, the folder that NCCL was built into.
macro(find_nccl_tree header)
    if(NOT NCCL_SRC OR NOT EXISTS "${NCCL_SRC}/${header}")
        message(FATAL_ERROR "NCCL_SRC=${NCCL_SRC} is no NCCL tree (no ${header} there): "
            "give -DNCCL_SRC=the folder that has src/ and makefiles/")
    endif()
    if(NOT NCCL_BUILD)
        set(NCCL_BUILD ${NCCL_SRC}/build)
    endif()
    if(NOT EXISTS "${NCCL_BUILD}/include/nccl.h")
        message(FATAL_ERROR "${NCCL_BUILD}/include/nccl.h is not there: build NCCL once (make src.build), or give -DNCCL_BUILD")
    endif()
endmacro()
