# capstan::version: version and git revision (services/version/version.h) in a single source file, so that a new commit
# only compiles that file and links again.

set(version_cc ${PROJECT_BINARY_DIR}/gen_version/version.cc)
add_custom_target(capstan_revision
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUTPUT=${version_cc}
    -DCAPSTAN_VERSION=${PROJECT_VERSION}
    "-DCAPSTAN_COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    -P ${PROJECT_SOURCE_DIR}/cmake/WriteVersion.cmake
  BYPRODUCTS ${version_cc} VERBATIM)
capstan_library(version SRCS ${version_cc} services/version/version.h PUBLIC absl::strings)
add_dependencies(capstan_version capstan_revision)
