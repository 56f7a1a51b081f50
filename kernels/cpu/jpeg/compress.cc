#include "cpu/jpeg/compress.h"

#include "cpu/jpeg/libjpeg.h"

namespace feeder {
namespace {

void init_destination(j_compress_ptr) {}
void term_destination(j_compress_ptr) {}

// The buffer has libjpeg-turbo's own bound, tjBufSize().
boolean empty_output_buffer(j_compress_ptr cinfo) {
    cinfo->err->error_exit(reinterpret_cast<j_common_ptr>(cinfo));
    return FALSE;
}

class Compressor {
  public:
    Compressor() : cinfo_(), errors_() {}
    ~Compressor() { jpeg_destroy_compress(&cinfo_); }
    Compressor(const Compressor&) = delete;
    Compressor& operator=(const Compressor&) = delete;

    // Returns the bytes written; 0 if that failed. See Note [libjpeg errors].
    size_t run(const uint8_t* rgb, int height, int width, int quality, uint8_t* into, size_t capacity) {
        cinfo_.err = reset_errors(errors_);
        if (setjmp(errors_.jump) != 0) return 0;
        jpeg_create_compress(&cinfo_);
        destination_ = {into, capacity, init_destination, empty_output_buffer, term_destination};
        cinfo_.dest = &destination_;
        cinfo_.image_width = static_cast<JDIMENSION>(width);
        cinfo_.image_height = static_cast<JDIMENSION>(height);
        cinfo_.input_components = 3;
        cinfo_.in_color_space = JCS_RGB;
        jpeg_set_defaults(&cinfo_);
        jpeg_set_quality(&cinfo_, quality, TRUE);
        jpeg_start_compress(&cinfo_, TRUE);
        for (int y = 0; y < height; ++y) {
            JSAMPROW row = const_cast<JSAMPROW>(rgb + ptrdiff_t{3} * y * width);  // which is only read
            jpeg_write_scanlines(&cinfo_, &row, 1);
        }
        jpeg_finish_compress(&cinfo_);
        return capacity - destination_.free_in_buffer;
    }

  private:
    jpeg_compress_struct cinfo_;
    JpegErrors errors_;
    jpeg_destination_mgr destination_{};
};

size_t padded(int side) { return (static_cast<size_t>(side) + 15) / 16 * 16; }

}  // namespace

bool compress_jpeg(const uint8_t* rgb, int height, int width, int quality, Bytes& file) {
    const size_t most = padded(width) * padded(height) * 3 + 2048;
    if (!file.reserve(most)) return false;
    Compressor compressor;
    const size_t size = compressor.run(rgb, height, width, quality, file.data(), most);
    file.set_size(size);
    return size > 0;
}

}  // namespace feeder
