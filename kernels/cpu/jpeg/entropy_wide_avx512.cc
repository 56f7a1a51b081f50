// entropy_wide.h with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/jpeg/entropy_wide.h"
#include "cpu/jpeg/zigzag.h"

namespace feeder {
namespace {

using V = __m512i;
constexpr int kLanes = WideStreams::kLanes;
constexpr __mmask64 kLowOfFour = 0x1111111111111111u, kLowOfEight = 0x0101010101010101u;
constexpr __mmask16 kEven = 0x5555, kOdd = 0xAAAA;

V all(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }

// A byte of each 32-bit lane.
template <int kByte>
V byte_of(V lanes) {
    constexpr int b = kByte;
    return _mm512_maskz_shuffle_epi8(kLowOfFour, lanes, _mm512_broadcast_i32x4(_mm_setr_epi32(b, 4 + b, 8 + b, 12 + b)));
}
// A byte of each 64-bit lane.
template <int kByte>
V byte_of_two(V lanes) {
    return _mm512_maskz_shuffle_epi8(kLowOfEight, lanes, _mm512_broadcast_i32x4(_mm_set_epi64x(8 + kByte, kByte)));
}

// The entries of codes that are not in the tables. False: there is no such code.
__attribute__((noinline)) bool find_entries(const WidePlan& plan, unsigned lanes, V even_bits, V odd_bits, V place,
                                            V in_mcu, V& entries) {
    alignas(64) uint64_t bits[2][kLanes / 2];
    alignas(64) uint32_t places[kLanes], blocks[kLanes], entry[kLanes];
    _mm512_store_si512(bits[0], even_bits);
    _mm512_store_si512(bits[1], odd_bits);
    _mm512_store_si512(places, place);
    _mm512_store_si512(blocks, in_mcu);
    _mm512_store_si512(entry, entries);
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const bool is_dc = places[lane] == 0;
        const HuffmanCodes& codes = *(is_dc ? plan.dc_codes : plan.ac_codes)[blocks[lane]];
        int length = 0;
        const int symbol = codes.find(static_cast<uint32_t>(bits[lane % 2][lane / 2] >> 48), length);
        if (symbol < 0) return false;
        entry[lane] = CodeTable::entry(is_dc, symbol, length);
    }
    entries = _mm512_load_si512(entry);
    return true;
}

uint32_t run(WideStreams& s, const WidePlan& plan) {
    const V swap = _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
    // Of the coefficient before a place.
    alignas(64) uint8_t natural_index[64];
    alignas(64) int32_t next_index[16] = {};
    for (int k = 0; k < 64; ++k) natural_index[k] = kNaturalOrder[(k + 63) % 64];
    for (int i = 0; i < plan.blocks; ++i) next_index[i] = (i + 1) % plan.blocks;
    const V natural = _mm512_load_si512(natural_index), next_in_mcu = _mm512_load_si512(next_index);
    const V dc_tables = _mm512_load_si512(plan.dc), ac_tables = _mm512_load_si512(plan.ac);
    const V width = _mm512_set1_epi64(64), one = all(1), ones = all(~0u);
    const auto active = static_cast<__mmask16>(s.active);
    V even_bits = _mm512_load_si512(s.bits[0]), odd_bits = _mm512_load_si512(s.bits[1]);
    V even_next = _mm512_load_si512(s.next[0]), odd_next = _mm512_load_si512(s.next[1]);
    V used = _mm512_load_si512(s.used), place = _mm512_load_si512(s.place), block = _mm512_load_si512(s.block),
      in_mcu = _mm512_load_si512(s.in_mcu);
    V ac = _mm512_permutexvar_epi32(in_mcu, ac_tables), next_block = _mm512_permutexvar_epi32(in_mcu, next_in_mcu);
    V next_dc = _mm512_permutexvar_epi32(next_block, dc_tables), next_ac = _mm512_permutexvar_epi32(next_block, ac_tables);
    V tables = _mm512_mask_permutexvar_epi32(ac, _mm512_testn_epi32_mask(place, place), in_mcu, dc_tables);
    __mmask16 over = 0;
    V furthest = all(0);
    bool damaged = false;
    while (over == 0) {
        // Afterwards at least 56 bits are valid.
        const auto refill = [&](V& bits, V& next, V its_used) {
            const V word = _mm512_shuffle_epi8(_mm512_i64gather_epi64(next, plan.bytes, 1), swap);
            bits = _mm512_or_si512(bits, _mm512_srlv_epi64(word, _mm512_sub_epi64(_mm512_set1_epi64(63), its_used)));
            next = _mm512_add_epi64(next, _mm512_srli_epi64(its_used, 3));
        };
        refill(even_bits, even_next, _mm512_maskz_mov_epi32(kEven, used));
        refill(odd_bits, odd_next, _mm512_srli_epi64(used, 32));
        used = _mm512_and_si512(used, all(7));
        damaged = (_mm512_cmpgt_epi64_mask(even_next, _mm512_load_si512(s.limit[0])) |
                   _mm512_cmpgt_epi64_mask(odd_next, _mm512_load_si512(s.limit[1])) |
                   _mm512_cmpgt_epi32_mask(furthest, all(64))) != 0;
        if (damaged) [[unlikely]] break;
        bool is_long = false;
#pragma GCC unroll 4
        for (int round = 0; round < 56 / CodeTable::kMostBits; ++round) {
            constexpr int kShift = 64 - CodeTable::kLookupBits;
            const V codes = _mm512_mask_mov_epi32(_mm512_srli_epi64(even_bits, kShift), kOdd,
                                                  _mm512_srli_epi64(odd_bits, kShift - 32));
            V entry = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), active, _mm512_add_epi32(codes, tables),
                                                  plan.tables, 4);
            const unsigned unknown = _mm512_movepi32_mask(entry);
            if (unknown != 0) [[unlikely]] {
                damaged = !find_entries(plan, unknown, even_bits, odd_bits, place, in_mcu, entry);
                // A symbol may take more bits than are sure to be valid.
                is_long = _mm512_cmpge_epu32_mask(entry, all((CodeTable::kMostBits + 1) << 24)) != 0;
                if (damaged || (is_long && round != 0)) break;
            }
            // Bits of the codes, then the extra ones.
            const V even_rest = _mm512_sllv_epi64(even_bits, byte_of_two<0>(entry));
            const V odd_rest = _mm512_sllv_epi64(odd_bits, byte_of_two<4>(entry));
            const V even_size = byte_of_two<1>(entry), odd_size = byte_of_two<5>(entry);
            even_bits = _mm512_sllv_epi64(even_rest, even_size);
            odd_bits = _mm512_sllv_epi64(odd_rest, odd_size);
            used = _mm512_add_epi32(used, _mm512_srli_epi32(entry, 24));
            V value = _mm512_mask_shuffle_epi32(_mm512_srlv_epi64(even_rest, _mm512_sub_epi64(width, even_size)), kOdd,
                                                _mm512_srlv_epi64(odd_rest, _mm512_sub_epi64(width, odd_size)),
                                                _MM_PERM_CCAA);
            const auto is_negative = static_cast<__mmask16>(
                ~_mm512_movepi32_mask(_mm512_mask_mov_epi32(_mm512_srli_epi64(even_rest, 32), kOdd, odd_rest)));
            value = _mm512_mask_sub_epi32(value, is_negative, value,
                                          _mm512_srlv_epi32(ones, _mm512_sub_epi32(all(32), byte_of<1>(entry))));

            const V after = _mm512_add_epi32(place, byte_of<2>(entry));
            const auto at_end = _mm512_test_epi32_mask(after, all(64 | CodeTable::kBlockEnd));
            const auto is_code = _mm512_test_epi32_mask(after, all(CodeTable::kBlockEnd));
            tables = _mm512_mask_mov_epi32(ac, at_end, next_dc);
            ac = _mm512_mask_mov_epi32(ac, at_end, next_ac);
            in_mcu = _mm512_mask_mov_epi32(in_mcu, at_end, next_block);
            next_block = _mm512_permutexvar_epi32(in_mcu, next_in_mcu);
            next_dc = _mm512_permutexvar_epi32(next_block, dc_tables);
            next_ac = _mm512_permutexvar_epi32(next_block, ac_tables);
            furthest = _mm512_max_epu32(furthest, _mm512_and_si512(after, all(CodeTable::kBlockEnd - 1)));
            V at = _mm512_add_epi32(block, _mm512_maskz_permutexvar_epi8(kLowOfFour, after, natural));
            at = _mm512_mask_add_epi32(at, is_code, _mm512_srli_epi32(block, 6), all(WideStreams::kLasts));
            value = _mm512_mask_sub_epi32(value, is_code, place, one);
            alignas(64) uint16_t words[2 * kLanes];
            _mm512_store_si512(words, _mm512_mask_blend_epi16(0xAAAAAAAA, at, _mm512_slli_epi32(value, 16)));
            place = _mm512_maskz_mov_epi32(static_cast<__mmask16>(~at_end), after);
            block = _mm512_mask_add_epi32(block, at_end, block, all(64));
            over = _mm512_mask_cmpeq_epi32_mask(active, block, _mm512_load_si512(s.end));
            asm("" : "+m"(words));  // else GCC takes them out of the vector one by one
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) s.memory[i][words[2 * i]] = static_cast<int16_t>(words[2 * i + 1]);
            if (over != 0 || is_long) break;
        }
        if (damaged) [[unlikely]] break;
    }
    _mm512_store_si512(s.bits[0], even_bits);
    _mm512_store_si512(s.bits[1], odd_bits);
    _mm512_store_si512(s.next[0], even_next);
    _mm512_store_si512(s.next[1], odd_next);
    _mm512_store_si512(s.used, used);
    _mm512_store_si512(s.place, place);
    _mm512_store_si512(s.block, block);
    _mm512_store_si512(s.in_mcu, in_mcu);
    s.bad = damaged || _mm512_cmpgt_epi32_mask(furthest, all(64)) != 0;
    return over;
}

}  // namespace

WideDecode avx512_wide_decode() { return run; }

}  // namespace feeder
#endif
