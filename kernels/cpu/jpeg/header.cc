#include "cpu/jpeg/header.h"

#include <cstring>

#include "cpu/jpeg/zigzag.h"

namespace feeder {
namespace {

constexpr uint8_t kSos = 0xDA;
constexpr int kMostSidePx = 65500;  // libjpeg's own limit

int big_endian16(const uint8_t* bytes) { return bytes[0] << 8 | bytes[1]; }

// All markers but those that may precede a scan: frame headers, tables, DNL, DRI, APPn and comments.
bool is_reserved(uint8_t code) { return code < 0xC0 || (code > 0xDD && code < 0xE0) || (code > 0xEF && code != 0xFE); }

bool is_sof(uint8_t code) { return code >= 0xC0 && code <= 0xCF && code != 0xC4 && code != 0xC8 && code != 0xCC; }

const char* parse_sof(const uint8_t* bytes, size_t length, JpegHeader& header) {
    if (header.sof_offset != 0) return "a second frame header";
    if (length < 6) return "frame header too short";
    header.precision_bits = bytes[0];
    header.height = big_endian16(bytes + 1);
    header.width = big_endian16(bytes + 3);
    header.components = bytes[5];
    if (header.components < 1 || header.components > 4)
        return "frame header with a number of components other than 1-4";
    if (length != 6 + 3 * static_cast<size_t>(header.components)) return "frame header of a wrong length";
    for (int i = 0; i < header.components; ++i) {
        const uint8_t* entry = bytes + 6 + 3 * i;
        JpegComponent& component = header.component[i];
        component.id = entry[0];
        component.h = entry[1] >> 4;
        component.v = entry[1] & 15;
        component.quant_table = entry[2];
        if (component.h < 1 || component.h > 4 || component.v < 1 || component.v > 4)
            return "sampling factor outside 1-4";
        if (component.quant_table > 3) return "quantization table number outside 0-3";
        header.h_max = component.h > header.h_max ? component.h : header.h_max;
        header.v_max = component.v > header.v_max ? component.v : header.v_max;
    }
    return nullptr;
}

const char* parse_dqt(const uint8_t* bytes, size_t offset, size_t length, JpegHeader& header) {
    while (length > 0) {
        const uint8_t precision = *bytes >> 4;
        const uint8_t number = *bytes & 15;
        if (precision > 1 || number > 3) return "quantization table with a bad number or precision";
        const size_t size = precision != 0 ? 128 : 64;
        if (length < 1 + size) return "quantization table too short";
        header.quant[number] = {offset + 1, size, precision};
        bytes += 1 + size;
        offset += 1 + size;
        length -= 1 + size;
    }
    return nullptr;
}

const char* parse_dht(const uint8_t* bytes, size_t offset, size_t length, JpegHeader& header) {
    while (length > 0) {
        const uint8_t kind = *bytes >> 4;
        const uint8_t number = *bytes & 15;
        if (kind > 1 || number > 3) return "Huffman table with a bad number or class";
        if (length < 17) return "Huffman table too short";
        size_t values = 0;
        for (int i = 1; i <= 16; ++i) values += bytes[i];
        if (values > 256 || length < 17 + values) return "Huffman table too short";
        TableRef& table = kind == 0 ? header.dc_huffman[number] : header.ac_huffman[number];
        table = {offset + 1, 16 + values, 0};
        bytes += 17 + values;
        offset += 17 + values;
        length -= 17 + values;
    }
    return nullptr;
}

const char* parse_sos(const uint8_t* bytes, size_t length, JpegHeader& header) {
    if (header.sof_offset == 0) return "a scan before the frame header";
    const int count = length > 0 ? bytes[0] : 0;
    if (count < 1 || count > 4 || length != 4 + 2 * static_cast<size_t>(count)) return "scan header of a wrong length";
    bool in_order = count == header.components;
    for (int i = 0; i < count; ++i) {
        const uint8_t* entry = bytes + 1 + 2 * i;
        if (in_order && entry[0] != header.component[i].id) in_order = false;
        if (in_order) {
            header.component[i].dc_table = entry[1] >> 4;
            header.component[i].ac_table = entry[1] & 15;
            if (header.component[i].dc_table > 3 || header.component[i].ac_table > 3) {
                // In a progressive scan one of the two is not used, and libjpeg knows which.
                if (header.huffman_sequential()) return "Huffman table number outside 0-3";
                in_order = false;
            }
        }
    }
    const uint8_t* spectral = bytes + 1 + 2 * count;
    header.interleaved_scan =
        in_order && (!header.huffman_sequential() || (spectral[0] == 0 && spectral[1] == 63 && spectral[2] == 0));
    return nullptr;
}

constexpr size_t kJfifBytes = 14;

bool is_jfif(const MarkerSegment& segment, ByteSpan file) {
    return segment.code == 0xE0 && segment.length >= kJfifBytes &&
           std::memcmp(file.data() + segment.offset, "JFIF", 5) == 0;
}

bool is_adobe(const MarkerSegment& segment, ByteSpan file) {
    return segment.code == 0xEE && segment.length >= 12 && std::memcmp(file.data() + segment.offset, "Adobe", 5) == 0;
}

Outcome corrupt(const char* reason) { return {Status::corrupt, std::string("JPEG: ") + reason}; }

}  // namespace

bool MarkerWalker::next(MarkerSegment& segment) {
    if (done_ || error_ != nullptr) return false;
    const size_t size = file_.size();
    size_t at = position_;
    // Bytes that are no marker are skipped, as in libjpeg: some cameras pad between segments.
    for (;;) {
        while (at < size && file_[at] != 0xFF) ++at;
        while (at < size && file_[at] == 0xFF) ++at;
        if (at >= size) {
            error_ = "the file ends inside its header";
            return false;
        }
        const uint8_t code = file_[at];
        if (code == 0x00 || code == 0x01 || (code >= 0xD0 && code <= 0xD7)) {  // stuffing, TEM, a stray RSTn
            ++at;
            continue;
        }
        break;
    }
    segment.code = file_[at++];
    if (segment.code == 0xD8 || segment.code == 0xD9) {
        error_ = segment.code == 0xD8 ? "a second start of image in the header" : "end of image before any scan";
        return false;
    }
    if (size - at < 2) {
        error_ = "the file ends inside its header";
        return false;
    }
    const size_t length = static_cast<size_t>(big_endian16(&file_[at]));
    if (length < 2) {
        error_ = "marker segment with a length under 2";
        return false;
    }
    if (length > size - at) {
        error_ = "the file ends inside its header";
        return false;
    }
    segment.offset = at + 2;
    segment.length = length - 2;
    position_ = at + length;
    done_ = segment.code == kSos;
    return true;
}

bool is_metadata(const MarkerSegment& segment, ByteSpan file) {
    const bool is_application = segment.code >= 0xE0 && segment.code <= 0xEF;
    return segment.code == 0xFE || (is_application && !is_jfif(segment, file) && !is_adobe(segment, file));
}

void append_segment(Bytes& out, uint8_t code, const uint8_t* payload, size_t length) {
    out.append(0xFF);
    out.append(code);
    out.append(static_cast<uint8_t>((length + 2) >> 8));
    out.append(static_cast<uint8_t>(length + 2));
    out.append(payload, length);
}

void append_jfif(Bytes& out, const uint8_t* payload) {
    append_segment(out, 0xE0, payload, kJfifBytes);
    uint8_t* const thumbnail_size = out.data() + out.size() - 2;
    thumbnail_size[0] = thumbnail_size[1] = 0;
}

void read_quant_table(ByteSpan file, const TableRef& table, int16_t quant[64]) {
    for (int k = 0; k < 64; ++k) {
        const uint8_t* const entry = file.data() + table.offset + (table.precision != 0 ? 2 * k : k);
        const int value = table.precision != 0 ? entry[0] << 8 | entry[1] : entry[0];
        quant[kNaturalOrder[k]] = static_cast<int16_t>(value);
    }
}

Outcome parse_jpeg_header(ByteSpan file, JpegHeader& header) {
    header = JpegHeader();
    if (!looks_like_jpeg(file)) return {Status::not_jpeg, "not a JPEG: it does not start with FF D8 FF"};
    MarkerWalker walker(file);
    MarkerSegment segment;
    while (walker.next(segment)) {
        const uint8_t* bytes = file.data() + segment.offset;
        const char* error = nullptr;
        if (is_sof(segment.code)) {
            error = parse_sof(bytes, segment.length, header);
            header.sof = segment.code;
            header.sof_offset = segment.offset - 4;
        } else if (segment.code == 0xDB) {
            error = parse_dqt(bytes, segment.offset, segment.length, header);
        } else if (segment.code == 0xC4) {
            error = parse_dht(bytes, segment.offset, segment.length, header);
        } else if (segment.code == 0xDD) {
            if (segment.length != 2) return corrupt("restart interval of a wrong length");
            header.restart_interval_mcus = big_endian16(bytes);
        } else if (is_jfif(segment, file)) {
            header.jfif = true;
        } else if (is_adobe(segment, file)) {
            header.adobe_transform = bytes[11];
        } else if (segment.code == kSos) {
            error = parse_sos(bytes, segment.length, header);
            header.entropy_offset = segment.offset + segment.length;
        } else if (segment.code == 0xC8) {
            return {Status::unsupported, "JPEG: an extension (JPG marker)"};
        } else if (segment.code == 0xCC) {
            header.arithmetic_tables = true;
        } else if (is_reserved(segment.code)) {
            error = "a reserved marker";
        }
        if (error != nullptr) return corrupt(error);
    }
    if (walker.error() != nullptr) return corrupt(walker.error());
    if (header.width == 0) return corrupt("a width of 0");
    if (header.width > kMostSidePx || header.height > kMostSidePx) return corrupt("more than 65500 pixels on a side");
    if (header.height == 0)
        return {Status::unsupported, "JPEG: height of 0 (given by a DNL marker after the first scan)"};
    return {};
}

}  // namespace feeder
