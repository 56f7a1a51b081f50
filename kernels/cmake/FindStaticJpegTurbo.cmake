# Finds a static libjpeg-turbo that has its SIMD code, and makes it the target feeder::jpeg.
#
#   -DFEEDER_JPEG_LIBRARY=/path/to/libjpeg.a -DFEEDER_JPEG_INCLUDE_DIR=/path/to/include
#
# point to another one. Static, so that a wheel stands alone. The SIMD check is there because libjpeg-turbo built
# without an assembler works, three times slower, and says nothing.

find_library(FEEDER_JPEG_LIBRARY NAMES libjpeg.a DOC "Static libjpeg-turbo")
find_path(FEEDER_JPEG_INCLUDE_DIR NAMES jpeglib.h DOC "Folder of jpeglib.h")

set(_jpeg_advice
  "On Debian and Ubuntu install libjpeg-turbo8-dev or libjpeg62-turbo-dev; elsewhere build libjpeg-turbo with nasm \
and -DENABLE_SHARED=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON, and pass -DFEEDER_JPEG_LIBRARY=.../libjpeg.a \
-DFEEDER_JPEG_INCLUDE_DIR=.../include.")

if(NOT FEEDER_JPEG_LIBRARY OR NOT FEEDER_JPEG_INCLUDE_DIR)
  message(FATAL_ERROR "No static libjpeg-turbo (libjpeg.a and jpeglib.h) found. ${_jpeg_advice}")
endif()

if(NOT DEFINED FEEDER_JPEG_CHECKED OR NOT FEEDER_JPEG_CHECKED STREQUAL FEEDER_JPEG_LIBRARY)
  find_program(FEEDER_NM NAMES nm llvm-nm)
  if(NOT FEEDER_NM)
    message(FATAL_ERROR "nm (binutils) is needed to check that ${FEEDER_JPEG_LIBRARY} has its SIMD code.")
  endif()
  execute_process(COMMAND "${FEEDER_NM}" "${FEEDER_JPEG_LIBRARY}" OUTPUT_VARIABLE _jpeg_symbols ERROR_QUIET)
  if(NOT _jpeg_symbols MATCHES "jpeg_skip_scanlines")
    message(FATAL_ERROR "${FEEDER_JPEG_LIBRARY} is not libjpeg-turbo (it has no jpeg_skip_scanlines). ${_jpeg_advice}")
  endif()
  if(NOT _jpeg_symbols MATCHES "[Tt] _?jsimd_idct_islow_(sse2|avx2|neon|altivec|lsx|mmi|rvv)")
    message(FATAL_ERROR "${FEEDER_JPEG_LIBRARY} was built without SIMD: it would decode about three times slower. "
      "${_jpeg_advice}")
  endif()
  set(FEEDER_JPEG_CHECKED "${FEEDER_JPEG_LIBRARY}" CACHE INTERNAL "The libjpeg.a whose SIMD code was checked")
  message(STATUS "libjpeg-turbo with SIMD: ${FEEDER_JPEG_LIBRARY}")
endif()

# jpeglib.h needs jconfig.h, which Debian keeps in a folder per architecture; the compiler searches that one by itself.
if(NOT TARGET feeder::jpeg)
  add_library(feeder::jpeg STATIC IMPORTED)
  set_target_properties(feeder::jpeg PROPERTIES
    IMPORTED_LOCATION "${FEEDER_JPEG_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${FEEDER_JPEG_INCLUDE_DIR}")
endif()
set(StaticJpegTurbo_FOUND TRUE)
