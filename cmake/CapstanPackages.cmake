# Packages of Debian 12. Packages that a component does not need are not searched, so the engine builds on a machine
# without gRPC.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(PkgConfig REQUIRED)

macro(capstan_need_grpc)
  if(NOT TARGET gRPC::grpc++)
    find_package(Protobuf REQUIRED)
    find_package(gRPC CONFIG REQUIRED)  # pkg-config takes 17 seconds for it
    find_program(CAPSTAN_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
  endif()
  # When sources are compiled together, the thread sanitizer's ignore list misses gRPC's headers.
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
