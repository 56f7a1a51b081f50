// Parts shared by every use of libjpeg: errors without exit, a memory source that notices its end, a limit on scans.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>  // needs the three above

#include "cpu/bytes.h"
#include "cpu/status.h"

// From jpegint.h, which not every system installs: the beginning of the structs that `cinfo.idct` and `cinfo.entropy` point
// to. It is the same in all versions of libjpeg and libjpeg-turbo; 3.0 added members at the end of the first.
using inverse_DCT_method_ptr = void (*)(j_decompress_ptr cinfo, jpeg_component_info* component, JCOEFPTR coefficients,
                                        JSAMPARRAY rows, JDIMENSION column);
struct jpeg_inverse_dct {
    void (*start_pass)(j_decompress_ptr cinfo);
    inverse_DCT_method_ptr inverse_DCT[MAX_COMPONENTS];
};

struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr cinfo);
    boolean (*decode_mcu)(j_decompress_ptr cinfo, JBLOCKROW* blocks);
};

namespace feeder {

// Note [libjpeg errors]
// libjpeg reports a fatal error through error_exit, which must not return; we leave it by longjmp. A longjmp over a
// frame whose locals have destructors is undefined behaviour, and a local that changed after setjmp is indeterminate.
// Hence the shape of all code that calls libjpeg:
//   - an outer class owns every handle and buffer (RAII), and is alive before and after the call;
//   - one small function per entry calls setjmp first, has only trivial locals, and writes results through
//     pointers to objects of the caller;
//   - callbacks that libjpeg calls (source, destination, errors, inverse DCT) have only trivial locals too, and throw
//     nothing.
// libjpeg's own error manager (jerror.c) prints to stderr and calls exit; it is not even linked.
struct JpegErrors {
    jpeg_error_mgr base;  // first: libjpeg sees a pointer to it
    std::jmp_buf jump;
    bool damaged;  // a warning that says the compressed data is wrong
    bool any_warning;
    char reason[JMSG_LENGTH_MAX];  // of the fatal error, else of the first damage
};

// Fills in the callbacks and clears earlier errors. To be called for each image.
jpeg_error_mgr* reset_errors(JpegErrors& errors);

// A source over bytes in memory. At their end it supplies EOI markers, and records that it did.
struct JpegMemorySource {
    jpeg_source_mgr base;  // first
    bool ran_out;
};

void reset_source(JpegMemorySource& source, ByteSpan bytes);

// Stops files with an absurd number of scans: each costs a pass over all coefficients, and may be a few bytes long.
struct JpegScanLimit {
    jpeg_progress_mgr base;  // first
};

void reset_scan_limit(JpegScanLimit& limit);

// The reason of a fatal error as an Outcome: unsupported or corrupt, by libjpeg's error code.
Outcome fatal_outcome(const JpegErrors& errors);

}  // namespace feeder
