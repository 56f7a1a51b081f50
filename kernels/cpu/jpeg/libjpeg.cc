#include "cpu/jpeg/libjpeg.h"

#include <jerror.h>

#include <cstring>

namespace feeder {
namespace {

// libjpeg's texts, from its own header. jerror.c, which has them too, is kept out: see Note [libjpeg errors].
#define JCOPYRIGHT ""
#define JCOPYRIGHT_SHORT ""
#define JVERSION ""
#define JMESSAGE(code, string) string,
const char* const kMessages[] = {
#include <jerror.h>
    nullptr};
#undef JCOPYRIGHT
#undef JCOPYRIGHT_SHORT
#undef JVERSION

constexpr int kMaxScans = 100;

JpegErrors& errors_of(j_common_ptr cinfo) { return *reinterpret_cast<JpegErrors*>(cinfo->err); }

void format_message(j_common_ptr cinfo, char* buffer) {
    const jpeg_error_mgr& base = *cinfo->err;
    const char* text =
        base.msg_code > 0 && base.msg_code <= base.last_jpeg_message ? kMessages[base.msg_code] : nullptr;
    if (text == nullptr) {
        std::snprintf(buffer, JMSG_LENGTH_MAX, "libjpeg error %d", base.msg_code);
    } else if (std::strstr(text, "%s") != nullptr) {
        std::snprintf(buffer, JMSG_LENGTH_MAX, text, base.msg_parm.s);
    } else {
        const int* i = base.msg_parm.i;
        std::snprintf(buffer, JMSG_LENGTH_MAX, text, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7]);
    }
}

[[noreturn]] void error_exit(j_common_ptr cinfo) {
    JpegErrors& errors = errors_of(cinfo);
    format_message(cinfo, errors.reason);
    std::longjmp(errors.jump, 1);
}

// True for warnings that mean wrong pixels. Unknown JFIF versions and Adobe transforms do not, nor do stray bytes before
// a marker, which many encoders and webcams write, nor a spectral selection in the scan header of a sequential JPEG,
// which some phones write and no decoder uses.
bool means_damage(const jpeg_error_mgr& base) {
    switch (base.msg_code) {
        case JWRN_HIT_MARKER:
        case JWRN_HUFF_BAD_CODE:
        case JWRN_ARITH_BAD_CODE:
        case JWRN_MUST_RESYNC:
        case JWRN_BOGUS_PROGRESSION:
            return true;
        default:
            return false;
    }
}

void emit_message(j_common_ptr cinfo, int level) {
    if (level >= 0) return;  // a trace
    JpegErrors& errors = errors_of(cinfo);
    errors.any_warning = true;
    if (!errors.damaged && means_damage(errors.base)) {
        errors.damaged = true;
        format_message(cinfo, errors.reason);
    }
}

void output_message(j_common_ptr) {}

void reset_error_mgr(j_common_ptr) {}

void init_source(j_decompress_ptr) {}

boolean fill_input_buffer(j_decompress_ptr cinfo) {
    static const JOCTET end_of_image[2] = {0xFF, JPEG_EOI};
    JpegMemorySource& source = *reinterpret_cast<JpegMemorySource*>(cinfo->src);
    source.ran_out = true;
    source.base.next_input_byte = end_of_image;
    source.base.bytes_in_buffer = sizeof(end_of_image);
    return TRUE;
}

void skip_input_data(j_decompress_ptr cinfo, long count) {
    jpeg_source_mgr& source = *cinfo->src;
    if (count <= 0) return;
    if (static_cast<size_t>(count) > source.bytes_in_buffer) {
        fill_input_buffer(cinfo);
        return;
    }
    source.next_input_byte += count;
    source.bytes_in_buffer -= static_cast<size_t>(count);
}

void term_source(j_decompress_ptr) {}

void check_scans(j_common_ptr cinfo) {
    if (!cinfo->is_decompressor) return;
    if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > kMaxScans) {
        JpegErrors& errors = errors_of(cinfo);
        std::snprintf(errors.reason, sizeof(errors.reason), "more than %d scans", kMaxScans);
        errors.base.msg_code = JERR_BAD_PROGRESSION;
        std::longjmp(errors.jump, 1);
    }
}

}  // namespace

jpeg_error_mgr* reset_errors(JpegErrors& errors) {
    std::memset(&errors.base, 0, sizeof(errors.base));
    errors.base.error_exit = error_exit;
    errors.base.emit_message = emit_message;
    errors.base.output_message = output_message;
    errors.base.format_message = format_message;
    errors.base.reset_error_mgr = reset_error_mgr;
    errors.base.jpeg_message_table = kMessages;
    errors.base.last_jpeg_message = static_cast<int>(sizeof(kMessages) / sizeof(kMessages[0])) - 2;
    errors.damaged = false;
    errors.any_warning = false;
    errors.reason[0] = '\0';
    return &errors.base;
}

void reset_source(JpegMemorySource& source, ByteSpan bytes) {
    source.base.next_input_byte = bytes.data();
    source.base.bytes_in_buffer = bytes.size();
    source.base.init_source = init_source;
    source.base.fill_input_buffer = fill_input_buffer;
    source.base.skip_input_data = skip_input_data;
    source.base.resync_to_restart = jpeg_resync_to_restart;
    source.base.term_source = term_source;
    source.ran_out = false;
}

void reset_scan_limit(JpegScanLimit& limit) {
    limit.base = {};
    limit.base.progress_monitor = check_scans;
}

Outcome fatal_outcome(const JpegErrors& errors) {
    switch (errors.base.msg_code) {
        case JERR_SOF_UNSUPPORTED:
        case JERR_BAD_PRECISION:
#if JPEG_LIB_VERSION < 70  // later interfaces know arithmetic coding, and have no such code
        case JERR_ARITH_NOTIMPL:
#endif
        case JERR_CCIR601_NOTIMPL:
        case JERR_FRACT_SAMPLE_NOTIMPL:
        case JERR_CONVERSION_NOTIMPL:
        case JERR_NOT_COMPILED:
        case JERR_MISMATCHED_QUANT_TABLE:
        case JERR_BAD_DCT_COEF:
        case JERR_HUFF_MISSING_CODE:
        case JERR_BAD_COMPONENT_ID:
            return {Status::unsupported, std::string("JPEG: ") + errors.reason};
        default:
            return {Status::corrupt, std::string("JPEG: ") + errors.reason};
    }
}

}  // namespace feeder
