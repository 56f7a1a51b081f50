#include "resize.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "coefficients.h"
#include "pixels.h"
#include "transpose.h"

namespace feeder {
namespace {

// Memory that only grows, aligned to a cache line. New bytes are zero: kernels read padding, and never use it.
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

// What the filters of one axis depend on. Equal keys, equal tables: a data set of equal images builds them once.
struct AxisKey {
    int in_size, outputs, base, mirrored, flip, exact;
    float in0, in1;
    struct Component {
        int replicate, factor, smooth, samples;
        bool operator==(const Component&) const = default;
    } component[3];
    int components;

    bool operator==(const AxisKey&) const = default;
};

struct Axis {
    AxisKey key{};
    Filter full, composed;
};

template <typename Table>
struct TablesOf : Axis {
    Table made[3];
    int index[3] = {};  // Cb and Cr share one

    const Table& of(int component) const { return made[index[component]]; }
};

}  // namespace

struct Scratch::Buffers {
    TablesOf<ColumnTableData> horizontal;
    TablesOf<RowTable> vertical;
    TableMaker maker;
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

[[noreturn]] void refuse(const char* what, const std::string& found) {
    throw std::invalid_argument(std::string(what) + "; found " + found);
}

std::string listed(std::initializer_list<double> values) {
    std::string text;
    for (const double value : values) {
        char number[32];
        std::snprintf(number, sizeof number, "%.10g", value);
        text += text.empty() ? number : std::string(", ") + number;
    }
    return text;
}

// The stored image turned so that its axes are those of the upright one; mirrored along them where it says so.
struct Frame {
    bool transposed, mirrored_x, mirrored_y;
    int image_width, image_height, origin_x, origin_y, window_width, window_height;
};

Frame frame_of(const Planes& planes, int orientation) {
    Frame frame{orientation >= 5,
                orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7,
                orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8,
                planes.image_width, planes.image_height, planes.origin_x, planes.origin_y,
                planes.window_width, planes.window_height};
    if (frame.transposed) {
        std::swap(frame.image_width, frame.image_height);
        std::swap(frame.origin_x, frame.origin_y);
        std::swap(frame.window_width, frame.window_height);
    }
    return frame;
}

int plane_count(ColorModel color) {
    switch (color) {
        case ColorModel::gray: return 1;
        case ColorModel::ycbcr:
        case ColorModel::rgb: return 3;
        case ColorModel::cmyk:
        case ColorModel::ycck: return 4;
    }
    return 0;
}

void check_planes(const Planes& planes) {
    if (planes.count != plane_count(planes.color))
        refuse("expected 1 plane for gray, 3 for ycbcr and rgb, 4 for cmyk and ycck", std::to_string(planes.count));
    if (planes.image_width < 1 || planes.image_height < 1 || planes.origin_x < 0 || planes.origin_y < 0 ||
        planes.window_width < 1 || planes.window_height < 1 || planes.window_width > planes.image_width ||
        planes.window_height > planes.image_height || planes.origin_x > planes.image_width - planes.window_width ||
        planes.origin_y > planes.image_height - planes.window_height)
        refuse("expected a window inside the image",
               listed({double(planes.origin_x), double(planes.origin_y), double(planes.window_width),
                       double(planes.window_height)}) +
                   " in " + listed({double(planes.image_width), double(planes.image_height)}));
    for (int i = 0; i < planes.count; ++i) {
        const Plane& plane = planes.plane[i];
        const int h = planes.h_factor[i], v = planes.v_factor[i];
        if (h < 1 || v < 1 || planes.h_max % h || planes.v_max % v || planes.h_max < h || planes.v_max < v ||
            planes.h_max > 256 || planes.v_max > 256 || planes.h_factor[0] % h || planes.v_factor[0] % v)
            refuse("expected sampling factors that divide the greatest and the first plane's",
                   listed({double(h), double(v), double(planes.h_max), double(planes.v_max)}));
        const int columns = planes.h_max / h, rows = planes.v_max / v;
        if (planes.color != ColorModel::ycbcr && (columns != 1 || rows != 1))
            refuse("expected planes of full resolution for any color model but ycbcr",
                   listed({double(columns), double(rows)}));
        if (planes.origin_x % columns || planes.origin_y % rows)
            refuse("expected a window that starts at a whole sample of each plane",
                   listed({double(planes.origin_x), double(planes.origin_y)}));
        if (plane.data == nullptr || plane.step_bytes < 1 ||
            plane.width < (planes.window_width + columns - 1) / columns ||
            plane.height < (planes.window_height + rows - 1) / rows)
            refuse("expected planes that cover the window", listed({double(plane.width), double(plane.height)}));
    }
}

void check_boxes(const Frame& frame, const double source[4], const int support[4], int orientation) {
    if (orientation < 1 || orientation > 8) refuse("expected an EXIF orientation of 1-8", std::to_string(orientation));
    // The window in upright coordinates.
    const int left = frame.mirrored_x ? frame.image_width - frame.origin_x - frame.window_width : frame.origin_x;
    const int top = frame.mirrored_y ? frame.image_height - frame.origin_y - frame.window_height : frame.origin_y;
    const auto ints = [](const int box[4]) {
        return listed({double(box[0]), double(box[1]), double(box[2]), double(box[3])});
    };
    if (support[0] < left || support[1] < top || support[2] > left + frame.window_width ||
        support[3] > top + frame.window_height || support[0] >= support[2] || support[1] >= support[3])
        refuse("expected a support box inside the decoded window", ints(support));
    // Fractional boxes are computed: a box that ends on the support's edge may be beside it by a rounding error.
    constexpr double slack = 1e-3;
    const bool inside = source[0] >= support[0] - slack && source[1] >= support[1] - slack &&
                        source[2] <= support[2] + slack && source[3] <= support[3] + slack;
    if (!inside || !(source[2] - source[0] > 1e-6) || !(source[3] - source[1] > 1e-6))
        refuse("expected a source box with an area, inside the support box",
               listed({source[0], source[1], source[2], source[3]}) + " in " + ints(support));
}

void check_output(const Output& out) {
    if (out.data == nullptr || out.height < 1 || out.width < 1 || out.height > 1 << 16 || out.width > 1 << 16)
        refuse("expected an output of 1-65536 rows and columns", listed({double(out.height), double(out.width)}));
    if (out.dtype == Dtype::uint8 && (out.scale || out.bias)) refuse("expected no scale or bias for uint8", "some");
    if ((out.scale == nullptr) != (out.bias == nullptr)) refuse("expected scale and bias, or neither", "one");
    for (int i = 0; i < 3 && out.scale; ++i)
        if (!std::isfinite(out.scale[i]) || !std::isfinite(out.bias[i]))
            refuse("expected finite scale and bias", listed({out.scale[i], out.bias[i]}));
}

// Fills in what both axes have in common: Pillow's numbers for the box, and where its inputs lie in the window.
AxisKey axis_key(double source_low, double source_high, int support_low, int support_high, int outputs, bool mirrored,
                 int image_size, int origin) {
    AxisKey key{};
    key.in_size = support_high - support_low;
    key.in0 = std::max(static_cast<float>(source_low - support_low), 0.0f);
    key.in1 = std::min(static_cast<float>(source_high - support_low), static_cast<float>(key.in_size));
    key.outputs = outputs;
    key.mirrored = mirrored;
    key.base = (mirrored ? image_size - 1 - support_low : support_low) - origin;
    return key;
}

// make(filter, table) builds one table.
template <typename Table, typename Make>
void prepare(TablesOf<Table>& axis, const AxisKey& key, const Make& make) {
    if (key == axis.key) return;
    axis.key = AxisKey{};  // should memory run out on the way
    triangle_filter(key.in_size, key.in0, key.in1, key.outputs, axis.full);
    place_filter(key.mirrored, key.base, axis.full);
    for (int i = 0; i < key.components; ++i) {
        const AxisKey::Component& c = key.component[i];
        axis.index[i] = static_cast<int>(std::find(key.component, key.component + i, c) - key.component);
        if (axis.index[i] < i) continue;
        if (c.replicate * c.factor == 1) {
            make(axis.full, axis.made[i]);
        } else {
            compose_filter(axis.full, {c.replicate, c.factor, c.smooth != 0}, c.samples, axis.composed);
            make(axis.composed, axis.made[i]);
        }
    }
    axis.key = key;
}

void prepare_axes(const AxisKey& x, const AxisKey& y, Buffers& buffers) {
    const Precision precision = x.exact ? Precision::exact : Precision::plain;
    prepare(buffers.horizontal, x, [&](const Filter& filter, ColumnTableData& table) {
        buffers.maker.columns(filter, precision, x.flip, table);
    });
    prepare(buffers.vertical, y,
            [&](const Filter& filter, RowTable& table) { buffers.maker.rows(filter, precision, table); });
}

// 8-bit samples in the frame's axes; `data` is at (0, 0), though only the columns and rows needed exist.
struct View {
    const uint8_t* data;
    ptrdiff_t stride;

    const uint8_t* row(int y) const { return data + y * stride; }
};

struct Region {
    int left, top, right, bottom;
};

// The region (in the frame's axes) of a stored plane, copied only where it must be.
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

// The smooth upsampling that libjpeg chooses for a plane (jdsample.c), by factors in stored coordinates. It replicates
// images of one or two chroma columns; the window tells them from others only where it starts at the left edge.
void smooth_upsampling(const Planes& planes, int i, bool& horizontal, bool& vertical) {
    const int h = planes.h_factor[0] / planes.h_factor[i], v = planes.v_factor[0] / planes.v_factor[i];
    const int columns = planes.h_max / planes.h_factor[i];
    const int width = (planes.window_width + columns - 1) / columns;
    const bool wide = width > 2 || planes.origin_x > 0;
    horizontal = h == 2 && v <= 2 && wide;
    vertical = v == 2 && (h == 1 || (h == 2 && wide));
}

AxisKey::Component component(const Planes& planes, int i, bool horizontal, bool smooth) {
    const int* factors = horizontal ? planes.h_factor : planes.v_factor;
    const int most = horizontal ? planes.h_max : planes.v_max;
    const int window = horizontal ? planes.window_width : planes.window_height;
    const int per_sample = most / factors[i];
    return {most / factors[0], factors[0] / factors[i], smooth, (window + per_sample - 1) / per_sample};
}

void resample_ycbcr(const Planes& planes, const Frame& frame, AxisKey x_key, AxisKey y_key, const Output& out,
                    Buffers& buffers, const PixelKernels& kernels) {
    x_key.components = y_key.components = 3;
    for (int i = 0; i < 3; ++i) {
        bool smooth_h = false, smooth_v = false;
        if (i > 0) smooth_upsampling(planes, i, smooth_h, smooth_v);
        const AxisKey::Component h = component(planes, i, true, smooth_h), v = component(planes, i, false, smooth_v);
        x_key.component[i] = frame.transposed ? v : h;
        y_key.component[i] = frame.transposed ? h : v;
    }
    prepare_axes(x_key, y_key, buffers);

    View view[3];
    int stride[3];
    for (int i = 0; i < 3; ++i) {
        const ColumnTableData& columns = buffers.horizontal.of(i);
        const RowTable& rows = buffers.vertical.of(i);
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
    const int width = buffers.horizontal.of(0).table.width;
    const int rgb_stride = round_up(out.width, kRowPadding);
    uint8_t* rgb[3];
    for (int c = 0; c < 3; ++c) rgb[c] = buffers.rgb.reserve(area(3 * kLanes, rgb_stride)) + area(c * kLanes, rgb_stride);

    RowStore store(out, kernels);
    for (int y0 = 0; y0 < out.height; y0 += kLanes) {
        const int lanes = std::min(kLanes, out.height - y0);
        for (int i = 0; i < 3; ++i) {
            const ColumnTableData& columns = buffers.horizontal.of(i);
            const RowTable& table = buffers.vertical.of(i);
            const int width_in = columns.end - columns.begin;
            for (int lane = 0; lane < lanes; ++lane) {
                const int y = y0 + lane;
                const auto row_at = [&](int row) { return view[i].row(row) + columns.begin; };
                kernels.vertical_q7(rows_of(table, y, buffers.rows, row_at), table.plain.data() + area(y, table.capacity),
                                    table.pairs[static_cast<size_t>(y)], width_in, stripe + lane * stride[i]);
            }
            kernels.pair_columns_q7(stripe, stride[i], round_up(width_in, kColumnBlock), pairs);
            kernels.horizontal_q7(pairs, columns.table, resized[i]);
        }
        kernels.finish_ycbcr(resized[0], resized[1], resized[2], width, rgb, rgb_stride);
        store.rows(y0, lanes, rgb, rgb_stride);
    }
}

// Pillow's CMYK to RGB (Convert.c, cmyk2rgb), with libjpeg's YCCK to CMYK before it, of the columns and rows needed.
void convert_cmyk(const Planes& planes, const Region& region, uint8_t* const rgb[3]) {
    const auto clip = [](int value) { return std::clamp(value, 0, 255); };
    const auto divided = [](int product) {
        product += 128;
        return ((product >> 8) + product) >> 8;
    };
    size_t at = 0;
    for (int y = region.top; y < region.bottom; ++y) {
        const uint8_t* row[4];
        for (int i = 0; i < 4; ++i)
            row[i] = planes.plane[i].data + y * planes.plane[i].stride_bytes;
        for (int x = region.left; x < region.right; ++x, ++at) {
            int ink[4];
            for (int i = 0; i < 4; ++i) ink[i] = row[i][ptrdiff_t{x} * planes.plane[i].step_bytes];
            if (planes.color == ColorModel::ycck) {
                // jdcolor.c: 16 fractional bits, rounded in the tables for Cr => R and Cb => B.
                constexpr auto fixed = [](double value) { return static_cast<int>(value * 65536 + 0.5); };
                const int luma = ink[0], cb = ink[1] - 128, cr = ink[2] - 128;
                ink[0] = clip(255 - (luma + ((fixed(1.40200) * cr + 32768) >> 16)));
                ink[1] = clip(255 - (luma + ((-fixed(0.34414) * cb - fixed(0.71414) * cr + 32768) >> 16)));
                ink[2] = clip(255 - (luma + ((fixed(1.77200) * cb + 32768) >> 16)));
            }
            const int invert = planes.inverted ? 255 : 0;
            const int white = 255 - (ink[3] ^ invert);
            for (int c = 0; c < 3; ++c)
                rgb[c][at] = static_cast<uint8_t>(clip(white - divided((ink[c] ^ invert) * white)));
        }
    }
}

void resample_exact(const Planes& planes, const Frame& frame, AxisKey x_key, AxisKey y_key, const Output& out,
                    Buffers& buffers, const PixelKernels& kernels) {
    x_key.components = y_key.components = 1;
    x_key.exact = y_key.exact = 1;
    x_key.component[0] = {1, 1, 0, frame.window_width};
    y_key.component[0] = {1, 1, 0, frame.window_height};
    prepare_axes(x_key, y_key, buffers);
    const ColumnTableData& columns = buffers.horizontal.of(0);
    const RowTable& table = buffers.vertical.of(0);
    const Region region{columns.begin, table.begin, columns.end, table.end};
    const int width_in = region.right - region.left, height_in = region.bottom - region.top;
    const int channels = planes.color == ColorModel::gray ? 1 : 3;

    // Interleaved RGB is taken apart a stripe at a time, on the way; other steps and orientations beforehand.
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
                const size_t at = area(y0 + lane, table.capacity);
                kernels.vertical_exact(rows_of(table, y0 + lane, buffers.rows, row_at), table.high.data() + at,
                                       table.low.data() + at, table.pairs[static_cast<size_t>(y0 + lane)], out.width,
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
              const Output& out, Scratch& scratch) {
    check_planes(planes);
    const Frame frame = frame_of(planes, orientation);
    check_boxes(frame, source_box, support_box, orientation);
    check_output(out);
    AxisKey x_key = axis_key(source_box[0], source_box[2], support_box[0], support_box[2], out.width,
                             frame.mirrored_x, frame.image_width, frame.origin_x);
    const AxisKey y_key = axis_key(source_box[1], source_box[3], support_box[1], support_box[3], out.height,
                                   frame.mirrored_y, frame.image_height, frame.origin_y);
    x_key.flip = flip;
    const auto run = planes.color == ColorModel::ycbcr ? resample_ycbcr : resample_exact;
    run(planes, frame, x_key, y_key, out, scratch.buffers(), pixel_kernels());
}

}  // namespace feeder
