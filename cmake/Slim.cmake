# The folder that travels: a program, the CUDA plugin and every shared library that a bare machine does not have, side by
# side.
#
#   cmake --build build --target thimble thimble_cuda
#   cmake --install build --component slim --prefix FOLDER --strip
#
# FOLDER/thimble then runs on any Linux with glibc 2.36 and g++ 12's libstdc++ or newer; for CUDA it takes NVIDIA's driver
# and CUDA 13's cuBLASLt. `slim-tests` is the same for cuda_tests.

# thimble_travels(COMPONENT TARGETS...): targets that do not exist are left out.
function(thimble_travels component)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      list(APPEND there ${target})
    endif()
  endforeach()
  # RPATH, not RUNPATH: libraries that libraries need are looked for here, too.
  set_target_properties(${there} PROPERTIES INSTALL_RPATH "$ORIGIN")
  foreach(target IN LISTS there)
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
  install(TARGETS ${there} RUNTIME_DEPENDENCY_SET ${component} RUNTIME DESTINATION . COMPONENT ${component} EXCLUDE_FROM_ALL
          LIBRARY DESTINATION . COMPONENT ${component} EXCLUDE_FROM_ALL)
  # The system's own libraries belong to its kernel and compiler, CUDA's to its driver.
  install(RUNTIME_DEPENDENCY_SET ${component} COMPONENT ${component} EXCLUDE_FROM_ALL DESTINATION .
          PRE_EXCLUDE_REGEXES "^libcu" "^libnv" "^libnccl"
          POST_EXCLUDE_REGEXES "/(ld-linux.*|libc|libm|libmvec|libdl|librt|libpthread|libresolv|libstdc\\+\\+|libgcc_s)\\.so")
endfunction()
