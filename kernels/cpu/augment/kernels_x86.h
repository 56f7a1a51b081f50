// kernels.h for AVX2, and for AVX-512 with VBMI and VNNI: included by one file for each. Only intrinsics and code of this
// file may be in here, since an inline function from elsewhere could end up in code that other CPUs run.
#include <immintrin.h>

#include <cstring>

#include "cpu/augment/kernels.h"
#include "cpu/augment/normal.h"

namespace feeder {
namespace {

#if defined(__AVX512VBMI__)
#define FEEDER_MM(op) _mm512_##op
using V = __m512i;
using F = __m512;
inline V load(const void* at) { return _mm512_loadu_si512(at); }
inline void store(void* at, V v) { _mm512_storeu_si512(at, v); }
inline V zero() { return _mm512_setzero_si512(); }
inline V equal(V a, V b) { return _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(a, b)); }
inline V select(V mask, V a, V b) { return _mm512_ternarylogic_epi64(mask, a, b, 0xCA); }
inline V either(V a, V b) { return _mm512_or_si512(a, b); }
inline V both(V a, V b) { return _mm512_and_si512(a, b); }
inline V repeat16(const uint8_t* at) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline F pick(F table, V i) { return _mm512_permutexvar_ps(i, table); }
inline F table8(const float* at) {
    return _mm512_castsi512_ps(_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
}
inline V dot(V sum, V a, V b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
#define FEEDER_MM(op) _mm256_##op
using V = __m256i;
using F = __m256;
inline V load(const void* at) { return _mm256_loadu_si256(static_cast<const V*>(at)); }
inline void store(void* at, V v) { _mm256_storeu_si256(static_cast<V*>(at), v); }
inline V zero() { return _mm256_setzero_si256(); }
inline V equal(V a, V b) { return _mm256_cmpeq_epi8(a, b); }
inline V select(V mask, V a, V b) { return _mm256_blendv_epi8(b, a, mask); }
inline V either(V a, V b) { return _mm256_or_si256(a, b); }
inline V both(V a, V b) { return _mm256_and_si256(a, b); }
inline V repeat16(const uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline F pick(F table, V i) { return _mm256_permutevar8x32_ps(table, i); }
inline F table8(const float* at) { return _mm256_loadu_ps(at); }
inline V dot(V sum, V a, V b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#endif
constexpr int kBytes = sizeof(V);
constexpr int kInts = kBytes / 4;

inline V set8(int x) { return FEEDER_MM(set1_epi8)(static_cast<char>(x)); }
inline V set16(int x) { return FEEDER_MM(set1_epi16)(static_cast<short>(x)); }
inline V set32(int x) { return FEEDER_MM(set1_epi32)(x); }
inline F setf(float x) { return FEEDER_MM(set1_ps)(x); }

// A table of 256 bytes in registers.
#if defined(__AVX512VBMI__)
struct Table {
    V part[4];
    explicit Table(const uint8_t* table) {
        for (int i = 0; i < 4; ++i) part[i] = load(table + 64 * i);
    }
    V operator()(V x) const {
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), _mm512_permutex2var_epi8(part[0], x, part[1]),
                                      _mm512_permutex2var_epi8(part[2], x, part[3]));
    }
};
#else
struct Table {
    V part[16];
    explicit Table(const uint8_t* table) {
        for (int i = 0; i < 16; ++i) part[i] = repeat16(table + 16 * i);
    }
    V operator()(V x) const {  // 16 shuffles by the low nibble, a tree of blends by the high one
        const V low = both(x, set8(15));
        const V bit4 = _mm256_slli_epi16(x, 3), bit5 = _mm256_slli_epi16(x, 2), bit6 = _mm256_slli_epi16(x, 1);
        V r[8];
        for (int i = 0; i < 8; ++i)
            r[i] = select(bit4, _mm256_shuffle_epi8(part[2 * i + 1], low), _mm256_shuffle_epi8(part[2 * i], low));
        for (int i = 0; i < 4; ++i) r[i] = select(bit5, r[2 * i + 1], r[2 * i]);
        for (int i = 0; i < 2; ++i) r[i] = select(bit6, r[2 * i + 1], r[2 * i]);
        return select(x, r[1], r[0]);
    }
};
#endif

struct NoTable {
    V operator()(V x) const { return x; }
};

// n samples, from and to memory with padding.
void look_up(const uint8_t* samples, size_t n, const uint8_t* table, uint8_t* out) {
    const Table values(table);
    for (size_t i = 0; i < n; i += kBytes) store(out + i, values(load(samples + i)));
}

// (19595 R + 38470 G + 7471 B + 32768) >> 16. 38470 is 2 * 19235, as int16 does not hold it.
inline V gray16(V r, V g, V b) {
    const V red_green = set32(19595 | 19235 << 16), green_blue = set32(19235 | 7471 << 16), half = set32(0x8000);
    const V low = dot(dot(half, FEEDER_MM(unpacklo_epi16)(r, g), red_green), FEEDER_MM(unpacklo_epi16)(g, b), green_blue);
    const V high = dot(dot(half, FEEDER_MM(unpackhi_epi16)(r, g), red_green), FEEDER_MM(unpackhi_epi16)(g, b), green_blue);
    return FEEDER_MM(packus_epi32)(FEEDER_MM(srli_epi32)(low, 16), FEEDER_MM(srli_epi32)(high, 16));
}

inline V gray_of(V r, V g, V b) {
    const V z = zero();
    const V low = gray16(FEEDER_MM(unpacklo_epi8)(r, z), FEEDER_MM(unpacklo_epi8)(g, z), FEEDER_MM(unpacklo_epi8)(b, z));
    const V high = gray16(FEEDER_MM(unpackhi_epi8)(r, z), FEEDER_MM(unpackhi_epi8)(g, z), FEEDER_MM(unpackhi_epi8)(b, z));
    return FEEDER_MM(packus_epi16)(low, high);
}

template <typename Values>
inline uint64_t gray_sum_of(const uint8_t* const rgb[3], size_t n, const Values& values) {
    alignas(64) uint64_t lanes[kBytes / 8];
    V sum = zero();
    const size_t whole = n / kBytes * kBytes;
    for (size_t i = 0; i < n; i += kBytes) {
        V gray = gray_of(values(load(rgb[0] + i)), values(load(rgb[1] + i)), values(load(rgb[2] + i)));
        if (i == whole) {  // the last ones: those past the end do not count
            alignas(64) uint8_t last[kBytes];
            store(last, gray);
            std::memset(last + (n - whole), 0, kBytes - (n - whole));
            gray = load(last);
        }
        sum = FEEDER_MM(add_epi64)(sum, FEEDER_MM(sad_epu8)(gray, zero()));
    }
    store(lanes, sum);
    uint64_t total = 0;
    for (const uint64_t lane : lanes) total += lane;
    return total;
}

uint64_t gray_sum(const uint8_t* const rgb[3], size_t n, const uint8_t* table) {
    return table ? gray_sum_of(rgb, n, Table(table)) : gray_sum_of(rgb, n, NoTable());
}

void grayscale(uint8_t* const rgb[3], size_t n) {
    for (size_t i = 0; i < n; i += kBytes) {
        const V gray = gray_of(load(rgb[0] + i), load(rgb[1] + i), load(rgb[2] + i));
        for (int c = 0; c < 3; ++c) store(rgb[c] + i, gray);
    }
}

// base + factor * (sample - base) in floats, as Pillow's blend; packing cuts and clips.
struct FloatBlend {
    F factor;
    explicit FloatBlend(float f) : factor(setf(f)) {}
    V mix(V base32, V change32) const {
        const F change = FEEDER_MM(mul_ps)(factor, FEEDER_MM(cvtepi32_ps)(change32));
        return FEEDER_MM(cvttps_epi32)(FEEDER_MM(add_ps)(FEEDER_MM(cvtepi32_ps)(base32), change));
    }
    V half(V base16, V sample16) const {
        const V change = FEEDER_MM(sub_epi16)(sample16, base16), sign = FEEDER_MM(srai_epi16)(change, 15), z = zero();
        return FEEDER_MM(packs_epi32)(mix(FEEDER_MM(unpacklo_epi16)(base16, z), FEEDER_MM(unpacklo_epi16)(change, sign)),
                                      mix(FEEDER_MM(unpackhi_epi16)(base16, z), FEEDER_MM(unpackhi_epi16)(change, sign)));
    }
    V operator()(V base, V sample) const {
        const V z = zero();
        return FEEDER_MM(packus_epi16)(half(FEEDER_MM(unpacklo_epi8)(base, z), FEEDER_MM(unpacklo_epi8)(sample, z)),
                                       half(FEEDER_MM(unpackhi_epi8)(base, z), FEEDER_MM(unpackhi_epi8)(sample, z)));
    }
};

#if defined(__AVX512VBMI__)
// Note [blend by tables]
// With d = |sample - base| the blend is base + floor(factor d), or base - ceil(factor d), in saturating bytes: a table each.
// Where factor d is so close to an integer that the sum's rounding reaches it, it does so from some base on: two more
// tables of that base, past which one is added.
struct BlendTables {
    alignas(64) uint8_t up[256], down[256], up_edge[256], down_edge[256];
    bool has_edges = false;

    explicit BlendTables(float factor) {
        std::memset(up_edge, 255, sizeof up_edge);
        std::memset(down_edge, 255, sizeof down_edge);
        for (int d = 0; d < 256; ++d) {
            const float v = factor * static_cast<float>(d);
            const float whole = __builtin_floorf(v), above = __builtin_ceilf(v);
            up[d] = static_cast<uint8_t>(whole < 255.0f ? whole : 255.0f);
            down[d] = static_cast<uint8_t>(above < 255.0f ? above : 255.0f);
            if (v == whole || v >= 256.0f || (v - whole < 1 - 0x1p-16f && v - whole > 0x1p-16f)) continue;
            for (int k = 255 - d; k >= 0 && static_cast<float>(k) + v >= static_cast<float>(k) + whole + 1.0f; --k) {
                if (k > 0) up_edge[d] = static_cast<uint8_t>(k - 1);
                else ++up[d], up_edge[d] = 255;
            }
            for (int k = 255; k >= d && static_cast<float>(k) >= whole && static_cast<float>(k) - v >= static_cast<float>(k) - whole; --k)
                down_edge[d] = static_cast<uint8_t>(k - 1);
            if (up_edge[d] != 255 || down_edge[d] != 255) has_edges = true;
        }
    }
};

template <bool kEdges>
struct TableBlend {
    Table up, down, up_edge, down_edge;
    explicit TableBlend(const BlendTables& tables)
        : up(tables.up), down(tables.down), up_edge(tables.up_edge), down_edge(tables.down_edge) {}
    V operator()(V base, V sample) const {
        const V d = either(_mm512_subs_epu8(sample, base), _mm512_subs_epu8(base, sample));
        V more = _mm512_adds_epu8(base, up(d)), less = _mm512_subs_epu8(base, down(d));
        if (kEdges) {
            more = _mm512_mask_adds_epu8(more, _mm512_cmpgt_epu8_mask(base, up_edge(d)), more, set8(1));
            less = _mm512_mask_adds_epu8(less, _mm512_cmpgt_epu8_mask(base, down_edge(d)), less, set8(1));
        }
        return _mm512_mask_blend_epi8(_mm512_cmpge_epu8_mask(sample, base), less, more);
    }
};

template <typename Run>
inline void with_blend(float factor, const Run& run) {
    const BlendTables tables(factor);
    if (tables.has_edges) run(TableBlend<true>(tables));
    else run(TableBlend<false>(tables));
}
#else
template <typename Run>
inline void with_blend(float factor, const Run& run) { run(FloatBlend(factor)); }
#endif

template <typename Values>
inline void saturate_by(uint8_t* const rgb[3], size_t n, const Values& values, float factor) {
    with_blend(factor, [&](const auto& blend) {
        for (size_t i = 0; i < n; i += kBytes) {
            const V r = values(load(rgb[0] + i)), g = values(load(rgb[1] + i)), b = values(load(rgb[2] + i));
            const V gray = gray_of(r, g, b);
            store(rgb[0] + i, blend(gray, r));
            store(rgb[1] + i, blend(gray, g));
            store(rgb[2] + i, blend(gray, b));
        }
    });
}

void saturate(uint8_t* const rgb[3], size_t n, const uint8_t* table, float factor) {
    if (table) saturate_by(rgb, n, Table(table), factor);
    else saturate_by(rgb, n, NoTable(), factor);
}

// floor(a b) of the exact product, as Pillow's doubles give it.
inline V floor_product(F a, F b) {
#if defined(__AVX512VBMI__)
    return _mm512_cvttps_epi32(_mm512_mul_round_ps(a, b, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
    const F product = _mm256_mul_ps(a, b), rest = _mm256_fmsub_ps(a, b, product);
    const V whole = _mm256_cvttps_epi32(product);
    const F rounded_up = _mm256_and_ps(_mm256_cmp_ps(rest, _mm256_setzero_ps(), _CMP_LT_OQ),
                                       _mm256_cmp_ps(_mm256_cvtepi32_ps(whole), product, _CMP_EQ_OQ));
    return _mm256_add_epi32(whole, _mm256_castps_si256(rounded_up));
#endif
}

// floor(v + 0.5 - v w) of the exact value.
inline V floor_rest(F v, F w) {
    const F top = FEEDER_MM(add_ps)(v, setf(0.5f));
#if defined(__AVX512VBMI__)
    return _mm512_cvttps_epi32(_mm512_fnmadd_round_ps(v, w, top, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
    const F product = _mm256_mul_ps(v, w), rest = _mm256_fmsub_ps(v, w, product);
    const F found = _mm256_sub_ps(top, product), lost = _mm256_sub_ps(_mm256_sub_ps(top, found), product);
    const V whole = _mm256_cvttps_epi32(found);
    const F rounded_up = _mm256_and_ps(_mm256_cmp_ps(lost, rest, _CMP_LT_OQ),
                                       _mm256_cmp_ps(_mm256_cvtepi32_ps(whole), found, _CMP_EQ_OQ));
    return _mm256_add_epi32(whole, _mm256_castps_si256(rounded_up));
#endif
}

// x / kBy, rounded to nearest: a product and one correction.
template <int kBy>
inline F over(F x) {
    const F reciprocal = setf(1.0f / kBy), by = setf(kBy);
    const F quotient = FEEDER_MM(mul_ps)(x, reciprocal);
    return FEEDER_MM(fmadd_ps)(FEEDER_MM(fnmadd_ps)(quotient, by, x), reciprocal, quotient);
}

inline void widen(V x, V* out) {
    const V z = zero(), low = FEEDER_MM(unpacklo_epi8)(x, z), high = FEEDER_MM(unpackhi_epi8)(x, z);
    out[0] = FEEDER_MM(unpacklo_epi16)(low, z);
    out[1] = FEEDER_MM(unpackhi_epi16)(low, z);
    out[2] = FEEDER_MM(unpacklo_epi16)(high, z);
    out[3] = FEEDER_MM(unpackhi_epi16)(high, z);
}

inline V narrow(const V* x) {
    return FEEDER_MM(packus_epi16)(FEEDER_MM(packs_epi32)(x[0], x[1]), FEEDER_MM(packs_epi32)(x[2], x[3]));
}

// RGB to HSV, the hue shifted, and back.
struct Hue {
    F base, sign;
    V shift;
    V top_r, side_r, top_g, side_g, top_b, side_b;  // by sector: where a channel is V, or the value between V and the least

    explicit Hue(int turn) {
        // A hue is base + sign * (most - middle) / (most - least), by which channels are the most and the least.
        const float bases[8] = {-1, 1, 1, 3, 3, 5, 0, 0}, signs[8] = {1, -1, 1, -1, 1, -1, 0, 0};
        base = table8(bases);
        sign = table8(signs);
        shift = set32(turn & 255);
        top_r = sectors(0, 5), side_r = sectors(1, 4);
        top_g = sectors(1, 2), side_g = sectors(0, 3);
        top_b = sectors(3, 4), side_b = sectors(2, 5);
    }

    static V sectors(int one, int other) {
        uint8_t mask[16] = {};
        mask[one] = mask[other] = 255;
        mask[6] = mask[0];  // hue 255 is in sector 6, which is 0
        return repeat16(mask);
    }

    // Hue and saturation of 32-bit lanes, shifted, to the sector and the value between the most and the least.
    void quarter(V most, V range, V above, V kind, V& sector, V& saturation, V& side) const {
        const F c = FEEDER_MM(cvtepi32_ps)(range), v = FEEDER_MM(cvtepi32_ps)(most);
        const F part = FEEDER_MM(div_ps)(FEEDER_MM(cvtepi32_ps)(above), c);
        const F h = FEEDER_MM(add_ps)(pick(base, kind), FEEDER_MM(mul_ps)(pick(sign, kind), part));
        F turn = over<6>(h);
#if defined(__AVX512VBMI__)
        turn = _mm512_mask_add_ps(turn, _mm512_cmplt_ps_mask(h, _mm512_setzero_ps()), turn, setf(1));
#else
        turn = _mm256_add_ps(turn, _mm256_and_ps(_mm256_cmp_ps(h, _mm256_setzero_ps(), _CMP_LT_OQ), setf(1)));
#endif
        saturation = floor_product(FEEDER_MM(div_ps)(c, v), setf(255));
        V hue = floor_product(turn, setf(255));
        hue = both(FEEDER_MM(add_epi32)(hue, shift), set32(255));
        const V x = FEEDER_MM(madd_epi16)(hue, set32(6));
        sector = FEEDER_MM(srli_epi32)(FEEDER_MM(madd_epi16)(FEEDER_MM(add_epi32)(x, set32(1)), set32(257)), 16);
        F f = over<255>(FEEDER_MM(cvtepi32_ps)(FEEDER_MM(sub_epi32)(x, FEEDER_MM(madd_epi16)(sector, set32(255)))));
        const F fs = over<255>(FEEDER_MM(cvtepi32_ps)(saturation)), rest = FEEDER_MM(sub_ps)(setf(1), f);
#if defined(__AVX512VBMI__)
        f = _mm512_mask_mov_ps(rest, _mm512_test_epi32_mask(sector, set32(1)), f);
#else
        f = _mm256_blendv_ps(rest, f, _mm256_castsi256_ps(_mm256_slli_epi32(sector, 31)));
#endif
        side = floor_rest(v, FEEDER_MM(mul_ps)(f, fs));
    }

    void operator()(V& r, V& g, V& b) const {
        const V most = FEEDER_MM(max_epu8)(FEEDER_MM(max_epu8)(r, g), b);
        const V least = FEEDER_MM(min_epu8)(FEEDER_MM(min_epu8)(r, g), b);
        const V middle = FEEDER_MM(max_epu8)(FEEDER_MM(min_epu8)(r, g), FEEDER_MM(min_epu8)(FEEDER_MM(max_epu8)(r, g), b));
        const V of_red = select(equal(g, least), zero(), set8(1));
        const V of_green = select(equal(b, least), set8(2), set8(3));
        const V of_blue = select(equal(r, least), set8(4), set8(5));
        const V kind = select(equal(r, most), of_red, select(equal(g, most), of_green, of_blue));
        const V one = set8(1), range = FEEDER_MM(sub_epi8)(most, least);
        V above4[4], range4[4], most4[4], kind4[4], sector4[4], side4[4], saturation4[4];
        widen(FEEDER_MM(sub_epi8)(most, middle), above4);
        widen(FEEDER_MM(max_epu8)(range, one), range4);
        widen(FEEDER_MM(max_epu8)(most, one), most4);
        widen(kind, kind4);
        for (int j = 0; j < 4; ++j)
            quarter(most4[j], range4[j], above4[j], kind4[j], sector4[j], saturation4[j], side4[j]);
        const V is_gray = equal(range, zero()), sector = narrow(sector4);
        const V saturation = select(is_gray, zero(), narrow(saturation4)), side = select(is_gray, most, narrow(side4));
        // round(most (255 - saturation) / 255), never a tie
        const V rest = FEEDER_MM(sub_epi8)(set8(-1), saturation), z = zero();
        const V low = over255(FEEDER_MM(unpacklo_epi8)(most, z), FEEDER_MM(unpacklo_epi8)(rest, z));
        const V high = over255(FEEDER_MM(unpackhi_epi8)(most, z), FEEDER_MM(unpackhi_epi8)(rest, z));
        const V bottom = FEEDER_MM(packus_epi16)(low, high);
        const auto channel = [&](V is_top, V is_side) {
            return select(FEEDER_MM(shuffle_epi8)(is_top, sector), most,
                          select(FEEDER_MM(shuffle_epi8)(is_side, sector), side, bottom));
        };
        r = channel(top_r, side_r);
        g = channel(top_g, side_g);
        b = channel(top_b, side_b);
    }

    static V over255(V a, V b) {
        const V y = FEEDER_MM(add_epi16)(FEEDER_MM(mullo_epi16)(a, b), set16(128));
        return FEEDER_MM(srli_epi16)(FEEDER_MM(add_epi16)(y, FEEDER_MM(srli_epi16)(y, 8)), 8);
    }
};

void shift_hue(uint8_t* const rgb[3], size_t n, int shift) {
    const Hue hue(shift);
    for (size_t i = 0; i < n; i += kBytes) {
        V r = load(rgb[0] + i), g = load(rgb[1] + i), b = load(rgb[2] + i);
        hue(r, g, b);
        store(rgb[0] + i, r);
        store(rgb[1] + i, g);
        store(rgb[2] + i, b);
    }
}

// (8 neighbours + 5 x + 6) / 13 in 16 bits.
inline V smoothed(const uint8_t* const rows[3], int x) {
    const V z = zero(), middle = load(rows[1] + x);
    V low = FEEDER_MM(add_epi16)(set16(6), FEEDER_MM(slli_epi16)(FEEDER_MM(unpacklo_epi8)(middle, z), 2));
    V high = FEEDER_MM(add_epi16)(set16(6), FEEDER_MM(slli_epi16)(FEEDER_MM(unpackhi_epi8)(middle, z), 2));
    for (int row = 0; row < 3; ++row) {
        for (int column = -1; column <= 1; ++column) {
            const V v = load(rows[row] + x + column);
            low = FEEDER_MM(add_epi16)(low, FEEDER_MM(unpacklo_epi8)(v, z));
            high = FEEDER_MM(add_epi16)(high, FEEDER_MM(unpackhi_epi8)(v, z));
        }
    }
    const V thirteenth = set16(5042);
    return FEEDER_MM(packus_epi16)(FEEDER_MM(mulhi_epu16)(low, thirteenth), FEEDER_MM(mulhi_epu16)(high, thirteenth));
}

// Vectors write past a row's end, where the next row follows.
void sharpen(const uint8_t* samples, int height, int width, float factor, uint8_t* out) {
    std::memcpy(out, samples, static_cast<size_t>(width));
    with_blend(factor, [&](const auto& blend) {
        for (int y = 1; y + 1 < height; ++y) {
            const uint8_t* const at = samples + ptrdiff_t{y} * width;
            uint8_t* const to = out + ptrdiff_t{y} * width;
            const uint8_t* const rows[3] = {at - width, at, at + width};
            for (int x = 0; x < width; x += kBytes) store(to + x, blend(smoothed(rows, x), load(at + x)));
            to[0] = at[0];
            to[width - 1] = at[width - 1];
        }
    });
    const ptrdiff_t last = ptrdiff_t{height - 1} * width;
    std::memcpy(out + last, samples + last, static_cast<size_t>(width));
}

// One gather of an interleaved pixel for each; see sharpen().
void warp(const int32_t place[6], const uint8_t* pixels, int height, int width, uint32_t fill, uint8_t* const rgb[3]) {
    alignas(64) int32_t numbers[kInts];
    for (int i = 0; i < kInts; ++i) numbers[i] = i;
    const V lanes = load(numbers), w = set32(width), around = set32(static_cast<int32_t>(fill));
    const V step_x = FEEDER_MM(mullo_epi32)(set32(kInts), set32(place[0]));
    const V step_y = FEEDER_MM(mullo_epi32)(set32(kInts), set32(place[3]));
    uint32_t row_x = static_cast<uint32_t>(place[2]), row_y = static_cast<uint32_t>(place[5]);
    for (int y = 0; y < height; ++y) {
        V from_x = FEEDER_MM(add_epi32)(set32(static_cast<int32_t>(row_x)), FEEDER_MM(mullo_epi32)(lanes, set32(place[0])));
        V from_y = FEEDER_MM(add_epi32)(set32(static_cast<int32_t>(row_y)), FEEDER_MM(mullo_epi32)(lanes, set32(place[3])));
        for (int x = 0; x < width; x += kInts) {
            const V column = FEEDER_MM(srai_epi32)(from_x, 16), row = FEEDER_MM(srai_epi32)(from_y, 16);
            const V at = FEEDER_MM(add_epi32)(FEEDER_MM(mullo_epi32)(row, w), column);
            const V byte = FEEDER_MM(add_epi32)(at, FEEDER_MM(add_epi32)(at, at));
            const ptrdiff_t to = ptrdiff_t{y} * width + x;
#if defined(__AVX512VBMI__)
            const __mmask16 inside = _mm512_cmplt_epu32_mask(column, w) & _mm512_cmplt_epu32_mask(row, set32(height));
            const V pixel = _mm512_mask_i32gather_epi32(around, inside, byte, pixels, 1);
            for (int c = 0; c < 3; ++c) {
                const V shifted = _mm512_srlv_epi32(pixel, set32(8 * c));
                _mm_storeu_si128(reinterpret_cast<__m128i*>(rgb[c] + to), _mm512_cvtepi32_epi8(shifted));
            }
#else
            const V inside = both(_mm256_cmpeq_epi32(_mm256_min_epu32(column, set32(width - 1)), column),
                                  _mm256_cmpeq_epi32(_mm256_min_epu32(row, set32(height - 1)), row));
            const V pixel = _mm256_mask_i32gather_epi32(around, reinterpret_cast<const int*>(pixels), byte, inside, 1);
            const V order = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13,
                                             2, 6, 10, 14, 3, 7, 11, 15);
            const V bytes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixel, order),
                                                        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            const __m128i red_green = _mm256_castsi256_si128(bytes), blue = _mm256_extracti128_si256(bytes, 1);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(rgb[0] + to), red_green);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(rgb[1] + to), _mm_unpackhi_epi64(red_green, red_green));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(rgb[2] + to), blue);
#endif
            from_x = FEEDER_MM(add_epi32)(from_x, step_x);
            from_y = FEEDER_MM(add_epi32)(from_y, step_y);
        }
        row_x += static_cast<uint32_t>(place[1]);
        row_y += static_cast<uint32_t>(place[4]);
    }
}

struct Numbers {
#if defined(__AVX512VBMI__)
    using D = __m512d;
    static V as_bits(D x) { return _mm512_castpd_si512(x); }
    static D as_double(V x) { return _mm512_castsi512_pd(x); }
    static V either(V a, V b) { return _mm512_or_si512(a, b); }
    static V both(V a, V b) { return _mm512_and_si512(a, b); }
    static V different(V a, V b) { return _mm512_xor_si512(a, b); }
    static V set(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
    static D choose(V k, D odd, D even) { return _mm512_mask_blend_pd(_mm512_test_epi64_mask(k, set(1)), even, odd); }
    static void store(float* at, D x) { _mm256_storeu_ps(at, _mm512_cvtpd_ps(x)); }
    static void store(uint8_t* at, D x) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm256_cvtepi32_epi8(_mm512_cvttpd_epi32(x)));
    }
    static V at_least(D a, D b) { return _mm512_movm_epi64(_mm512_cmp_pd_mask(a, b, _CMP_GE_OQ)); }
    static V below(D a, D b) { return _mm512_movm_epi64(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ)); }
    static V pixels(const uint8_t* from, V at) { return _mm512_i64gather_epi64(at, from, 1); }
#else
    using D = __m256d;
    static V as_bits(D x) { return _mm256_castpd_si256(x); }
    static D as_double(V x) { return _mm256_castsi256_pd(x); }
    static V either(V a, V b) { return _mm256_or_si256(a, b); }
    static V both(V a, V b) { return _mm256_and_si256(a, b); }
    static V different(V a, V b) { return _mm256_xor_si256(a, b); }
    static V set(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
    static D choose(V k, D odd, D even) { return _mm256_blendv_pd(even, odd, as_double(_mm256_slli_epi64(k, 63))); }
    static void store(float* at, D x) { _mm_storeu_ps(at, _mm256_cvtpd_ps(x)); }
    static void store(uint8_t* at, D x) {
        const __m128i bytes = _mm_shuffle_epi8(_mm256_cvttpd_epi32(x), _mm_set1_epi32(0x0c080400));
        _mm_storeu_si32(at, bytes);
    }
    static V at_least(D a, D b) { return _mm256_castpd_si256(_mm256_cmp_pd(a, b, _CMP_GE_OQ)); }
    static V below(D a, D b) { return _mm256_castpd_si256(_mm256_cmp_pd(a, b, _CMP_LT_OQ)); }
    static V pixels(const uint8_t* from, V at) {
        return _mm256_i64gather_epi64(reinterpret_cast<const long long*>(from), at, 1);
    }
#endif
    using Words = V;
    using Doubles = D;
    static constexpr size_t kLanes = kBytes / 8;
    static V lanes() {
        alignas(64) uint64_t numbers[kLanes];
        for (size_t i = 0; i < kLanes; ++i) numbers[i] = i;
        return load(numbers);
    }
    static V plus(V a, V b) { return FEEDER_MM(add_epi64)(a, b); }
    static V product(V a, V b) { return FEEDER_MM(mul_epu32)(a, b); }
    template <int kBits>
    static V left(V x) { return FEEDER_MM(slli_epi64)(x, kBits); }
    template <int kBits>
    static V right(V x) { return FEEDER_MM(srli_epi64)(x, kBits); }
    static D real(double x) { return FEEDER_MM(set1_pd)(x); }
    static D plus(D a, D b) { return FEEDER_MM(add_pd)(a, b); }
    static D minus(D a, D b) { return FEEDER_MM(sub_pd)(a, b); }
    static D times(D a, D b) { return FEEDER_MM(mul_pd)(a, b); }
    static D over(D a, D b) { return FEEDER_MM(div_pd)(a, b); }
    static D floor(D x) { return FEEDER_MM(floor_pd)(x); }
    static D least(D a, D b) { return FEEDER_MM(min_pd)(a, b); }
    static D most(D a, D b) { return FEEDER_MM(max_pd)(a, b); }
    static D root(D x) { return FEEDER_MM(sqrt_pd)(x); }
};

// One gather of two neighbours, six bytes, for each pixel and row; see sharpen().
void warp_bilinear(const double* map, bool is_affine, const uint8_t* pixels, int height, int width, uint32_t fill,
                   uint8_t* const rgb[3]) {
    using N = Numbers;
    using D = N::Doubles;
    const V mask = N::set(UINT32_MAX), byte = N::set(255), w = N::set(static_cast<uint64_t>(width));
    const D zero = N::real(0), one = N::real(1), half = N::real(0.5), shift = N::real(0x1p52);
    const D most_x = N::real(width), most_y = N::real(height);
    const auto whole = [&](D x) { return N::as_bits(N::plus(x, shift)); };  // in the lower 32 bits
    const auto level = [&](V bytes) { return N::minus(N::as_double(N::either(bytes, N::as_bits(shift))), shift); };
    const auto between = [](D a, D b, D part) { return N::plus(a, N::times(N::minus(b, a), part)); };
    const D lanes = level(N::lanes());
    for (int row = 0; row < height; ++row) {
        const double y_in = row + 0.5;
        const auto place = [&](const double* factors, D x_in) {
            return N::plus(N::times(N::real(factors[0]), x_in), N::real(factors[1] * y_in));
        };
        for (int column = 0; column < width; column += static_cast<int>(N::kLanes)) {
            const D x_in = N::plus(lanes, N::real(column + 0.5));
            D x = N::plus(place(map, x_in), N::real(map[2])), y = N::plus(place(map + 3, x_in), N::real(map[5]));
            if (!is_affine) {
                const D distance = N::plus(place(map + 6, x_in), one);
                x = N::over(x, distance), y = N::over(y, distance);
            }
            const V inside = N::both(N::both(N::at_least(x, zero), N::below(x, most_x)),
                                     N::both(N::at_least(y, zero), N::below(y, most_y)));
            x = N::minus(N::as_double(N::both(N::as_bits(x), inside)), half);
            y = N::minus(N::as_double(N::both(N::as_bits(y), inside)), half);
            const D left = N::floor(x), top = N::floor(y), dx = N::minus(x, left), dy = N::minus(y, top);
            const D x0 = N::most(left, zero), x1 = N::least(N::plus(left, one), N::minus(most_x, one));
            const D y0 = N::most(top, zero), y1 = N::least(N::plus(top, one), N::minus(most_y, one));
            const V first = N::both(whole(x0), mask), has_right = N::below(x0, x1);
            D line[2][3];
            for (int i = 0; i < 2; ++i) {
                const V at = N::plus(N::product(whole(i == 0 ? y0 : y1), w), first);
                const V found = N::pixels(pixels, N::plus(at, N::plus(at, at)));
                const V right = select(has_right, N::right<24>(found), found);
                line[i][0] = between(level(N::both(found, byte)), level(N::both(right, byte)), dx);
                line[i][1] = between(level(N::both(N::right<8>(found), byte)), level(N::both(N::right<8>(right), byte)), dx);
                line[i][2] = between(level(N::both(N::right<16>(found), byte)), level(N::both(N::right<16>(right), byte)), dx);
            }
            for (int c = 0; c < 3; ++c) {
                const V value = N::as_bits(between(line[0][c], line[1][c], dy));
                const V around = N::as_bits(N::real(static_cast<uint8_t>(fill >> 8 * c)));
                N::store(rgb[c] + ptrdiff_t{row} * width + column, N::as_double(select(inside, value, around)));
            }
        }
    }
}

// A pixel's channels as doubles, and one more that means nothing.
inline __m256d pixel_at(const uint8_t* at) { return _mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_loadu_si32(at))); }

inline __m256d cubic(const __m256d (&p)[4], __m256d part) {
    const __m256d change = _mm256_sub_pd(p[0], p[1]);
    const __m256d first = _mm256_sub_pd(p[2], p[0]), third = _mm256_sub_pd(p[3], _mm256_add_pd(change, p[2]));
    const __m256d second = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(change, change), p[2]), p[3]);
    const __m256d upper = _mm256_add_pd(second, _mm256_mul_pd(part, third));
    return _mm256_add_pd(p[1], _mm256_mul_pd(part, _mm256_add_pd(first, _mm256_mul_pd(part, upper))));
}

// Four pixels at a time: their places in the lanes of a vector, then each one's channels.
void warp_bicubic(const double* map, bool is_affine, const uint8_t* pixels, int height, int width, uint32_t fill,
                  uint8_t* const rgb[3]) {
    const __m256d zero = _mm256_setzero_pd(), half = _mm256_set1_pd(0.5);
    const __m128i around = _mm_set1_epi32(static_cast<int32_t>(fill));
    const __m128i planar = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1);
    alignas(32) double part[2][4];
    alignas(16) int32_t place[2][4][4];
    const int sides[2] = {width, height};
    for (int row = 0; row < height; ++row) {
        for (int column = 0; column < width; column += 4) {
            const __m256d x_in = _mm256_add_pd(_mm256_set1_pd(column), _mm256_setr_pd(0.5, 1.5, 2.5, 3.5));
            const auto along = [&](const double* factors, double last) {
                const __m256d sum = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(factors[0]), x_in), _mm256_set1_pd(factors[1] * (row + 0.5)));
                return _mm256_add_pd(sum, _mm256_set1_pd(last));
            };
            __m256d from[2] = {along(map, map[2]), along(map + 3, map[5])}, inside[2];
            for (int i = 0; i < 2; ++i) {
                if (!is_affine) from[i] = _mm256_div_pd(from[i], along(map + 6, 1));
                inside[i] = _mm256_and_pd(_mm256_cmp_pd(from[i], zero, _CMP_GE_OQ),
                                          _mm256_cmp_pd(from[i], _mm256_set1_pd(sides[i]), _CMP_LT_OQ));
            }
            const __m256d is_inside = _mm256_and_pd(inside[0], inside[1]);
            for (int i = 0; i < 2; ++i) {
                const __m256d at = _mm256_sub_pd(_mm256_and_pd(from[i], is_inside), half), whole = _mm256_floor_pd(at);
                _mm256_store_pd(part[i], _mm256_sub_pd(at, whole));
                for (int k = 0; k < 4; ++k) {
                    const __m128i tap = _mm_add_epi32(_mm256_cvttpd_epi32(whole), _mm_set1_epi32(k - 1));
                    const __m128i clipped = _mm_min_epi32(_mm_max_epi32(tap, _mm_setzero_si128()), _mm_set1_epi32(sides[i] - 1));
                    _mm_store_si128(reinterpret_cast<__m128i*>(place[i][k]), clipped);
                }
            }
            __m128i found[4];
            for (int j = 0; j < 4; ++j) {
                const __m256d part_x = _mm256_set1_pd(part[0][j]), part_y = _mm256_set1_pd(part[1][j]);
                __m256d lines[4], taps[4];
                for (int k = 0; k < 4; ++k) {
                    const uint8_t* const line = pixels + 3 * (ptrdiff_t{place[1][k][j]} * width);
                    for (int i = 0; i < 4; ++i) taps[i] = pixel_at(line + 3 * ptrdiff_t{place[0][i][j]});
                    lines[k] = cubic(taps, part_x);
                }
                found[j] = _mm256_cvttpd_epi32(cubic(lines, part_y));
            }
            const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(found[0], found[1]), _mm_packs_epi32(found[2], found[3]));
            const __m128i mask = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(
                _mm256_castpd_si256(is_inside), _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)));
            const __m128i four = _mm_shuffle_epi8(_mm_blendv_epi8(around, bytes, mask), planar);
            const ptrdiff_t to = ptrdiff_t{row} * width + column;
            _mm_storeu_si32(rgb[0] + to, four);
            _mm_storeu_si32(rgb[1] + to, _mm_srli_si128(four, 4));
            _mm_storeu_si32(rgb[2] + to, _mm_srli_si128(four, 8));
        }
    }
}

constexpr int kHalf = kBytes / 2;

#if defined(__AVX512VBMI__)
inline V wide(const uint8_t* at) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
inline void store_half(uint8_t* at, V v) {
    const __m256i bytes = _mm512_cvtusepi16_epi8(_mm512_max_epi16(v, zero()));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), bytes);
}
#else
inline V wide(const uint8_t* at) { return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
inline void store_half(uint8_t* at, V v) {
    const V bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(v, v), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(bytes));
}
#endif

// Two taps in each 32-bit weight.
struct TapPairs {
    V weight[17];
    int count;
    explicit TapPairs(const BlurTaps& taps) : count(taps.radius / 2 + 1) {
        for (int i = 0; i < count; ++i)
            weight[i] = set32((taps.weight[2 * i] & 0xffff) | taps.weight[2 * i + 1] << 16);
    }

    // The weighted sum of sample(i), of tap i's two samples added in 16 bits.
    template <typename Sample>
    V operator()(const Sample& sample, int radius, int bias, int shift) const {
        V low = set32(bias), high = low;
        const __m128i by = _mm_cvtsi32_si128(shift);
        for (int i = 0; i < count; ++i) {
            const V a = sample(2 * i), b = 2 * i + 1 <= radius ? sample(2 * i + 1) : zero();
            low = dot(low, FEEDER_MM(unpacklo_epi16)(a, b), weight[i]);
            high = dot(high, FEEDER_MM(unpackhi_epi16)(a, b), weight[i]);
        }
        return FEEDER_MM(packs_epi32)(FEEDER_MM(sra_epi32)(low, by), FEEDER_MM(sra_epi32)(high, by));
    }
};

// See sharpen().
void blur(const BlurTaps& columns, const BlurTaps& rows, const uint8_t* samples, int height, int width, int16_t* row,
          uint8_t* out) {
    const TapPairs down(rows), along(columns);
    const int down_bias = (1 << (rows.bits - 8)) - (128 << rows.bits);
    const int along_bias = (1 << (columns.bits + 6)) + (128 << (columns.bits + 7));
    int16_t* const line = row + kRowMargin;
    for (int y = 0; y < height; ++y) {
        const uint8_t *above[34], *below[34];
        for (int i = 0; i <= rows.radius; ++i) {
            above[i] = samples + ptrdiff_t{reflected(y - i, height)} * width;
            below[i] = samples + ptrdiff_t{reflected(y + i, height)} * width;
        }
        for (int x = 0; x < width; x += kHalf) {
            const auto two = [&](int i) {
                const V one = wide(above[i] + x);
                return i ? FEEDER_MM(add_epi16)(one, wide(below[i] + x)) : one;
            };
            store(line + x, down(two, rows.radius, down_bias, rows.bits - 7));
        }
        for (int i = 1; i <= columns.radius; ++i) line[-i] = line[reflected(-i, width)];
        for (int i = 1; i <= columns.radius; ++i) line[width - 1 + i] = line[reflected(width - 1 + i, width)];
        for (int x = 0; x < width; x += kHalf) {
            const auto two = [&](int i) {
                const V one = load(line + x - i);
                return i ? FEEDER_MM(add_epi16)(one, load(line + x + i)) : one;
            };
            store_half(out + ptrdiff_t{y} * width + x, along(two, columns.radius, along_bias, columns.bits + 7));
        }
    }
}

// Writes whole vectors: up to kNumberPadding floats behind the last.
void normal(uint64_t key, uint64_t first, size_t n, float* out) { NormalNumbers<Numbers>{key}(first, n, out); }

constexpr AugmentKernels kKernels = {look_up, gray_sum, grayscale, saturate, shift_hue, sharpen, warp, warp_bilinear, warp_bicubic, blur, normal};

}  // namespace
}  // namespace feeder

#undef FEEDER_MM
