#include "bind/module.h"

#include "cpu/status.h"

namespace nb = nanobind;

namespace feeder::bind {

void add_status(nb::module_& module) {
    nb::enum_<Status>(module, "Status", nb::is_arithmetic(), "Status of one image.")
        .value("OK", Status::ok)
        .value("DAMAGED", Status::damaged, "Pixels were made, but compressed data is missing or wrong.")
        .value("NOT_JPEG", Status::not_jpeg, "Neither a JPEG, nor a plain PNG, nor an .npy array: for another decoder.")
        .value("UNSUPPORTED", Status::unsupported, "A well-formed file of a kind that this module does not decode.")
        .value("CORRUPT", Status::corrupt, "No pixels could be made.")
        .value("TOO_LARGE", Status::too_large, "More than max_pixels.");
}

}  // namespace feeder::bind

NB_MODULE(_native, module) {
    // A script may end while threads hold a reader: objects that are left then are no fault.
    nb::set_leak_warnings(false);
    module.doc() = "feeder's CPU kernels: seekable JPEG, decode, resize and normalize.";
    feeder::bind::add_status(module);
    feeder::bind::add_resize(module);
    feeder::bind::add_bands(module);
    feeder::bind::add_crc32c(module);
    feeder::bind::add_cuda(module);
    feeder::bind::add_transcode(module);
    feeder::bind::add_decode(module);
    feeder::bind::add_libjpeg(module);
    feeder::bind::add_packed(module);
    feeder::bind::add_png(module);
    feeder::bind::add_mask(module);
    feeder::bind::add_order(module);
    feeder::bind::add_shard_rows(module);
    feeder::bind::add_part(module);
    feeder::bind::add_augment(module);
}
