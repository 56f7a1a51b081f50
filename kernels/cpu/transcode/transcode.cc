#include "cpu/transcode/transcode.h"

#include <jerror.h>

#include <algorithm>
#include <cstring>

#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg.h"
#include "cpu/jpeg/segments.h"
#include "cpu/transcode/rewrite.h"

namespace feeder {
namespace {

struct BytesDestination {
    jpeg_destination_mgr base;  // first
    Bytes* out;
};

void use_free_space(BytesDestination& destination) {
    Bytes& out = *destination.out;
    destination.base.next_output_byte = out.data() + out.size();
    destination.base.free_in_buffer = out.capacity() - out.size();
}

void init_destination(j_compress_ptr cinfo) { use_free_space(*reinterpret_cast<BytesDestination*>(cinfo->dest)); }

boolean empty_output_buffer(j_compress_ptr cinfo) {
    BytesDestination& destination = *reinterpret_cast<BytesDestination*>(cinfo->dest);
    Bytes& out = *destination.out;
    out.set_size(out.capacity());  // by contract the whole buffer is full now
    if (!out.reserve(2 * out.capacity())) ERREXIT1(cinfo, JERR_OUT_OF_MEMORY, 0);
    use_free_space(destination);
    return TRUE;
}

void term_destination(j_compress_ptr cinfo) {
    BytesDestination& destination = *reinterpret_cast<BytesDestination*>(cinfo->dest);
    destination.out->set_size(destination.out->capacity() - destination.base.free_in_buffer);
}

bool starts_with(const jpeg_saved_marker_ptr marker, const char* text, size_t length) {
    return marker->data_length >= length && std::memcmp(marker->data, text, length) == 0;
}

void copy_metadata(j_decompress_ptr source, j_compress_ptr destination) {
    for (jpeg_saved_marker_ptr marker = source->marker_list; marker != nullptr; marker = marker->next) {
        // libjpeg has written these two already.
        if (destination->write_JFIF_header && marker->marker == JPEG_APP0 && starts_with(marker, "JFIF\0", 5)) continue;
        if (destination->write_Adobe_marker && marker->marker == JPEG_APP0 + 14 && starts_with(marker, "Adobe", 5))
            continue;
        jpeg_write_marker(destination, marker->marker, marker->data, marker->data_length);
    }
}

// Makes any JPEG that libjpeg knows sequential, over its coefficients. Owns both halves of libjpeg; see Note [libjpeg
// errors].
class Transcoder {
  public:
    Transcoder() {
        std::memset(&source_, 0, sizeof(source_));
        std::memset(&destination_, 0, sizeof(destination_));
    }
    Transcoder(const Transcoder&) = delete;
    Transcoder& operator=(const Transcoder&) = delete;
    ~Transcoder() {
        jpeg_destroy_compress(&destination_);  // both are harmless on what was never created
        jpeg_destroy_decompress(&source_);
    }

    // False on a fatal error. `out` is complete only if the file is neither truncated, damaged nor incomplete.
    bool run(ByteSpan file, const JpegHeader& header, Bytes& out) {
        source_.err = reset_errors(errors_);
        destination_.err = &errors_.base;
        if (setjmp(errors_.jump) != 0) return false;
        jpeg_create_decompress(&source_);
        jpeg_create_compress(&destination_);
        reset_source(memory_, without_padding(file, header.entropy_offset));
        source_.src = &memory_.base;
        reset_scan_limit(limit_);
        source_.progress = &limit_.base;
        jpeg_save_markers(&source_, JPEG_COM, 0xFFFF);
        for (int i = 0; i < 16; ++i) jpeg_save_markers(&source_, JPEG_APP0 + i, 0xFFFF);
        jpeg_read_header(&source_, TRUE);
        errors_.damaged = false;  // stray bytes before the scan, which do not harm the image
        jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&source_);
        incomplete_ = lacks_scans();
        // All blocks of a single scan may be there without an end-of-image marker.
        truncated_ = memory_.ran_out && (errors_.damaged || !header.one_scan());
        if (incomplete_ || truncated_ || errors_.damaged) return true;

        jpeg_copy_critical_parameters(&source_, &destination_);
        // rewrite_jpeg chooses the codes, but without this libjpeg-turbo's SIMD coder would not refuse coefficients
        // that baseline has no code for.
        destination_.optimize_coding = TRUE;
        destination_.restart_in_rows = 0;
        destination_.restart_interval = 0;
        bytes_.base.init_destination = init_destination;
        bytes_.base.empty_output_buffer = empty_output_buffer;
        bytes_.base.term_destination = term_destination;
        bytes_.out = &out;
        destination_.dest = &bytes_.base;
        jpeg_write_coefficients(&destination_, coefficients);
        copy_metadata(&source_, &destination_);
        jpeg_finish_compress(&destination_);
        jpeg_finish_decompress(&source_);
        return true;
    }

    const JpegErrors& errors() const { return errors_; }
    bool truncated() const { return truncated_; }
    bool incomplete() const { return incomplete_; }

  private:
    // A progressive file that ends (properly) before its low frequencies are complete. libjpeg then guesses them from the
    // neighbouring blocks, which it would not do for a sequential copy.
    bool lacks_scans() const {
        if (!source_.progressive_mode || source_.coef_bits == nullptr) return false;
        for (int i = 0; i < source_.num_components; ++i) {
            for (int k = 0; k < kSmoothedCoefficients; ++k) {
                if (source_.coef_bits[i][k] != 0) return true;
            }
        }
        return false;
    }

    static constexpr int kSmoothedCoefficients = 10;

    jpeg_decompress_struct source_;
    jpeg_compress_struct destination_;
    JpegErrors errors_;
    JpegMemorySource memory_;
    JpegScanLimit limit_;
    BytesDestination bytes_;
    bool incomplete_ = false;
    bool truncated_ = false;
};

Outcome refuse(const char* reason) { return {Status::unsupported, std::string("JPEG: ") + reason}; }

}  // namespace

Outcome transcode_jpeg(ByteSpan file, const TranscodeOptions& options, Bytes& out) {
    JpegHeader header;
    Outcome outcome = parse_jpeg_header(file, header);
    if (!outcome.ok()) return outcome;
    if (header.sof > 0xC2) return refuse(header.sof >= 0xC9 ? "arithmetic coding" : "lossless or hierarchical coding");
    if (header.precision_bits != 8) return refuse("more than 8 bits a sample");
    if (header.components == 4) return refuse("four components (CMYK or YCCK)");
    if (header.components == 2) return refuse("two components");
    for (int i = 0; i < header.components; ++i) {
        if (header.h_max % header.component[i].h != 0 || header.v_max % header.component[i].v != 0)
            return refuse("sampling factors that no decoder upsamples");
    }
    const int64_t pixels = static_cast<int64_t>(header.width) * header.height;
    if (options.max_pixels > 0 && pixels > options.max_pixels) {
        return {Status::too_large, "JPEG: " + std::to_string(header.width) + "x" + std::to_string(header.height) +
                                       " pixels, more than max_pixels=" + std::to_string(options.max_pixels)};
    }

    const RewriteOptions rewrite{options.keep_metadata, options.orientation, options.segment_px};
    if (rewrite_jpeg(file, header, rewrite, out)) return {};

    // Progressive, several scans, or faulty, in which case libjpeg names the fault.
    Bytes sequential;
    if (!sequential.reserve(2 * file.size() + 4096)) return {Status::corrupt, "JPEG: out of memory"};
    Transcoder transcoder;
    if (!transcoder.run(file, header, sequential)) return fatal_outcome(transcoder.errors());
    if (transcoder.truncated()) {
        return {Status::damaged, "JPEG: truncated: the data ends before its last block or scan"};
    }
    if (transcoder.errors().damaged) return {Status::damaged, std::string("JPEG: ") + transcoder.errors().reason};
    if (transcoder.incomplete()) return refuse("progressive, and its last scans are missing");
    outcome = parse_jpeg_header(sequential.span(), header);
    if (!outcome.ok()) return outcome;
    if (!rewrite_jpeg(sequential.span(), header, rewrite, out)) return {Status::corrupt, "JPEG: out of memory"};
    return {};
}

}  // namespace feeder
