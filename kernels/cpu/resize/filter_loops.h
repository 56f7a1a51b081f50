// The loops over the outputs of a filter, several in a vector. For the filter_*.cc only: everything is local to the file that
// includes it, since each is compiled for another CPU. All levels give the same bits: every operation is IEEE's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/resize/filter_kernels.h"

namespace feeder {
namespace {

// V::Real and V::Int: vectors of N doubles and of N int32; N divides kFilterLanes.
template <typename V>
struct FilterLoops {
    using Real = typename V::Real;
    using Int = typename V::Int;
    static constexpr int N = sizeof(Int) / sizeof(int32_t);

    template <typename Vector, typename Element>
    static inline __attribute__((always_inline)) Vector load(const Element* at) {
        Vector value;
        __builtin_memcpy(&value, at, sizeof(value));
        return value;
    }
    template <typename Vector, typename Element>
    static inline __attribute__((always_inline)) void store(Element* at, const Vector& value) {
        __builtin_memcpy(at, &value, sizeof(value));
    }

    // The weight at a distance, in Pillow's order of operations.
    template <ResizeFilter kFilter>
    static inline __attribute__((always_inline)) Real weight_at(const Real& distance) {
        const Real x = distance < 0 ? -distance : distance;
        if constexpr (kFilter == ResizeFilter::bilinear) {
            const Real weight = 1.0 - x;
            return weight < 0 ? 0.0 : weight;
        } else {
            const Real inner = (1.5 * x - 2.5) * x * x + 1.0, outer = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5;
            return x < 1.0 ? inner : x < 2.0 ? outer : Real{};
        }
    }

    static void weigh(const FilterAxis& axis, const FilterRows& out) {
        if (axis.filter == ResizeFilter::bicubic) weigh_by<ResizeFilter::bicubic>(axis, out);
        else weigh_by<ResizeFilter::bilinear>(axis, out);
    }

    template <ResizeFilter kFilter>
    static inline __attribute__((always_inline)) void weigh_by(const FilterAxis& axis, const FilterRows& out) {
        const double scale = axis.scale < 1.0 ? 1.0 : axis.scale;
        const double support = reach_of(kFilter) * scale;
        const double inverse = 1.0 / scale;
        for (int i = 0; i < out.lanes; i += N) {
            Int output;
            for (int k = 0; k < N; ++k) output[k] = i + k < axis.outputs ? i + k : axis.outputs - 1;
            // The order of operations is Pillow's precompute_coeffs(): the last bit counts.
            const Real center = axis.in0 + (__builtin_convertvector(output, Real) + 0.5) * axis.scale;
            Int first = __builtin_convertvector(center - support + 0.5, Int);
            first = first < 0 ? 0 : first;
            Int end = __builtin_convertvector(center + support + 0.5, Int);
            end = end > axis.in_size ? axis.in_size : end;
            const Real begin = __builtin_convertvector(first, Real);
            const Real count = __builtin_convertvector(end - first, Real);
            double* row = out.weight + i;
            Real total = {};
            for (int x = 0; x < out.capacity; ++x, row += out.lanes) {
                Real weight = weight_at<kFilter>((begin + static_cast<double>(x) - center + 0.5) * inverse);
                weight = static_cast<double>(x) < count ? weight : 0.0;
                total += weight;
                store(row, weight);
            }
            total = total == 0.0 ? 1.0 : total;
            row = out.weight + i;
            for (int x = 0; x < out.capacity; ++x, row += out.lanes) store(row, load<Real>(row) / total);
            store(out.first + i, first);
            store(out.count + i, end - first);
        }
    }

    // Sample s goes into pixels 2s and 2s + 1 by 3/4, and into the next ones on both sides by 1/4.
    static void compose_smooth(const FilterRows& full, const FilterRows& out) {
        for (int i = 0; i < out.lanes; i += N) {
            const Int begin = load<Int>(full.first + i), count = load<Int>(full.count + i);
            const Int first = (begin >> 1) - 1;
            store(out.first + i, first);
            store(out.count + i, ((begin + count) >> 1) - first + 1);
            const Real odd = __builtin_convertvector(begin & 1, Real);
            // Weights before the first one and past the last one are zeros.
            const double* from = full.weight + i - 4 * full.lanes;
            Real a = load<Real>(from), b = load<Real>(from + full.lanes), c = load<Real>(from + 2 * full.lanes);
            from += 3 * full.lanes;
            double* to = out.weight + i;
            for (int s = 0; s < out.capacity; ++s, from += 2 * full.lanes, to += out.lanes) {
                const Real d = load<Real>(from), e = load<Real>(from + full.lanes);
                const Real inner = odd > 0 ? b + c : c + d, outer = odd > 0 ? a + d : b + e;
                store(to, 0.75 * inner + 0.25 * outer);
                a = c;
                b = d;
                c = e;
            }
        }
    }

    static FilterReach round_weights(const FilterRows& filter, double one, bool running, const RoundedRows& out) {
        Int least = load<Int>(filter.first), most = Int{} + INT32_MIN;
        for (int i = 0; i < filter.lanes; i += N) {
            const Int first = load<Int>(filter.first + i), count = load<Int>(filter.count + i);
            const double* from = filter.weight + i;
            int32_t* to = out.value + i;
            Real total = Real{} + 0.5;
            Int before = {}, last = {};
            for (int x = 0; x < filter.capacity; ++x, from += filter.lanes, to += filter.lanes) {
                // Differences of rounded running sums add up to the rounded total.
                // Others are rounded one by one, away from zero.
                const Real weight = load<Real>(from) * one;
                total = (running ? total : weight < 0 ? Real{} - 0.5 : Real{} + 0.5) + weight;
                const Int rounded = __builtin_convertvector(total, Int);
                const Int value = running ? rounded - before : rounded;
                store(to, value);
                before = rounded;
                last = count == x + 1 ? value : last;
            }
            // At the ends there is often a weight of zero.
            const Int leading = load<Int>(out.value + i);
            const Int skip = (count > 1 ? Int{} + 1 : Int{}) & (leading == 0 ? Int{} + 1 : Int{});
            const Int rest = count - skip;
            const Int trailing = (rest > 1 ? Int{} + 1 : Int{}) & (last == 0 ? Int{} + 1 : Int{});
            const Int begin = first + skip, end = begin + rest - trailing;
            store(out.first + i, begin);
            store(out.count + i, rest - trailing);
            store(out.skip + i, skip);
            least = begin < least ? begin : least;
            most = end > most ? end : most;
        }
        FilterReach reach{least[0], most[0]};
        for (int k = 1; k < N; ++k) {
            reach.begin = least[k] < reach.begin ? least[k] : reach.begin;
            reach.end = most[k] > reach.end ? most[k] : reach.end;
        }
        return reach;
    }

    static inline __attribute__((always_inline)) Int paired(const Int& first, const Int& second) {
        return (second << 16) | (first & 0xFFFF);
    }

    // Values from shift[i] on, -1 to 1, in pairs.
    static void pair_values(const int32_t* values, const int32_t* shift, int lanes, int pairs, int32_t* plain) {
        for (int i = 0; i < lanes; i += N) {
            const Int by = load<Int>(shift + i);
            const int32_t* from = values + i;
            int32_t* to = plain + i;
            Int a = load<Int>(from - lanes), b = load<Int>(from);
            for (int p = 0; p < pairs; ++p, from += 2 * lanes, to += lanes) {
                const Int c = load<Int>(from + lanes), d = load<Int>(from + 2 * lanes);
                store(to, paired(by < 0 ? a : by > 0 ? c : b, by < 0 ? b : by > 0 ? d : c));
                a = c;
                b = d;
            }
        }
    }

    static constexpr FilterKernels kKernels = {weigh, compose_smooth, round_weights, pair_values};
};

}  // namespace
}  // namespace feeder
