// Normally distributed numbers: Philox's, see cpu/part/philox.h, through the transform of Box and Muller.
//
// Note [equal numbers]
// Sines and logarithms of libraries differ in the last bit from CPU to CPU. These are fdlibm's kernels, by products and sums
// that are rounded apart, once for vectors of any width and for single numbers: all SIMD levels give the same floats, and
// numpy's but for one of some ten million, which differs in its last bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

// Makes numbers first, first + 1, ... of a key; L are the operations on a vector of doubles and 64-bit integers.
template <typename L>
struct NormalNumbers {
    using D = typename L::Doubles;
    using V = typename L::Words;

    uint64_t key;

    // Counter c of c0 and c1, 32 bits each, to words: the first two uniform numbers of the counter.
    void words(V c0, V c1, V word[4]) const {
        const V mask = L::set(UINT32_MAX), one = L::set(0xD2511F53), other = L::set(0xCD9E8D57);
        V c2 = L::set(0), c3 = L::set(0);
        uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
        for (int round = 0; round < 10; ++round) {
            const V a = L::product(c0, one), b = L::product(c2, other);  // of the lower 32 bits
            c0 = L::different(L::different(L::template right<32>(b), L::both(c1, mask)), L::set(k0));
            c2 = L::different(L::different(L::template right<32>(a), L::both(c3, mask)), L::set(k1));
            c1 = b;
            c3 = a;
            k0 += 0x9E3779B9;
            k1 += 0xBB67AE85;
        }
        word[0] = c0, word[1] = L::both(c1, mask), word[2] = c2, word[3] = L::both(c3, mask);
    }

    // An integer below 2^52 as a double.
    static D real(V whole) {
        return L::minus(L::as_double(L::either(whole, L::set(0x4330000000000000))), L::real(0x1p52));
    }

    // 53 bits of two words, in [0, 1).
    static D unit(V high, V low) {
        const V bits = L::template right<11>(L::either(L::template left<32>(high), low));
        const D upper = real(L::template right<32>(bits)), lower = real(L::both(bits, L::set(UINT32_MAX)));
        return L::times(L::plus(L::times(upper, L::real(0x1p32)), lower), L::real(0x1p-53));
    }

    // fdlibm's e_log.c of (0, 1].
    static D log(D value) {
        const V bits = L::plus(L::as_bits(value), L::set(uint64_t{0x3ff00000 - 0x3fe6a09e} << 32));
        const D k = L::minus(real(L::template right<52>(bits)), L::real(1023));
        const V part = L::plus(L::both(bits, L::set(0x000fffffffffffff)), L::set(uint64_t{0x3fe6a09e} << 32));
        const D f = L::minus(L::as_double(part), L::real(1));
        const D half = L::times(L::times(L::real(0.5), f), f), s = L::over(f, L::plus(L::real(2), f));
        const D z = L::times(s, s), w = L::times(z, z);
        const D even = polynomial(w, {3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01});
        const D odd = polynomial(w, {6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01,
                                     1.479819860511658591e-01});
        const D rest = L::plus(L::times(z, odd), L::times(w, even));
        const D low = L::plus(L::times(s, L::plus(half, rest)), L::times(k, L::real(1.90821492927058770002e-10)));
        return L::plus(L::plus(L::minus(low, half), f), L::times(k, L::real(6.93147180369123816490e-01)));
    }

    // fdlibm's k_cos.c and k_sin.c of [0, 7].
    static D cosine(D x) {
        const D shift = L::real(0x1.8p52);
        const D shifted = L::plus(L::times(x, L::real(6.36619772367581382433e-01)), shift), k = L::minus(shifted, shift);
        const V quarter = L::as_bits(shifted);
        const D r = L::minus(L::minus(x, L::times(k, L::real(1.57079632673412561417e+00))),
                             L::times(k, L::real(6.07710050650619224932e-11)));
        const D z = L::times(r, r);
        const D sine = polynomial(z, {-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
                                      2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10});
        const D cosine = polynomial(z, {4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                                        -2.75573143513906633035e-07, 2.08757232129817482790e-09,
                                        -1.13596475577881948265e-11});
        const D half = L::times(L::real(0.5), z), w = L::minus(L::real(1), half);
        const D of_even = L::plus(w, L::plus(L::minus(L::minus(L::real(1), w), half), L::times(z, L::times(z, cosine))));
        const D of_odd = L::plus(r, L::times(L::times(z, r), sine));
        const V sign = L::template left<62>(L::both(L::plus(quarter, L::set(1)), L::set(2)));
        return L::as_double(L::different(L::as_bits(L::choose(quarter, of_odd, of_even)), sign));
    }

    template <size_t N>
    static D polynomial(D x, const double (&factors)[N]) {
        D sum = L::real(factors[N - 1]);
        for (size_t i = N - 1; i > 0; --i) sum = L::plus(L::real(factors[i - 1]), L::times(x, sum));
        return sum;
    }

    // Writes whole vectors.
    void operator()(uint64_t first, size_t n, float* out) const {
        for (size_t i = 0; i < n; i += L::kLanes) {
            const V counter = L::plus(L::set(first + i), L::lanes());
            V word[4];
            words(L::both(counter, L::set(UINT32_MAX)), L::template right<32>(counter), word);
            const D square = L::times(L::real(-2), log(L::minus(L::real(1), unit(word[0], word[1]))));
            const D angle = L::times(L::real(2 * 3.14159265358979323846), unit(word[2], word[3]));
            L::store(out + i, L::times(L::root(square), cosine(angle)));
        }
    }
};

}  // namespace feeder
