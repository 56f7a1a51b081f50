#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "bind/output.h"
#include "cpu/resize/resize.h"
#include "cpu/simd.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using PlaneArray = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using ImageArray = nb::ndarray<nb::ndim<3>, nb::device::cpu, nb::c_contig>;

ColorModel color_of(const std::string& name) {
    if (name == "gray") return ColorModel::gray;
    if (name == "ycbcr") return ColorModel::ycbcr;
    if (name == "rgb") return ColorModel::rgb;
    if (name == "cmyk") return ColorModel::cmyk;
    if (name == "ycck") return ColorModel::ycck;
    throw std::invalid_argument("color must be gray, ycbcr, rgb, cmyk or ycck; found " + name);
}

Dtype dtype_of(const std::string& name, nb::dlpack::dtype stored) {
    const auto expect = [&](Dtype dtype, nb::dlpack::dtype type) {
        if (stored != type) throw std::invalid_argument("out must be an array of the dtype asked for, " + name);
        return dtype;
    };
    if (name == "uint8") return expect(Dtype::uint8, nb::dtype<uint8_t>());
    if (name == "float32") return expect(Dtype::float32, nb::dtype<float>());
    if (name == "float16") return expect(Dtype::float16, {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1});
    if (name == "bfloat16") return expect(Dtype::bfloat16, nb::dtype<uint16_t>());
    throw std::invalid_argument("dtype must be uint8, float32, float16 or bfloat16 (as uint16); found " + name);
}

void resample_planes(const std::vector<PlaneArray>& arrays, const std::string& color,
                     const std::array<double, 4>& source_box, const std::array<int, 4>& support_box, ImageArray out,
                     const std::vector<std::pair<int, int>>& sampling, std::pair<int, int> most,
                     const std::array<int, 4>& window, std::pair<int, int> image_size, int orientation, bool flip,
                     const std::string& layout, const std::string& dtype,
                     const std::optional<std::array<float, 3>>& scale,
                     const std::optional<std::array<float, 3>>& bias, bool inverted,
                     const std::string& filter) {
    Planes planes;
    if (arrays.size() > 4 || sampling.size() != arrays.size())
        throw std::invalid_argument("expected up to 4 planes and as many sampling factors");
    planes.count = static_cast<int>(arrays.size());
    for (size_t i = 0; i < arrays.size(); ++i) {
        const PlaneArray& array = arrays[i];
        if (array.stride(0) < 0 || array.stride(1) < 1)
            throw std::invalid_argument("expected planes with positive strides");
        planes.plane[i] = {array.data(), static_cast<ptrdiff_t>(array.stride(0)), static_cast<int>(array.shape(1)),
                           static_cast<int>(array.shape(0)), static_cast<int>(array.stride(1))};
        planes.h_factor[i] = sampling[i].first;
        planes.v_factor[i] = sampling[i].second;
    }
    planes.h_max = most.first;
    planes.v_max = most.second;
    planes.origin_x = window[0];
    planes.origin_y = window[1];
    planes.window_width = window[2];
    planes.window_height = window[3];
    planes.image_width = image_size.first;
    planes.image_height = image_size.second;
    planes.color = color_of(color);
    planes.inverted = inverted;

    Output output;
    output.data = out.data();
    output.dtype = dtype_of(dtype, out.dtype());
    const bool channels_last = layout == "nhwc";
    if (!channels_last && layout != "nchw") throw std::invalid_argument("layout must be nchw or nhwc; found " + layout);
    if (out.shape(channels_last ? 2 : 0) != 3) throw std::invalid_argument("expected out to have 3 channels");
    output.layout = channels_last ? Layout::nhwc : Layout::nchw;
    output.height = static_cast<int>(out.shape(channels_last ? 0 : 1));
    output.width = static_cast<int>(out.shape(channels_last ? 1 : 2));
    output.scale = scale ? scale->data() : nullptr;
    output.bias = bias ? bias->data() : nullptr;

    const ResizeFilter kind = filter_of(filter);
    nb::gil_scoped_release release;
    thread_local Scratch scratch;
    resample(planes, source_box.data(), support_box.data(), orientation, flip, kind, output, scratch);
}

using Pixels = nb::ndarray<const uint8_t, nb::shape<-1, 3, -1, -1>, nb::device::cpu, nb::c_contig>;
using Floats = nb::ndarray<float, nb::shape<-1, 3, -1, -1>, nb::device::cpu, nb::c_contig>;

void map_pixels(Pixels pixels, const std::array<float, 3>& scale, const std::array<float, 3>& bias, Floats out) {
    for (size_t i = 0; i < 4; ++i)
        if (pixels.shape(i) != out.shape(i)) throw nb::value_error("out must have the shape of pixels");
    nb::gil_scoped_release release;
    map_images(pixels.data(), pixels.shape(0), pixels.shape(2) * pixels.shape(3), scale.data(), bias.data(),
               pixel_kernels(), out.data());
}

void copy_bytes(nb::ndarray<const uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig> bytes,
                nb::ndarray<uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig> out) {
    if (bytes.size() != out.size()) throw nb::value_error("out must have the size of bytes");
    nb::gil_scoped_release release;
    copy_past_caches(bytes.data(), bytes.size(), pixel_kernels(), out.data());
}

constexpr std::pair<const char*, SimdLevel> kLevels[] = {
    {"portable", SimdLevel::portable}, {"avx2", SimdLevel::avx2}, {"avx512", SimdLevel::avx512}};

std::string level_name() {
    for (const auto& [name, level] : kLevels)
        if (level == simd_level()) return name;
    return "";
}

bool force_level(const std::string& wanted, bool slow_pdep, bool no_sse2) {
    for (const auto& [name, level] : kLevels) {
        if (name != wanted) continue;
        pretend_slow_pdep(slow_pdep);
        pretend_no_sse2(no_sse2);
        return set_simd_level(level);
    }
    throw std::invalid_argument("level must be portable, avx2 or avx512; found " + wanted);
}

}  // namespace

void add_resize(nb::module_& module) {
    module.def("resample_planes", &resample_planes, "planes"_a, "color"_a, "source_box"_a, "support_box"_a, "out"_a,
               nb::kw_only(), "sampling"_a, "most"_a, "window"_a, "image_size"_a, "orientation"_a = 1,
               "flip"_a = false, "layout"_a = "nchw", "dtype"_a = "uint8", "scale"_a = nb::none(),
               "bias"_a = nb::none(), "inverted"_a = false, "filter"_a = "bilinear",
               "Resizes decoded planes into `out` (uint8, float32, float16, or bfloat16 as uint16): the last stage of\n"
               "decode_batch, by itself.\n\n"
               "Args:\n"
               "    planes: uint8 [rows, columns] each, as stored; a column stride of 3 or 4 is an interleaved image.\n"
               "    color: gray, ycbcr, rgb, cmyk or ycck.\n"
               "    source_box: left, top, right, bottom in upright pixels: what maps onto the output.\n"
               "    support_box: the pixels that the filter may read.\n"
               "    out: [3, height, width] for nchw, [height, width, 3] for nhwc.\n"
               "    sampling: (horizontal, vertical) factor of each plane.\n"
               "    most: The greatest factors; for DCT-scaled planes, times the scale.\n"
               "    window: x, y, width, height of the planes within the stored image, in full-resolution pixels.\n"
               "    image_size: (width, height) of the stored image.\n"
               "    orientation: EXIF orientation, 1-8.\n"
               "    flip: Mirror the output.\n"
               "    scale, bias: out = pixel(0-255) * scale + bias, per channel; or None.\n"
               "    inverted: cmyk and ycck: 255 is no ink.\n"
               "    filter: bilinear or bicubic.\n\n"
               "Raises:\n"
               "    ValueError: an argument that makes no sense; nothing was written then.");
    module.def("map_pixels", &map_pixels, "pixels"_a.noconvert(), "scale"_a, "bias"_a, "out"_a.noconvert(),
               "Maps uint8 [N, 3, H, W] to float32 of the same shape: out = pixel(0-255) * scale + bias, per channel.");
    module.def("copy_bytes", &copy_bytes, "bytes"_a.noconvert(), "out"_a.noconvert(),
               "Copies uint8 [N] that this process does not read soon.");
    module.def("simd_level", &level_name, "The instruction set in use: portable, avx2 or avx512.");
    module.def("set_simd_level", &force_level, "level"_a, nb::kw_only(), "slow_pdep"_a = false,
               "no_sse2"_a = false,
               "Makes all threads use another instruction set; False where this CPU lacks it. For tests: the pixels\n"
               "are the same.\n\n"
               "Args:\n"
               "    level: portable, avx2 or avx512.\n"
               "    slow_pdep: Does without BMI2's pdep, as on AMD's CPUs before Zen 3.\n"
               "    no_sse2: Resizes at the portable level as on CPUs other than x86-64.");
}

}  // namespace feeder::bind
