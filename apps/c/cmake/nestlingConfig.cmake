# Defines nestling::nestling, the shared library, and nestling::static, of what is installed around this file.
set(_nestling_prefix "${CMAKE_CURRENT_LIST_DIR}/../../..")
find_path(NESTLING_INCLUDE_DIR nestling.h HINTS "${_nestling_prefix}/include" NO_DEFAULT_PATH)
foreach(_nestling_kind SHARED STATIC)
    set(_nestling_name "${CMAKE_${_nestling_kind}_LIBRARY_PREFIX}nestling${CMAKE_${_nestling_kind}_LIBRARY_SUFFIX}")
    find_library(NESTLING_${_nestling_kind}_LIBRARY NAMES "${_nestling_name}"
        HINTS "${_nestling_prefix}/lib" "${_nestling_prefix}/lib64" "${_nestling_prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE}"
        NO_DEFAULT_PATH)
endforeach()

if(NESTLING_SHARED_LIBRARY AND NOT TARGET nestling::nestling)
    add_library(nestling::nestling SHARED IMPORTED)
    set_target_properties(nestling::nestling PROPERTIES
        IMPORTED_LOCATION "${NESTLING_SHARED_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${NESTLING_INCLUDE_DIR}")
endif()
if(NESTLING_STATIC_LIBRARY AND NOT TARGET nestling::static)
    add_library(nestling::static STATIC IMPORTED)
    set_target_properties(nestling::static PROPERTIES
        IMPORTED_LOCATION "${NESTLING_STATIC_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${NESTLING_INCLUDE_DIR}")
    if(UNIX AND NOT APPLE)
        set_target_properties(nestling::static PROPERTIES INTERFACE_LINK_LIBRARIES "pthread;m;dl")
    endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(nestling REQUIRED_VARS NESTLING_INCLUDE_DIR)
if(nestling_FOUND AND NOT TARGET nestling::nestling AND NOT TARGET nestling::static)
    set(nestling_FOUND FALSE)
    set(nestling_NOT_FOUND_MESSAGE "the header is installed without a library")
endif()
mark_as_advanced(NESTLING_INCLUDE_DIR NESTLING_SHARED_LIBRARY NESTLING_STATIC_LIBRARY)
unset(_nestling_prefix)
unset(_nestling_kind)
unset(_nestling_name)
