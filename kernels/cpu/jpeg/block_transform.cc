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

void BlockTransform::flat(const IdctBlock& block, const int16_t* quant, ptrdiff_t stride_bytes) {
    const int dc = block.coefficients[0] * quant[0];
    if (dc <= -4096 || dc >= 4096) {  // beyond this range libjpeg's code wraps in 16 bits
        libjpeg_.run(block, quant, stride_bytes);
        return;
    }
    const int level = std::clamp(((dc + 4) >> 3) + 128, 0, 255);
    const uint64_t eight = 0x0101010101010101u * static_cast<uint64_t>(level);
    for (int y = 0; y < 8; ++y) std::memcpy(block.out + y * stride_bytes, &eight, sizeof(eight));
}

}  // namespace feeder
