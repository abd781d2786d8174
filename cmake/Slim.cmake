# A portable folder: a program, the CUDA plugin and all shared libraries that a bare system lacks.
#
#   cmake --build build --target thimble thimble_cuda
#   cmake --install build --component slim --prefix FOLDER --strip
#
# FOLDER/thimble then runs on any Linux with glibc 2.34 and g++ 11's libstdc++ or newer
# (packaging/portable.py checks it). CUDA also needs NVIDIA's driver and the cuBLASLt of CUDA 13. The
# component slim-tests does the same for cuda_tests, the component wheel for the Python package.

# thimble_install_slim(COMPONENT TARGETS...): ignores targets that do not exist.
function(thimble_install_slim component)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      list(APPEND existing ${target})
    endif()
  endforeach()
  # RPATH, not RUNPATH, because only RPATH also applies to the dependencies of libraries.
  set_target_properties(${existing} PROPERTIES INSTALL_RPATH "$ORIGIN")
  foreach(target IN LISTS existing)
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
  install(TARGETS ${existing} RUNTIME_DEPENDENCY_SET ${component} RUNTIME DESTINATION . COMPONENT ${component} EXCLUDE_FROM_ALL
          LIBRARY DESTINATION . COMPONENT ${component} NAMELINK_SKIP EXCLUDE_FROM_ALL)
  # libc and libstdc++ must match the system, CUDA's libraries must match its driver.
  install(RUNTIME_DEPENDENCY_SET ${component} COMPONENT ${component} EXCLUDE_FROM_ALL DESTINATION .
          PRE_EXCLUDE_REGEXES "^libcu" "^libnv" "^libnccl"
          POST_EXCLUDE_REGEXES "/(ld-linux.*|libc|libm|libmvec|libdl|librt|libpthread|libresolv|libstdc\\+\\+|libgcc_s)\\.so")
endfunction()
