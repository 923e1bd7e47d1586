# find_package(psm) gives psm::psm. psm_DIR or CMAKE_PREFIX_PATH: what `psmkit config --cmake` prints.
get_filename_component(psm_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET psm::psm)
    add_library(psm::psm SHARED IMPORTED)
    set_target_properties(psm::psm PROPERTIES
        IMPORTED_LOCATION "${psm_root}/lib/libpsm.so"
        IMPORTED_SONAME libpsm.so
        INTERFACE_INCLUDE_DIRECTORIES "${psm_root}/include")
endif()
unset(psm_root)
