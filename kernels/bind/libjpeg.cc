#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "bind/buffer.h"
#include "bind/module.h"
#include "bind/unsupported.h"
#include "cpu/jpeg_libjpeg.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

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

}  // namespace

void add_libjpeg(nb::module_& module) {
    module.def("libjpeg_decode", &libjpeg_decode, "data"_a,
               "Decodes a whole JPEG with libjpeg-turbo alone: the yardstick of tests and benchmarks.\n\n"
               "Returns:\n"
               "    uint8 [H, W, C], as stored: RGB, gray or CMYK.\n\n"
               "Raises:\n"
               "    Unsupported: with the reason, also where the data is damaged.");
}

}  // namespace feeder::bind
