#include "cpu/packed/jpeg_writer.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include "cpu/jpeg/zigzag.h"
#include "cpu/simd.h"
#include "cpu/transcode/bit_writer.h"

namespace feeder {
namespace {

// Bytes that a block takes at most: 64 codes of 16 bits with values of 15 bits, and a zero stuffed after every byte.
constexpr size_t kMostBlockBytes = 512;
constexpr size_t kMostMcuBytes = 8;  // beside its blocks: a marker, and the byte before it filled up
constexpr int kMostSize = 15;

Outcome corrupt(const char* reason) { return {Status::corrupt, std::string("packed JPEG: ") + reason}; }

// The code of each symbol in a DHT payload, and the bits of the value behind it, whose number the symbol's lower half is.
struct CodeTable {
    struct Entry {
        uint32_t bits = 0;   // the code, before bits of 0 for the value
        uint32_t count = 0;  // of both; 0: the symbol has no code
    };
    Entry entry[256] = {};

    // False: not a code.
    bool build(ByteSpan payload) {
        unsigned next = 0;
        size_t at = 16;
        for (uint32_t bits = 1; bits <= 16; ++bits, next <<= 1) {
            for (int n = payload[bits - 1u]; n > 0; --n, ++next) {
                if (at >= payload.size() || next >= (1u << bits)) return false;
                const uint8_t symbol = payload[at++];
                if (entry[symbol].count != 0) continue;  // the first one counts
                entry[symbol] = {next << (symbol & 15), bits + (symbol & 15)};
            }
        }
        return true;
    }
};

FEEDER_INLINE int size_of(int value) {
    const unsigned magnitude = static_cast<unsigned>(value < 0 ? -value : value);
    return magnitude == 0 ? 0 : 32 - __builtin_clz(magnitude);
}

// Bit k: coefficient k is not zero. Aligned to 16 bytes.
FEEDER_INLINE uint64_t nonzero(const int16_t* coefficients) {
    uint64_t bits = 0;
#if defined(__SSE2__)
    const __m128i* const eight = reinterpret_cast<const __m128i*>(coefficients);
    for (int i = 0; i < 4; ++i) {
        const __m128i sixteen = _mm_packs_epi16(_mm_load_si128(eight + 2 * i), _mm_load_si128(eight + 2 * i + 1));
        const int zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, _mm_setzero_si128()));
        bits |= static_cast<uint64_t>(~zeros & 0xFFFF) << (16 * i);
    }
#else
    for (int k = 0; k < 64; ++k) bits |= static_cast<uint64_t>(coefficients[k] != 0) << k;
#endif
    return bits;
}

// Writes the entropy-coded data of MCUs in order. The caller has reserved the memory: `out`, and `scratch` for a row of MCUs,
// from which finish_row() moves it.
class ScanWriter {
  public:
    ScanWriter(uint8_t* out, uint8_t* scratch) : out_(out), scratch_(scratch), bits_(scratch) {}

    CodeTable& dc_table(int component) { return dc_[component]; }
    CodeTable& ac_table(int component) { return ac_[component]; }

    // Coefficients in zigzag order. False: there is no code for a symbol.
    FEEDER_INLINE bool block(int component, const int16_t* coefficients) {
        PlainBitWriter bits = bits_;
        const int difference = coefficients[0] - prediction_[component];
        prediction_[component] = coefficients[0];
        bool good = put(bits, coded(dc_[component], 0, difference));
        const CodeTable& ac = ac_[component];
        uint64_t left = nonzero(coefficients) & ~uint64_t{1};  // bit k: the coefficient with index k is not zero
        int last = 0;
        // Two coefficients at a time: what takes most of the time is to join bits with those before them.
        while ((left & (left - 1)) != 0) {
            const int first = __builtin_ctzll(left);
            left &= left - 1;
            const int second = __builtin_ctzll(left);
            left &= left - 1;
            const int runs[2] = {first - last - 1, second - first - 1};
            last = second;
            if ((runs[0] | runs[1]) >= 16) [[unlikely]] {
                good &= put_run(bits, ac, runs[0], coefficients[first]) && put_run(bits, ac, runs[1], coefficients[second]);
                continue;
            }
            const Coded a = coded(ac, runs[0], coefficients[first]), b = coded(ac, runs[1], coefficients[second]);
            good &= a.count != 0 && b.count != 0;
            put(bits, a, b);
        }
        if (left != 0) {
            const int k = __builtin_ctzll(left);
            good &= put_run(bits, ac, k - last - 1, coefficients[k]);
            last = k;
        }
        if (last != 63) good &= put_symbol(bits, ac, 0x00);
        bits_ = bits;
        return good;
    }

    void restart(bool ones) {
        end_segment(ones, static_cast<uint8_t>(0xD0 + restarts_++ % 8));
        std::fill(std::begin(prediction_), std::end(prediction_), 0);
    }

    // Fills up the last byte, and writes a marker; 0: none.
    void end_segment(bool ones, uint8_t marker) {
        bits_.align(ones);
        finish_row();
        if (marker == 0) return;
        *out_++ = 0xFF;
        *out_++ = marker;
    }

    void finish_row() {
        out_ = stuff(scratch_, bits_.end(), out_);
        bits_.move_to(scratch_);
    }

    uint8_t* end() const { return out_; }
    // Goes on there: the bytes written so far were moved.
    void move_to(uint8_t* out) { out_ = out; }

  private:
    // The bits of a coefficient, with its code; no bits if there is none.
    struct Coded {
        uint64_t bits;
        int count;
    };

    FEEDER_INLINE static Coded coded(const CodeTable& table, int run, int value) {
        const int size = size_of(value);
        if (size > kMostSize) return {0, 0};
        const CodeTable::Entry entry = table.entry[run << 4 | size];
        const uint32_t extra = static_cast<uint32_t>(value + (value >> 31)) & ((1u << size) - 1);
        return {entry.bits | extra, static_cast<int>(entry.count)};
    }

    FEEDER_INLINE static void put(PlainBitWriter& bits, const Coded& a, const Coded& b) {
        if (a.count + b.count <= PlainBitWriter::kMostBits) [[likely]] {
            bits.put(a.bits << b.count | b.bits, a.count + b.count);
        } else {
            bits.put(a.bits, a.count);
            bits.put(b.bits, b.count);
        }
    }

    FEEDER_INLINE static bool put(PlainBitWriter& bits, const Coded& one) {
        bits.put(one.bits, one.count);
        return one.count != 0;
    }

    FEEDER_INLINE static bool put_symbol(PlainBitWriter& bits, const CodeTable& table, int symbol) {
        const CodeTable::Entry entry = table.entry[symbol];
        return put(bits, {entry.bits, static_cast<int>(entry.count)});
    }

    FEEDER_INLINE static bool put_run(PlainBitWriter& bits, const CodeTable& table, int run, int value) {
        bool good = true;
        for (; run >= 16; run -= 16) good &= put_symbol(bits, table, 0xF0);
        return put(bits, coded(table, run, value)) && good;
    }

    uint8_t* out_;
    uint8_t* scratch_;
    PlainBitWriter bits_;
    CodeTable dc_[4];
    CodeTable ac_[4];
    int prediction_[4] = {};
    unsigned restarts_ = 0;
};

// Bytes that a row of MCUs takes at most.
size_t most_bytes(const RowBlocks& row) {
    return kMostBlockBytes * row.block_count() + kMostMcuBytes * static_cast<size_t>(row.columns());
}

// Writes the MCUs of a row from column `first` up to `end`. False: there is no code for a symbol.
FEEDER_INLINE bool write_columns(const RowBlocks& row, const JpegHeader& header, int first, int end, ScanWriter& writer) {
    const auto write = [&](int component, const int16_t* coefficients) __attribute__((always_inline)) {
        return writer.block(component, coefficients);
    };
    for (int column = first; column < end; ++column)
        if (!row.each_block(header, column, write)) return false;
    return true;
}

bool write_mcus_portable(const RowBlocks& row, const JpegHeader& header, int first, int end, ScanWriter& writer) {
    return write_columns(row, header, first, end, writer);
}

#if defined(__x86_64__)
// Shifts by a variable count are three operations without BMI2, and one with it.
__attribute__((target("bmi,bmi2"))) bool write_mcus_bmi2(const RowBlocks& row, const JpegHeader& header, int first, int end,
                                                         ScanWriter& writer) {
    return write_columns(row, header, first, end, writer);
}
#endif

bool write_mcus(const RowBlocks& row, const JpegHeader& header, int first, int end, ScanWriter& writer) {
#if defined(__x86_64__)
    if (simd_level() != SimdLevel::portable) return write_mcus_bmi2(row, header, first, end, writer);
#endif
    return write_mcus_portable(row, header, first, end, writer);
}

// Huffman tables in which every symbol has a code, as DHT payloads.
struct FullTables {
    uint8_t dc[1 + 16 + 16];
    uint8_t ac[1 + 16 + 256];
};

constexpr FullTables make_full_tables() {
    FullTables tables{};
    tables.dc[1 + 4] = 16;  // codes of 5 bits
    for (int i = 0; i < 16; ++i) tables.dc[17 + i] = static_cast<uint8_t>(i);
    tables.ac[0] = 0x10;
    tables.ac[1 + 7] = 254;  // of 8 bits, and 2 of 9: none of all ones
    tables.ac[1 + 8] = 2;
    for (int i = 0; i < 256; ++i) tables.ac[17 + i] = static_cast<uint8_t>(i);
    return tables;
}
constexpr FullTables kFullTables = make_full_tables();

}  // namespace

Outcome unpack_scan(const PackedFile& file, const Codebook& codebook, Bytes& out) {
    const PackedHead& head = file.head();
    const JpegHeader& header = file.header();
    const McuGrid& grid = file.grid();
    const ByteSpan jpeg_header = file.jpeg_header();
    RowBlocks row_blocks;
    // A damaged head may claim gigabytes: every block takes at least a byte of the file.
    size_t blocks_per_mcu = 0;
    for (int i = 0; i < header.components; ++i) blocks_per_mcu += size_t{header.component[i].h} * header.component[i].v;
    const uint64_t blocks = uint64_t{blocks_per_mcu} * static_cast<uint64_t>(grid.columns) * head.rows;
    if (blocks > uint64_t{file.row_offset(grid.rows)} - file.row_offset(0) ||
        file.row_offset(grid.rows) < file.row_offset(0)) {
        return corrupt("its rows are too short");
    }
    row_blocks.reserve(file, grid.columns);
    const uint64_t most = jpeg_header.size() + head.trailer_bytes + uint64_t{head.rows} * most_bytes(row_blocks);
    const size_t wanted = static_cast<size_t>(std::min<uint64_t>(head.jpeg_bytes, most));
    out.set_size(0);
    if (!out.reserve(std::max(wanted, jpeg_header.size()) + most_bytes(row_blocks) + 16))
        return corrupt("out of memory");
    out.append(jpeg_header.data(), jpeg_header.size());
    Bytes scratch;
    if (!scratch.reserve(most_bytes(row_blocks) + PlainBitWriter::kWriteAhead)) return corrupt("out of memory");
    ScanWriter writer(out.data() + out.size(), scratch.data());
    for (int i = 0; i < header.components; ++i) {
        const TableRef& dc = header.dc_huffman[header.component[i].dc_table];
        const TableRef& ac = header.ac_huffman[header.component[i].ac_table];
        if (!writer.dc_table(i).build(jpeg_header.subspan(dc.offset, dc.length)) ||
            !writer.ac_table(i).build(jpeg_header.subspan(ac.offset, ac.length))) {
            return corrupt("a Huffman table that is none");
        }
    }
    const bool ones = head.ones != 0;
    const int interval = header.restart_interval_mcus > 0 ? header.restart_interval_mcus : INT_MAX;
    int until_restart = interval;
    for (int row = 0; row < grid.rows; ++row) {
        if (!row_blocks.read(file, codebook, row, 0)) return corrupt("damaged row");
        if (static_cast<size_t>(writer.end() - out.data()) > wanted) return corrupt("longer than its JPEG");
        for (int column = 0; column < grid.columns;) {
            if (until_restart == 0) {
                writer.restart(ones);
                until_restart = interval;
            }
            const int end = column + std::min(grid.columns - column, until_restart);
            if (!write_mcus(row_blocks, header, column, end, writer)) return corrupt("a symbol without a Huffman code");
            until_restart -= end - column;
            column = end;
        }
        writer.finish_row();
    }
    writer.end_segment(ones, 0);
    out.set_size(static_cast<size_t>(writer.end() - out.data()));
    return {};
}

Outcome unpack_jpeg(const PackedFile& file, const Codebook& codebook, Bytes& out) {
    Outcome outcome = unpack_scan(file, codebook, out);
    if (!outcome.ok()) return outcome;
    const ByteSpan trailer = file.trailer();
    if (out.size() + trailer.size() != file.head().jpeg_bytes) return corrupt("not of its JPEG's length");
    if (!out.reserve(out.size() + trailer.size())) return corrupt("out of memory");
    out.append(trailer.data(), trailer.size());
    return {};
}

namespace {

// The MCUs that hold a box and the samples around it that upsampling reads.
SegmentWindow mcus_of(const PackedFile& file, const PixelBox& box) {
    SegmentGrid grid;  // of which every MCU is a segment
    grid.mcu = file.grid();
    grid.segment_mcus = 1;
    grid.segments_per_row = grid.mcu.columns;
    return segments_for(file.header(), grid, box);
}

// Writes the header of a JPEG of these MCUs, with `further_bytes` of memory behind it.
Outcome write_cut_header(const PackedFile& file, const SegmentWindow& window, size_t further_bytes, Bytes& out,
                         CutPlace& place) {
    const JpegHeader& header = file.header();
    const ByteSpan jpeg_header = file.jpeg_header();
    const McuGrid& grid = file.grid();
    place.origin_x = window.first_column * grid.mcu_width_px;
    place.origin_y = window.first_row * grid.mcu_height_px;
    place.width = std::min(header.width, (window.last_column + 1) * grid.mcu_width_px) - place.origin_x;
    place.height = std::min(header.height, (window.last_row + 1) * grid.mcu_height_px) - place.origin_y;
    out.set_size(0);
    const size_t tables = 4 * 2 + sizeof(kFullTables) + 16;
    if (!out.reserve(jpeg_header.size() + tables + further_bytes)) return corrupt("out of memory");
    out.append(0xFF);
    out.append(0xD8);
    MarkerWalker walker(jpeg_header);
    MarkerSegment segment;
    while (walker.next(segment)) {
        const uint8_t* const payload = jpeg_header.data() + segment.offset;
        if (is_metadata(segment, jpeg_header) || segment.code == 0xC4 || segment.code == 0xDD) continue;
        if (segment.code == 0xE0) {
            append_jfif(out, payload);
            continue;
        }
        if (segment.code == 0xDA) {
            append_segment(out, 0xC4, kFullTables.dc, sizeof(kFullTables.dc));
            append_segment(out, 0xC4, kFullTables.ac, sizeof(kFullTables.ac));
        }
        append_segment(out, segment.code, payload, segment.length);
        uint8_t* const copy = out.data() + out.size() - segment.length;
        if (segment.code == header.sof) {
            copy[1] = static_cast<uint8_t>(place.height >> 8);
            copy[2] = static_cast<uint8_t>(place.height);
            copy[3] = static_cast<uint8_t>(place.width >> 8);
            copy[4] = static_cast<uint8_t>(place.width);
        } else if (segment.code == 0xDA) {
            for (int i = 0; i < header.components; ++i) copy[2 + 2 * i] = 0;
        }
    }
    return {};
}

}  // namespace

Outcome PackedCut::open(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& out,
                        CutPlace& place) {
    const SegmentWindow window = mcus_of(file, box);
    file_ = &file;
    codebook_ = &codebook;
    first_column_ = window.first_column;
    row_ = window.first_row - 1;
    last_row_ = window.last_row;
    row_blocks_.reserve(file, window.last_column - window.first_column + 1);
    column_ = row_blocks_.columns();
    damaged_ = false;
    return write_cut_header(file, window, 0, out, place);
}

void PackedCut::next(int16_t (*const* blocks)[64]) noexcept {
    if (damaged_) return;
    if (column_ == row_blocks_.columns()) {
        try {
            damaged_ = row_ == last_row_ || !row_blocks_.read(*file_, *codebook_, row_ + 1, first_column_);
        } catch (const std::bad_alloc&) {
            damaged_ = true;
        }
        if (damaged_) return;
        ++row_;
        column_ = 0;
    }
    row_blocks_.each_block(file_->header(), column_++, [&](int, const int16_t* ordered) {
        int16_t* const natural = **blocks++;
        for (int k = 0; k < 64; ++k) natural[kNaturalOrder[k]] = ordered[k];
        return true;
    });
}

Outcome cut_packed(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& out, CutPlace& place) {
    const JpegHeader& header = file.header();
    const SegmentWindow window = mcus_of(file, box);
    const int columns = window.last_column - window.first_column + 1;
    RowBlocks row_blocks;
    row_blocks.reserve(file, columns);
    const Outcome outcome = write_cut_header(file, window, most_bytes(row_blocks) + 16, out, place);
    if (!outcome.ok()) return outcome;
    Bytes scratch;
    if (!scratch.reserve(most_bytes(row_blocks) + PlainBitWriter::kWriteAhead)) return corrupt("out of memory");
    ScanWriter writer(out.data() + out.size(), scratch.data());
    for (int i = 0; i < header.components; ++i) {
        writer.dc_table(i).build({kFullTables.dc + 1, sizeof(kFullTables.dc) - 1});
        writer.ac_table(i).build({kFullTables.ac + 1, sizeof(kFullTables.ac) - 1});
    }
    for (int row = window.first_row; row <= window.last_row; ++row) {
        if (!row_blocks.read(file, codebook, row, window.first_column)) return corrupt("damaged row");
        const size_t size = static_cast<size_t>(writer.end() - out.data());
        out.set_size(size);
        if (size + most_bytes(row_blocks) + 16 > out.capacity()) {
            if (!out.reserve(2 * size + most_bytes(row_blocks) + 16)) return corrupt("out of memory");
            writer.move_to(out.data() + size);
        }
        if (!write_mcus(row_blocks, header, 0, columns, writer)) return corrupt("a coefficient out of range");
        writer.finish_row();
    }
    writer.end_segment(true, 0xD9);
    out.set_size(static_cast<size_t>(writer.end() - out.data()));
    return {};
}

}  // namespace feeder
