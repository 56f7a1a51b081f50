// Resize filters along one axis: Pillow's triangle, seen through subsampling and mirroring, as integer tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/resize/pixels.h"

namespace feeder {

// For each output, the inputs [first, first + count) and their weights, which add up to 1. Tables are rebuilt for nearly
// every image, so loops over weights run to `capacity`, the same for every output: branches on a count that changes from
// output to output are mispredicted, which costs more than the sums. The other weights of an output are zeros.
struct Filter {
    static constexpr int kPadding = 4;  // zeros on each side

    int outputs = 0;
    int capacity = 0;  // weights per output, zeros after `count`
    std::vector<int32_t> first;
    std::vector<int32_t> count;
    std::vector<double> weight;  // [outputs, stride()]

    void reset(int outputs, int capacity);
    ptrdiff_t stride() const { return capacity + 2 * kPadding; }
    double* weights(int output) { return weight.data() + output * stride() + kPadding; }
    const double* weights(int output) const { return weight.data() + output * stride() + kPadding; }
};

// Pillow's antialiased bilinear filter (ImagingResample, BILINEAR), to the bit: the inputs [in0, in1) of in_size map
// onto the outputs. Pillow takes the box as float32, so these are.
void triangle_filter(int in_size, float in0, float in1, int outputs, Filter& filter);

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
// with a zero coefficient.
struct RowTable {
    int capacity = 0;  // pairs kept per output
    int begin = 0;     // all rows read are in [begin, end)
    int end = 0;
    std::vector<int32_t> first;
    std::vector<int32_t> pairs;
    std::vector<int32_t> plain;  // [outputs, capacity]; or high and low
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
    static constexpr int kPadding = 4;  // zeros on each side of an output's values

    void round(const Filter& filter, Precision precision);
    const int32_t* values(size_t output) const { return value_.data() + output * stride_ + kPadding + skip_[output]; }

    size_t stride_ = 0;
    std::vector<int32_t> first_, count_, skip_, value_;
};

}  // namespace feeder
