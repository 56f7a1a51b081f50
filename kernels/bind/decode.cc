#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "bind/buffer.h"
#include "bind/module.h"
#include "bind/output.h"
#include "bind/programs.h"
#include "cpu/decode.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Boxes64 = nb::ndarray<const double, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Boxes32 = nb::ndarray<const int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Ints32 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sizes32 = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Spent64 = nb::ndarray<int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Bytes8 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags8 = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::shape<3>, nb::c_contig, nb::device::cpu>;

// One output of each of N images.
struct ViewArrays {
    Boxes64 source_boxes;
    Boxes32 support_boxes;
    Bytes8 flips;
    OutArray out;
    Layout layout;
    Strides strides;
    Dtype dtype;
    std::optional<Floats> scale;
    std::optional<Floats> bias;
    std::optional<Programs> programs;
    ResizeFilter filter;
    std::optional<Bytes8> bicubic;
    std::optional<Boxes32> frames;
    uint8_t fill[3];

    size_t height() const { return out.shape(layout == Layout::nchw ? 2 : 1); }
    size_t width() const { return out.shape(layout == Layout::nchw ? 3 : 2); }

    ViewArrays(Boxes64 sources, Boxes32 supports, Bytes8 mirrored, OutArray pixels, const std::string& layout_name,
               const std::string& dtype_name, std::optional<Floats> scales, std::optional<Floats> biases,
               std::optional<Programs> drawn = {}, const std::string& filter_name = "bilinear",
               std::optional<Boxes32> framed = {}, std::tuple<int, int, int> color = {},
               std::optional<Bytes8> bicubics = {})
        : source_boxes(sources),
          support_boxes(supports),
          flips(mirrored),
          out(pixels),
          layout(layout_of(layout_name)),
          strides(strides_of(out, layout)),
          dtype(dtype_of(dtype_name)),
          scale(scales),
          bias(biases),
          programs(drawn),
          filter(filter_of(filter_name)),
          bicubic(bicubics),
          frames(framed) {
        fill_of(color, fill);
        for (size_t i = 0; frames && i < frames->shape(0); ++i) {
            const int32_t* const part = frames->data() + 4 * i;
            if (part[0] < -1 || part[1] < 0 || part[2] < 0 || part[3] < 0 ||
                int64_t{part[0]} + part[2] > static_cast<int64_t>(width()) ||
                int64_t{part[1]} + part[3] > static_cast<int64_t>(height()))
                bad("frames must lie in out; entry " + std::to_string(i) + " does not");
        }
        const size_t channels = out.shape(layout == Layout::nchw ? 1 : 3);
        if (channels != 3 && (channels != 1 || layout != Layout::nchw)) {
            bad("out must have 3 channels where layout=\"" + layout_name + "\" has them, or 1 of \"nchw\", not " +
                std::to_string(channels));
        }
        if (!array_holds(out, dtype)) bad("out's dtype is not the one that dtype=\"" + dtype_name + "\" says");
        if (scale.has_value() != bias.has_value()) bad("scale and bias go together: give both or neither");
        if (scale && dtype == Dtype::uint8) bad("scale and bias need a floating-point dtype");
        if (height() < 1 || width() < 1 || height() > 65535 || width() > 65535)
            bad("out must be 1-65535 pixels high and wide");
        if (programs) check_programs(*programs, out.shape(0), static_cast<int>(height()), static_cast<int>(width()));
    }

    bool has(size_t count) const {
        return source_boxes.shape(0) == count && support_boxes.shape(0) == count && flips.shape(0) == count &&
               out.shape(0) == count && (!frames || frames->shape(0) == count) &&
               (!bicubic || bicubic->shape(0) == count);
    }

    View view_of(size_t i) const {
        View view;
        std::copy_n(source_boxes.data() + 4 * i, 4, view.source_box);
        std::copy_n(support_boxes.data() + 4 * i, 4, view.support_box);
        view.flip = flips.data()[i] != 0;
        view.filter = bicubic && bicubic->data()[i] != 0 ? ResizeFilter::bicubic : filter;
        if (frames) {
            const int32_t* const part = frames->data() + 4 * i;
            view.part = {part[0], part[1], part[2], part[3], {fill[0], fill[1], fill[2]}};
        }
        if (programs) view.program = program_of(*programs, i);
        view.out.data = static_cast<uint8_t*>(out.data()) + i * strides.image * dtype_bytes(dtype);
        if (!strides.dense) {
            view.out.row_elements = strides.row;
            view.out.channel_elements = strides.channel;
        }
        view.out.dtype = dtype;
        view.out.layout = layout;
        view.out.channels = layout == Layout::nchw ? static_cast<int>(out.shape(1)) : 3;
        view.out.height = static_cast<int>(height());
        view.out.width = static_cast<int>(width());
        view.out.scale = scale ? scale->data() : nullptr;
        view.out.bias = bias ? bias->data() : nullptr;
        return view;
    }
};

nb::tuple decode_views(nb::sequence buffers, const std::vector<ViewArrays>& arrays, Bytes8 orientations, int threads,
                       const std::string& fidelity_name, int64_t max_pixels, std::optional<Sizes32> image_sizes,
                       std::optional<Ints32> first_rows, std::optional<nb::dict> times,
                       std::optional<Spent64> spent, std::optional<Flags8> slow) {
    const size_t count = nb::len(buffers);
    DecodeOptions options;
    options.fidelity = fidelity_of(fidelity_name);
    options.max_pixels = max_pixels;
    if (arrays.empty()) bad("views must have at least one entry");
    const bool fit = std::all_of(arrays.begin(), arrays.end(), [&](const ViewArrays& one) { return one.has(count); });
    if (!fit || orientations.shape(0) != count || (image_sizes && image_sizes->shape(0) != count) ||
        (first_rows && first_rows->shape(0) != count) || (spent && spent->shape(0) != count) || (slow && slow->shape(0) != count)) {
        bad("source_boxes, support_boxes, flips, orientations, image_sizes, first_rows, spent, slow and out must have one "
            "entry per buffer (" +
            std::to_string(count) + ")");
    }
    if (threads < 1) bad("threads must be at least 1, not " + std::to_string(threads));

    std::vector<BufferView> files;
    files.reserve(count);
    for (nb::handle buffer : buffers) files.emplace_back(buffer);
    if (files.size() != count) bad("buffers changed meanwhile");
    std::vector<View> views;
    views.reserve(count * arrays.size());
    for (size_t i = 0; i < count; ++i)
        for (const ViewArrays& one : arrays) views.push_back(one.view_of(i));
    std::vector<ImageJob> jobs(count);
    for (size_t i = 0; i < count; ++i) {
        ImageJob& job = jobs[i];
        job.file = files[i].bytes();
        job.views = std::span<const View>(views).subspan(i * arrays.size(), arrays.size());
        if (image_sizes) {
            job.image_height = image_sizes->data()[2 * i];
            job.image_width = image_sizes->data()[2 * i + 1];
        }
        if (first_rows) job.first_row = first_rows->data()[i];
        if (job.first_row < ImageJob::kWhole) {
            bad("first_rows must be -1 or more; entry " + std::to_string(i) + " is " + std::to_string(job.first_row));
        }
        job.orientation = orientations.data()[i];
        if (job.orientation < 1 || job.orientation > 8) {
            bad("orientations must be 1-8; entry " + std::to_string(i) + " is " + std::to_string(job.orientation));
        }
    }

    std::vector<Outcome> outcomes(count);
    StageTimes stages;
    {
        nb::gil_scoped_release release;
        if (times) {
            ImageDecoder decoder;
            for (size_t i = 0; i < count; ++i) outcomes[i] = decoder.decode(jobs[i], options, &stages);
        } else {
            decode_all(jobs, options, threads, outcomes);
        }
    }
    if (times) {
        (*times)["header_ns"] = stages.header;
        (*times)["tables_ns"] = stages.tables;
        (*times)["markers_ns"] = stages.markers;
        (*times)["unstuff_ns"] = stages.unstuff;
        (*times)["entropy_ns"] = stages.entropy;
        (*times)["idct_ns"] = stages.idct;
        (*times)["libjpeg_ns"] = stages.libjpeg;
        (*times)["resize_ns"] = stages.resize;
    }

    int32_t* const statuses = new int32_t[count + 1];
    nb::capsule owner(statuses, [](void* p) noexcept { delete[] static_cast<int32_t*>(p); });
    nb::list reasons;
    for (size_t i = 0; i < count; ++i) {
        statuses[i] = static_cast<int32_t>(outcomes[i].status);
        reasons.append(nb::str(outcomes[i].reason.c_str(), outcomes[i].reason.size()));
        if (slow) slow->data()[i] = outcomes[i].slow ? 1 : 0;
        if (spent) {
            spent->data()[2 * i] = outcomes[i].decode_ns;
            spent->data()[2 * i + 1] = outcomes[i].transform_ns;
        }
    }
    const size_t shape[1] = {count};
    return nb::make_tuple(nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(statuses, 1, shape, owner), reasons);
}

nb::tuple decode_batch(nb::sequence buffers, Boxes64 source_boxes, Boxes32 support_boxes, Bytes8 flips,
                       Bytes8 orientations, OutArray out, const std::string& layout, const std::string& dtype,
                       std::optional<Floats> scale, std::optional<Floats> bias, int threads,
                       const std::string& fidelity, int64_t max_pixels, std::optional<Sizes32> image_sizes,
                       std::optional<Ints32> first_rows, std::optional<nb::dict> times,
                       std::optional<Spent64> spent, std::optional<Flags8> slow) {
    const ViewArrays view(source_boxes, support_boxes, flips, out, layout, dtype, scale, bias);
    return decode_views(buffers, {view}, orientations, threads, fidelity, max_pixels, image_sizes, first_rows, times,
                        spent, slow);
}

}  // namespace

void add_decode(nb::module_& module) {
    module.def(
        "decode_batch", &decode_batch, "buffers"_a, "source_boxes"_a, "support_boxes"_a, "flips"_a, "orientations"_a,
        nb::arg("out").noconvert(), nb::kw_only(), "layout"_a, "dtype"_a, "scale"_a = nb::none(), "bias"_a = nb::none(),
        "threads"_a = 1, "fidelity"_a = "fast", "max_pixels"_a = 0, "image_sizes"_a = nb::none(),
        "first_rows"_a = nb::none(), "times"_a = nb::none(), "spent"_a = nb::none(), "slow"_a = nb::none(),
        "Decodes, crops, resizes, flips and normalizes N images into `out`, without the GIL.\n\n"
        "Args:\n"
        "    buffers: N bytes-like objects, each a JPEG, a packed JPEG, a PNG or an .npy array of uint8\n"
        "        [H, W, 3] or [H, W].\n"
        "    source_boxes: float64 [N, 4], left, top, right, bottom in upright pixels: what maps onto the output.\n"
        "    support_boxes: int32 [N, 4], the pixels that the filter may read.\n"
        "    flips: uint8 [N], nonzero mirrors the output.\n"
        "    orientations: uint8 [N], EXIF orientation 1-8 to apply.\n"
        "    out: [N, 3, H, W] or [N, H, W, 3], C-contiguous; of a larger array [N, 3, H, W] also some rows and\n"
        "        columns, the other ones of which are left alone.\n"
        "    layout: \"nchw\" or \"nhwc\".\n"
        "    dtype: \"uint8\", \"float32\", \"float16\" or \"bfloat16\" (a uint16 array).\n"
        "    scale, bias: float32 [3], out = pixel(0-255) * scale + bias; None leaves pixels as they are.\n"
        "    threads: How many threads share the work.\n"
        "    fidelity: \"fast\" resizes YCbCr planes each from its own resolution; \"exact\" upsamples chroma first;\n"
        "        \"draft\" is fast, and decodes at half or quarter size what is at least 2 or 4 times as large as the output.\n"
        "    max_pixels: Refuse larger stored images; 0 for no limit.\n"
        "    image_sizes: int32 [N, 2], the upright (height, width) that the boxes were drawn for; an image of\n"
        "        another size is refused.\n"
        "    first_rows: int32 [N], -1 for a whole file. Of a seekable or packed JPEG the rows that the support box needs are\n"
        "        enough, see row_places(): the buffer is then its header and the bytes from 2 before a band on (for the\n"
        "        first band, from its start on), and first_rows has the band's first row, in pixels as stored.\n"
        "    times: A dict to be filled with nanoseconds per stage; the batch then runs on one thread.\n"
        "    spent: int64 [N, 2], filled with nanoseconds for each image: from the file to planes, and from there to\n"
        "        the output. Reading the clock for it costs less than 0.1 us an image.\n"
        "    slow: uint8 [N], filled with 1 for images that \"fast\" is not for, which are decoded as \"exact\" would.\n\n"
        "Returns:\n"
        "    (int32 [N] of Status values, N reasons, empty where OK).\n\n"
        "Raises:\n"
        "    ValueError: an argument has another shape, dtype or value than the above.");
    nb::class_<ViewArrays>(module, "View", "One output of each of N images.")
        .def(nb::init<Boxes64, Boxes32, Bytes8, OutArray, const std::string&, const std::string&, std::optional<Floats>,
                      std::optional<Floats>, std::optional<Programs>, const std::string&, std::optional<Boxes32>,
                      std::tuple<int, int, int>, std::optional<Bytes8>>(),
             "source_boxes"_a, "support_boxes"_a, "flips"_a, nb::arg("out").noconvert(), nb::kw_only(), "layout"_a,
             "dtype"_a, "scale"_a = nb::none(), "bias"_a = nb::none(), "programs"_a = nb::none(),
             "filter"_a = "bilinear", "frames"_a = nb::none(), "fill"_a = std::tuple<int, int, int>(),
             "bicubic"_a = nb::none(),
             "Args and Raises: those of decode_batch(); filter: bilinear or bicubic;\n"
             "frames: int32 [N, 4], left, top, width, height of the part of `out` that the source box maps onto, beside\n"
             "which is the color `fill`; left of -1: the image was too small; bicubic: uint8 [N], nonzero for bicubic\n"
             "whatever the filter; None: none.");
    module.def(
        "decode_views", &decode_views, "buffers"_a, "views"_a, "orientations"_a, nb::kw_only(), "threads"_a = 1,
        "fidelity"_a = "fast", "max_pixels"_a = 0, "image_sizes"_a = nb::none(), "first_rows"_a = nb::none(),
        "times"_a = nb::none(), "spent"_a = nb::none(), "slow"_a = nb::none(),
        "Makes several views of each of N images, without the GIL.\n\n"
        "An image's views are decoded together where that is cheaper. The pixels are those of decode_batch() for each\n"
        "view alone. An image of which any view can't be made has that view's status.\n\n"
        "Args:\n"
        "    views: At least one View, each of N images.\n"
        "    The others, Returns and Raises: those of decode_batch(); the rows of `first_rows` are those that all views\n"
        "        need.");
}

}  // namespace feeder::bind
