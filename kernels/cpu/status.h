// The status of one image, and its reason.
#pragma once

#include <cstdint>
#include <string>

namespace feeder {

// The only list of statuses; the binding exposes it to Python as feeder._native.Status.
enum class Status : int32_t {
    ok = 0,
    damaged = 1,      // pixels were made, but some of the compressed data is missing or wrong
    not_jpeg = 2,     // neither a JPEG, nor a plain PNG, nor an .npy array: for another decoder
    unsupported = 3,  // a well-formed file of a kind that this code does not support
    corrupt = 4,      // no pixels could be made
    too_large = 5,    // more than max_pixels
};

struct Outcome {
    Status status = Status::ok;
    std::string reason;  // empty when ok
    bool slow = false;  // decoded as for Fidelity::exact, as Fidelity::fast does not support this kind of image
    int64_t decode_ns = 0;     // from the file to planes
    int64_t transform_ns = 0;  // from planes to the output

    bool ok() const { return status == Status::ok; }
};

}  // namespace feeder
