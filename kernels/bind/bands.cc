#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "bind/buffer.h"
#include "bind/module.h"
#include "cpu/jpeg/bands.h"
#include "cpu/packed/packed_file.h"
#include "cpu/part/image_index.h"

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
        const std::span<const uint32_t> places =
            places_between(all, starts.data()[i], ends.data()[i], heights.data()[i]);
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
}

}  // namespace feeder::bind
