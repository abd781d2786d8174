# Folders are the units of the build: the .cpp files below src/NAME make the library thimble_NAME,
# and the files ending in _test.cpp below tests/NAME make the test program NAME_tests. New files
# need no line here.

# thimble_library(NAME [PUBLIC folders...] [PRIVATE folders...] [PUBLIC_LIBS external libraries...]
#                 [LIBS external libraries...])
#
# Each library has its own include root, a folder that only contains a link to src/NAME, so a header
# can only be included by targets that link its library.
function(thimble_library name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE;PUBLIC_LIBS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/(cuda|mpi|nccl)/")  # the plugins
  add_library(thimble_${name} STATIC ${sources})
  set(root "${PROJECT_BINARY_DIR}/layers/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/src/${name}" "${root}/${name}" SYMBOLIC)
  target_include_directories(thimble_${name} PUBLIC "$<BUILD_INTERFACE:${root}>" "$<INSTALL_INTERFACE:include/thimble>")
  target_compile_features(thimble_${name} PUBLIC cxx_std_20)  # also for targets that link it
  list(TRANSFORM ARG_PUBLIC PREPEND thimble_)
  list(TRANSFORM ARG_PRIVATE PREPEND thimble_)
  target_link_libraries(thimble_${name} PUBLIC ${ARG_PUBLIC} ${ARG_PUBLIC_LIBS} PRIVATE ${ARG_PRIVATE} ${ARG_LIBS})
  thimble_harden(thimble_${name})
  if(NOT name STREQUAL "base")  # which creates the precompiled header
    target_precompile_headers(thimble_${name} REUSE_FROM thimble_base)
  endif()
  set_property(GLOBAL APPEND PROPERTY THIMBLE_LIBRARIES thimble_${name})
endfunction()

# thimble_tests(NAME [THREADS] [CPU_LEVELS [PATTERNS...]] [DEPENDS folders...]
#               [LIBS external libraries...])
#
# THREADS: the code under test starts threads. Adds the label "threads" and makes the program part
# of the target tests_with_threads, which ./test runs under ThreadSanitizer.
#
# CPU_LEVELS: all tests, or those that match GoogleTest PATTERNS, depend on the CPU level
# (THIMBLE_CPU), so ./test runs them at several levels.
#
# Several tests run at the same time, each with all threads, so waiting threads must not spin
# (OMP_WAIT_POLICY). Tests with FullTier in their name are long: they have the ctest label "full",
# which a plain ./test excludes.
function(thimble_tests name)
  cmake_parse_arguments(ARG "THREADS" "" "CPU_LEVELS;DEPENDS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cpp")
  if(NOT sources)
    message(STATUS "tests/${name} contains no *_test.cpp")
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
  # Both limits are for tests that hang: a busy machine may take ten times as long as an idle one.
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

# thimble_cpu_level_tests(PROGRAM PATTERNS...): adds a test with the label "cpu_levels" per pattern.
# It runs all matching cases in one process, which takes half the time of a process per case, and
# writes GoogleTest's report, which ./test counts.
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
