#include "cpu/jpeg/block_transform.h"

#include <algorithm>
#include <cstring>

namespace feeder {
namespace {

template <typename Transform>
void transform(LibjpegIdct& libjpeg, Transform kernel, const IdctBlock* blocks, int count, const int16_t* quant,
               ptrdiff_t stride_bytes) {
    int done = 0;
    while (done < count) {
        if (kernel != nullptr) done += kernel(blocks + done, count - done, quant, stride_bytes);
        if (done < count) libjpeg.run(blocks[done++], quant, stride_bytes);
    }
}

}  // namespace

void BlockTransform::full(const IdctKernels* kernels, const IdctBlock* blocks, int count, const int16_t* quant,
                          ptrdiff_t stride_bytes) {
    transform(libjpeg_, kernels == nullptr ? nullptr : kernels->full, blocks, count, quant, stride_bytes);
}

void BlockTransform::corner(const IdctKernels* kernels, const IdctBlock* blocks, int count, const int16_t* quant,
                            ptrdiff_t stride_bytes) {
    transform(libjpeg_, kernels == nullptr ? nullptr : kernels->corner, blocks, count, quant, stride_bytes);
}

void BlockTransform::flat(int16_t dc, uint8_t* out, const int16_t* quant, ptrdiff_t stride_bytes) {
    const int value = dc * quant[0];
    if (value <= -4096 || value >= 4096) {  // beyond this range libjpeg's code wraps in 16 bits
        alignas(16) int16_t coefficients[64] = {dc};
        libjpeg_.run({coefficients, out}, quant, stride_bytes);
        return;
    }
    const int level = std::clamp(((value + 4) >> 3) + 128, 0, 255);
    const uint64_t eight = 0x0101010101010101u * static_cast<uint64_t>(level);
    for (int y = 0; y < 8; ++y) std::memcpy(out + y * stride_bytes, &eight, sizeof(eight));
}

}  // namespace feeder
