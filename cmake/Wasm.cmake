# The browser's runtime, share/thimble/thimble.wasm beside the folder of the programs, for
# `thimble export --format html`. It is a project of its own (src/wasm), compiled by emscripten. It
# is built if Debian's emscripten, libc++-16-dev and dpkg-dev are installed; the first build
# downloads source packages (cmake/wasm_sources).

set(THIMBLE_WASM "AUTO" CACHE STRING "The browser's runtime: AUTO (where emscripten is found), ON or OFF")
set(THIMBLE_WASM_SOURCES "${CMAKE_BINARY_DIR}/wasm-sources" CACHE PATH "Folder of its libraries' sources (cmake/wasm_sources)")

# What the runtime contains: texts for licences.txt.
set(THIMBLE_WASM_LICENCES
    "zstd>/usr/share/doc/libzstd-dev/copyright" "zlib>/usr/share/doc/zlib1g-dev/copyright"
    "utf8proc>/usr/share/doc/libutf8proc-dev/copyright"
    "fmt>/usr/share/doc/libfmt-dev/copyright" "Highway>/usr/share/doc/libhwy-dev/copyright"
    "JSON for Modern C++>/usr/share/doc/nlohmann-json3-dev/copyright"
    "xxHash>/usr/share/doc/libxxhash-dev/copyright" "libc++ and LLVM>/usr/share/doc/libc++-16-dev/copyright"
    "musl>/usr/share/emscripten/system/lib/libc/musl/COPYRIGHT")

function(thimble_wasm_licences out)
  file(READ "${PROJECT_SOURCE_DIR}/LICENSE" text)
  set(all "==== thimble\n${text}")
  foreach(entry IN LISTS THIMBLE_WASM_LICENCES)
    string(REGEX MATCH "(.*)>(.*)" parts "${entry}")
    if(NOT EXISTS "${CMAKE_MATCH_2}")
      message(FATAL_ERROR "the licence of ${CMAKE_MATCH_1} was not found: expected ${CMAKE_MATCH_2}")
    endif()
    set(name "${CMAKE_MATCH_1}")
    file(READ "${CMAKE_MATCH_2}" text)
    string(APPEND all "\n==== ${name}\n${text}")
  endforeach()
  file(WRITE "${out}" "${all}")
endfunction()

function(thimble_wasm_runtime)
  if(NOT THIMBLE_WASM MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "THIMBLE_WASM is '${THIMBLE_WASM}'; it must be AUTO, ON or OFF")
  endif()
  if(THIMBLE_WASM STREQUAL "OFF" OR THIMBLE_SANITIZE)
    return()
  endif()
  find_program(EMCC emcc)
  find_program(DPKG_SOURCE dpkg-source)
  find_path(THIMBLE_LIBCXX ranges PATHS /usr/lib/llvm-16/include/c++/v1 NO_DEFAULT_PATH)
  set(toolchain /usr/share/emscripten/cmake/Modules/Platform/Emscripten.cmake)
  if(NOT EMCC OR NOT DPKG_SOURCE OR NOT THIMBLE_LIBCXX OR NOT EXISTS "${toolchain}")
    if(THIMBLE_WASM STREQUAL "ON")
      message(FATAL_ERROR "THIMBLE_WASM is ON, but Debian's emscripten, libc++-16-dev and dpkg-dev are not all installed")
    endif()
    message(STATUS "No browser runtime: emscripten, libc++-16-dev and dpkg-dev are not all installed")
    return()
  endif()
  set(shared "${CMAKE_BINARY_DIR}/share/thimble")
  file(MAKE_DIRECTORY "${shared}")
  thimble_wasm_licences("${shared}/licences.txt")
  include(ExternalProject)
  # acorn, which emcc needs, is where Debian installs Node's modules.
  set(environment "${CMAKE_COMMAND}" -E env NODE_PATH=/usr/share/nodejs)
  if(CCACHE)
    list(APPEND environment "EM_COMPILER_WRAPPER=${CCACHE}")
  endif()
  ExternalProject_Add(
    thimble_wasm
    SOURCE_DIR "${PROJECT_SOURCE_DIR}/src/wasm"
    BINARY_DIR "${CMAKE_BINARY_DIR}/wasm"
    PREFIX "${CMAKE_BINARY_DIR}/wasm-project"
    DOWNLOAD_COMMAND "${PROJECT_SOURCE_DIR}/cmake/wasm_sources" "${THIMBLE_WASM_SOURCES}"
    CONFIGURE_COMMAND
      ${environment} "${CMAKE_COMMAND}" -S <SOURCE_DIR> -B <BINARY_DIR> -G Ninja -DCMAKE_BUILD_TYPE=Release
      "-DCMAKE_TOOLCHAIN_FILE=${toolchain}" "-DTHIMBLE_SOURCES=${THIMBLE_WASM_SOURCES}" "-DTHIMBLE_LIBCXX=${THIMBLE_LIBCXX}"
      "-DTHIMBLE_VERSION=${PROJECT_VERSION}"
    BUILD_COMMAND ${environment} "${CMAKE_COMMAND}" --build <BINARY_DIR>
    INSTALL_COMMAND "${CMAKE_COMMAND}" -E copy_if_different <BINARY_DIR>/thimble.wasm "${shared}/thimble.wasm"
    BUILD_ALWAYS ON
    USES_TERMINAL_BUILD ON)
  install(FILES "${shared}/thimble.wasm" "${shared}/licences.txt" DESTINATION "${CMAKE_INSTALL_DATADIR}/thimble"
          COMPONENT thimble OPTIONAL)
endfunction()
