#include "huffman.h"

#include <algorithm>

namespace feeder {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "BitReader::refill swaps bytes");

bool HuffmanTable::build(ByteSpan payload, bool dc) {
    if (source_length == payload.size() && source_is_dc == dc && source_length != 0 &&
        std::memcmp(source, payload.data(), source_length) == 0) {
        return true;
    }
    source_length = 0;
    if (payload.size() < 16 || payload.size() > 16 + 256) return false;
    const uint8_t* const counts = payload.data();  // of codes of length 1-16
    value_count = static_cast<int>(payload.size()) - 16;
    std::memcpy(values, payload.data() + 16, static_cast<size_t>(value_count));

    std::fill(std::begin(lookup), std::end(lookup), kLong);
    uint32_t code = 0;
    int index = 0;
    for (int length = 1; length <= 16; ++length) {
        value_offset[length] = index - static_cast<int32_t>(code);
        for (int i = 0; i < counts[length - 1]; ++i, ++index, ++code) {
            // The code of all ones is not allowed either, but libjpeg takes it, and so must we.
            if (index >= value_count || code >= (1u << length)) return false;
            const uint8_t symbol = values[index];
            const int run = dc ? 0 : symbol >> 4;
            const int size = dc ? symbol : symbol & 15;
            if (size > 15) return false;
            if (length > kLookupBits) continue;
            uint32_t* const first = lookup + (static_cast<size_t>(code) << (kLookupBits - length));
            const size_t span = size_t{1} << (kLookupBits - length);
            if (size == 0) {
                const bool end = !dc && run != 15;
                std::fill_n(first, span,
                            static_cast<uint32_t>(length) | static_cast<uint32_t>(run) << kRunShift | (end ? kEnd : 0));
            } else if (length + size <= kLookupBits) {
                const size_t each = span >> size;
                for (int bits = 0; bits < (1 << size); ++bits) {
                    const uint32_t value = static_cast<uint16_t>(extend(bits, size));
                    std::fill_n(
                        first + static_cast<size_t>(bits) * each, each,
                        value << 16 | static_cast<uint32_t>(run) << kRunShift | static_cast<uint32_t>(length + size));
                }
            } else {
                std::fill_n(first, span,
                            static_cast<uint32_t>(size) << 16 | static_cast<uint32_t>(run) << kRunShift | kExtra |
                                static_cast<uint32_t>(length));
            }
        }
        if (code > (1u << length)) return false;
        first_code_after[length] = code << (16 - length);
        code <<= 1;
    }
    first_code_after[17] = UINT32_MAX;
    std::memcpy(source, payload.data(), payload.size());
    source_length = payload.size();
    source_is_dc = dc;
    return true;
}

}  // namespace feeder
