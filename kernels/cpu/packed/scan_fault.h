// The reason why a JPEG is not packed, although it is of a kind that is.
#pragma once

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"

namespace feeder {

// Why the scan of a JPEG is not as it would be written again. It is read symbol by symbol, and only when that is known.
// With one component its factors are 1.
const char* scan_fault(ByteSpan file, const JpegHeader& header);

}  // namespace feeder
