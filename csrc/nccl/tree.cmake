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
    check_nccl_release(${NCCL_BUILD}/include/nccl.h)
endmacro()

function(version_in header prefix out)
    file(STRINGS ${header} lines REGEX "^#define ${prefix}(MAJOR|MINOR) +[0-9]+")
    string(REGEX REPLACE ".*${prefix}MAJOR +([0-9]+).*${prefix}MINOR +([0-9]+).*" "\\1.\\2" version "${lines}")
    set(${out} "${version}" PARENT_SCOPE)
endfunction()

# An older release is refused; a newer one is tried: its declarations say what is different, and stop the compilation where
# they have something that is not known.
function(check_nccl_release header)
    set(known ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/releases.h)
    version_in(${header} NCCL_ version)
    version_in(${known} PSM_NCCL_OLDEST_ oldest)
    version_in(${known} PSM_NCCL_NEWEST_ newest)
    if(NOT version MATCHES "^[0-9]+\\.[0-9]+$")
        message(FATAL_ERROR "${header} has no NCCL_MAJOR and NCCL_MINOR")
    elseif(version VERSION_LESS oldest)
        message(FATAL_ERROR "${header} is of NCCL ${version}; psmkit knows ${oldest} to ${newest}")
    elseif(version VERSION_GREATER newest)
        message(WARNING "${header} is of NCCL ${version}, and psmkit was tried with ${oldest} to ${newest}. The compilation "
            "compares the declarations that it uses, not what NCCL does with them: compare data before you trust it "
            "(psmkit lab nccl).")
    else()
        message(STATUS "NCCL ${version}")
    endif()
endfunction()
