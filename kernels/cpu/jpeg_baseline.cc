#define JPEG_INTERNALS  // jpeglib.h then declares the inverse DCT too

#include "jpeg_baseline.h"

#include <algorithm>

#include "libjpeg.h"
#include "unstuff.h"

#undef MAX
#undef MIN

namespace feeder {
namespace {

// Position in a block of the k-th coefficient. A damaged run may count to 78; those land in the last place, and the
// block is given up.
constexpr uint8_t kNaturalOrder[80] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
                                       40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
                                       29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
                                       47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

// The smallest JPEG there is: libjpeg starts on it, and we take its inverse DCT.
constexpr uint8_t kTinyJpeg[] = {
    0xFF, 0xD8,                                                                                                // SOI
    0xFF, 0xDB, 0, 67, 0,    1, 1, 1, 1,  1, 1,    1,    1,   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  // DQT, 64 ones
    1,    1,    1, 1,  1,    1, 1, 1, 1,  1, 1,    1,    1,   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1,    1,    1, 1,  1,    1, 1, 1, 1,  1,                                              //
    0xFF, 0xC0, 0, 11, 8,    0, 8, 0, 8,  1, 1,    0x11, 0,                               // SOF0: 8x8, one component
    0xFF, 0xC4, 0, 20, 0x00, 1, 0, 0, 0,  0, 0,    0,    0,   0, 0, 0, 0, 0, 0, 0, 0, 0,  // DHT, DC: 0 is size 0
    0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0,  0, 0,    0,    0,   0, 0, 0, 0, 0, 0, 0, 0, 0,  // DHT, AC: 0 is end of block
    0xFF, 0xDA, 0, 8,  1,    1, 0, 0, 63, 0, 0x3F, 0xFF, 0xD9};                           // SOS, data, EOI

}  // namespace

// libjpeg-turbo's accurate integer inverse DCT in the SIMD code that it chose for this machine. It is reached through a
// decompressor that has been started and stays so, because that is the one interface to it that all versions share.
struct BaselineDecoder::InverseDct {
    jpeg_decompress_struct cinfo;
    JpegErrors errors;
    JpegMemorySource source;
    jpeg_component_info component;
    inverse_DCT_method_ptr function = nullptr;

    InverseDct() {
        std::memset(&cinfo, 0, sizeof(cinfo));
        cinfo.err = reset_errors(errors);
        start();
    }
    InverseDct(const InverseDct&) = delete;
    InverseDct& operator=(const InverseDct&) = delete;
    ~InverseDct() { jpeg_destroy_decompress(&cinfo); }

    // See Note [libjpeg errors].
    void start() {
        if (setjmp(errors.jump) != 0) return;
        jpeg_create_decompress(&cinfo);
        reset_source(source, kTinyJpeg);
        cinfo.src = &source.base;
        jpeg_read_header(&cinfo, TRUE);
        cinfo.raw_data_out = TRUE;
        jpeg_start_decompress(&cinfo);
        component = cinfo.comp_info[0];
        function = cinfo.idct->inverse_DCT[0];
    }

    void run(int16_t* quant, int16_t* block, uint8_t* const* rows, int column) {
        component.dct_table = quant;
        function(&cinfo, &component, block, const_cast<JSAMPARRAY>(rows), static_cast<JDIMENSION>(column));
    }
};

static_assert(sizeof(MULTIPLIER) == sizeof(int16_t), "libjpeg-turbo with SIMD has 16-bit multipliers");

// The MCUs whose pixels are wanted.
struct BaselineDecoder::Window {
    int columns = 0;  // of the whole image
    int first_column = 0;
    int end_column = 0;
    int first_row = 0;
    int end_row = 0;

    bool holds(int row, int column) const {
        return row >= first_row && row < end_row && column >= first_column && column < end_column;
    }
};

BaselineDecoder::BaselineDecoder() : idct_(std::make_unique<InverseDct>()) {}
BaselineDecoder::~BaselineDecoder() = default;

bool BaselineDecoder::build_tables(ByteSpan file, const JpegHeader& header) {
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        const TableRef& quant = header.quant[component.quant_table];
        const TableRef& dc = header.dc_huffman[component.dc_table];
        const TableRef& ac = header.ac_huffman[component.ac_table];
        if (quant.length == 0 || dc.length == 0 || ac.length == 0) return false;
        for (int k = 0; k < 64; ++k) {
            const uint8_t* entry = file.data() + quant.offset + (quant.precision != 0 ? 2 * k : k);
            const int value = quant.precision != 0 ? entry[0] << 8 | entry[1] : entry[0];
            quant_[i][kNaturalOrder[k]] = static_cast<int16_t>(value);
        }
        if (!dc_tables_[component.dc_table].build(file.subspan(dc.offset, dc.length), true) ||
            !ac_tables_[component.ac_table].build(file.subspan(ac.offset, ac.length), false)) {
            return false;
        }
    }
    return true;
}

namespace {

inline int read_dc_difference(BitReader& bits, const HuffmanTable& table, bool& bad) {
    bits.refill();
    const uint32_t entry = table.lookup[bits.peek(HuffmanTable::kLookupBits)];
    if ((entry & HuffmanTable::kSpecial) == 0) [[likely]] {
        bits.drop(HuffmanTable::length(entry));
        return HuffmanTable::value(entry);
    }
    int length = HuffmanTable::length(entry);
    int size = static_cast<int>(entry >> 16);
    if ((entry & HuffmanTable::kLong) != 0) {
        size = table.long_code(bits.peek(16), length);
        if (size < 0) {
            bad = true;
            return 0;
        }
    }
    bits.drop(length);
    if (size == 0) return 0;
    const int value = extend(static_cast<int>(bits.peek(size)), size);
    bits.drop(size);
    return value;
}

// The AC coefficients of one block, in natural order; `block` is all zero before. kStore false: only to get past them.
template <bool kStore>
inline Block read_ac(BitReader& bits, const HuffmanTable& table, int16_t* block) {
    Block result = Block::dc_only;
    unsigned k = 1;
    do {
        bits.refill();
        // Two symbols a refill: the first takes at most kLookupBits of the 56, the second, in full, 31.
        uint32_t entry = table.lookup[bits.peek(HuffmanTable::kLookupBits)];
        if ((entry & HuffmanTable::kSpecial) == 0) [[likely]] {
            bits.drop(HuffmanTable::length(entry));
            k += HuffmanTable::run(entry);
            if (kStore) block[kNaturalOrder[k]] = static_cast<int16_t>(HuffmanTable::value(entry));
            result = Block::has_ac;
            ++k;
            if (k >= 64) break;
            entry = table.lookup[bits.peek(HuffmanTable::kLookupBits)];
            if ((entry & HuffmanTable::kSpecial) == 0) [[likely]] {
                bits.drop(HuffmanTable::length(entry));
                k += HuffmanTable::run(entry);
                if (kStore) block[kNaturalOrder[k]] = static_cast<int16_t>(HuffmanTable::value(entry));
                ++k;
                continue;
            }
        }
        if ((entry & HuffmanTable::kEnd) != 0) {
            bits.drop(HuffmanTable::length(entry));
            return result;
        }
        int length = HuffmanTable::length(entry);
        unsigned run = HuffmanTable::run(entry);
        int size = static_cast<int>(entry >> 16);
        if ((entry & HuffmanTable::kLong) != 0) {
            const int symbol = table.long_code(bits.peek(16), length);
            if (symbol < 0) return Block::bad;
            run = static_cast<unsigned>(symbol) >> 4;
            size = symbol & 15;
        }
        bits.drop(length);
        result = Block::has_ac;
        k += run;
        if (size == 0) {
            if (run != 15) return result;  // a long code for the end of the block
        } else {
            if (kStore) block[kNaturalOrder[k]] = static_cast<int16_t>(extend(static_cast<int>(bits.peek(size)), size));
            bits.drop(size);
        }
        ++k;
    } while (k < 64);
    return k == 64 ? result : Block::bad;
}

// What the inverse DCT makes of a block whose AC coefficients are all zero.
inline void fill_block(int dc, uint8_t* const* rows, int column) {
    const int level = std::clamp(((dc + 4) >> 3) + 128, 0, 255);
    const uint64_t eight = 0x0101010101010101u * static_cast<uint64_t>(level);
    for (int y = 0; y < 8; ++y) std::memcpy(rows[y] + column, &eight, sizeof(eight));
}

}  // namespace

// The inverse DCT of one MCU. Leaves the blocks zero again.
void BaselineDecoder::make_pixels(const JpegHeader& header, int16_t (*block)[64], const Block* kind,
                                  uint8_t* (*rows)[32], int mcu_column) {
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        for (int v = 0; v < component.v; ++v) {
            for (int h = 0; h < component.h; ++h, ++block, ++kind) {
                const int x = (mcu_column * component.h + h) * 8;
                uint8_t* const* const block_rows = rows[i] + 8 * v;
                const int dc = (*block)[0] * quant_[i][0];
                // Beyond this range the SIMD code wraps in 16 bits, and only it knows how.
                if (*kind == Block::dc_only && dc > -4096 && dc < 4096) {
                    fill_block(dc, block_rows, x);
                } else {
                    idct_->run(quant_[i], *block, block_rows, x);
                    std::memset(*block, 0, sizeof(*block));
                }
            }
        }
    }
}

// Shifts by a variable count are three times as many operations without BMI2.
#if defined(__x86_64__) && defined(__gnu_linux__)
__attribute__((target_clones("bmi2", "default")))
#endif
bool BaselineDecoder::decode_segment(const JpegHeader& header, const Window& window, int first_mcu, int end_mcu,
                                     bool may_have_rest, const Planes& planes, Lap& lap) {
    BitReader bits(unstuffed_.data());
    const int64_t end_bit = static_cast<int64_t>(unstuffed_bits_);
    unsigned dc[4] = {};  // predictions; a damaged file may make them wrap
    alignas(64) int16_t blocks[kMaxBlocks][64];
    Block kinds[kMaxBlocks];
    std::memset(blocks, 0, sizeof(blocks));
    bool bad = false;

    int row = first_mcu / window.columns;
    int column = first_mcu % window.columns;
    uint8_t* rows[4][32];
    int rows_of = -1;
    for (int mcu = first_mcu; mcu < end_mcu; ++mcu) {
        const bool wanted = window.holds(row, column);
        if (wanted && rows_of != row) {
            for (int i = 0; i < header.components; ++i) {
                const int height = 8 * header.component[i].v;
                const Plane& plane = planes.plane[i];
                uint8_t* const top = const_cast<uint8_t*>(plane.data) +
                                     static_cast<ptrdiff_t>(row - window.first_row) * height * plane.stride_bytes;
                for (int y = 0; y < height; ++y) rows[i][y] = top + y * plane.stride_bytes;
            }
            rows_of = row;
        }
        int16_t(*block)[64] = blocks;
        Block* kind = kinds;
        for (int i = 0; i < header.components; ++i) {
            const JpegComponent& component = header.component[i];
            const HuffmanTable& dc_table = dc_tables_[component.dc_table];
            const HuffmanTable& ac_table = ac_tables_[component.ac_table];
            for (int n = component.h * component.v; n > 0; --n, ++block, ++kind) {
                dc[i] += static_cast<unsigned>(read_dc_difference(bits, dc_table, bad));
                (*block)[0] = static_cast<int16_t>(dc[i]);
                *kind = wanted ? read_ac<true>(bits, ac_table, *block) : read_ac<false>(bits, ac_table, nullptr);
                bad |= *kind == Block::bad;
            }
        }
        // One look an MCU: until here at most kReadAheadBytes beyond the end were read.
        if (bad || bits.position() > end_bit) return false;
        lap.add_to(&StageTimes::entropy);
        if (wanted) {
            make_pixels(header, blocks, kinds, rows, column - window.first_column);
            lap.add_to(&StageTimes::idct);
        }
        if (++column == window.columns) {
            column = 0;
            ++row;
        }
    }
    // Whole bytes left over before a restart marker mean that the segment was not what it should be.
    return may_have_rest || end_bit - bits.position() < 8;
}

bool BaselineDecoder::decode(ByteSpan file, const JpegHeader& original, const PixelBox& box, Bytes& pixels,
                             Planes& planes, StageTimes* times) {
    Lap lap(times);
    if (!original.huffman_sequential() || original.precision_bits != 8 || !original.interleaved_scan) return false;
    ColorModel color;
    if (original.components == 4 || !color_model(original, color).ok() || idct_->function == nullptr) return false;
    JpegHeader header = original;
    if (header.components == 1) {  // an MCU is one block, whatever the factors say
        header.component[0].h = header.component[0].v = 1;
        header.h_max = header.v_max = 1;
    }
    int blocks = 0;
    for (int i = 0; i < header.components; ++i) blocks += header.component[i].h * header.component[i].v;
    if (blocks > kMaxBlocks || !build_tables(file, header)) return false;

    lap.add_to(&StageTimes::tables);

    const PixelBox pixel_window = mcu_window(header, box);
    if (!lay_out_planes(header, pixel_window, color, pixels, planes)) return false;
    const McuGrid grid = mcu_grid(header);
    Window window;
    window.columns = grid.columns;
    window.first_column = pixel_window.left / grid.mcu_width_px;
    window.end_column = (pixel_window.right + grid.mcu_width_px - 1) / grid.mcu_width_px;
    window.first_row = pixel_window.top / grid.mcu_height_px;
    window.end_row = (pixel_window.bottom + grid.mcu_height_px - 1) / grid.mcu_height_px;

    const int64_t total = static_cast<int64_t>(grid.columns) * grid.rows;
    const int interval = header.restart_interval_mcus > 0 ? header.restart_interval_mcus : static_cast<int>(total);
    const int last_needed = (window.end_row - 1) * grid.columns + window.end_column - 1;
    const size_t count = static_cast<size_t>(last_needed / interval) + 1;
    const bool whole = header.restart_interval_mcus == 0;
    if (whole) {
        segments_.assign(1, {header.entropy_offset, file.size()});
    } else if (find_segments(file, header.entropy_offset, count, segments_) != MarkerScan::complete) {
        return false;
    }
    lap.add_to(&StageTimes::markers);

    for (size_t s = 0; s < count; ++s) {
        const int first_mcu = static_cast<int>(s) * interval;
        const int end_mcu = static_cast<int>(std::min<int64_t>(total, static_cast<int64_t>(first_mcu) + interval));
        // The last MCU of the segment that is wanted, if any is.
        const int last_row = std::min((end_mcu - 1) / grid.columns, window.end_row - 1);
        int last_wanted = -1;
        for (int row = last_row; row >= std::max(first_mcu / grid.columns, window.first_row) && last_wanted < 0;
             --row) {
            const int begin = std::max(first_mcu, row * grid.columns + window.first_column);
            const int end = std::min(end_mcu, row * grid.columns + window.end_column);
            if (begin < end) last_wanted = end - 1;
        }
        if (last_wanted < 0) continue;

        const Segment& segment = segments_[s];
        const size_t room = segment.end - segment.begin + kReadAheadBytes;
        if (unstuffed_.capacity() < room) {
            if (!unstuffed_.reserve(room + room / 2)) return false;
            std::memset(unstuffed_.data(), 0, unstuffed_.capacity());  // so that reading ahead reads something
        }
        size_t stopped_at = 0;
        unstuffed_bits_ = 8 * unstuff(file, segment.begin, segment.end, unstuffed_.data(), stopped_at);
        lap.add_to(&StageTimes::unstuff);
        if (!whole && stopped_at != segment.end) return false;
        const bool to_the_end = last_wanted + 1 == end_mcu && end_mcu != total;
        if (!decode_segment(header, window, first_mcu, last_wanted + 1, !to_the_end, planes, lap)) return false;
    }
    return true;
}

}  // namespace feeder
