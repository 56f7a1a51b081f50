// Resize filters along one axis: Pillow's filters, seen through subsampling and mirroring, as integer tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/resize/filter_kernels.h"
#include "cpu/resize/pixels.h"

namespace feeder {

// For each output, the inputs [first, first + count) and their weights, which add up to 1. Tables are rebuilt for nearly
// every image, so every output has `capacity` weights, zeros after `count`: see filter_kernels.h.
class Filter {
  public:
    void reset(int outputs, int capacity);
    // Zeros before and after the weights, which compose_filter() reads.
    void pad();
    int outputs() const { return outputs_; }
    int capacity() const { return capacity_; }
    int lanes() const { return static_cast<int>(first.size()); }
    FilterRows rows() { return {first.data(), count.data(), at(0, 0), capacity_, lanes()}; }
    FilterRows rows() const { return const_cast<Filter*>(this)->rows(); }
    double& weight(int output, int x) { return *at(output, x); }
    double weight(int output, int x) const { return *const_cast<Filter*>(this)->at(output, x); }

    std::vector<int32_t> first;  // [lanes()], those beyond the outputs as the last one
    std::vector<int32_t> count;

  private:
    double* at(int output, int x) {
        return weight_.data() + static_cast<ptrdiff_t>(x + kFilterPadding) * lanes() + output;
    }

    int outputs_ = 0;
    int capacity_ = 0;
    std::vector<double> weight_;  // [kFilterPadding + capacity + kFilterPadding, lanes()]
};

// Pillow's antialiased filters (ImagingResample, BILINEAR and BICUBIC), to the bit: the inputs [in0, in1) of in_size map
// onto the outputs. Pillow takes the box as float32, so these are.
void pillow_filter(ResizeFilter kind, int in_size, float in0, float in1, int outputs, Filter& filter);

// Renumbers the inputs: i becomes base + i, or base - i where mirrored.
void place_filter(bool mirrored, int base, Filter& filter);

// The way a decoder would upsample samples to the resolution of a filter.
struct Upsampling {
    int replicate = 1;    // first, every sample this many times
    int factor = 1;       // then by this factor, again by replication...
    bool smooth = false;  // ...or, for factor 2, by libjpeg's "fancy" weights of 3/4 and 1/4
};

// The filter on `samples` subsampled inputs that equals `upsample, then filter`, but for rounding.
void compose_filter(const Filter& full, const Upsampling& upsampling, int samples, Filter& composed);

enum class Precision : uint8_t { plain, exact };

// A vertical pass: output y reads the rows first[y] ... first[y] + 2 * pairs[y] - 1. The last one may be one too many,
// with a zero coefficient. The coefficients of an output are `lanes` apart.
struct RowTable {
    int lanes = 0;
    int begin = 0;  // all rows read are in [begin, end)
    int end = 0;
    std::vector<int32_t> first;
    std::vector<int32_t> pairs;
    std::vector<int32_t> plain;  // [pairs, lanes]; or high and low
    std::vector<int32_t> high;
    std::vector<int32_t> low;
};

// The storage of a ColumnTable. Column pairs count from `begin`.
struct ColumnTableData {
    int begin = 0;  // all columns read are in [begin, end)
    int end = 0;
    std::vector<int32_t> first;
    std::vector<int32_t> plain;
    std::vector<int32_t> high;
    std::vector<int32_t> low;
    ColumnTable table{};
};

// Rounds the weights. In the plain precision they add up to exactly 1, so that a constant image stays constant; in the
// exact one they are Pillow's.
class TableMaker {
  public:
    void rows(const Filter& filter, Precision precision, RowTable& rows);
    void columns(const Filter& filter, Precision precision, bool flip, ColumnTableData& columns);

  private:
    static constexpr int kPadding = 4;  // rows of zeros on each side of the values

    FilterReach round(const Filter& filter, Precision precision);
    // `pairs` pairs of each output's values from shift_ on, to plain, or to high and low.
    template <typename Table>
    void pair_up(Precision precision, int pairs, Table& table);

    int lanes_ = 0;
    int capacity_ = 0;
    std::vector<int32_t> first_, count_, skip_, shift_;
    std::vector<int32_t> value_, part_;  // [kPadding + capacity + kPadding, lanes]
};

}  // namespace feeder
