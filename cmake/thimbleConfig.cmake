# find_package(thimble): thimble::thimble is everything; thimble::formats, thimble::infer and so on
# are its folders.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(OpenMP COMPONENTS CXX)
find_dependency(fmt)
include("${CMAKE_CURRENT_LIST_DIR}/thimbleTargets.cmake")
