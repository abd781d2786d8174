# What `cmake --install` and `cpack` install.
#
#   cmake --install BUILD --prefix P      the binary, the plugins that were built, man page,
#                                         completions, documents; libraries and headers for
#                                         find_package(thimble)
#   cpack -G TGZ                          a relocatable folder that includes shared libraries
#   cpack -G DEB                          thimble and libthimble-dev, depending on Debian packages
#
# Components: thimble, cuda (with NCCL), mpi, development, bundle (shared libraries, tarball only).

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The binary prints its man page and completions, so they are generated during installation. Each
# destination has its own temporary folder, because two installations may run at the same time.
function(thimble_install_texts)
  foreach(text IN ITEMS "man>man/man1/thimble.1" "completions bash>bash-completion/completions/thimble"
                        "completions zsh>zsh/site-functions/_thimble" "completions fish>fish/vendor_completions.d/thimble.fish")
    string(REGEX MATCH "(.*)>(.*)/(.*)" parts "${text}")
    string(REPLACE " " ";" arguments "${CMAKE_MATCH_1}")
    install(CODE "string(MD5 place \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
      set(folder \"${CMAKE_BINARY_DIR}/installed/\${place}\")
      file(MAKE_DIRECTORY \"\${folder}\")
      execute_process(COMMAND \"$<TARGET_FILE:thimble>\" ${arguments} OUTPUT_FILE \"\${folder}/${CMAKE_MATCH_3}\"
                      COMMAND_ERROR_IS_FATAL ANY)
      file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${CMAKE_MATCH_2}\" TYPE FILE
           FILES \"\${folder}/${CMAKE_MATCH_3}\")
      file(REMOVE_RECURSE \"\${folder}\")"
            COMPONENT thimble)
  endforeach()
  install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT thimble)
  install(DIRECTORY docs examples DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT thimble USE_SOURCE_PERMISSIONS)
  install(FILES records/README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}/records" COMPONENT thimble)
  install(FILES packaging/thimble.service DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples" COMPONENT thimble)
endfunction()

# thimble::base ... thimble::serve, and thimble::thimble, which is all of them.
function(thimble_install_libraries)
  get_property(libraries GLOBAL PROPERTY THIMBLE_LIBRARIES)
  list(REMOVE_ITEM libraries thimble_cli thimble_c)  # contain only commands, and what libthimble.so exports
  foreach(library IN LISTS libraries)
    string(REPLACE thimble_ "" name ${library})
    set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
  endforeach()
  add_library(thimble_all INTERFACE)
  set_target_properties(thimble_all PROPERTIES EXPORT_NAME thimble)
  target_link_libraries(thimble_all INTERFACE ${libraries})
  set_target_properties(thimble_shared PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS thimble_shared LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
  install(FILES include/thimble.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)
  install(TARGETS ${libraries} thimble_all EXPORT thimble ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
  install(DIRECTORY src/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/thimble" COMPONENT development FILES_MATCHING
          PATTERN "*.h" PATTERN cli EXCLUDE PATTERN cuda EXCLUDE PATTERN web EXCLUDE)
  set(folder "${CMAKE_INSTALL_LIBDIR}/cmake/thimble")
  install(EXPORT thimble NAMESPACE thimble:: FILE thimbleTargets.cmake DESTINATION "${folder}" COMPONENT development)
  write_basic_package_version_file("${CMAKE_BINARY_DIR}/thimbleConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES cmake/thimbleConfig.cmake "${CMAKE_BINARY_DIR}/thimbleConfigVersion.cmake" DESTINATION "${folder}"
          COMPONENT development)
endfunction()

function(thimble_install_programs)
  # The binary's own folder as in thimble_install_slim, then the tarball's folder of libraries.
  set_target_properties(thimble PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../lib")
  install(TARGETS thimble RUNTIME_DEPENDENCY_SET bundle RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT thimble)
  foreach(plugin IN ITEMS thimble_cuda:cuda thimble_nccl:cuda thimble_mpi:mpi)  # into lib: the binary looks in ../lib
    string(REGEX MATCH "(.*):(.*)" parts "${plugin}")
    if(TARGET ${CMAKE_MATCH_1})
      install(TARGETS ${CMAKE_MATCH_1} LIBRARY DESTINATION lib COMPONENT ${CMAKE_MATCH_2} OPTIONAL)
    endif()
  endforeach()
  install(RUNTIME_DEPENDENCY_SET bundle COMPONENT bundle EXCLUDE_FROM_ALL DESTINATION lib
          PRE_EXCLUDE_REGEXES "^libcu" "^libnv"
          POST_EXCLUDE_REGEXES "/(ld-linux.*|libc|libm|libmvec|libdl|librt|libpthread|libresolv|libstdc\\+\\+|libgcc_s)\\.so")
endfunction()

# A macro, because cpack reads the variables of the scope that includes CPack.
macro(thimble_package)
  set(CPACK_PACKAGE_NAME thimble)
  set(CPACK_PACKAGE_VENDOR "thimble contributors")
  set(CPACK_PACKAGE_CONTACT "thimble contributors <thimble@users.noreply.github.com>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train, measure, pack, serve and export small language models")
  set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
  set(CPACK_STRIP_FILES ON)
  set(CPACK_PACKAGE_FILE_NAME "thimble-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}")
  set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/packaging/generators.cmake")
  set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/packaging/as_debian_wants.cmake")
  set(THIMBLE_PACKAGING "${PROJECT_SOURCE_DIR}/packaging")
  set(CPACK_THIMBLE_PACKAGING "${THIMBLE_PACKAGING}")

  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
  set(CPACK_DEBIAN_THIMBLE_PACKAGE_NAME thimble)
  set(CPACK_DEBIAN_THIMBLE_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_THIMBLE_PACKAGE_SHLIBDEPS ON)
  set(CPACK_COMPONENT_THIMBLE_DESCRIPTION
      "thimble trains small GPT models on a CPU (or, with its plugin, a CUDA GPU),
measures them in bits per byte, packs them into small files, chats, serves
OpenAI's routes, and writes and reads GGUF and Hugging Face folders.")
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libthimble-dev)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
      "libfmt-dev, libxxhash-dev, libdnnl-dev, libhwy-dev, libutf8proc-dev, libpcre2-dev, libsentencepiece-dev, libzstd-dev, zlib1g-dev")
  set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
      "Static libraries, headers and find_package(thimble) for programs that load,
run or train small language models themselves.")
  include(CPack)
endmacro()
