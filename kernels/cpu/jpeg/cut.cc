#include "cpu/jpeg/cut.h"

#include <algorithm>

namespace feeder {
CutResult cut_jpeg(ByteSpan file, const JpegHeader& header, const PixelBox& box, int file_row,
                   std::vector<Segment>& scratch, Bytes& out, CutPlace& place) {
    const SegmentGrid grid = segment_grid(header);
    if (!grid.seekable()) return CutResult::not_seekable;
    const SegmentWindow window = segments_for(header, grid, box);
    if (window.first_row < file_row) return CutResult::damaged;

    const size_t per_row = static_cast<size_t>(grid.segments_per_row);
    const size_t needed =
        static_cast<size_t>(window.last_row - file_row) * per_row + static_cast<size_t>(window.last_column) + 1;
    const size_t file_segment = static_cast<size_t>(file_row) * per_row;
    if (find_segments(file, header.entropy_offset, file_segment, needed, scratch) != MarkerScan::complete)
        return CutResult::damaged;

    const int segment_width_px = grid.segment_mcus * grid.mcu.mcu_width_px;
    place.origin_x = window.first_column * segment_width_px;
    place.origin_y = window.first_row * grid.mcu.mcu_height_px;
    place.width = std::min(header.width, (window.last_column + 1) * segment_width_px) - place.origin_x;
    place.height = std::min(header.height, (window.last_row + 1) * grid.mcu.mcu_height_px) - place.origin_y;

    size_t size = header.entropy_offset + 4;
    for (int row = window.first_row; row <= window.last_row; ++row) {
        const size_t start = static_cast<size_t>(row - file_row) * per_row;
        const size_t first = start + static_cast<size_t>(window.first_column);
        const size_t last = start + static_cast<size_t>(window.last_column);
        size += scratch[last].end - scratch[first].begin + 2;
    }
    out.set_size(0);
    if (!out.reserve(size)) return CutResult::no_memory;

    out.append(0xFF);
    out.append(0xD8);
    MarkerWalker walker(file);
    MarkerSegment segment;
    while (walker.next(segment)) {
        if (is_metadata(segment, file)) continue;
        const uint8_t* const payload = file.data() + segment.offset;
        if (segment.code == 0xE0) {
            append_jfif(out, payload);
            continue;
        }
        append_segment(out, segment.code, payload, segment.length);
        if (segment.code == header.sof) {
            uint8_t* const copy = out.data() + out.size() - segment.length;
            copy[1] = static_cast<uint8_t>(place.height >> 8);
            copy[2] = static_cast<uint8_t>(place.height);
            copy[3] = static_cast<uint8_t>(place.width >> 8);
            copy[4] = static_cast<uint8_t>(place.width);
        }
    }

    unsigned restart = 0;
    for (int row = window.first_row; row <= window.last_row; ++row) {
        for (int column = window.first_column; column <= window.last_column; ++column) {
            const Segment& piece = scratch[static_cast<size_t>(row - file_row) * per_row + static_cast<size_t>(column)];
            if (row != window.first_row || column != window.first_column) {
                out.append(0xFF);
                out.append(static_cast<uint8_t>(0xD0 + restart++ % 8));
            }
            out.append(file.data() + piece.begin, piece.end - piece.begin);
        }
    }
    out.append(0xFF);
    out.append(0xD9);
    return CutResult::cut;
}

}  // namespace feeder
