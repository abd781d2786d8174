# Compiler options of every target: warnings are errors, sanitizers on request.

add_compile_options(-Wall -Wextra -Werror -Wno-psabi -fdiagnostics-color=auto)
add_compile_definitions($<$<CONFIG:Debug>:THIMBLE_DEBUG>)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

if(THIMBLE_SANITIZE)
  # Reports only need line numbers. -O2 and full debug information would double the build time.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
endif()
if(THIMBLE_SANITIZE STREQUAL "address")
  # In instrumented code, g++ 12 reports uninitialized variables wrongly.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
                      -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=address,undefined)
elseif(THIMBLE_SANITIZE STREQUAL "thread")
  # OpenMP's runtime is not instrumented, so parallel_for uses its own pool here
  # (base/parallel.cpp).
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT THIMBLE_SANITIZE STREQUAL "")
  message(FATAL_ERROR "THIMBLE_SANITIZE is '${THIMBLE_SANITIZE}'; it must be address, thread or empty")
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
endif()
