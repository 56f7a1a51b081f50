// Inverse DCTs of half and quarter size: a block's low frequencies as 4 x 4 or 2 x 2 samples, for Fidelity::draft.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/jpeg/zigzag.h"

namespace feeder {

// Note [reduced inverse DCT]
// The lowest n x n of a block's 8 x 8 coefficients, divided by 8 / n, are those of the same picture in n x n samples (n is
// 4 or 2). Their inverse DCT is the block without its higher frequencies, at that size. One integer source serves every
// SIMD level, so all give the same bits.

// Writes the (8 / shrink) x (8 / shrink) samples of a block. `shrink` is 2 or 4, `quant` in natural order.
void reduced_idct(const int16_t* coefficients, CoefficientOrder order, const int16_t* quant, int shrink, uint8_t* out,
                  ptrdiff_t stride_bytes);

}  // namespace feeder
