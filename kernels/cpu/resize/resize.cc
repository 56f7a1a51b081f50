#include "cpu/resize/resize.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "cpu/resize/axis_tables.h"
#include "cpu/resize/cmyk.h"
#include "cpu/resize/frame.h"
#include "cpu/resize/pixels.h"
#include "cpu/resize/transpose.h"

namespace feeder {
namespace {

// Memory that only grows, aligned to a cache line. New bytes are zero: kernels read padding, but do not use it.
template <typename T>
class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { release(); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    T* reserve(size_t count) {
        if (count > capacity_) {
            release();
            data_ = static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
            capacity_ = count;
            std::memset(data_, 0, count * sizeof(T));
        }
        return data_;
    }

  private:
    static constexpr std::align_val_t kAlignment{64};
    void release() {
        ::operator delete(data_, kAlignment);
        data_ = nullptr;
        capacity_ = 0;
    }

    T* data_ = nullptr;
    size_t capacity_ = 0;
};

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

size_t area(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

}  // namespace

struct Scratch::Buffers {
    ResizeTables tables;
    Buffer<uint8_t> turned[3];       // planes copied because of their orientation, step or color model
    Buffer<uint8_t> converted[3];
    Buffer<int16_t> stripe_q7;       // [kLanes, columns]
    Buffer<uint8_t> stripe_exact;    // [3, kLanes, columns]
    Buffer<int32_t> pairs;           // [columns / 2, kLanes]
    Buffer<int16_t> resized[3];      // output of the horizontal pass
    Buffer<uint8_t> middle;          // exact: [channels, rows, width] between the passes
    Buffer<uint8_t> rgb;             // [3, kLanes, width]
    std::vector<const uint8_t*> rows;
};

Scratch::Scratch() : buffers_(std::make_unique<Buffers>()) {}
Scratch::~Scratch() = default;

namespace {

using Buffers = Scratch::Buffers;

// 8-bit samples in the frame's axes; `data` is at (0, 0), though only the columns and rows needed exist.
struct View {
    const uint8_t* data;
    ptrdiff_t stride;

    const uint8_t* row(int y) const { return data + y * stride; }
};

// The region (in the frame's axes) of a stored plane, copied only if necessary.
View view_of(const Plane& plane, const Region& region, bool transposed, Buffer<uint8_t>& buffer) {
    if (!transposed && plane.step_bytes == 1) return {plane.data, plane.stride_bytes};
    const int width = region.right - region.left, height = region.bottom - region.top;
    uint8_t* copy = buffer.reserve(area(width, height));
    if (transposed) {
        const uint8_t* from = plane.data + region.left * plane.stride_bytes + ptrdiff_t{region.top} * plane.step_bytes;
        transpose(from, plane.stride_bytes, plane.step_bytes, height, width, copy, width);
    } else {
        for (int y = 0; y < height; ++y) {
            const uint8_t* from = plane.data + (region.top + y) * plane.stride_bytes +
                                  ptrdiff_t{region.left} * plane.step_bytes;
            for (int x = 0; x < width; ++x) copy[ptrdiff_t{y} * width + x] = from[ptrdiff_t{x} * plane.step_bytes];
        }
    }
    return {copy - (ptrdiff_t{region.top} * width + region.left), width};
}

// Pointers to the rows that output row y of a vertical pass reads, two per pair of coefficients.
template <typename RowAt>
const uint8_t* const* rows_of(const RowTable& table, int y, std::vector<const uint8_t*>& rows, const RowAt& row_at) {
    const size_t i = static_cast<size_t>(y);
    const int first = table.first[i], count = 2 * table.pairs[i];
    rows.resize(static_cast<size_t>(count));
    for (int r = 0; r < count; ++r) rows[static_cast<size_t>(r)] = row_at(std::min(first + r, table.end - 1));
    return rows.data();
}

void resample_ycbcr(const Planes& planes, const Frame& frame, AxisKey x_key, AxisKey y_key, const Output& out,
                    Buffers& buffers, const PixelKernels& kernels) {
    add_ycbcr_components(planes, frame.transposed, x_key, y_key);
    buffers.tables.prepare(x_key, y_key);

    View view[3];
    int stride[3];
    for (int i = 0; i < 3; ++i) {
        const ColumnTableData& columns = buffers.tables.horizontal.of(i);
        const RowTable& rows = buffers.tables.vertical.of(i);
        view[i] = view_of(planes.plane[i], {columns.begin, rows.begin, columns.end, rows.end}, frame.transposed,
                          buffers.turned[i]);
        stride[i] = round_up(columns.end - columns.begin, kRowPadding);
        buffers.stripe_q7.reserve(area(stride[i], kLanes));
        buffers.pairs.reserve(area(stride[i] / 2 + columns.table.pairs, kLanes));
        buffers.resized[i].reserve(area(columns.table.width, kLanes));
    }
    int16_t* stripe = buffers.stripe_q7.reserve(0);
    int32_t* pairs = buffers.pairs.reserve(0);
    int16_t* resized[3];
    for (int i = 0; i < 3; ++i) resized[i] = buffers.resized[i].reserve(0);
    const int width = buffers.tables.horizontal.of(0).table.width;
    // Rows without a gap where finish_ycbcr() writes none: a store takes them together.
    const int rgb_stride = out.width % kColumnBlock == 0 ? out.width : round_up(out.width, kRowPadding);
    uint8_t* rgb[3];
    for (int c = 0; c < 3; ++c)
        rgb[c] = buffers.rgb.reserve(area(3 * kLanes, rgb_stride) + kRowPadding) + area(c * kLanes, rgb_stride);

    RowStore store(out, kernels);
    for (int y0 = 0; y0 < out.height; y0 += kLanes) {
        const int lanes = std::min(kLanes, out.height - y0);
        for (int i = 0; i < 3; ++i) {
            const ColumnTableData& columns = buffers.tables.horizontal.of(i);
            const RowTable& table = buffers.tables.vertical.of(i);
            const int width_in = columns.end - columns.begin;
            for (int lane = 0; lane < lanes; ++lane) {
                const int y = y0 + lane;
                const auto row_at = [&](int row) { return view[i].row(row) + columns.begin; };
                kernels.vertical_q7(rows_of(table, y, buffers.rows, row_at), table.plain.data() + y, table.lanes,
                                    table.pairs[static_cast<size_t>(y)], width_in, stripe + lane * stride[i]);
            }
            kernels.pair_columns_q7(stripe, stride[i], round_up(width_in, kColumnBlock), pairs);
            kernels.horizontal_q7(pairs, columns.table, resized[i]);
        }
        kernels.finish_ycbcr(resized[0], resized[1], resized[2], width, rgb, rgb_stride);
        store.rows(y0, lanes, rgb, rgb_stride);
    }
}

void resample_exact(const Planes& planes, const Frame& frame, AxisKey x_key, AxisKey y_key, const Output& out,
                    Buffers& buffers, const PixelKernels& kernels) {
    add_one_component(planes, frame.transposed, x_key, y_key);
    x_key.exact = y_key.exact = 1;
    buffers.tables.prepare(x_key, y_key);
    const ColumnTableData& columns = buffers.tables.horizontal.of(0);
    const RowTable& table = buffers.tables.vertical.of(0);
    const Region region{columns.begin, table.begin, columns.end, table.end};
    const int width_in = region.right - region.left, height_in = region.bottom - region.top;
    const int channels = planes.color == ColorModel::gray ? 1 : 3;

    // Interleaved RGB is separated stripe by stripe, in the loop; other steps and orientations before it.
    Planes separate = planes;
    if (planes.count == 4) {
        const Region stored = frame.transposed ? Region{region.top, region.left, region.bottom, region.right} : region;
        const int stored_width = stored.right - stored.left;
        uint8_t* rgb[3];
        for (int c = 0; c < 3; ++c) rgb[c] = buffers.converted[c].reserve(area(width_in, height_in));
        convert_cmyk(planes, stored, rgb);
        for (int c = 0; c < 3; ++c) {
            separate.plane[c].data = rgb[c] - (ptrdiff_t{stored.top} * stored_width + stored.left);
            separate.plane[c].stride_bytes = stored_width;
            separate.plane[c].step_bytes = 1;
        }
    }
    const Plane* plane = separate.plane;
    const bool interleaved = channels == 3 && !frame.transposed && plane[0].step_bytes == 3 &&
                             plane[1].step_bytes == 3 && plane[2].step_bytes == 3 &&
                             plane[1].data == plane[0].data + 1 && plane[2].data == plane[0].data + 2 &&
                             plane[1].stride_bytes == plane[0].stride_bytes &&
                             plane[2].stride_bytes == plane[0].stride_bytes;
    View view[3];
    for (int c = 0; c < channels && !interleaved; ++c)
        view[c] = view_of(plane[c], region, frame.transposed, buffers.turned[c]);

    const int stride = round_up(width_in, kRowPadding);
    const int width = columns.table.width;
    const int out_stride = round_up(out.width, kRowPadding);
    const int middle_rows = round_up(height_in, kLanes);
    uint8_t* stripe = buffers.stripe_exact.reserve(area(3 * kLanes, stride));
    int32_t* pairs = buffers.pairs.reserve(area(stride / 2 + columns.table.pairs, kLanes));
    int16_t* resized = buffers.resized[0].reserve(area(width, kLanes));
    uint8_t* middle = buffers.middle.reserve(area(channels * middle_rows, out_stride));
    uint8_t* rgb = buffers.rgb.reserve(area(3 * kLanes, out_stride));

    for (int y0 = 0; y0 < height_in; y0 += kLanes) {
        const int lanes = std::min(kLanes, height_in - y0);
        for (int lane = 0; lane < lanes; ++lane) {
            const int y = region.top + y0 + lane;
            uint8_t* row[3];
            for (int c = 0; c < 3; ++c) row[c] = stripe + area(c * kLanes + lane, stride);
            if (interleaved) {
                kernels.deinterleave(plane[0].data + y * plane[0].stride_bytes + ptrdiff_t{3} * region.left, width_in,
                                     row);
            } else {
                for (int c = 0; c < channels; ++c)
                    std::memcpy(row[c], view[c].row(y) + region.left, static_cast<size_t>(width_in));
            }
        }
        for (int c = 0; c < channels; ++c) {
            kernels.pair_columns_exact(stripe + area(c * kLanes, stride), stride, round_up(width_in, kColumnBlock), pairs);
            kernels.horizontal_exact(pairs, columns.table, resized);
            kernels.finish_exact(resized, width, middle + area(c * middle_rows + y0, out_stride), out_stride);
        }
    }

    RowStore store(out, kernels);
    for (int y0 = 0; y0 < out.height; y0 += kLanes) {
        const int lanes = std::min(kLanes, out.height - y0);
        for (int c = 0; c < channels; ++c) {
            const uint8_t* from = middle + area(c * middle_rows, out_stride);
            const auto row_at = [&](int at) { return from + area(at - region.top, out_stride); };
            for (int lane = 0; lane < lanes; ++lane) {
                const int y = y0 + lane;
                kernels.vertical_exact(rows_of(table, y, buffers.rows, row_at), table.high.data() + y,
                                       table.low.data() + y, table.lanes, table.pairs[static_cast<size_t>(y)], out.width,
                                       rgb + area(c * kLanes + lane, out_stride));
            }
        }
        const uint8_t* rows[3];
        for (int c = 0; c < 3; ++c) rows[c] = rgb + area(std::min(c, channels - 1) * kLanes, out_stride);
        store.rows(y0, lanes, rows, out_stride);
    }
}

}  // namespace

void resample(const Planes& planes, const double source_box[4], const int support_box[4], int orientation, bool flip,
              ResizeFilter filter, const Output& out, Scratch& scratch) {
    check_planes(planes);
    const Frame frame = frame_of(planes, orientation);
    check_boxes(frame, source_box, support_box, orientation);
    check_output(out);
    AxisKey x_key = axis_key(source_box[0], source_box[2], support_box[0], support_box[2], out.width,
                             frame.mirrored_x, frame.image_width, frame.origin_x);
    AxisKey y_key = axis_key(source_box[1], source_box[3], support_box[1], support_box[3], out.height,
                             frame.mirrored_y, frame.image_height, frame.origin_y);
    x_key.flip = flip;
    x_key.filter = y_key.filter = filter;
    const auto run = planes.color == ColorModel::ycbcr ? resample_ycbcr : resample_exact;
    run(planes, frame, x_key, y_key, out, scratch.buffers(), pixel_kernels());
}

}  // namespace feeder
