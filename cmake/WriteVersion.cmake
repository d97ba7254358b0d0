# Run by the build: cmake -DSOURCE_DIR= -DOUTPUT= -DCAPSTAN_VERSION= -DCAPSTAN_COMPILER= -P
# Writes OUTPUT only if the revision has changed, so that nothing is rebuilt without need.
set(CAPSTAN_REVISION unknown)
find_program(git git)
set(ENV{GIT_OPTIONAL_LOCKS} 0)  # a build during a commit must not lock the index
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE_DIR} describe --always --abbrev=12 --dirty --exclude=*
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(CAPSTAN_REVISION ${described})
  endif()
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/version.cc.in ${OUTPUT} @ONLY)
