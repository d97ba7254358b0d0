# Packages of Debian 12. What a component does not need is not looked for, so that the engine builds
# on a machine without gRPC.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(PkgConfig REQUIRED)

macro(capstan_need_grpc)
  if(NOT TARGET PkgConfig::GRPC)
    find_package(Protobuf REQUIRED)
    pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc++)
    find_program(CAPSTAN_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
  endif()
  # Compiled together, sources bring gRPC's headers past the thread sanitizer's ignore list.
  if(CAPSTAN_SANITIZE STREQUAL "thread")
    set(CMAKE_UNITY_BUILD OFF)
  endif()
endmacro()

if(CAPSTAN_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
if(CAPSTAN_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
