// The tables of both axes of a resize, kept from image to image.
#pragma once

#include "cpu/image.h"
#include "cpu/resize/coefficients.h"

namespace feeder {

// What the filters of one axis depend on. Equal keys, equal tables: a data set of equal images builds them once.
struct AxisKey {
    int in_size, outputs, base, mirrored, flip, exact;
    ResizeFilter filter;
    float in0, in1;
    struct Component {
        int replicate, factor, smooth, samples;
        bool operator==(const Component&) const = default;
    } component[3];
    int components;

    bool operator==(const AxisKey&) const = default;
};

// The key without components: Pillow's numbers for the box, and where its inputs lie in the window.
AxisKey axis_key(double source_low, double source_high, int support_low, int support_high, int outputs, bool mirrored,
                 int image_size, int origin);

// Gives both keys the components of YCbCr planes, whose chroma is upsampled as libjpeg does it. `transposed`: the x axis
// is that of the stored rows.
void add_ycbcr_components(const Planes& planes, bool transposed, AxisKey& x, AxisKey& y);

// Gives both keys the only component of planes that share one resolution.
void add_one_component(const Planes& planes, bool transposed, AxisKey& x, AxisKey& y);

template <typename Table>
struct AxisTables {
    AxisKey key{};
    Filter full, composed;
    Table made[3];
    int index[3] = {};  // Cb and Cr share one

    const Table& of(int component) const { return made[index[component]]; }
};

struct ResizeTables {
    AxisTables<ColumnTableData> horizontal;
    AxisTables<RowTable> vertical;
    TableMaker maker;

    // Rebuilds the tables of an axis if they were built for another key.
    void prepare(const AxisKey& x, const AxisKey& y);
};

}  // namespace feeder
