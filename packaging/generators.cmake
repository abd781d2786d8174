# Read by cpack once for each generator: what goes into which kind of package.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENTS_ALL thimble development)
  set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
else()  # one archive with all that it takes to run; but Open MPI, which must be the one whose mpirun starts it
  set(CPACK_COMPONENTS_ALL thimble cuda mpi bundle)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
endif()
