# Hardening against hostile files and requests, and reproducible builds: the binary does not contain
# where or when it was built, so two folders give the same bytes (cmake/reproduce verifies it).
#
# In Release builds only: sanitizers detect more, and debuggers need the paths.

# thimble_harden(TARGET): TARGET is a library, program or plugin of thimble. The options are
# PRIVATE, so programs that link the libraries choose their own.
function(thimble_harden target)
  get_target_property(type ${target} TYPE)
  # The static libraries are linked into libthimble.so as well as into programs. Without semantic
  # interposition, -fPIC inlines as much as -fPIE.
  set(shared -fPIC -fno-semantic-interposition)
  if(THIMBLE_SANITIZE OR THIMBLE_FUZZ)
    target_compile_options(${target} PRIVATE ${shared})
    return()
  endif()
  target_compile_options(${target} PRIVATE "$<$<NOT:$<CONFIG:Release>>:${shared}>")
  set(compile
      -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3  # libc calls that overrun an array abort; an older libc supports only 2
      -fstack-protector-strong -fstack-clash-protection
      # The last matching map wins; the build folder may be inside the source folder.
      "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-ffile-prefix-map=${PROJECT_BINARY_DIR}/=build/")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND compile -fcf-protection)
  endif()
  set(link -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
  if(NOT type STREQUAL "MODULE_LIBRARY")
    list(APPEND compile ${shared})
  endif()
  if(type STREQUAL "EXECUTABLE")
    list(APPEND link -pie)
  endif()
  # Files compiled by nvcc are excluded: they launch kernels and parse nothing.
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${compile}>")
  if(NOT type STREQUAL "STATIC_LIBRARY")
    target_link_options(${target} PRIVATE "$<$<CONFIG:Release>:${link}>")
    # In the build folder, CMake normally pads the library search path with empty entries, which it
    # replaces on installation. ld.so reads an empty entry as the current folder, so anyone who can
    # write there could add libraries. Folders of external libraries (CUDA, MPI) are kept.
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endfunction()
