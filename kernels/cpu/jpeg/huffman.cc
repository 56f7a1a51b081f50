#include "cpu/jpeg/huffman.h"

#include <algorithm>

namespace feeder {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of bits are swapped");

bool HuffmanCodes::build(ByteSpan payload) {
    source_length = 0;
    if (payload.size() < 16 || payload.size() > 16 + 256) return false;
    value_count = static_cast<int>(payload.size()) - 16;
    std::memcpy(values, payload.data() + 16, static_cast<size_t>(value_count));
    uint32_t code = 0;
    int index = 0;
    for (int length = 1; length <= 16; ++length) {
        value_offset[length] = index - static_cast<int32_t>(code);
        index += payload[static_cast<size_t>(length) - 1];
        code += payload[static_cast<size_t>(length) - 1];
        if (index > value_count || code >= (1u << length)) return false;
        first_code_after[length] = code << (16 - length);
        code <<= 1;
    }
    first_code_after[17] = UINT32_MAX;
    std::memcpy(source, payload.data(), payload.size());
    source_length = payload.size();
    return true;
}

bool HuffmanCodes::are_sizes() const {
    return std::all_of(values, values + value_count, [](uint8_t symbol) { return symbol <= 15; });
}

namespace {

// Calls entry(symbol, length, first lookup index, how many) for every code of at most `lookup_bits`, in order. Returns
// their number of lookup indices in all.
template <typename Entry>
uint32_t for_codes(const HuffmanCodes& codes, int lookup_bits, const Entry& entry) {
    uint32_t at = 0;
    int index = 0;
    for (int length = 1; length <= lookup_bits; ++length) {
        const uint32_t span = 1u << (lookup_bits - length);
        for (int n = codes.source[length - 1]; n > 0; --n, ++index, at += span)
            entry(codes.values[index], length, at, span);
    }
    return at;
}

}  // namespace

bool DcTable::build(ByteSpan payload) {
    if (codes.built_from(payload)) return true;
    if (!codes.build(payload)) return false;
    if (!codes.are_sizes()) {
        codes.source_length = 0;
        return false;
    }
    const uint32_t end = for_codes(codes, kLookupBits, [&](int size, int length, uint32_t at, uint32_t span) {
        std::fill_n(lookup + at, span,
                    static_cast<uint32_t>(length + size) | static_cast<uint32_t>(size) << 8 |
                        static_cast<uint32_t>(length) << 16);
    });
    std::fill(lookup + end, lookup + (1 << kLookupBits), 0u);
    return true;
}

bool AcTable::build(ByteSpan payload) {
    if (codes.built_from(payload)) return true;
    if (!codes.build(payload)) return false;
    const uint32_t end = for_codes(codes, kLookupBits, [&](int symbol, int length, uint32_t at, uint32_t span) {
        const int run = symbol >> 4, size = symbol & 15, bits = length + size;
        const uint32_t taken = static_cast<uint32_t>(bits);
        if (size == 0) {
            const uint32_t move = run == 15 ? 16 : kEnd;
            std::fill_n(lookup + at, span, taken | move << 8);
        } else if (bits <= kLookupBits) {
            const uint32_t each = span >> size;
            const uint32_t common = taken | static_cast<uint32_t>(run + 1) << 8;
            for (int extra = 0; extra < (1 << size); ++extra, at += each) {
                std::fill_n(lookup + at, each, common | static_cast<uint32_t>(extend(extra, size)) << 16);
            }
        } else {
            std::fill_n(lookup + at, span, kUnusual << 8 | static_cast<uint32_t>(length << 8 | symbol) << 16);
        }
    });
    std::fill(lookup + end, lookup + (1 << kLookupBits), kUnusual << 8);
    return true;
}

}  // namespace feeder
