# Finds a static libdeflate, and makes it the target feeder::deflate.
#
#   -DFEEDER_DEFLATE_LIBRARY=/path/to/libdeflate.a -DFEEDER_DEFLATE_INCLUDE_DIR=/path/to/include
#
# point to another one.

find_library(FEEDER_DEFLATE_LIBRARY NAMES libdeflate.a DOC "Static libdeflate")
find_path(FEEDER_DEFLATE_INCLUDE_DIR NAMES libdeflate.h DOC "Folder of libdeflate.h")

if(NOT FEEDER_DEFLATE_LIBRARY OR NOT FEEDER_DEFLATE_INCLUDE_DIR)
  message(FATAL_ERROR "No static libdeflate (libdeflate.a and libdeflate.h) found. On Debian and Ubuntu install \
libdeflate-dev; elsewhere build it with -DCMAKE_POSITION_INDEPENDENT_CODE=ON, and pass \
-DFEEDER_DEFLATE_LIBRARY=.../libdeflate.a -DFEEDER_DEFLATE_INCLUDE_DIR=.../include.")
endif()

if(NOT TARGET feeder::deflate)
  add_library(feeder::deflate STATIC IMPORTED)
  set_target_properties(feeder::deflate PROPERTIES
    IMPORTED_LOCATION "${FEEDER_DEFLATE_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${FEEDER_DEFLATE_INCLUDE_DIR}")
endif()
set(StaticDeflate_FOUND TRUE)
