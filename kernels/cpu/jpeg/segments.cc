#include "cpu/jpeg/segments.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feeder {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

McuGrid mcu_grid(const JpegHeader& header) {
    McuGrid grid;
    if (header.components == 1) {
        grid.mcu_width_px = 8;
        grid.mcu_height_px = 8;
    } else {
        grid.mcu_width_px = 8 * header.h_max;
        grid.mcu_height_px = 8 * header.v_max;
    }
    grid.columns = ceil_div(header.width, grid.mcu_width_px);
    grid.rows = ceil_div(header.height, grid.mcu_height_px);
    return grid;
}

SegmentGrid segment_grid(const JpegHeader& header) {
    SegmentGrid grid;
    grid.mcu = mcu_grid(header);
    grid.segment_mcus = header.restart_interval_mcus;
    if (header.huffman_sequential() && header.precision_bits == 8 && header.interleaved_scan &&
        header.restart_interval_mcus > 0 && grid.mcu.columns % header.restart_interval_mcus == 0) {
        grid.segments_per_row = grid.mcu.columns / header.restart_interval_mcus;
    }
    return grid;
}

int choose_segment_mcus(const McuGrid& grid, int segment_px) {
    const double wanted = std::max(1.0, static_cast<double>(segment_px) / grid.mcu_width_px);
    int best = grid.columns;
    double best_distance = std::log(2.0) + 1e-9;
    for (int divisor = 1; divisor <= grid.columns; ++divisor) {
        if (grid.columns % divisor != 0) continue;
        const double distance = std::abs(std::log(divisor / wanted));
        if (distance < best_distance) {
            best = divisor;
            best_distance = distance;
        }
    }
    return best;
}

SegmentWindow segments_for(const JpegHeader& header, const SegmentGrid& grid, const PixelBox& box) {
    // One chroma sample on each side: with it, upsampling inside the box sees the same neighbours as in the whole
    // image.
    const int margin_x = header.components == 1 ? 0 : header.h_max;
    const int margin_y = header.components == 1 ? 0 : header.v_max;
    const int segment_width_px = grid.segment_mcus * grid.mcu.mcu_width_px;
    SegmentWindow window;
    window.first_column = std::max(0, box.left - margin_x) / segment_width_px;
    window.last_column = (std::min(header.width, box.right + margin_x) - 1) / segment_width_px;
    // Smooth upsampling needs three chroma samples; a narrower cut (the sliver at the right edge) would be upsampled
    // differently from the whole image.
    if (window.first_column > 0 && header.width - window.first_column * segment_width_px < 3 * header.h_max)
        --window.first_column;
    window.first_row = std::max(0, box.top - margin_y) / grid.mcu.mcu_height_px;
    window.last_row = (std::min(header.height, box.bottom + margin_y) - 1) / grid.mcu.mcu_height_px;
    return window;
}

size_t find_marker_portable(ByteSpan file, size_t from) {
    const uint8_t* const data = file.data();
    const size_t size = file.size();
    while (from + 1 < size) {
        const void* hit = std::memchr(data + from, 0xFF, size - 1 - from);
        if (hit == nullptr) return size;
        from = static_cast<size_t>(static_cast<const uint8_t*>(hit) - data);
        if (data[from + 1] != 0x00 && data[from + 1] != 0xFF) return from;
        ++from;
    }
    return size;
}

size_t find_marker(ByteSpan file, size_t from) {
#if defined(__SSE2__)
    const uint8_t* const data = file.data();
    const size_t size = file.size();
    const __m128i ones = _mm_set1_epi8(static_cast<char>(0xFF));
    const __m128i zero = _mm_setzero_si128();
    // 64 bytes and one branch per step. A branch at each FF would be mispredicted at most stuffed bytes.
    while (from + 65 <= size) {
        const __m128i* const here = reinterpret_cast<const __m128i*>(data + from);
        const __m128i* const next = reinterpret_cast<const __m128i*>(data + from + 1);
        __m128i found[4];
        for (int i = 0; i < 4; ++i) {
            const __m128i is_ff = _mm_cmpeq_epi8(_mm_loadu_si128(here + i), ones);
            const __m128i after = _mm_loadu_si128(next + i);
            const __m128i no_marker = _mm_or_si128(_mm_cmpeq_epi8(after, zero), _mm_cmpeq_epi8(after, ones));
            found[i] = _mm_andnot_si128(no_marker, is_ff);
        }
        const __m128i any = _mm_or_si128(_mm_or_si128(found[0], found[1]), _mm_or_si128(found[2], found[3]));
        if (_mm_movemask_epi8(any) != 0) {
            uint64_t hits = 0;
            for (int i = 0; i < 4; ++i) {
                const unsigned mask = static_cast<unsigned>(_mm_movemask_epi8(found[i]));
                hits |= static_cast<uint64_t>(mask) << (16 * i);
            }
            return from + static_cast<size_t>(__builtin_ctzll(hits));
        }
        from += 64;
    }
#endif
    return find_marker_portable(file, from);
}

MarkerScan find_segments(ByteSpan file, size_t entropy_offset, size_t first, size_t count,
                         std::vector<Segment>& segments) {
    segments.clear();
    size_t begin = std::min(entropy_offset, file.size());
    if (first > 0) {
        if (begin + 2 > file.size()) return MarkerScan::truncated;
        if (file[begin] != 0xFF || file[begin + 1] != 0xD0 + (first - 1) % 8) return MarkerScan::out_of_order;
        begin += 2;
    }
    for (size_t i = 0; i < count; ++i) {
        const size_t marker = find_marker(file, begin);
        segments.push_back({begin, marker});
        if (i + 1 == count) {
            // A last segment that ends with the file may lack bytes; the decoder notices if it does.
            return MarkerScan::complete;
        }
        if (marker + 1 >= file.size()) return MarkerScan::truncated;
        const uint8_t code = file[marker + 1];
        if (code < 0xD0 || code > 0xD7) return MarkerScan::truncated;
        if (code != 0xD0 + (first + i) % 8) return MarkerScan::out_of_order;
        begin = marker + 2;
    }
    return MarkerScan::complete;
}

bool has_end(ByteSpan file, size_t entropy_offset) {
    for (size_t at = file.size(); at >= entropy_offset + 2;) {
        if (file[at - 2] == 0xFF && file[at - 1] == 0xD9) return true;
        const size_t length = at - 2 - entropy_offset;
        const void* hit = length == 0 ? nullptr : memrchr(file.data() + entropy_offset, 0xFF, length);
        if (hit == nullptr) return false;
        at = static_cast<size_t>(static_cast<const uint8_t*>(hit) - file.data()) + 2;
    }
    return false;
}

ByteSpan without_padding(ByteSpan file, size_t entropy_offset) {
    if (has_end(file, entropy_offset)) return file;
    size_t end = file.size();
    while (end > entropy_offset && (file[end - 1] == 0x00 || file[end - 1] == 0xFF)) --end;
    while (end + 2 <= file.size() && file[end] == 0xFF && file[end + 1] == 0x00) end += 2;  // stuffed: data
    return file.first(end);
}

}  // namespace feeder
