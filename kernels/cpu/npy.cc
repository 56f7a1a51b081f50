#include "cpu/npy.h"

#include <charconv>
#include <string_view>

namespace feeder {
namespace {

constexpr int64_t kMaxSide = 1 << 20;

Outcome corrupt(const char* reason) { return {Status::corrupt, std::string("npy: ") + reason}; }

// The text after `key` and a colon in the header, which is a Python dict as numpy writes it.
std::string_view value_of(std::string_view header, std::string_view key) {
    const size_t at = header.find(key);
    if (at == std::string_view::npos) return {};
    std::string_view rest = header.substr(at + key.size());
    while (!rest.empty() && (rest.front() == ':' || rest.front() == ' ')) rest.remove_prefix(1);
    return rest;
}

// Number of numbers in a text like "(480, 640, 3)"; 0 for any other text, or more than 3 numbers.
int parse_shape(std::string_view text, int64_t shape[3]) {
    if (text.empty() || text.front() != '(') return 0;
    text.remove_prefix(1);
    int count = 0;
    while (!text.empty() && text.front() != ')') {
        if (text.front() == ' ' || text.front() == ',') {
            text.remove_prefix(1);
            continue;
        }
        if (count == 3) return 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), shape[count]);
        if (error != std::errc()) return 0;
        text.remove_prefix(static_cast<size_t>(end - text.data()));
        ++count;
    }
    return text.empty() ? 0 : count;
}

}  // namespace

Outcome npy_planes(ByteSpan file, Planes& planes) {
    if (!looks_like_npy(file)) return {Status::not_jpeg, "not an .npy file"};
    if (file.size() < 12) return corrupt("the file ends inside its header");
    const bool short_length = file[6] == 1;
    size_t header_bytes = static_cast<size_t>(file[8]) | static_cast<size_t>(file[9]) << 8;
    if (!short_length) header_bytes |= static_cast<size_t>(file[10]) << 16 | static_cast<size_t>(file[11]) << 24;
    const size_t header_at = short_length ? 10 : 12;
    if (header_bytes > file.size() - header_at) return corrupt("the file ends inside its header");
    const std::string_view header(reinterpret_cast<const char*>(file.data()) + header_at, header_bytes);
    const size_t data_at = header_at + header_bytes;

    if (!value_of(header, "'descr'").starts_with("'|u1'"))
        return {Status::unsupported, "npy: the dtype is not uint8 (|u1)"};
    if (!value_of(header, "'fortran_order'").starts_with("False")) return {Status::unsupported, "npy: not in C order"};
    int64_t shape[3] = {0, 0, 1};
    const int dimensions = parse_shape(value_of(header, "'shape'"), shape);
    if (dimensions < 2 || (dimensions == 3 && shape[2] != 3)) {
        return {Status::unsupported, "npy: the shape is neither (height, width, 3) nor (height, width)"};
    }
    if (shape[0] < 1 || shape[1] < 1 || shape[0] > kMaxSide || shape[1] > kMaxSide) {
        return {Status::unsupported, "npy: a height or width outside 1-1048576"};
    }
    const size_t expected = static_cast<size_t>(shape[0] * shape[1] * shape[2]);
    if (file.size() - data_at != expected) {
        return corrupt(("expected " + std::to_string(expected) + " bytes of pixels, found " +
                        std::to_string(file.size() - data_at))
                           .c_str());
    }

    planes = Planes();
    planes.count = static_cast<int>(shape[2]);
    planes.window_width = planes.image_width = static_cast<int>(shape[1]);
    planes.window_height = planes.image_height = static_cast<int>(shape[0]);
    planes.color = planes.count == 1 ? ColorModel::gray : ColorModel::rgb;
    for (int i = 0; i < planes.count; ++i) {
        Plane& plane = planes.plane[i];
        plane.data = file.data() + data_at + i;
        plane.stride_bytes = static_cast<ptrdiff_t>(shape[1] * shape[2]);
        plane.width = planes.image_width;
        plane.height = planes.image_height;
        plane.step_bytes = planes.count;
    }
    return {};
}

}  // namespace feeder
