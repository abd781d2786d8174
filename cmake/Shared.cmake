# libthimble.so: the C interface (include/thimble.h) over the same static libraries as the program.
# Only its functions are visible, so the C++ inside may change freely.
function(thimble_shared_library)
  add_library(thimble_shared SHARED $<TARGET_OBJECTS:thimble_c>)
  set_target_properties(thimble_shared PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(thimble_shared PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  target_link_libraries(thimble_shared PRIVATE thimble_c)
  set(map "${PROJECT_SOURCE_DIR}/cmake/thimble.map")
  target_link_options(thimble_shared PRIVATE "-Wl,--version-script=${map}")
  # Beside the program, where it finds the plugins.
  set_target_properties(thimble_shared PROPERTIES OUTPUT_NAME thimble SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS "${map}"
                                                  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  thimble_harden(thimble_shared)
endfunction()
