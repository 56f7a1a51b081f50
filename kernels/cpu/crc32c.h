// CRC-32C (Castagnoli), the checksum of blocks of a shard.
#pragma once

#include <cstdint>

#include "cpu/bytes.h"

namespace feeder {

// The checksum of bytes that follow others whose checksum is `before`.
uint32_t crc32c(ByteSpan data, uint32_t before = 0);

// The same by tables, on any CPU.
uint32_t crc32c_portable(ByteSpan data, uint32_t before = 0);

}  // namespace feeder
