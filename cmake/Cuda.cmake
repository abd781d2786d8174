# The CUDA plugin, libthimble_cuda.so: a module next to the binary, which opens it on first use. It
# is built if nvcc is found.

set(THIMBLE_CUDA "AUTO" CACHE STRING "The CUDA plugin: AUTO (where nvcc is found), ON or OFF")
# Machine code for Hopper, and PTX that the driver compiles for every GPU since Ampere.
set(THIMBLE_CUDA_ARCHITECTURES "90a-real;80-virtual" CACHE STRING "Architectures that the plugin is compiled for")

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

# A macro, because a language has to be enabled in the scope of the project.
macro(thimble_cuda_plugin)
  thimble_find_cuda(THIMBLE_HAS_CUDA)
  if(THIMBLE_HAS_CUDA)
    set(CMAKE_CUDA_ARCHITECTURES "${THIMBLE_CUDA_ARCHITECTURES}")
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 has no entry for nvcc 13
    thimble_add_cuda_plugin()
  else()
    message(STATUS "No CUDA plugin: THIMBLE_CUDA is ${THIMBLE_CUDA}, and CUDA 13 with nvcc was not found or not searched")
  endif()
endmacro()

function(thimble_add_cuda_plugin)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cu" "${PROJECT_SOURCE_DIR}/src/ops/cuda/*.cpp"
       "${PROJECT_SOURCE_DIR}/src/optim/cuda/*.cu")
  # Does not link our static libraries, because they are not position-independent (-fPIC).
  add_library(thimble_cuda MODULE ${sources} "${PROJECT_SOURCE_DIR}/src/base/error.cpp" "${PROJECT_SOURCE_DIR}/src/tensor/tensor.cpp")
  target_include_directories(thimble_cuda PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(thimble_cuda PRIVATE CUDA::cudart_static CUDA::cublasLt fmt::fmt)
  target_link_options(thimble_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
  target_compile_definitions(thimble_cuda PRIVATE "THIMBLE_VERSION=\"${PROJECT_VERSION}\"")
  if(THIMBLE_CUDA_ARCHITECTURES MATCHES "90a")  # else the wgmma kernels are empty (wgmma.cuh) and must not be chosen
    target_compile_definitions(thimble_cuda PRIVATE THIMBLE_SM90A)
  endif()
  # The directory's options are for g++; nvcc passes on what follows -Xcompiler. fmt 9 disables
  # FMT_USE_CONSTEXPR for nvcc, which needs it.
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
