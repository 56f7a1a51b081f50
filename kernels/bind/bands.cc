#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <vector>

#include "bind/buffer.h"
#include "bind/module.h"
#include "cpu/jpeg/bands.h"
#include "cpu/packed/packed_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Heights = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

nb::object row_places(nb::handle data) {
    const BufferView file(data);
    JpegHeader header;
    std::vector<uint32_t> places;
    if (looks_like_packed(file.bytes())) {
        if (!find_packed_bands(file.bytes(), places)) return nb::none();
    } else if (!parse_jpeg_header(file.bytes(), header).ok() || !find_bands(file.bytes(), header, places)) {
        return nb::none();
    }
    return nb::bytes(places.data(), places.size() * sizeof(places[0]));
}

// True if there are as many bands as an image of this height has.
bool covers(std::span<const uint32_t> places, uint64_t height) {
    return places.size() >= 3 && places[0] != 0 && (height + places[0] - 1) / places[0] == places.size() - 2;
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<2>> row_extents(nb::handle row_data, Counts starts, Counts ends,
                                                         Counts lengths, Heights heights, Rows rows) {
    const size_t count = rows.shape(0);
    if (starts.shape(0) != count || ends.shape(0) != count || lengths.shape(0) != count || heights.shape(0) != count)
        throw nb::value_error("starts, ends, lengths, heights and rows must be of one length");
    const BufferView view(row_data);
    const std::span<const uint32_t> all(reinterpret_cast<const uint32_t*>(view.bytes().data()),
                                        view.bytes().size() / sizeof(uint32_t));
    int64_t* const found = new int64_t[4 * count + 1];
    nb::capsule owner(found, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
    for (size_t i = 0; i < count; ++i) {
        const uint64_t start = starts.data()[i], end = ends.data()[i];
        std::span<const uint32_t> places;
        if (start < end && end <= all.size()) places = all.subspan(start, end - start);
        if (!covers(places, heights.data()[i])) places = {};
        const BandExtent extent = band_extent(places, static_cast<int64_t>(lengths.data()[i]), rows.data()[2 * i],
                                              rows.data()[2 * i + 1]);
        found[4 * i] = extent.first_row;
        found[4 * i + 1] = extent.header;
        found[4 * i + 2] = extent.begin;
        found[4 * i + 3] = extent.end;
    }
    const size_t shape[2] = {count, 4};
    return {found, 2, shape, owner};
}

// Reads one image's places of its rows, as a shard's own index keeps them: uint16 values, the height of a band, the offset
// of the first one, and the difference of each other place to the one before it. 0xFFFF: the value is in the next two,
// its low half first. False if they do not fit the image's height, or run past the end.
bool read_steps(std::span<const uint8_t> steps, uint64_t start, uint64_t height, std::vector<uint32_t>& places) {
    places.clear();
    uint64_t at = 2 * start;
    size_t count = 1;
    while (places.size() < count) {
        uint16_t value[3];
        if (at + 2 > steps.size()) return false;
        std::memcpy(value, steps.data() + at, 2);
        at += 2;
        uint32_t step = value[0];
        if (step == 0xFFFF) {
            if (at + 4 > steps.size()) return false;
            std::memcpy(value + 1, steps.data() + at, 4);
            at += 4;
            step = value[1] | uint32_t{value[2]} << 16;
        }
        if (places.empty()) {
            if (step == 0) return false;
            count = 2 + (height + step - 1) / step;
        }
        places.push_back(places.size() < 2 ? step : places.back() + step);
    }
    return true;
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<2>> stepped_row_extents(nb::sequence steps, Counts starts, Counts lengths,
                                                                 Heights heights, Rows rows) {
    const size_t count = rows.shape(0);
    if (nb::len(steps) != count || starts.shape(0) != count || lengths.shape(0) != count || heights.shape(0) != count)
        throw nb::value_error("steps, starts, lengths, heights and rows must be of one length");
    int64_t* const found = new int64_t[4 * count + 1];
    nb::capsule owner(found, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
    std::vector<uint32_t> places;
    for (size_t i = 0; i < count; ++i) {
        places.clear();
        if (starts.data()[i] < UINT32_MAX) {
            const BufferView view(steps[i]);
            if (!read_steps(view.bytes(), starts.data()[i], heights.data()[i], places)) places.clear();
        }
        const BandExtent extent = band_extent(places, static_cast<int64_t>(lengths.data()[i]), rows.data()[2 * i],
                                              rows.data()[2 * i + 1]);
        found[4 * i] = extent.first_row;
        found[4 * i + 1] = extent.header;
        found[4 * i + 2] = extent.begin;
        found[4 * i + 3] = extent.end;
    }
    const size_t shape[2] = {count, 4};
    return {found, 2, shape, owner};
}

}  // namespace

void add_bands(nb::module_& module) {
    module.def("row_places", &row_places, "data"_a,
               "Finds the rows of a complete seekable or packed JPEG, in bands of about 32 pixels.\n\n"
               "Args:\n"
               "    data: The JPEG, bytes-like.\n\n"
               "Returns:\n"
               "    uint32 values as bytes, in the machine's byte order: the height of a band in pixels, the byte offset\n"
               "    of each (of the first one: the length of the header), and that of the end of the last one's marker,\n"
               "    or of a packed JPEG's last one. None if the file is neither, or not complete.");
    module.def("row_extents", &row_extents, "row_data"_a, "starts"_a, "ends"_a, "lengths"_a, "heights"_a,
               "rows"_a,
               "Returns the bytes of N images that are needed for some of their rows.\n\n"
               "Args:\n"
               "    row_data: uint32 values, the results of row_places() for many images, one after the other.\n"
               "    starts, ends: uint64 [N], the places of each image's values in it; not checked beforehand.\n"
               "    lengths: uint64 [N], of the images in bytes.\n"
               "    heights: uint32 [N], of the images in pixels as stored.\n"
               "    rows: int32 [N, 2], first and end row, in pixels as stored.\n\n"
               "Returns:\n"
               "    int64 [N, 4]: first_row, header, begin, end. The first `header` bytes are needed, and those from\n"
               "    `begin` to `end`; these start with the marker in front of the band of `first_row`, in pixels. For\n"
               "    row 0 they start with the file, and `header` is 0. first_row -1: the whole file.\n\n"
               "Raises:\n"
               "    ValueError: arguments of different lengths.");
    module.def("stepped_row_extents", &stepped_row_extents, "steps"_a, "starts"_a, "lengths"_a, "heights"_a, "rows"_a,
               "Does what row_extents() does, for places that are stored as differences.\n\n"
               "Args:\n"
               "    steps: N bytes-like objects with uint16 values; for an image these are the height of a band, the\n"
               "    offset of the first band, and the difference of each further value of row_places() to the one before\n"
               "    it. 0xFFFF says that the value is in the next two, its low half first. Not checked beforehand.\n"
               "    starts: uint64 [N], number of the image's first value in each; 2**32-1 for an image without any.\n"
               "    lengths, heights, rows: as for row_extents().");
}

}  // namespace feeder::bind
