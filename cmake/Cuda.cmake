# The CUDA plugin, libthimble_cuda.so: a module beside the binary, which opens it on first use. Built where nvcc is found;
# without it nothing changes.

set(THIMBLE_CUDA "AUTO" CACHE STRING "The CUDA plugin: AUTO (where nvcc is found), ON or OFF")
# Hopper's own machine code, and PTX that the driver compiles for every GPU from Ampere on.
set(THIMBLE_CUDA_ARCHITECTURES "90a-real;80-virtual" CACHE STRING "What the plugin is compiled for")

function(thimble_find_cuda found)
  set(${found} FALSE PARENT_SCOPE)
  if(THIMBLE_CUDA STREQUAL "OFF")
    return()
  endif()
  if(NOT THIMBLE_CUDA MATCHES "^(AUTO|ON)$")
    message(FATAL_ERROR "THIMBLE_CUDA is '${THIMBLE_CUDA}'; it must be AUTO, ON or OFF")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND NOT THIMBLE_SANITIZE)
    find_package(CUDAToolkit 13 QUIET)
  endif()
  if(CUDAToolkit_FOUND AND TARGET CUDA::cublasLt)
    set(${found} TRUE PARENT_SCOPE)
  elseif(THIMBLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "THIMBLE_CUDA is ON, but there is no CUDA 13 with nvcc and cuBLASLt (or a sanitizer is on)")
  endif()
endfunction()

# A macro: a language is enabled for the whole project.
macro(thimble_cuda_plugin)
  thimble_find_cuda(THIMBLE_HAS_CUDA)
  if(THIMBLE_HAS_CUDA)
    set(CMAKE_CUDA_ARCHITECTURES "${THIMBLE_CUDA_ARCHITECTURES}")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know that nvcc 13 does
    thimble_add_cuda_plugin()
  else()
    message(STATUS "No CUDA plugin: THIMBLE_CUDA is ${THIMBLE_CUDA}, CUDA 13 with nvcc was not found or not looked for")
  endif()
endmacro()

function(thimble_add_cuda_plugin)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cu" "${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cpp"
       "${PROJECT_SOURCE_DIR}/src/optim/cuda/*.cu")
  # Not our static libraries: their objects are not made for a shared one.
  add_library(thimble_cuda MODULE ${sources} "${PROJECT_SOURCE_DIR}/src/base/error.cpp" "${PROJECT_SOURCE_DIR}/src/tensor/tensor.cpp")
  target_include_directories(thimble_cuda PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(thimble_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt fmt::fmt)
  target_link_options(thimble_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
  target_compile_definitions(thimble_cuda PRIVATE "THIMBLE_VERSION=\"${PROJECT_VERSION}\"")
  if(THIMBLE_CUDA_ARCHITECTURES MATCHES "90a")  # else kernels of wgmma have no body (wgmma.cuh) and must not be chosen
    target_compile_definitions(thimble_cuda PRIVATE THIMBLE_SM90A)
  endif()
  # The directory's options are g++'s; nvcc hands on what follows -Xcompiler. FMT_USE_CONSTEXPR: fmt 9 takes it away from
  # nvcc, which needs it.
  set_target_properties(
    thimble_cuda
    PROPERTIES COMPILE_OPTIONS "" CXX_VISIBILITY_PRESET hidden
               CUDA_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  target_compile_options(
    thimble_cuda
    PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-psabi>"
            "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-DFMT_USE_CONSTEXPR=1;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror,-Wno-psabi>")
  thimble_harden(thimble_cuda)
endfunction()
