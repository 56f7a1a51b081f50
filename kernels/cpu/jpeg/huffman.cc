#include "cpu/jpeg/huffman.h"

#include <algorithm>

#include "cpu/jpeg/code_table.h"

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

// An entry of Note [Huffman lookup] without its value, and the value.
uint32_t coefficient(int run, int size, int length) {
    return static_cast<uint32_t>(length + size) | static_cast<uint32_t>(run + 1) << 8;
}
uint32_t value_of(int extra, int size) { return static_cast<uint32_t>(extend(extra, size)); }

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

bool AcTable::build(ByteSpan payload, bool with_pairs) {
    if (codes.built_from(payload) && with_pairs == has_pairs_) return true;
    if (!codes.build(payload)) return false;
    has_pairs_ = with_pairs;
    const uint32_t end = for_codes(codes, kLookupBits, [&](int symbol, int length, uint32_t at, uint32_t span) {
        const int run = symbol >> 4, size = symbol & 15;
        if (size == 0) {
            std::fill_n(lookup + at, span, static_cast<uint32_t>(length) | (run == 15 ? 16 : kEnd) << 8);
        } else if (length + size <= kLookupBits && (size <= kMostSize || !with_pairs)) {
            const uint32_t each = span >> size;
            for (int extra = 0; extra < (1 << size); ++extra, at += each)
                std::fill_n(lookup + at, each, coefficient(run, size, length) | value_of(extra, size) << (with_pairs ? 24 : 16));
        } else {
            std::fill_n(lookup + at, span, kUnusual << 8 | static_cast<uint32_t>(symbol << 8 | length) << 16);
        }
    });
    std::fill(lookup + end, lookup + (1 << kLookupBits), kUnusual << 8);
    if (with_pairs) add_pairs();
    return true;
}

void AcTable::add_pairs() {
    // From 1 << r on: what the next r bits add as a second symbol, 0 where it is not all in them.
    constexpr uint32_t kMostBits = kLookupBits - 3;  // after a first symbol; few are shorter
    uint32_t second[2 << kMostBits] = {};
    for (uint32_t i = 0; i < (1u << kMostBits); ++i) {
        const uint32_t entry = lookup[i << (kLookupBits - kMostBits)];
        second[(1u << kMostBits) + i] = (entry & 63) <= kMostBits && (entry >> 8 & 0xFF) < kUnusual ? entry : 0;
    }
    for (uint32_t r = kMostBits - 1; r > 0; --r) {
        for (uint32_t i = 1u << r; i < (2u << r); ++i) second[i] = (second[2 * i] & 63) <= r ? second[2 * i] : 0;
    }
    for_codes(codes, kLookupBits - 1, [&](int symbol, int length, uint32_t at, uint32_t) {
        const int size = symbol;  // and no run
        const int rest = kLookupBits - length - size;
        if (size == 0 || size > kMostSize || rest < 1 || rest > static_cast<int>(kMostBits)) return;
        at <<= 1;
        const uint32_t each = 1u << rest;
        for (int extra = 0; extra < (1 << size); ++extra, at += each) {
            const uint32_t first = coefficient(0, size, length) | (value_of(extra, size) & 0xFF) << 16;
            for (uint32_t i = 0; i < each; ++i)
                lookup[at + i] = second[each + i] != 0 ? first + second[each + i] : lookup[at + i];
        }
    });
}

void CodeTable::build(const HuffmanCodes& codes, bool is_dc) {
    if (is_dc == is_dc_ && codes.built_from({source_, source_length_})) return;
    const uint32_t end = for_codes(codes, kLookupBits, [&](int symbol, int length, uint32_t at, uint32_t span) {
        const uint32_t found = entry(is_dc, symbol, length);
        std::fill_n(lookup + at, span, found >> 24 <= kMostBits ? found : kUnknown);
    });
    std::fill(lookup + end, lookup + (1 << kLookupBits), kUnknown);
    is_dc_ = is_dc;
    source_length_ = codes.source_length;
    std::memcpy(source_, codes.source, source_length_);
}

}  // namespace feeder
