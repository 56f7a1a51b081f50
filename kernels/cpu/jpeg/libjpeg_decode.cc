#include "cpu/jpeg/libjpeg_decode.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/jpeg/libjpeg.h"

namespace feeder {
namespace {

// Note [gated inverse DCT]
// In raw mode libjpeg hands every block to a per-component inverse DCT through a function pointer. We put a gate there
// that returns at once for blocks outside the window, and shifts those inside to the window's origin. So an
// ordinary JPEG costs its entropy decoding down to the box, the inverse DCT of the box, and no upsampling.
struct IdctGate {
    inverse_DCT_method_ptr inner[MAX_COMPONENTS];
    JDIMENSION first_column[MAX_COMPONENTS];  // in samples of that component
    JDIMENSION end_column[MAX_COMPONENTS];
    bool row_wanted;
};

void gated_idct(j_decompress_ptr cinfo, jpeg_component_info* component, JCOEFPTR coefficients, JSAMPARRAY rows,
                JDIMENSION column) {
    const IdctGate& gate = *static_cast<const IdctGate*>(cinfo->client_data);
    const int i = component->component_index;
    if (!gate.row_wanted || column < gate.first_column[i] || column >= gate.end_column[i]) return;
    gate.inner[i](cinfo, component, coefficients, rows, column - gate.first_column[i]);
}

// In place of libjpeg's Huffman decoder.
boolean next_mcu(j_decompress_ptr cinfo, JBLOCKROW* blocks) {
    static_assert(std::is_same_v<JCOEF, int16_t>);
    static_cast<McuSource*>(cinfo->client_data)->next(reinterpret_cast<int16_t(*const*)[DCTSIZE2]>(blocks));
    return TRUE;
}

// Owns libjpeg's decompressor; see Note [libjpeg errors].
class Decompressor {
  public:
    Decompressor() { std::memset(&cinfo_, 0, sizeof(cinfo_)); }
    Decompressor(const Decompressor&) = delete;
    Decompressor& operator=(const Decompressor&) = delete;
    ~Decompressor() { jpeg_destroy_decompress(&cinfo_); }

    // All return false on a fatal error, or where libjpeg's header is not ours.
    bool start_raw(ByteSpan file, const JpegHeader& header) {
        if (setjmp(errors_.jump) != 0) return false;
        if (!open(file, header)) return false;
        cinfo_.raw_data_out = TRUE;
        cinfo_.do_fancy_upsampling = FALSE;
        cinfo_.out_color_space = cinfo_.jpeg_color_space;
        jpeg_start_decompress(&cinfo_);
        return true;
    }

    bool read_raw(const JpegHeader& header, const PixelBox& window, const Planes& planes) {
        if (setjmp(errors_.jump) != 0) return false;
        for (int i = 0; i < header.components; ++i) {
            const JpegComponent& component = header.component[i];
            gate_.inner[i] = cinfo_.idct->inverse_DCT[i];
            gate_.first_column[i] = static_cast<JDIMENSION>(window.left / (8 * header.h_max) * component.h * 8);
            gate_.end_column[i] =
                static_cast<JDIMENSION>((window.right + 8 * header.h_max - 1) / (8 * header.h_max) * component.h * 8);
            cinfo_.idct->inverse_DCT[i] = gated_idct;
        }
        cinfo_.client_data = &gate_;
        const int row_px = 8 * header.v_max;
        JSAMPROW rows[4][32];
        JSAMPARRAY arrays[4] = {rows[0], rows[1], rows[2], rows[3]};
        for (int top = 0; top < window.bottom; top += row_px) {
            gate_.row_wanted = top >= window.top;
            const int band = gate_.row_wanted ? (top - window.top) / row_px : 0;  // else the rows stay untouched
            for (int i = 0; i < header.components; ++i) {
                const Plane& plane = planes.plane[i];
                const int height = header.component[i].v * 8;
                for (int y = 0; y < height; ++y) {
                    rows[i][y] = const_cast<JSAMPROW>(plane.data) +
                                 (static_cast<ptrdiff_t>(band) * height + y) * plane.stride_bytes;
                }
            }
            jpeg_read_raw_data(&cinfo_, arrays, static_cast<JDIMENSION>(row_px));
        }
        jpeg_abort_decompress(&cinfo_);
        return true;
    }

    // Interleaved rows of the window's columns, `planes.count` bytes a pixel.
    bool start_rows(ByteSpan file, const JpegHeader& header, McuSource* source) {
        if (setjmp(errors_.jump) != 0) return false;
        if (!open(file, header)) return false;
        cinfo_.out_color_space = header.components == 1 ? JCS_GRAYSCALE : header.components == 3 ? JCS_RGB : JCS_CMYK;
        jpeg_start_decompress(&cinfo_);
        if (source != nullptr) {
            cinfo_.client_data = source;
            cinfo_.entropy->decode_mcu = next_mcu;
        }
        return true;
    }

    bool read_rows(const PixelBox& window, uint8_t* out, size_t stride_bytes, uint8_t* row_buffer) {
        if (setjmp(errors_.jump) != 0) return false;
        const size_t pixel_bytes = static_cast<size_t>(cinfo_.output_components);
        const bool whole_rows = window.left == 0 && window.right == static_cast<int>(cinfo_.output_width);
        for (int y = 0; y < window.bottom; ++y) {
            uint8_t* const target = out + static_cast<ptrdiff_t>(y - window.top) * static_cast<ptrdiff_t>(stride_bytes);
            const bool wanted = y >= window.top;
            JSAMPROW row = whole_rows && wanted ? target : row_buffer;
            jpeg_read_scanlines(&cinfo_, &row, 1);
            if (!wanted || whole_rows) continue;
            std::memcpy(target, row_buffer + static_cast<size_t>(window.left) * pixel_bytes,
                        static_cast<size_t>(window.right - window.left) * pixel_bytes);
        }
        jpeg_abort_decompress(&cinfo_);
        return true;
    }

    Outcome failure() const {
        if (headers_disagree_) return {Status::corrupt, "JPEG: the frame header can be read in more than one way"};
        return fatal_outcome(errors_);
    }

    Outcome finish(const JpegHeader& header) const {
        // A sequential file may lack its end-of-image marker and nothing else; one with many scans lacks refinement.
        if (errors_.damaged)
            return {Status::damaged, std::string(source_.ran_out ? "JPEG: truncated: " : "JPEG: ") + errors_.reason};
        if (source_.ran_out && !header.one_scan()) {
            return {Status::damaged, "JPEG: truncated: the data ends before its last scan"};
        }
        return {};
    }

  private:
    bool open(ByteSpan file, const JpegHeader& header) {
        cinfo_.err = &errors_.base;
        jpeg_create_decompress(&cinfo_);
        reset_source(source_, without_padding(file, header.entropy_offset));
        cinfo_.src = &source_.base;
        reset_scan_limit(limit_);
        cinfo_.progress = &limit_.base;
        jpeg_read_header(&cinfo_, TRUE);
        errors_.damaged = false;  // stray bytes before the scan, which do not harm the image
        // Buffers are laid out by our own parser's sizes: libjpeg must have read the same ones.
        headers_disagree_ = static_cast<int>(cinfo_.image_width) != header.width ||
                            static_cast<int>(cinfo_.image_height) != header.height ||
                            cinfo_.num_components != header.components;
        for (int i = 0; i < header.components && !headers_disagree_; ++i) {
            headers_disagree_ = cinfo_.comp_info[i].h_samp_factor != header.component[i].h ||
                                cinfo_.comp_info[i].v_samp_factor != header.component[i].v;
        }
        return !headers_disagree_;
    }

    jpeg_decompress_struct cinfo_;
    JpegErrors errors_ = fresh_errors();
    JpegMemorySource source_;
    JpegScanLimit limit_;
    IdctGate gate_;
    bool headers_disagree_ = false;

    static JpegErrors fresh_errors() {
        JpegErrors errors;
        reset_errors(errors);
        return errors;
    }
};

constexpr Status kNoMemory = Status::corrupt;

}  // namespace

Outcome decode_with_libjpeg(ByteSpan file, const JpegHeader& header, const PixelBox& box, Fidelity fidelity,
                            Bytes& pixels, Planes& planes, McuSource* source) {
    ColorModel color;
    Outcome outcome = color_model(header, color);
    if (!outcome.ok()) return outcome;
    Decompressor decompressor;

    if (fidelity != Fidelity::exact && header.components != 4) {
        const PixelBox window = mcu_window(header, box);
        if (!lay_out_planes(header, window, color, 1, pixels, planes)) return {kNoMemory, "JPEG: out of memory"};
        if (!decompressor.start_raw(file, header) || !decompressor.read_raw(header, window, planes))
            return decompressor.failure();
        return decompressor.finish(header);
    }

    const int channels = header.components;
    const size_t row_bytes = static_cast<size_t>(header.width) * static_cast<size_t>(channels);
    const size_t stride_bytes = static_cast<size_t>(box.right - box.left) * static_cast<size_t>(channels);
    const size_t size = stride_bytes * static_cast<size_t>(box.bottom - box.top);
    if (!pixels.reserve(size + row_bytes)) return {kNoMemory, "JPEG: out of memory"};
    pixels.set_size(size);
    if (!decompressor.start_rows(file, header, source) ||
        !decompressor.read_rows(box, pixels.data(), stride_bytes, pixels.data() + size)) {
        return decompressor.failure();
    }
    planes = Planes();
    planes.count = channels;
    planes.origin_x = box.left;
    planes.origin_y = box.top;
    planes.window_width = box.right - box.left;
    planes.window_height = box.bottom - box.top;
    planes.image_width = header.width;
    planes.image_height = header.height;
    planes.color = channels == 1 ? ColorModel::gray : channels == 3 ? ColorModel::rgb : ColorModel::cmyk;
    planes.inverted = channels == 4;
    for (int i = 0; i < channels; ++i) {
        planes.plane[i] = {pixels.data() + i, static_cast<ptrdiff_t>(stride_bytes), planes.window_width,
                           planes.window_height, channels};
    }
    return decompressor.finish(header);
}

Outcome read_with_libjpeg(ByteSpan file, const JpegHeader& header) {
    Decompressor decompressor;
    const PixelBox nothing = {0, header.height, 0, header.height};
    if (!decompressor.start_raw(file, header) || !decompressor.read_raw(header, nothing, Planes()))
        return decompressor.failure();
    return decompressor.finish(header);
}

}  // namespace feeder
