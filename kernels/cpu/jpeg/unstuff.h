// Entropy-coded bytes without the zeros that JPEG stuffs after every 0xFF.
#pragma once

#include <cstddef>

#include "cpu/bytes.h"

namespace feeder {

// Bytes beyond the end that a BitReader may read before the end is noticed: 10 blocks of 64 codes and values of 31 bits.
inline constexpr size_t kReadAheadBytes = 4096;

// Copies file[begin, end) into `out` up to the first marker. Returns the bytes written; sets `stopped_at` to the marker's
// position or `end`. `out` holds at least end - begin + kReadAheadBytes.
size_t unstuff(ByteSpan file, size_t begin, size_t end, uint8_t* out, size_t& stopped_at);

}  // namespace feeder
