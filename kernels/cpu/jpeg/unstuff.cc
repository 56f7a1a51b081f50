#include "cpu/jpeg/unstuff.h"

#include "cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace feeder {
namespace {

#if defined(__x86_64__)
// Goes on from `from` to `stop` or near the first marker. Writes up to 63 bytes more behind `to`.
__attribute__((target("avx512f,avx512bw,avx512vbmi2,bmi2,popcnt"))) void unstuff_avx512(const uint8_t*& from,
                                                                                     const uint8_t* stop, uint8_t*& to) {
    const __m512i ones = _mm512_set1_epi8(static_cast<char>(0xFF));
    uint64_t follows = 0;  // the byte at `from` comes after an FF
    while (from < stop) {
        const unsigned count = stop - from < 64 ? static_cast<unsigned>(stop - from) : 64;
        const uint64_t all = _bzhi_u64(~uint64_t{0}, count);
        const __m512i bytes = _mm512_maskz_loadu_epi8(all, from);
        const uint64_t is_ff = _mm512_cmpeq_epi8_mask(bytes, ones);
        const uint64_t after_ff = (is_ff << 1 | follows) & all;
        const uint64_t is_last = is_ff >> (count - 1);
        if (_mm512_mask_test_epi8_mask(after_ff, bytes, bytes) != 0 || (is_last != 0 && from + count == stop)) break;
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(all & ~after_ff, bytes));
        to += count - static_cast<unsigned>(__builtin_popcountll(after_ff));
        from += count;
        follows = is_last;
    }
    from -= follows;  // to the FF that what comes next belongs to
    to -= follows;
}
#endif

}  // namespace

size_t unstuff(ByteSpan file, size_t begin, size_t end, uint8_t* out, size_t& stopped_at) {
    const uint8_t* from = file.data() + begin;
    const uint8_t* const stop = file.data() + end;
    uint8_t* to = out;
#if defined(__x86_64__)
    if (simd_level() == SimdLevel::avx512) unstuff_avx512(from, stop, to);
#endif
    while (from < stop) {
#if defined(__x86_64__)
        if (stop - from >= 32) {
            const __m128i ones = _mm_set1_epi8(static_cast<char>(0xFF));
            unsigned mask = 0;
            for (int i = 0; i < 2; ++i) {
                const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, bytes);
                mask |= static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, ones))) << (16 * i);
            }
            if (mask == 0) {  // a branch, which the CPU predicts; a selected step would wait for the bytes
                from += 32;
                to += 32;
                continue;
            }
            const int plain = __builtin_ctz(mask);
            from += plain;
            to += plain;
        }
#endif
        if (*from == 0xFF) {
            if (stop - from < 2 || from[1] != 0x00) break;  // a marker, or a lone FF where the file ends
            ++from;
            *to++ = 0xFF;
        } else {
            *to++ = *from;
        }
        ++from;
    }
    stopped_at = static_cast<size_t>(from - file.data());
    return static_cast<size_t>(to - out);
}

}  // namespace feeder
