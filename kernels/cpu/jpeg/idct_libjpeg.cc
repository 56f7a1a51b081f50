#include "cpu/jpeg/idct_libjpeg.h"

#include <cstring>

#include "cpu/jpeg/libjpeg.h"

// From libjpeg-turbo's jdct.h, which no system installs: the function that it takes where it has no SIMD code.
extern "C" void jpeg_idct_islow(j_decompress_ptr, jpeg_component_info*, JCOEFPTR, JSAMPARRAY, JDIMENSION);

namespace feeder {
namespace {

// The smallest JPEG there is: libjpeg starts on it, and we take its inverse DCT.
constexpr uint8_t kTinyJpeg[] = {
    0xFF, 0xD8,                                                                                                // SOI
    0xFF, 0xDB, 0, 67, 0,    1, 1, 1, 1,  1, 1,    1,    1,   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  // DQT, 64 ones
    1,    1,    1, 1,  1,    1, 1, 1, 1,  1, 1,    1,    1,   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1,    1,    1, 1,  1,    1, 1, 1, 1,  1,                                              //
    0xFF, 0xC0, 0, 11, 8,    0, 8, 0, 8,  1, 1,    0x11, 0,                               // SOF0: 8x8, one component
    0xFF, 0xC4, 0, 20, 0x00, 1, 0, 0, 0,  0, 0,    0,    0,   0, 0, 0, 0, 0, 0, 0, 0, 0,  // DHT, DC: 0 is size 0
    0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0,  0, 0,    0,    0,   0, 0, 0, 0, 0, 0, 0, 0, 0,  // DHT, AC: 0 is end of block
    0xFF, 0xDA, 0, 8,  1,    1, 0, 0, 63, 0, 0x3F, 0xFF, 0xD9};                           // SOS, data, EOI

}  // namespace

struct LibjpegIdct::State {
    jpeg_decompress_struct cinfo;
    JpegErrors errors;
    JpegMemorySource source;
    jpeg_component_info component;
    inverse_DCT_method_ptr function = nullptr;

    State() {
        std::memset(&cinfo, 0, sizeof(cinfo));
        cinfo.err = reset_errors(errors);
        start();
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { jpeg_destroy_decompress(&cinfo); }

    // See Note [libjpeg errors].
    void start() {
        if (setjmp(errors.jump) != 0) return;
        jpeg_create_decompress(&cinfo);
        reset_source(source, kTinyJpeg);
        cinfo.src = &source.base;
        jpeg_read_header(&cinfo, TRUE);
        cinfo.raw_data_out = TRUE;
        jpeg_start_decompress(&cinfo);
        component = cinfo.comp_info[0];
        function = cinfo.idct->inverse_DCT[0];
    }
};

LibjpegIdct::LibjpegIdct() : state_(std::make_unique<State>()) {}
LibjpegIdct::~LibjpegIdct() = default;

bool LibjpegIdct::ready() const { return state_->function != nullptr; }

bool LibjpegIdct::simd() const { return ready() && state_->function != jpeg_idct_islow; }

void LibjpegIdct::run(const IdctBlock& block, const int16_t* quant, ptrdiff_t stride_bytes) {
    JSAMPROW rows[8];
    for (int y = 0; y < 8; ++y) rows[y] = block.out + y * stride_bytes;
    // Of 16 bits in every libjpeg-turbo with SIMD code, which the build looks for.
    state_->component.dct_table = const_cast<int16_t*>(quant);
    state_->function(&state_->cinfo, &state_->component, block.coefficients, rows, 0);
}

}  // namespace feeder
