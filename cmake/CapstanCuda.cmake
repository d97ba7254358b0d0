# Looks for CUDA, which is used if present and never required. Sets CAPSTAN_CUDA_FOUND. Sets CAPSTAN_CUDA_HEADERS to the
# folders of NVIDIA's headers, which are all that the stand-in for tests needs.
#
# CAPSTAN_CUDA: AUTO  build the CUDA plug-in if the Toolkit, cuDNN and NCCL are all there
#               ON    stop and name what is missing
#               OFF   do not look
# Not with sanitizers, which would stop inside the libraries of CUDA.

set(CAPSTAN_CUDA_FOUND OFF)
set(CAPSTAN_CUDA_HEADERS)
foreach(header cuda_runtime.h cublasLt.h cudnn.h nccl.h)
  find_path(CAPSTAN_FOLDER_OF_${header} ${header} HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES include)
  mark_as_advanced(CAPSTAN_FOLDER_OF_${header})
  list(APPEND CAPSTAN_CUDA_HEADERS ${CAPSTAN_FOLDER_OF_${header}})
endforeach()
if(CAPSTAN_CUDA STREQUAL "OFF" OR CAPSTAN_CUDA_HEADERS MATCHES "NOTFOUND")
  set(CAPSTAN_CUDA_HEADERS)
endif()
list(REMOVE_DUPLICATES CAPSTAN_CUDA_HEADERS)

if(CAPSTAN_CUDA STREQUAL "OFF" OR CAPSTAN_SANITIZE)
  return()
endif()

set(missing)
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  list(APPEND missing "the CUDA compiler (nvcc)")
endif()
find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND)
  list(APPEND missing "the CUDA Toolkit")
endif()
find_path(CAPSTAN_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_HOME PATH_SUFFIXES include)
find_library(CAPSTAN_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} ENV CUDNN_HOME PATH_SUFFIXES lib lib64)
if(NOT CAPSTAN_CUDNN_INCLUDE OR NOT CAPSTAN_CUDNN_LIBRARY)
  list(APPEND missing "cuDNN")
endif()
find_path(CAPSTAN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include)
find_library(CAPSTAN_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_HOME PATH_SUFFIXES lib lib64)
if(NOT CAPSTAN_NCCL_INCLUDE OR NOT CAPSTAN_NCCL_LIBRARY)
  list(APPEND missing "NCCL")
endif()

if(NOT missing)
  set(CAPSTAN_CUDA_FOUND ON)
  message(STATUS "CUDA: found, ${CUDAToolkit_VERSION}")
  # Machine code for data-centre cards since 2020, and PTX of 90 for later cards.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  endif()
  if(CAPSTAN_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CAPSTAN_CCACHE})
  endif()
  enable_language(CUDA)
elseif(CAPSTAN_CUDA STREQUAL "ON")
  list(JOIN missing ", " missing)
  message(FATAL_ERROR "CAPSTAN_CUDA=ON, but not found: ${missing}")
else()
  list(JOIN missing ", " missing)
  message(STATUS "CUDA: not used, not found: ${missing}")
endif()
