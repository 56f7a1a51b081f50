// Coefficients to samples: the inverse DCT of each block by the cheapest way that gives libjpeg-turbo's bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/idct.h"
#include "cpu/jpeg/idct_libjpeg.h"

namespace feeder {

inline constexpr int kCornerEnd = 10;  // zigzag indices below it are in the upper left 4 x 4

// `quant` in natural order, aligned to 16 bytes. `kernels` may be nullptr, see idct_kernels(). One per thread.
class BlockTransform {
  public:
    // False if libjpeg did not start.
    bool ready() const { return libjpeg_.ready(); }
    void full(const IdctKernels* kernels, const IdctBlock* blocks, int count, const int16_t* quant,
              ptrdiff_t stride_bytes);
    // Of blocks with zeros outside the upper left 4 x 4 coefficients.
    void corner(const IdctKernels* kernels, const IdctBlock* blocks, int count, const int16_t* quant,
                ptrdiff_t stride_bytes);
    // Of a block with nothing but its DC coefficient.
    void flat(int16_t dc, uint8_t* out, const int16_t* quant, ptrdiff_t stride_bytes);

  private:
    LibjpegIdct libjpeg_;
};

}  // namespace feeder
