# Read by cpack once per generator: selects the components of each kind of package.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENTS_ALL thimble development)
  set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
else()  # One archive with all dependencies except Open MPI, which must match the mpirun that is used.
  set(CPACK_COMPONENTS_ALL thimble cuda mpi bundle)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
endif()
