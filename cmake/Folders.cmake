# The folder is the unit: every .cpp below src/NAME is the library thimble_NAME, every *_test.cpp below tests/NAME is
# the test program NAME_tests. Adding a file needs no line here.

# thimble_library(NAME [PUBLIC folders...] [PRIVATE folders...] [PUBLIC_LIBS foreign libraries...] [LIBS foreign libraries...])
#
# Each library has an include root of its own, a folder that holds nothing but a link to src/NAME. So a header is found
# only by those who link its library.
function(thimble_library name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE;PUBLIC_LIBS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/(cuda|mpi|nccl)/")  # the plugins'
  add_library(thimble_${name} STATIC ${sources})
  set(root "${PROJECT_BINARY_DIR}/layers/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/src/${name}" "${root}/${name}" SYMBOLIC)
  target_include_directories(thimble_${name} PUBLIC "$<BUILD_INTERFACE:${root}>" "$<INSTALL_INTERFACE:include/thimble>")
  target_compile_features(thimble_${name} PUBLIC cxx_std_20)  # of those who use it, too
  list(TRANSFORM ARG_PUBLIC PREPEND thimble_)
  list(TRANSFORM ARG_PRIVATE PREPEND thimble_)
  target_link_libraries(thimble_${name} PUBLIC ${ARG_PUBLIC} ${ARG_PUBLIC_LIBS} PRIVATE ${ARG_PRIVATE} ${ARG_LIBS})
  thimble_harden(thimble_${name})
  if(NOT name STREQUAL "base")  # which makes it
    target_precompile_headers(thimble_${name} REUSE_FROM thimble_base)
  endif()
  set_property(GLOBAL APPEND PROPERTY THIMBLE_LIBRARIES thimble_${name})
endfunction()

# thimble_tests(NAME [THREADS] [CPU_LEVELS [PATTERNS...]] [DEPENDS folders...] [LIBS foreign libraries...])
#
# THREADS: threads of our own are what it tests. Label "threads", target tests_with_threads: run by ThreadSanitizer, too.
# CPU_LEVELS: what it tests depends on the CPU level (THIMBLE_CPU): all of it, or what patterns of GoogleTest name. Adding a
# test to the set is adding its name there.
# Several tests run at a time, each with all threads: waiting threads must not spin (OMP_WAIT_POLICY).
# Tests with FullTier in their name are long: ctest label "full", left out by a plain ./test.
function(thimble_tests name)
  cmake_parse_arguments(ARG "THREADS" "" "CPU_LEVELS;DEPENDS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cpp")
  if(NOT sources)
    message(STATUS "tests/${name} holds no *_test.cpp yet")
    return()
  endif()
  list(TRANSFORM ARG_DEPENDS PREPEND thimble_)
  add_executable(${name}_tests ${sources})
  target_link_libraries(${name}_tests PRIVATE ${ARG_DEPENDS} ${ARG_LIBS} thimble_test_support GTest::gtest_main)
  target_precompile_headers(${name}_tests REUSE_FROM thimble_test_support)
  set(label "")
  if(ARG_THREADS)
    set(label LABELS threads)
    add_dependencies(tests_with_threads ${name}_tests)
  endif()
  # Both limits are for what hangs: a busy machine may take ten times as long as an idle one.
  set(discovery DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120)
  gtest_discover_tests(${name}_tests TEST_FILTER "-*FullTier*" ${discovery} PROPERTIES TIMEOUT 900 ${label}
                       ENVIRONMENT OMP_WAIT_POLICY=passive)
  gtest_discover_tests(${name}_tests TEST_FILTER "*FullTier*" ${discovery} PROPERTIES TIMEOUT 3600 LABELS full
                       ENVIRONMENT OMP_WAIT_POLICY=passive)
  if("CPU_LEVELS" IN_LIST ARG_KEYWORDS_MISSING_VALUES)
    set(ARG_CPU_LEVELS "*")
  endif()
  thimble_cpu_level_tests(${name}_tests ${ARG_CPU_LEVELS})
endfunction()

# thimble_cpu_level_tests(PROGRAM PATTERNS...): for each pattern a test with the label "cpu_levels". It runs all that the
# pattern matches in one process, in half the time of a process for each, and writes GoogleTest's report for ./test to count.
function(thimble_cpu_level_tests program)
  foreach(pattern IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "${program} ${pattern}" report)
    add_test(NAME "cpu_levels: ${program} ${pattern}"
             COMMAND ${program} "--gtest_filter=${pattern}-*FullTier*" --gtest_brief=1
                     "--gtest_output=xml:${CMAKE_BINARY_DIR}/cpu_levels/${report}.xml")
    set_property(GLOBAL APPEND_STRING PROPERTY THIMBLE_CPU_LEVEL_REPORTS "${CMAKE_BINARY_DIR}/cpu_levels/${report}.xml\n")
    set_tests_properties("cpu_levels: ${program} ${pattern}" PROPERTIES LABELS cpu_levels TIMEOUT 1800 ENVIRONMENT
                                                                       OMP_WAIT_POLICY=passive)
  endforeach()
endfunction()
