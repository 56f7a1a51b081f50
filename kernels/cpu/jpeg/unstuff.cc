#include "cpu/jpeg/unstuff.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feeder {

size_t unstuff(ByteSpan file, size_t begin, size_t end, uint8_t* out, size_t& stopped_at) {
    const uint8_t* from = file.data() + begin;
    const uint8_t* const stop = file.data() + end;
    uint8_t* to = out;
    while (from < stop) {
#if defined(__SSE2__)
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
