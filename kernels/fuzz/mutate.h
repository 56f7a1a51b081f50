// The mutator of targets whose inputs are a JPEG and some bytes of choices behind it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/jpeg/header.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace feeder {

// Nearly every change of a header makes a file that is refused at once: most changes are to the entropy-coded bytes and
// the choices.
inline size_t mutate_jpeg(uint8_t* data, size_t size, size_t most, unsigned seed, size_t choice_bytes) {
    JpegHeader header;
    if (seed % 4 == 0 || size < choice_bytes || !parse_jpeg_header({data, size - choice_bytes}, header).ok())
        return LLVMFuzzerMutate(data, size, most);
    const size_t kept = header.entropy_offset;
    return kept + LLVMFuzzerMutate(data + kept, size - kept, most - kept);
}

}  // namespace feeder
