# What a hostile file or request finds in its way, and nothing in the binary that says where or when it was built: two
# folders give the same bytes (cmake/reproduce tries it).
#
# In Release alone: sanitizers do the same work better, and debuggers want paths.

# thimble_harden(TARGET): a library of ours, a program or a plugin. Private: who links our libraries chooses for himself.
function(thimble_harden target)
  if(THIMBLE_SANITIZE OR THIMBLE_FUZZ)
    return()
  endif()
  set(compile
      -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3  # calls of libc that run over an array end the program; 2 with an older libc
      -fstack-protector-strong -fstack-clash-protection
      # The later one is asked first, and the build may lie within the sources.
      "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-ffile-prefix-map=${PROJECT_BINARY_DIR}/=build/")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND compile -fcf-protection)
  endif()
  set(link -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "MODULE_LIBRARY")
    # Debian's compilers do so anyhow. Not POSITION_INDEPENDENT_CODE: of a static library that is -fPIC, whose calls could
    # be replaced by others' and are therefore never inlined.
    list(APPEND compile -fPIE)
    list(APPEND link -pie)
  endif()
  # Files of nvcc are left alone: they start kernels and read nothing.
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${compile}>")
  if(NOT type STREQUAL "STATIC_LIBRARY")
    target_link_options(${target} PRIVATE "$<$<CONFIG:Release>:${link}>")
    # What CMake links for the build folder has empty places in its search path, to be filled when it is installed, and
    # ld.so takes those for the current folder: whoever can write there could bring libraries along. Folders of foreign
    # libraries (CUDA, MPI) are kept.
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endfunction()
