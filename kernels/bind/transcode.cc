#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bind/buffer.h"
#include "bind/module.h"
#include "bind/unsupported.h"
#include "cpu/jpeg/bands.h"
#include "cpu/jpeg/cut.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/transcode/transcode.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

PyObject* unsupported_type = nullptr;

}  // namespace

void raise_unsupported(const Outcome& outcome) {
    nb::object error = nb::borrow(unsupported_type)(nb::cast(outcome.reason));
    error.attr("status") = nb::cast(outcome.status);
    PyErr_SetObject(unsupported_type, error.ptr());
    throw nb::python_error();
}

namespace {

nb::bytes transcode(nb::handle data, bool keep_metadata, int orientation, int segment_px, int64_t max_pixels) {
    if (orientation < 1 || orientation > 8) throw nb::value_error("orientation must be 1 to 8");
    if (segment_px < 1) throw nb::value_error("segment_px must be at least 1");
    const BufferView file(data);
    TranscodeOptions options;
    options.keep_metadata = keep_metadata;
    options.orientation = orientation;
    options.segment_px = segment_px;
    options.max_pixels = max_pixels;
    Bytes out;
    Outcome outcome;
    {
        nb::gil_scoped_release release;
        outcome = transcode_jpeg(file.bytes(), options, out);
    }
    if (!outcome.ok()) raise_unsupported(outcome);
    return nb::bytes(out.data(), out.size());
}

// True if the last segment ends with the right marker, or if the rows after it, and so the marker, were left out.
bool ends_rightly(ByteSpan file, const JpegHeader& header, int file_row, const std::vector<Segment>& segments) {
    const size_t marker = segments.back().end;
    if (marker + 1 >= file.size()) return true;
    const SegmentGrid grid = segment_grid(header);
    const size_t per_row = static_cast<size_t>(grid.segments_per_row);
    const size_t number = static_cast<size_t>(file_row) * per_row + segments.size();
    const bool last = number == per_row * static_cast<size_t>(grid.mcu.rows);
    return file[marker + 1] == (last ? 0xD9 : 0xD0 + (number - 1) % 8);
}

// The smallest JPEG of whole segments around a box, and its place in the stored image.
nb::object cut(nb::handle data, std::tuple<int, int, int, int> support_box, int first_row) {
    const BufferView file(data);
    const auto [left, top, right, bottom] = support_box;
    const bool is_packed = looks_like_packed(file.bytes());
    PackedFile packed;
    JpegHeader header;
    Outcome outcome = is_packed ? packed.open(file.bytes(), first_row) : parse_jpeg_header(file.bytes(), header);
    if (!outcome.ok()) raise_unsupported(outcome);
    if (is_packed) header = packed.header();
    if (left < 0 || top < 0 || left >= right || top >= bottom || right > header.width || bottom > header.height) {
        throw nb::value_error(("support_box must be a box (left, top, right, bottom) inside the stored " +
                               std::to_string(header.width) + "x" + std::to_string(header.height) + " pixels")
                                  .c_str());
    }
    Bytes out;
    CutPlace place;
    if (is_packed) {
        const Codebook* const codebook = find_codebook(packed.codebook_id());
        if (codebook == nullptr) raise_unsupported({Status::corrupt, unknown_codebook(packed.codebook_id())});
        outcome = cut_packed(packed, *codebook, {left, top, right, bottom}, out, place);
        if (!outcome.ok()) raise_unsupported(outcome);
        return nb::make_tuple(nb::bytes(out.data(), out.size()), place.origin_x, place.origin_y);
    }
    const int file_row = mcu_row_at(header, first_row);
    if (file_row < 0) return nb::none();
    std::vector<Segment> segments;
    switch (cut_jpeg(file.bytes(), header, {left, top, right, bottom}, file_row, segments, out, place)) {
        case CutResult::cut:
            if (!ends_rightly(file.bytes(), header, file_row, segments)) break;
            return nb::make_tuple(nb::bytes(out.data(), out.size()), place.origin_x, place.origin_y);
        case CutResult::no_memory:
            throw std::bad_alloc();
        case CutResult::not_seekable:
            return nb::none();
        case CutResult::damaged:
            break;
    }
    raise_unsupported({Status::damaged, "restart markers are missing or out of order"});
}

}  // namespace

void add_transcode(nb::module_& module) {
    nb::object type = nb::steal(PyErr_NewExceptionWithDoc(
        "feeder._native.Unsupported",
        "A JPEG that can't be transcoded; keep it as it is. `status` is the kind of the reason.",
        PyExc_ValueError, nullptr));
    if (!type.is_valid()) throw nb::python_error();
    module.attr("Unsupported") = type;
    unsupported_type = type.release().ptr();  // lives as long as the process

    module.def("transcode", &transcode, "data"_a, nb::kw_only(), "keep_metadata"_a, "orientation"_a = 1,
               "segment_px"_a = 64, "max_pixels"_a = 0,
               "Rewrites a JPEG losslessly into a seekable one.\n\n"
               "Args:\n"
               "    data: The JPEG, bytes-like.\n"
               "    keep_metadata: False drops APPn and COM but for what decides color.\n"
               "    orientation: The EXIF orientation, 1-8, to write in their place.\n"
               "    segment_px: Wanted width of a restart segment in pixels.\n"
               "    max_pixels: Refuse larger images; 0 for no limit.\n\n"
               "Returns:\n"
               "    A baseline JPEG with the same pixels.\n\n"
               "Raises:\n"
               "    Unsupported: with the reason, for files to be kept as they are.");
    module.def("cut", &cut, "data"_a, "support_box"_a, "first_row"_a = 0,
               "Cuts a seekable JPEG to the segments that a box needs, or writes a packed one's MCUs as a JPEG.\n\n"
               "Args:\n"
               "    data: The JPEG, bytes-like.\n"
               "    support_box: left, top, right, bottom in stored pixels.\n"
               "    first_row: The row of pixels that the data begin with after the header, see decode_batch(); -1: a packed\n"
               "        JPEG is whole.\n\n"
               "Returns:\n"
               "    (JPEG, x, y) with the cut's place in the stored image, or None where the file is not seekable.\n\n"
               "Raises:\n"
               "    Unsupported: the header can't be read, or restart markers are missing or out of order.\n"
               "    ValueError: the box does not lie in the image.");
}

}  // namespace feeder::bind
