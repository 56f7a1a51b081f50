#include "cpu/resize/axis_tables.h"

#include <algorithm>

namespace feeder {
namespace {

// The smooth upsampling that libjpeg chooses for a plane (jdsample.c), by factors in stored coordinates. It replicates
// images of one or two chroma columns; the window tells them from others only where it starts at the left edge. After DCT
// scaling chroma is replicated, too: the window need not hold more than the support box then.
void smooth_upsampling(const Planes& planes, int i, bool& horizontal, bool& vertical) {
    horizontal = vertical = false;
    if (planes.h_max > planes.h_factor[0] || planes.v_max > planes.v_factor[0]) return;
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

// make(filter, table) builds one table.
template <typename Table, typename Make>
void prepare_axis(AxisTables<Table>& axis, const AxisKey& key, const Make& make) {
    if (key == axis.key) return;
    axis.key = AxisKey{};  // in case memory runs out below
    pillow_filter(key.filter, key.in_size, key.in0, key.in1, key.outputs, axis.full);
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

}  // namespace

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

void add_ycbcr_components(const Planes& planes, bool transposed, AxisKey& x, AxisKey& y) {
    x.components = y.components = 3;
    for (int i = 0; i < 3; ++i) {
        bool smooth_h = false, smooth_v = false;
        if (i > 0) smooth_upsampling(planes, i, smooth_h, smooth_v);
        const AxisKey::Component h = component(planes, i, true, smooth_h), v = component(planes, i, false, smooth_v);
        x.component[i] = transposed ? v : h;
        y.component[i] = transposed ? h : v;
    }
}

void add_one_component(const Planes& planes, bool transposed, AxisKey& x, AxisKey& y) {
    x.components = y.components = 1;
    const AxisKey::Component h = component(planes, 0, true, false), v = component(planes, 0, false, false);
    x.component[0] = transposed ? v : h;
    y.component[0] = transposed ? h : v;
}

void ResizeTables::prepare(const AxisKey& x, const AxisKey& y) {
    const Precision precision = x.exact ? Precision::exact : Precision::plain;
    prepare_axis(horizontal, x, [&](const Filter& filter, ColumnTableData& table) {
        maker.columns(filter, precision, x.flip, table);
    });
    prepare_axis(vertical, y, [&](const Filter& filter, RowTable& table) { maker.rows(filter, precision, table); });
}

}  // namespace feeder
