#include "coefficients.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace feeder {
namespace {

inline int32_t pair_of(int32_t first, int32_t second) {
    return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | (static_cast<uint32_t>(first) & 0xffffu));
}

constexpr int32_t kExactLowMask = (1 << kExactLowBits) - 1;

}  // namespace

void Filter::reset(int new_outputs, int new_capacity) {
    outputs = new_outputs;
    capacity = new_capacity;
    first.resize(static_cast<size_t>(outputs));
    count.resize(static_cast<size_t>(outputs));
    weight.resize(static_cast<size_t>(outputs) * static_cast<size_t>(capacity));
}

void triangle_filter(int in_size, float in0, float in1, int outputs, Filter& filter) {
    // The order of operations is Pillow's precompute_coeffs(): the last bit counts.
    const double scale = static_cast<double>(in1 - in0) / outputs;
    const double support = std::max(scale, 1.0);
    const double inverse = 1.0 / support;
    filter.reset(outputs, static_cast<int>(std::ceil(support)) * 2 + 1);
    double* weight = filter.weight.data();
    for (int i = 0; i < outputs; ++i, weight += filter.capacity) {
        const double center = in0 + (i + 0.5) * scale;
        const int first = std::max(static_cast<int>(center - support + 0.5), 0);
        const int count = std::min(static_cast<int>(center + support + 0.5), in_size) - first;
        double total = 0.0;
        for (int x = 0; x < count; ++x) {
            const double distance = std::fabs((x + first - center + 0.5) * inverse);
            weight[x] = distance < 1.0 ? 1.0 - distance : 0.0;
            total += weight[x];
        }
        if (total != 0.0)
            for (int x = 0; x < count; ++x) weight[x] /= total;
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
            double* weight = filter.weight.data() + static_cast<ptrdiff_t>(i) * filter.capacity;
            std::reverse(weight, weight + count);
        } else {
            first += base;
        }
    }
}

void compose_filter(const Filter& full, const Upsampling& upsampling, int samples, Filter& composed) {
    const int replicate = upsampling.replicate, factor = upsampling.factor;
    composed.reset(full.outputs, full.capacity / (replicate * factor) + 4);
    const int last = samples - 1;
    for (int i = 0; i < full.outputs; ++i) {
        const double* from = full.weight.data() + static_cast<ptrdiff_t>(i) * full.capacity;
        double* to = composed.weight.data() + static_cast<ptrdiff_t>(i) * composed.capacity;
        const int begin = full.first[static_cast<size_t>(i)];
        const int count = full.count[static_cast<size_t>(i)];
        // Neighbours of the first and last sample are included here, whether they get a weight or not.
        const int side = upsampling.smooth ? 1 : 0;
        const int low = std::clamp(begin / (replicate * factor) - side, 0, last);
        const int high = std::clamp((begin + count - 1) / (replicate * factor) + side, low, last);
        std::fill(to, to + (high - low + 1), 0.0);
        for (int x = 0; x < count; ++x) {
            const int position = (begin + x) / replicate;
            const int center = std::min(position / factor, last);
            if (upsampling.smooth) {
                const int neighbour = position % 2 ? std::min(center + 1, last) : std::max(center - 1, 0);
                to[center - low] += 0.75 * from[x];
                to[neighbour - low] += 0.25 * from[x];
            } else {
                to[center - low] += from[x];
            }
        }
        composed.first[static_cast<size_t>(i)] = low;
        composed.count[static_cast<size_t>(i)] = high - low + 1;
    }
}

void TableMaker::round(const Filter& filter, Precision precision) {
    first_.resize(filter.first.size());
    count_.resize(filter.first.size());
    value_.resize(filter.weight.size());
    for (size_t i = 0; i < filter.first.size(); ++i) {
        const double* weight = filter.weight.data() + i * static_cast<size_t>(filter.capacity);
        int32_t* value = value_.data() + i * static_cast<size_t>(filter.capacity);
        const int count = filter.count[i];
        if (precision == Precision::exact) {
            for (int x = 0; x < count; ++x) value[x] = static_cast<int32_t>(0.5 + weight[x] * (1 << kExactBits));
        } else {
            int32_t rest = 1 << kPlainBits;
            int greatest = 0;
            for (int x = 0; x < count; ++x) {
                value[x] = static_cast<int32_t>(0.5 + weight[x] * (1 << kPlainBits));
                rest -= value[x];
                if (value[x] > value[greatest]) greatest = x;
            }
            value[greatest] += rest;
        }
        int begin = 0, end = count;
        while (begin < end - 1 && value[begin] == 0) ++begin;
        while (end - 1 > begin && value[end - 1] == 0) --end;
        if (begin > 0) std::copy(value + begin, value + end, value);
        first_[i] = filter.first[i] + begin;
        count_[i] = end - begin;
    }
}

void TableMaker::rows(const Filter& filter, Precision precision, RowTable& rows) {
    round(filter, precision);
    const size_t outputs = first_.size();
    rows.capacity = filter.capacity / 2 + 1;
    rows.first = first_;
    rows.pairs.resize(outputs);
    const size_t size = outputs * static_cast<size_t>(rows.capacity);
    rows.plain.resize(precision == Precision::plain ? size : 0);
    rows.high.resize(precision == Precision::exact ? size : 0);
    rows.low.resize(precision == Precision::exact ? size : 0);
    rows.begin = first_[0];
    rows.end = 0;
    for (size_t i = 0; i < outputs; ++i) {
        const int count = count_[i];
        const int pairs = (count + 1) / 2;
        rows.pairs[i] = pairs;
        rows.begin = std::min(rows.begin, first_[i]);
        rows.end = std::max(rows.end, first_[i] + count);
        const int32_t* value = value_.data() + i * static_cast<size_t>(filter.capacity);
        const size_t at = i * static_cast<size_t>(rows.capacity);
        for (int p = 0; p < pairs; ++p) {
            const int32_t a = value[2 * p], b = 2 * p + 1 < count ? value[2 * p + 1] : 0;
            const size_t to = at + static_cast<size_t>(p);
            if (precision == Precision::exact) {
                rows.high[to] = pair_of(a >> kExactLowBits, b >> kExactLowBits);
                rows.low[to] = pair_of(a & kExactLowMask, b & kExactLowMask);
            } else {
                rows.plain[to] = pair_of(a, b);
            }
        }
    }
}

void TableMaker::columns(const Filter& filter, Precision precision, bool flip, ColumnTableData& columns) {
    round(filter, precision);
    const size_t outputs = first_.size();
    columns.begin = *std::min_element(first_.begin(), first_.end());
    columns.end = 0;
    int pairs = 1;
    for (size_t i = 0; i < outputs; ++i) {
        columns.end = std::max(columns.end, first_[i] + count_[i]);
        pairs = std::max(pairs, ((first_[i] - columns.begin) % 2 + count_[i] + 1) / 2);
    }
    const size_t width = (outputs + kColumnBlock - 1) / kColumnBlock * kColumnBlock;
    columns.first.assign(width, 0);
    const size_t size = width * static_cast<size_t>(pairs);
    columns.plain.assign(precision == Precision::plain ? size : 0, 0);
    columns.high.assign(precision == Precision::exact ? size : 0, 0);
    columns.low.assign(precision == Precision::exact ? size : 0, 0);
    for (size_t i = 0; i < outputs; ++i) {
        const size_t x = flip ? outputs - 1 - i : i;
        const int first = first_[i] - columns.begin;
        columns.first[x] = first / 2;
        const int32_t* value = value_.data() + i * static_cast<size_t>(filter.capacity);
        const size_t at = x * static_cast<size_t>(pairs);
        const int odd = first % 2;
        for (int c = odd; c < odd + count_[i]; ++c) {
            const int32_t v = value[c - odd];
            const size_t to = at + static_cast<size_t>(c / 2);
            const bool second = c % 2;
            if (precision == Precision::exact) {
                columns.high[to] |= second ? pair_of(0, v >> kExactLowBits) : pair_of(v >> kExactLowBits, 0);
                columns.low[to] |= second ? pair_of(0, v & kExactLowMask) : pair_of(v & kExactLowMask, 0);
            } else {
                columns.plain[to] |= second ? pair_of(0, v) : pair_of(v, 0);
            }
        }
    }
    columns.table = {columns.first.data(), columns.plain.data(), columns.high.data(), columns.low.data(), pairs,
                     static_cast<int>(width)};
}

}  // namespace feeder
