# Run by cpack on the staged files before they become a package. Debian's rules: no search path in
# the binary, compressed man page and changelog, a copyright file instead of a license text.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
find_program(GZIP gzip REQUIRED)

function(compress file)
  execute_process(COMMAND "${GZIP}" -9n "${file}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(pair IN ITEMS "thimble:thimble" "development:libthimble-dev")
  string(REGEX MATCH "(.*):(.*)" parts "${pair}")
  set(root "${CPACK_TEMPORARY_DIRECTORY}/${CMAKE_MATCH_1}/usr")
  set(documents "${root}/share/doc/${CMAKE_MATCH_2}")
  if(NOT EXISTS "${root}")
    message(FATAL_ERROR "expected the files of ${CMAKE_MATCH_2} in ${root}")
  endif()
  file(REMOVE "${documents}/LICENSE")
  file(COPY "${CPACK_THIMBLE_PACKAGING}/debian/copyright" "${CPACK_THIMBLE_PACKAGING}/debian/changelog"
       DESTINATION "${documents}")
  compress("${documents}/changelog")
  if(CMAKE_MATCH_2 STREQUAL "thimble")
    compress("${root}/share/man/man1/thimble.1")
    file(RPATH_REMOVE FILE "${root}/bin/thimble")
    if(EXISTS "${root}/share/zsh/site-functions")  # Debian's zsh reads another folder
      file(MAKE_DIRECTORY "${root}/share/zsh/vendor-completions")
      file(RENAME "${root}/share/zsh/site-functions/_thimble" "${root}/share/zsh/vendor-completions/_thimble")
      file(REMOVE_RECURSE "${root}/share/zsh/site-functions")
    endif()
  endif()
endforeach()
