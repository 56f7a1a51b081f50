#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "bind/buffer.h"
#include "bind/module.h"
#include "bind/unsupported.h"
#include "cpu/jpeg/baseline.h"
#include "cpu/jpeg/idct.h"
#include "cpu/jpeg/idct_libjpeg.h"
#include "cpu/jpeg/libjpeg.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/planes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

Outcome not_ours() { return {Status::unsupported, "JPEG: not one for feeder's own decoder, or damaged"}; }

nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>> libjpeg_decode(nb::handle data) {
    const BufferView file(data);
    auto pixels = std::make_unique<Bytes>();
    JpegHeader header;
    Planes planes;
    Outcome outcome;
    {
        nb::gil_scoped_release release;
        outcome = parse_jpeg_header(file.bytes(), header);
        if (outcome.ok()) {
            const PixelBox whole = {0, 0, header.width, header.height};
            outcome = decode_with_libjpeg(file.bytes(), header, whole, Fidelity::exact, *pixels, planes);
        }
    }
    if (!outcome.ok()) raise_unsupported(outcome);
    const size_t shape[3] = {static_cast<size_t>(header.height), static_cast<size_t>(header.width),
                             static_cast<size_t>(header.components)};
    uint8_t* const samples = pixels->data();
    nb::capsule owner(pixels.release(), [](void* p) noexcept { delete static_cast<Bytes*>(p); });
    return nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>(samples, 3, shape, owner);
}

nb::list jpeg_planes(nb::handle data, const std::array<int, 4>& asked, bool with_libjpeg) {
    const BufferView file(data);
    const PixelBox box = {asked[0], asked[1], asked[2], asked[3]};
    Bytes pixels;
    JpegHeader header;
    Planes planes;
    Outcome outcome = parse_jpeg_header(file.bytes(), header);
    if (outcome.ok() && !(box.left >= 0 && box.top >= 0 && box.left < box.right && box.top < box.bottom &&
                          box.right <= header.width && box.bottom <= header.height)) {
        throw nb::value_error("the box does not lie in the image");
    }
    if (outcome.ok() && header.components == 4) outcome = {Status::unsupported, "JPEG: four components"};
    if (outcome.ok() && with_libjpeg) {
        outcome = decode_with_libjpeg(file.bytes(), header, box, Fidelity::fast, pixels, planes);
    } else if (outcome.ok()) {
        static thread_local const auto decoder = std::make_unique<BaselineDecoder>();
        if (!decoder->decode(file.bytes(), header, box, 0, pixels, planes)) outcome = not_ours();
    }
    if (!outcome.ok()) raise_unsupported(outcome);
    nb::list found;
    for (int i = 0; i < planes.count; ++i) {
        const PixelBox part = samples_of(planes, i, box);
        const size_t shape[2] = {static_cast<size_t>(part.bottom - part.top),
                                 static_cast<size_t>(part.right - part.left)};
        auto samples = std::make_unique<uint8_t[]>(shape[0] * shape[1]);
        for (size_t y = 0; y < shape[0]; ++y) {
            const uint8_t* const row = planes.plane[i].data +
                                       (part.top + static_cast<ptrdiff_t>(y)) * planes.plane[i].stride_bytes +
                                       part.left;
            std::copy_n(row, shape[1], samples.get() + y * shape[1]);
        }
        uint8_t* const first = samples.release();
        nb::capsule owner(first, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
        found.append(nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(first, 2, shape, owner));
    }
    return found;
}

int64_t entropy_decode(nb::handle data, bool with_libjpeg) {
    const BufferView file(data);
    JpegHeader header;
    Outcome outcome;
    int64_t blocks = 0;
    {
        nb::gil_scoped_release release;
        outcome = parse_jpeg_header(file.bytes(), header);
        if (outcome.ok() && with_libjpeg) {
            outcome = read_with_libjpeg(file.bytes(), header);
        } else if (outcome.ok()) {
            static thread_local const auto decoder = std::make_unique<BaselineDecoder>();
            blocks = decoder->read_coefficients(file.bytes(), header, nullptr);
            if (blocks < 0) outcome = not_ours();
        }
    }
    if (!outcome.ok()) raise_unsupported(outcome);
    return blocks;
}

using Blocks = nb::ndarray<const int16_t, nb::numpy, nb::shape<-1, 64>, nb::c_contig>;

using Quant = nb::ndarray<const int16_t, nb::numpy, nb::shape<64>, nb::c_contig>;

nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>> inverse_dct(Blocks blocks, Quant quant, bool corner, bool with_libjpeg) {
    const size_t count = blocks.shape(0);
    auto pixels = std::make_unique<uint8_t[]>(64 * count + 1);
    struct alignas(64) Table {
        int16_t values[64];
    };
    Table table;
    std::copy_n(quant.data(), 64, table.values);
    const auto copies = std::make_unique<Table[]>(count);
    const auto targets = std::make_unique<IdctBlock[]>(count);
    for (size_t i = 0; i < count; ++i) {
        std::copy_n(blocks.data() + 64 * i, 64, copies[i].values);
        targets[i] = {copies[i].values, pixels.get() + 64 * i};
    }
    LibjpegIdct libjpeg;
    if (!libjpeg.ready()) throw std::runtime_error("libjpeg did not start");
    const IdctKernels* const kernels = with_libjpeg ? nullptr : idct_kernels();
    const int all = static_cast<int>(count);
    int done = 0;
    while (done < all) {
        if (kernels != nullptr)
            done += (corner ? kernels->corner : kernels->full)(targets.get() + done, all - done, table.values, 8);
        if (done < all) libjpeg.run(targets[static_cast<size_t>(done++)], table.values, 8);
    }
    const size_t shape[3] = {count, 8, 8};
    uint8_t* const samples = pixels.release();
    nb::capsule owner(samples, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    return nb::ndarray<nb::numpy, uint8_t, nb::ndim<3>>(samples, 3, shape, owner);
}

#define FEEDER_TEXT(x) #x
#define FEEDER_TEXT_OF(macro) FEEDER_TEXT(macro)

nb::tuple libjpeg_turbo() { return nb::make_tuple(FEEDER_TEXT_OF(LIBJPEG_TURBO_VERSION), LibjpegIdct().simd()); }

}  // namespace

void add_libjpeg(nb::module_& module) {
    module.def("libjpeg_turbo", &libjpeg_turbo,
               "Returns the version of the libjpeg-turbo inside, and True if it uses its SIMD code here.");
    module.def("libjpeg_decode", &libjpeg_decode, "data"_a,
               "Decodes a whole JPEG with libjpeg-turbo alone: the yardstick of tests and benchmarks.\n\n"
               "Returns:\n"
               "    uint8 [H, W, C], as stored: RGB, gray or CMYK.\n\n"
               "Raises:\n"
               "    Unsupported: with the reason, also where the data is damaged.");
    module.def("jpeg_planes", &jpeg_planes, "data"_a, "box"_a, nb::kw_only(), "libjpeg"_a = false,
               "Decodes a box of a JPEG to planes, each at its own resolution, for tests.\n\n"
               "Args:\n"
               "    box: left, top, right, bottom in stored pixels.\n"
               "    libjpeg: By libjpeg-turbo, not by feeder's own decoder.\n\n"
               "Returns:\n"
               "    uint8 [H, W] for each component: its samples that show something of the box.\n\n"
               "Raises:\n"
               "    Unsupported: with the reason, also where the data is damaged.\n"
               "    ValueError: the box does not lie in the image.");
    module.def("entropy_decode", &entropy_decode, "data"_a, nb::kw_only(), "libjpeg"_a = false,
               "Decodes the Huffman codes of a whole JPEG and throws the coefficients away, for benchmarks.\n\n"
               "Args:\n"
               "    libjpeg: By libjpeg-turbo, not by feeder's own decoder.\n\n"
               "Returns:\n"
               "    The number of 8 x 8 blocks; 0 for libjpeg.\n\n"
               "Raises:\n"
               "    Unsupported: with the reason.");
    module.def("inverse_dct", &inverse_dct, "blocks"_a, "quant"_a, nb::kw_only(), "corner"_a = false,
               "libjpeg"_a = false,
               "Dequantizes and transforms blocks at the SIMD level in use, for tests.\n\n"
               "Args:\n"
               "    blocks: int16 [N, 64], coefficients in natural order.\n"
               "    quant: int16 [64], in natural order.\n"
               "    corner: By the kernel for blocks with zeros outside the upper left 4 x 4.\n"
               "    libjpeg: By libjpeg-turbo's function.\n\n"
               "Returns:\n"
               "    uint8 [N, 8, 8].");
}

}  // namespace feeder::bind
