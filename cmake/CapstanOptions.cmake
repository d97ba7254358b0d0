# Options of the build, and the flags that every target of ours gets through capstan::warnings.

set(CAPSTAN_COMPONENTS "" CACHE STRING "Folders to build, dependencies first; empty: all")
# The default is not kept in the cache, so that an older build folder gets new folders, too. Version 0.2 kept this one.
set(kept_default "services;protos;training;gpu_worker/engine;gpu_worker/data;param_store;coordinator;gpu_worker;client;deploy;tests")
if(CAPSTAN_COMPONENTS STREQUAL "" OR CAPSTAN_COMPONENTS STREQUAL kept_default)
  set(CAPSTAN_COMPONENTS services protos training exchange gpu_worker/engine gpu_worker/data param_store coordinator gpu_worker client deploy tests)
endif()
option(CAPSTAN_WITH_GRPC "Build what needs gRPC, protobuf, prometheus-cpp, CLI11 or cpp-httplib" ON)
option(CAPSTAN_TESTS "Build the tests" ON)
option(CAPSTAN_BENCHMARKS "Build the benchmarks" OFF)
option(CAPSTAN_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(CAPSTAN_PRECOMPILED "Compile the headers that nearly every source reads once" OFF)
set(CMAKE_PCH_WARN_INVALID OFF)  # a target with other flags reads the headers themselves
set(CAPSTAN_SANITIZE "" CACHE STRING "address | thread | empty")
set(CAPSTAN_LEAN_FLAGS "" CACHE STRING "Further flags of what calls capstan_lean() and of unit and integration tests: no inner loops")
set(CAPSTAN_TEST_FLAGS "" CACHE STRING "Further flags, after those, of unit and integration tests")
set(CAPSTAN_CUDA AUTO CACHE STRING "AUTO: where found; ON: or stop; OFF")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CAPSTAN_CCACHE ccache)
if(CAPSTAN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CAPSTAN_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CAPSTAN_CCACHE})
endif()

# g++ collects its garbage after 128 MiB unless told otherwise. That takes a tenth of its time.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>")

# lld links in half the time of the compiler's own linker. Not mold 1.10: if a program's first relocated section is .tbss,
# mold may ask the loader to protect a page that is not mapped, and the program does not start. Whether it does depends on
# the length of the build folder's name.
find_program(CAPSTAN_LLD ld.lld)
if(CAPSTAN_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# Programs contain only what they call. tools/unused lists the functions that are in no program.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections>")
  add_link_options(-Wl,--gc-sections)
endif()

add_library(capstan_warnings INTERFACE)
add_library(capstan::warnings ALIAS capstan_warnings)
target_compile_options(capstan_warnings INTERFACE
  -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers
  # Equal bits from g++ and clang: only fused multiply-adds that the source writes.
  -ffp-contract=off
  # g++ 12 at -O3 falsely reports overlaps inside std::string (GCC bug 105651), use of unset members of a std::variant,
  # and the like.
  "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-restrict;-Wno-maybe-uninitialized;-Wno-error=stringop-overflow;-Wno-error=array-bounds>"
  # When sources are compiled together, g++ mistakes what a source keeps to itself for a header's.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety>)

if(CAPSTAN_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # In lean code these two checks take a seventh of the compiler's time. The address sanitizer also reports the use of a
  # null pointer, and lean code does not cast bytes to numbers.
  list(APPEND CAPSTAN_LEAN_FLAGS -fno-sanitize=null,alignment)
  add_link_options(-fsanitize=address,undefined)
elseif(CAPSTAN_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Relative, so that a clone at another path finds the same object in ccache.
    file(RELATIVE_PATH ignorelist ${CMAKE_BINARY_DIR}
      ${PROJECT_SOURCE_DIR}/tests/support/tsan/ignorelist.txt)
    add_compile_options(-fsanitize-ignorelist=${ignorelist})
  endif()
endif()
if(CAPSTAN_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "CAPSTAN_FUZZERS needs clang; got ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of our libraries; without it the search is blind
endif()
