# Versions are compatible that differ in their last number alone.
set(PACKAGE_VERSION "0.1.0")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _nestling_minor "${PACKAGE_VERSION}")
if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
if("${PACKAGE_FIND_VERSION_MAJOR}.${PACKAGE_FIND_VERSION_MINOR}" STREQUAL _nestling_minor AND
   NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
unset(_nestling_minor)
