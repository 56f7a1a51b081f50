// The mutator of targets whose inputs are a JPEG and some bytes of choices behind it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/jpeg/header.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace feeder {

// Of an input. It chooses what is done for some inputs only.
inline uint32_t hash_of(const uint8_t* data, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619u;
    return hash ^ hash >> 15;
}

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
