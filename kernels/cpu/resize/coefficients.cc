#include "cpu/resize/coefficients.h"

#include <algorithm>
#include <cmath>

namespace feeder {
namespace {

inline int32_t pair_of(int32_t first, int32_t second) {
    return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | (static_cast<uint32_t>(first) & 0xffffu));
}

constexpr int32_t kExactLowMask = (1 << kExactLowBits) - 1;

// One output of compose_filter() where no sample is missing at the sides and the upsampling is smooth by 2: sample s
// goes into pixels 2s and 2s + 1 by 3/4, and into the next ones on both sides by 1/4. `from` is at pixel 2 * low.
void compose_smooth(const double* from, int capacity, double* to) {
    for (int s = 0; s < capacity; ++s)
        to[s] = 0.75 * (from[2 * s] + from[2 * s + 1]) + 0.25 * (from[2 * s - 1] + from[2 * s + 2]);
}

}  // namespace

void Filter::reset(int new_outputs, int new_capacity) {
    outputs = new_outputs;
    capacity = new_capacity;
    first.resize(static_cast<size_t>(outputs));
    count.resize(static_cast<size_t>(outputs));
    weight.assign(static_cast<size_t>(outputs) * static_cast<size_t>(stride()), 0.0);
}

void triangle_filter(int in_size, float in0, float in1, int outputs, Filter& filter) {
    // The order of operations is Pillow's precompute_coeffs(): the last bit counts. Weights beyond the count are zero
    // by themselves, but where the input ends.
    const double scale = static_cast<double>(in1 - in0) / outputs;
    const double support = std::max(scale, 1.0);
    const double inverse = 1.0 / support;
    filter.reset(outputs, static_cast<int>(std::ceil(support)) * 2 + 1);
    const int capacity = filter.capacity;
    for (int i = 0; i < outputs; ++i) {
        const double center = in0 + (i + 0.5) * scale;
        const int first = std::max(static_cast<int>(center - support + 0.5), 0);
        const int count = std::min(static_cast<int>(center + support + 0.5), in_size) - first;
        double* weight = filter.weights(i);
        for (int x = 0; x < capacity; ++x)
            weight[x] = std::max(1.0 - std::fabs((x + first - center + 0.5) * inverse), 0.0);
        if (first + capacity > in_size) std::fill(weight + count, weight + capacity, 0.0);
        double total = 0.0;
        for (int x = 0; x < capacity; ++x) total += weight[x];
        if (total != 0.0)
            for (int x = 0; x < capacity; ++x) weight[x] /= total;
        filter.first[static_cast<size_t>(i)] = first;
        filter.count[static_cast<size_t>(i)] = count;
    }
}

void place_filter(bool mirrored, int base, Filter& filter) {
    for (int i = 0; i < filter.outputs; ++i) {
        int32_t& first = filter.first[static_cast<size_t>(i)];
        const int32_t count = filter.count[static_cast<size_t>(i)];
        if (mirrored) {
            first = base - (first + count - 1);
            std::reverse(filter.weights(i), filter.weights(i) + count);
        } else {
            first += base;
        }
    }
}

void compose_filter(const Filter& full, const Upsampling& upsampling, int samples, Filter& composed) {
    const bool smooth = upsampling.smooth;
    // Two replications in a row are one.
    const int replicate = smooth ? upsampling.replicate : upsampling.replicate * upsampling.factor;
    const int factor = smooth ? upsampling.factor : 1;
    composed.reset(full.outputs, full.capacity / (replicate * factor) + 4);
    const int last = samples - 1;
    for (int i = 0; i < full.outputs; ++i) {
        const double* from = full.weights(i);
        double* to = composed.weights(i);
        const int begin = full.first[static_cast<size_t>(i)];
        const int count = full.count[static_cast<size_t>(i)];
        int32_t& first = composed.first[static_cast<size_t>(i)];
        int32_t& composed_count = composed.count[static_cast<size_t>(i)];
        if (smooth && replicate == 1 && begin >= 2 && (begin + count + 1) / 2 <= last) {
            // Pixel 2 * low - 1 is up to 4 before the first weight, hence the padding; past the last weight are zeros.
            first = begin / 2 - 1;
            composed_count = (begin + count) / 2 - first + 1;
            compose_smooth(from + (2 * first - begin), composed_count, to);
            continue;
        }
        int position = begin / replicate, phase = begin % replicate;
        // The neighbours of the first and last sample are included here, with or without a weight.
        const int side = smooth ? 1 : 0;
        const int low = std::clamp(position / factor - side, 0, last);
        const int high = std::clamp((begin + count - 1) / (replicate * factor) + side, low, last);
        for (int x = 0; x < count; ++x) {
            if (smooth) {
                const int center = std::min(position / 2, last);
                const int neighbour = std::clamp(center + (position % 2 ? 1 : -1), 0, last);
                to[center - low] += 0.75 * from[x];
                to[neighbour - low] += 0.25 * from[x];
            } else {
                to[std::min(position, last) - low] += from[x];
            }
            if (++phase == replicate) {
                phase = 0;
                ++position;
            }
        }
        first = low;
        composed_count = high - low + 1;
    }
}

void TableMaker::round(const Filter& filter, Precision precision) {
    const size_t outputs = static_cast<size_t>(filter.outputs);
    const int capacity = filter.capacity;
    stride_ = static_cast<size_t>(capacity) + 2 * kPadding;
    first_.resize(outputs);
    count_.resize(outputs);
    skip_.resize(outputs);
    value_.assign(outputs * stride_, 0);
    const double one = precision == Precision::exact ? 1 << kExactBits : 1 << kPlainBits;
    for (size_t i = 0; i < outputs; ++i) {
        const double* weight = filter.weights(static_cast<int>(i));
        int32_t* value = value_.data() + i * stride_ + kPadding;
        if (precision == Precision::exact) {
            for (int x = 0; x < capacity; ++x) value[x] = static_cast<int32_t>(0.5 + weight[x] * one);
        } else {
            // Differences of rounded running sums: they add up to the rounded total.
            double total = 0.5;
            int32_t before = 0;
            for (int x = 0; x < capacity; ++x) {
                total += weight[x] * one;
                const int32_t rounded = static_cast<int32_t>(total);
                value[x] = rounded - before;
                before = rounded;
            }
        }
        // At the ends there is often a weight of zero.
        const int32_t count = filter.count[i];
        const int32_t skip = count > 1 && value[0] == 0;
        skip_[i] = skip;
        first_[i] = filter.first[i] + skip;
        count_[i] = count - skip - (count - skip > 1 && value[count - 1] == 0);
    }
}

void TableMaker::rows(const Filter& filter, Precision precision, RowTable& rows) {
    round(filter, precision);
    const size_t outputs = first_.size();
    rows.first = first_;
    rows.pairs.resize(outputs);
    rows.begin = first_[0];
    rows.end = 0;
    rows.capacity = 0;
    for (size_t i = 0; i < outputs; ++i) {
        rows.pairs[i] = (count_[i] + 1) / 2;
        rows.begin = std::min(rows.begin, first_[i]);
        rows.end = std::max(rows.end, first_[i] + count_[i]);
        rows.capacity = std::max(rows.capacity, rows.pairs[i]);
    }
    const size_t capacity = static_cast<size_t>(rows.capacity);
    const size_t size = outputs * capacity;
    const bool exact = precision == Precision::exact;
    rows.plain.resize(exact ? 0 : size);
    rows.high.resize(exact ? size : 0);
    rows.low.resize(exact ? size : 0);
    for (size_t i = 0; i < outputs; ++i) {
        const int32_t* value = values(i);
        for (size_t p = 0; p < capacity; ++p) {
            const int32_t a = value[2 * p], b = value[2 * p + 1];
            if (exact) {
                rows.high[i * capacity + p] = pair_of(a >> kExactLowBits, b >> kExactLowBits);
                rows.low[i * capacity + p] = pair_of(a & kExactLowMask, b & kExactLowMask);
            } else {
                rows.plain[i * capacity + p] = pair_of(a, b);
            }
        }
    }
}

void TableMaker::columns(const Filter& filter, Precision precision, bool flip, ColumnTableData& columns) {
    round(filter, precision);
    const size_t outputs = first_.size();
    columns.begin = *std::min_element(first_.begin(), first_.end());
    columns.end = 0;
    int most_pairs = 1;
    for (size_t i = 0; i < outputs; ++i) {
        columns.end = std::max(columns.end, first_[i] + count_[i]);
        most_pairs = std::max(most_pairs, ((first_[i] - columns.begin) % 2 + count_[i] + 1) / 2);
    }
    const size_t pairs = static_cast<size_t>(most_pairs);
    const size_t width = (outputs + kColumnBlock - 1) / kColumnBlock * kColumnBlock;
    const size_t size = width * pairs;
    const bool exact = precision == Precision::exact;
    columns.first.assign(width, 0);
    columns.plain.assign(exact ? 0 : size, 0);
    columns.high.assign(exact ? size : 0, 0);
    columns.low.assign(exact ? size : 0, 0);
    for (size_t i = 0; i < outputs; ++i) {
        const size_t x = flip ? outputs - 1 - i : i;
        const int first = first_[i] - columns.begin;
        columns.first[x] = first / 2;
        const int32_t* value = values(i) - first % 2;
        for (size_t p = 0; p < pairs; ++p) {
            const int32_t a = value[2 * p], b = value[2 * p + 1];
            if (exact) {
                columns.high[x * pairs + p] = pair_of(a >> kExactLowBits, b >> kExactLowBits);
                columns.low[x * pairs + p] = pair_of(a & kExactLowMask, b & kExactLowMask);
            } else {
                columns.plain[x * pairs + p] = pair_of(a, b);
            }
        }
    }
    columns.table = {columns.first.data(), columns.plain.data(), columns.high.data(), columns.low.data(), most_pairs,
                     static_cast<int>(width)};
}

}  // namespace feeder
