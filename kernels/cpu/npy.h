// Raw pixels: .npy files of uint8 [height, width, 3] or [height, width], C order. Nothing is copied.
#pragma once

#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/status.h"

namespace feeder {

inline bool looks_like_npy(ByteSpan file) { return file.size() >= 6 && std::memcmp(file.data(), "\x93NUMPY", 6) == 0; }

// Describes the array as planes that point into `file`. Refuses other dtypes, shapes and orders, and a file whose
// length differs from its header's.
Outcome npy_planes(ByteSpan file, Planes& planes);

}  // namespace feeder
