# One function per kind of target. The caller lists the sources, except for operators and their kernels, each of which has
# its own folder or file.

# With CAPSTAN_PRECOMPILED, headers that nearly every source reads are compiled once for all targets with the same flags, and
# again, together with those of gRPC or GoogleTest, for all targets that use them.
function(capstan_precompile target)
  if(CAPSTAN_PRECOMPILED)  # at the end of the folder, when the flags of its sources are known
    cmake_language(EVAL CODE "cmake_language(DEFER CALL capstan_precompile_now ${target})")
  endif()
endfunction()
function(capstan_precompile_now target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(own_flags ${source} COMPILE_OPTIONS)
    if(own_flags)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  set(headers <algorithm> <functional> <map> <memory> <string> <vector>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/time/time.h>)
  set(kind plain)
  get_target_property(linked ${target} LINK_LIBRARIES)
  if("GTest::gtest_main" IN_LIST linked)
    string(APPEND kind _test)
    list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  capstan_links(${target} gRPC::grpc++ rpc)
  if(rpc)
    string(APPEND kind _rpc)
    list(APPEND headers <google/protobuf/descriptor.h> <google/protobuf/generated_message_reflection.h>
      <google/protobuf/message.h> <google/protobuf/timestamp.pb.h> <google/protobuf/wire_format.h>
      <grpcpp/generic/async_generic_service.h> <grpcpp/grpcpp.h> <grpcpp/support/client_callback.h>
      <grpcpp/support/method_handler.h> <grpcpp/support/server_callback.h>)
  endif()
  get_target_property(flags ${target} COMPILE_OPTIONS)  # those of the folder, and the target's own
  string(SHA256 digest "${flags}")
  string(SUBSTRING ${digest} 0 8 digest)
  set(precompiled capstan_headers_${kind}_${digest})
  if(NOT TARGET ${precompiled})
    set(empty ${PROJECT_BINARY_DIR}/precompiled.cc)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")  # keeps the file, and so its time, if it is there
    add_library(${precompiled} OBJECT ${empty})
    set_target_properties(${precompiled} PROPERTIES COMPILE_OPTIONS "${flags}")
    if(kind MATCHES test)
      target_link_libraries(${precompiled} PRIVATE GTest::gmock GTest::gtest)
    endif()
    target_link_libraries(${precompiled} PRIVATE capstan::warnings)
    if(rpc)
      capstan_need_grpc()  # the target of gRPC is known in folders that ask for it
      target_link_libraries(${precompiled} PRIVATE gRPC::grpc++ protobuf::libprotobuf)
    endif()
    target_precompile_headers(${precompiled} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${precompiled})
  # g++ refuses headers for a program's -fPIE if they were precompiled with a library's -fPIC.
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()

# Sets `out` to whether `target` is linked with `library`, directly or through others.
function(capstan_links target library out)
  set(waiting ${target})
  set(seen)
  while(waiting)
    list(POP_FRONT waiting next)
    if(next STREQUAL library)
      set(${out} ON PARENT_SCOPE)
      return()
    endif()
    if(next IN_LIST seen OR NOT TARGET ${next})
      continue()
    endif()
    list(APPEND seen ${next})
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(more ${next} ${property})
      if(more)
        list(APPEND waiting ${more})
      endif()
    endforeach()
  endwhile()
  set(${out} OFF PARENT_SCOPE)
endfunction()

# capstan_library(NAME SRCS a.cc a.h PUBLIC dep... PRIVATE dep...)
# Makes capstan_NAME and the alias capstan::NAME. Without a .cc file it is a header-only library. It is compiled if a program
# or a test needs it.
function(capstan_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;PUBLIC;PRIVATE" ${ARGN})
  set(compiled ${ARG_SRCS})
  list(FILTER compiled INCLUDE REGEX "\\.(cc|c|cpp)$")
  if(compiled)
    add_library(capstan_${name} STATIC EXCLUDE_FROM_ALL ${ARG_SRCS})
    target_include_directories(capstan_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(capstan_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} capstan::warnings)
    capstan_precompile(capstan_${name})
  else()
    add_library(capstan_${name} INTERFACE)
    target_include_directories(capstan_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(capstan_${name} INTERFACE ${ARG_PUBLIC} ${ARG_PRIVATE})
  endif()
  add_library(capstan::${name} ALIAS capstan_${name})
endfunction()

# For a folder without inner loops: compiles the targets that follow so that the build is quick.
macro(capstan_lean)
  add_compile_options(${CAPSTAN_LEAN_FLAGS})
endmacro()

# capstan_binary(NAME SRCS main.cc DEPS dep...): a program of ours, build/<preset>/bin/NAME, which is installed. The
# target is also called NAME.
function(capstan_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} capstan::warnings)
  capstan_precompile(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# capstan_test(NAME TIER tier SRCS a_test.cc DEPS dep... [TIMEOUT seconds] [ARGS ...])
# A GoogleTest binary, one CTest entry for the whole binary, with the label of its tier:
#   unit         no process, no socket, no file outside a temporary folder
#   contract     one suite against every implementation
#   integration  real servers in one process
#   e2e          real binaries
#   sim          the deterministic simulation
#   long         only in ./run-tests --long
function(capstan_test name)
  if(NOT CAPSTAN_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIER;TIMEOUT" "SRCS;DEPS;ARGS" ${ARGN})
  if(NOT ARG_TIER)
    set(ARG_TIER unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(capstan_${name} ${ARG_SRCS})
  target_link_libraries(capstan_${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main capstan::warnings)
  target_include_directories(capstan_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  if(ARG_TIER MATCHES "^(unit|integration)$")  # the other tiers compute
    target_compile_options(capstan_${name} PRIVATE ${CAPSTAN_LEAN_FLAGS} ${CAPSTAN_TEST_FLAGS})
  endif()
  if(CAPSTAN_FUZZERS)
    target_compile_options(capstan_${name} PRIVATE -fno-sanitize=fuzzer-no-link)  # only libraries guide a fuzzer
  endif()
  capstan_precompile(capstan_${name})
  set_target_properties(capstan_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test)
  add_test(NAME ${name} COMMAND capstan_${name} ${ARG_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  capstan_limit_test(${name} ${ARG_TIER} ${ARG_TIMEOUT})
  capstan_tier_needs(${ARG_TIER} capstan_${name})
endfunction()

# capstan_script_test(NAME TIER tier COMMAND command... [NEEDS target...] [TIMEOUT seconds])
# A test that is not a GoogleTest binary. It runs in the root of the tree and counts as one.
function(capstan_script_test name)
  if(NOT CAPSTAN_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIER;TIMEOUT" "COMMAND;NEEDS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  capstan_limit_test(${name} ${ARG_TIER} ${ARG_TIMEOUT})
  capstan_tier_needs(${ARG_TIER} ${ARG_NEEDS})
endfunction()

# The label and the limit of a CTest entry. `seconds` is ample on two cores of an AMD EPYC; other machines, and machines with
# other work, get twice as much. COST: long tests begin first when several run at a time, so that none runs alone at the end.
function(capstan_limit_test name tier seconds)
  math(EXPR limit "2 * ${seconds}")
  set_tests_properties(${name} PROPERTIES LABELS ${tier} TIMEOUT ${limit} COST ${seconds})
endfunction()

# The target tier_<tier> builds what the tests of that tier run, so that ./run-tests --quick builds only that.
function(capstan_tier_needs tier)
  if(NOT TARGET tier_${tier})
    add_custom_target(tier_${tier})
  endif()
  if(ARGN)
    add_dependencies(tier_${tier} ${ARGN})
  endif()
endfunction()

# capstan_proto(NAME FILE path/under/protos.proto [GRPC] DEPS capstan::other_proto...)
function(capstan_proto name)
  cmake_parse_arguments(ARG "GRPC" "FILE" "DEPS" ${ARGN})
  capstan_need_grpc()
  get_filename_component(dir ${ARG_FILE} DIRECTORY)
  get_filename_component(base ${ARG_FILE} NAME_WE)
  set(gen ${PROJECT_BINARY_DIR}/gen)
  set(outputs ${gen}/${dir}/${base}.pb.cc ${gen}/${dir}/${base}.pb.h)
  set(command protobuf::protoc -I ${PROJECT_SOURCE_DIR}/protos --cpp_out=${gen})
  if(ARG_GRPC)
    list(APPEND outputs ${gen}/${dir}/${base}.grpc.pb.cc ${gen}/${dir}/${base}.grpc.pb.h)
    list(APPEND command --grpc_out=${gen} --plugin=protoc-gen-grpc=${CAPSTAN_GRPC_PLUGIN})
  endif()
  file(MAKE_DIRECTORY ${gen})
  add_custom_command(OUTPUT ${outputs}
    COMMAND ${command} ${PROJECT_SOURCE_DIR}/protos/${ARG_FILE}
    DEPENDS ${PROJECT_SOURCE_DIR}/protos/${ARG_FILE} VERBATIM)
  if(NOT TARGET capstan_generated)
    add_custom_target(capstan_generated)  # files that clang-tidy needs before it can read our sources
  endif()
  add_custom_target(capstan_${name}_generated DEPENDS ${outputs})
  add_dependencies(capstan_generated capstan_${name}_generated)
  add_library(capstan_${name} STATIC ${outputs})
  target_include_directories(capstan_${name} SYSTEM PUBLIC ${gen})
  target_link_libraries(capstan_${name} PUBLIC ${ARG_DEPS} protobuf::libprotobuf)
  if(ARG_GRPC)
    target_link_libraries(capstan_${name} PUBLIC gRPC::grpc++)
  endif()
  capstan_precompile(capstan_${name})
  add_library(capstan::${name} ALIAS capstan_${name})
endfunction()

# capstan_fuzzer(NAME SRCS foo_fuzz.cc DEPS dep...): a libFuzzer binary in fuzz/, run by ./run-tests --only fuzz.
# Its corpus, which is read but never written, is tests/fuzz/corpus/NAME/ if that folder exists.
function(capstan_fuzzer name)
  if(NOT CAPSTAN_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(capstan_${name} ${ARG_SRCS})
  target_link_libraries(capstan_${name} PRIVATE ${ARG_DEPS} capstan::warnings)
  target_include_directories(capstan_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_options(capstan_${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(capstan_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  capstan_tier_needs(fuzz capstan_${name})
endfunction()

# capstan_embed(OUT_VARIABLE FILE...)
# Generates a source with the files' bytes as capstan::embedded::<name with _ for ., -> (a std::string_view), and sets
# OUT_VARIABLE to its path.
function(capstan_embed out)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${out}.cc)
  set(files)
  foreach(file ${ARGN})
    list(APPEND files ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
  add_custom_command(OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${generated} "-DFILES=${files}"
            -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake VERBATIM)
  set(${out} ${generated} PARENT_SCOPE)
endfunction()
