#include "cpu/transcode/rewrite.h"

#include <algorithm>
#include <memory>
#include <span>

#include "cpu/jpeg/exif.h"
#include "cpu/jpeg/huffman.h"
#include "cpu/jpeg/segments.h"
#include "cpu/jpeg/unstuff.h"
#include "cpu/transcode/bit_writer.h"
#include "cpu/transcode/huffman_code.h"

namespace feeder {
namespace {

// A symbol with its extra bits: extra (16 bits) | table (8) | symbol (8). The low bits are the place in a code table;
// the symbol's low four bits are the number of extra bits.
using Token = uint32_t;
constexpr uint32_t kTables = 4;  // DC and AC of the first component, DC and AC of the others
constexpr Token kRestart = kTables << 8;
constexpr Token kPlaceMask = 0x7FF;

// A code of up to 16 bits, found by one load for most symbols.
struct SymbolTable {
    static constexpr int kLookupBits = 11;

    HuffmanCodes codes;
    uint16_t lookup[1 << kLookupBits];  // length << 8 | symbol; 0: longer

    bool build(ByteSpan payload) {
        if (!codes.build(payload)) return false;
        std::fill(std::begin(lookup), std::end(lookup), uint16_t{0});
        size_t at = 0;
        size_t index = 0;
        for (int length = 1; length <= kLookupBits; ++length) {
            const size_t span = size_t{1} << (kLookupBits - length);
            for (int i = 0; i < codes.source[length - 1]; ++i, ++index, at += span)
                std::fill_n(lookup + at, span, static_cast<uint16_t>(length << 8 | codes.values[index]));
        }
        return true;
    }

    // The next symbol, or -1. The caller has refilled.
    int read(BitReader& bits) const {
        const uint32_t entry = lookup[bits.peek(kLookupBits)];
        if (entry != 0) [[likely]] {
            bits.drop(static_cast<int>(entry >> 8));
            return static_cast<int>(entry & 0xFF);
        }
        int length = 0;
        const int symbol = codes.find(bits.peek(16), length);
        bits.drop(length & 31);
        return symbol;
    }
};

// The number of bits of |difference|, and those bits as JPEG writes them.
struct DcCode {
    uint32_t size;
    uint32_t extra;
};

DcCode dc_code(int difference) {
    const uint32_t magnitude = static_cast<uint32_t>(difference < 0 ? -difference : difference);
    const uint32_t size = magnitude == 0 ? 0 : 32 - static_cast<uint32_t>(__builtin_clz(magnitude));
    const uint32_t bits = static_cast<uint32_t>(difference < 0 ? difference - 1 : difference);
    return {size, bits & ((1u << size) - 1)};
}

class Reader {
  public:
    // Reads the whole scan as tokens, with restarts at the new interval. False: damaged, or unusual.
    bool read(ByteSpan file, const JpegHeader& header, int new_interval) {
        const McuGrid grid = mcu_grid(header);
        const int64_t total = static_cast<int64_t>(grid.columns) * grid.rows;
        const int64_t interval = header.restart_interval_mcus > 0 ? header.restart_interval_mcus : total;
        if (!build_tables(file, header)) return false;
        size_t at = header.entropy_offset;
        int64_t until_restart = new_interval;
        unsigned segment = 0;
        for (int64_t first = 0; first < total; first += interval, ++segment) {
            if (!unstuffed_.reserve(file.size() - at + kReadAheadBytes)) return false;
            size_t stopped_at = 0;
            const size_t bytes = unstuff(file, at, file.size(), unstuffed_.data(), stopped_at);
            std::memset(unstuffed_.data() + bytes, 0, kReadAheadBytes);
            BitReader bits(unstuffed_.data());
            std::fill(std::begin(source_dc_), std::end(source_dc_), 0);
            const int64_t end = std::min(total, first + interval);
            for (int64_t mcu = first; mcu < end; ++mcu) {
                if (until_restart == 0) {
                    if (!reserve_tokens(1)) return false;
                    add(kRestart);
                    std::fill(std::begin(new_dc_), std::end(new_dc_), 0);
                    until_restart = new_interval;
                }
                --until_restart;
                if (!read_mcu(bits, header) || bits.position() > 8 * static_cast<int64_t>(bytes)) return false;
            }
            // All bytes must be used, and the right marker must follow.
            if (8 * static_cast<int64_t>(bytes) - bits.position() >= 8 || stopped_at + 2 > file.size()) return false;
            const uint8_t expected = end == total ? 0xD9 : static_cast<uint8_t>(0xD0 + segment % 8);
            if (file[stopped_at] != 0xFF || file[stopped_at + 1] != expected) return false;
            at = stopped_at + 2;
        }
        return true;
    }

    std::span<const Token> tokens() const { return {first_token(), token_count_}; }
    const uint32_t* frequency(uint32_t table) const { return frequency_ + (table << 8); }

  private:
    bool build_tables(ByteSpan file, const JpegHeader& header) {
        blocks_ = 0;
        for (int i = 0; i < header.components; ++i) {
            const JpegComponent& component = header.component[i];
            const TableRef& dc = header.dc_huffman[component.dc_table];
            const TableRef& ac = header.ac_huffman[component.ac_table];
            if (dc.length == 0 || ac.length == 0 || header.quant[component.quant_table].length == 0) return false;
            SymbolTable& dc_table = dc_[component.dc_table];
            if (!dc_table.build(file.subspan(dc.offset, dc.length)) || !dc_table.codes.are_sizes()) return false;
            if (!ac_[component.ac_table].build(file.subspan(ac.offset, ac.length))) return false;
            blocks_ += component.h * component.v;
        }
        return blocks_ <= 10;
    }

    Token* first_token() { return reinterpret_cast<Token*>(storage_.data()); }
    const Token* first_token() const { return reinterpret_cast<const Token*>(storage_.data()); }

    bool reserve_tokens(size_t count) {
        const size_t needed = (token_count_ + count) * sizeof(Token);
        return needed <= storage_.capacity() || storage_.reserve(needed + needed / 2);
    }

    void add(Token token) {
        ++frequency_[token & kPlaceMask];
        first_token()[token_count_++] = token;
    }

    bool read_mcu(BitReader& bits, const JpegHeader& header) {
        if (!reserve_tokens(kMcuTokens)) return false;
        for (int i = 0; i < header.components; ++i) {
            const JpegComponent& component = header.component[i];
            const int blocks = header.components == 1 ? 1 : component.h * component.v;
            for (int n = 0; n < blocks; ++n) {
                if (!read_block(bits, dc_[component.dc_table], ac_[component.ac_table], i)) return false;
            }
        }
        return true;
    }

    bool read_block(BitReader& bits, const SymbolTable& dc, const SymbolTable& ac, int component) {
        const Token dc_place = (component == 0 ? 0u : 2u) << 8;
        const Token ac_place = dc_place + (1u << 8);
        bits.refill();
        const int size = dc.read(bits);
        if (size < 0 || size > 11) return false;
        int difference = 0;
        if (size > 0) {
            difference = extend(static_cast<int>(bits.peek(size)), size);
            bits.drop(size);
        }
        source_dc_[component] += difference;
        const int value = source_dc_[component];
        if (value < -32768 || value > 32767) return false;
        const DcCode code = dc_code(value - new_dc_[component]);
        if (code.size > 11) return false;
        new_dc_[component] = value;
        add(code.extra << 16 | dc_place | code.size);
        for (int k = 1; k < 64; ++k) {
            bits.refill();
            const int symbol = ac.read(bits);
            if (symbol < 0) return false;
            const int extra = symbol & 15;
            if (extra == 0) {
                if (symbol != 0xF0) {  // libjpeg takes all of these as the end of the block
                    add(ac_place);
                    return true;
                }
                k += 15;
                add(ac_place | 0xF0);
                if (k > 63) return false;
                continue;
            }
            k += symbol >> 4;
            if (k > 63 || extra > 10) return false;
            add(bits.peek(extra) << 16 | ac_place | static_cast<Token>(symbol));
            bits.drop(extra);
        }
        return true;
    }

    static constexpr size_t kMcuTokens = 10 * 65;

    SymbolTable dc_[4];
    SymbolTable ac_[4];
    int blocks_ = 0;
    int source_dc_[4] = {};
    int new_dc_[4] = {};
    Bytes unstuffed_;
    Bytes storage_;  // of tokens: a vector would zero them first
    size_t token_count_ = 0;
    uint32_t frequency_[(kTables + 1) << 8] = {};
};

// Appends everything up to the entropy-coded data. Segments that are kept stay in order.
void append_header(ByteSpan file, const JpegHeader& header, const RewriteOptions& options, int interval,
                   const HuffmanCode* codes, Bytes& out) {
    out.append(0xFF);
    out.append(0xD8);
    bool needs_orientation = !options.keep_metadata && options.orientation != 1;
    MarkerWalker walker(file);
    MarkerSegment segment;
    while (walker.next(segment)) {
        const uint8_t* const bytes = file.data() + segment.offset;
        if (segment.code == 0xC4 || segment.code == 0xDD || segment.code == 0xDA) continue;
        if (needs_orientation && segment.code != 0xE0) {  // JFIF comes first
            uint8_t payload[32];
            write_exif_orientation(options.orientation, payload);
            append_segment(out, 0xE1, payload, sizeof(payload));
            needs_orientation = false;
        }
        if (!options.keep_metadata && is_metadata(segment, file)) {
            continue;
        } else if (segment.code == 0xE0 && !options.keep_metadata) {
            append_jfif(out, bytes);
        } else {
            append_segment(out, segment.code, bytes, segment.length);
        }
    }
    const uint32_t tables = header.components == 1 ? 2 : kTables;
    for (uint32_t table = 0; table < tables; ++table) {
        uint8_t payload[17 + 256];
        payload[0] = static_cast<uint8_t>((table & 1) << 4 | table >> 1);
        std::memcpy(payload + 1, codes[table].counts, 16);
        std::memcpy(payload + 17, codes[table].symbols, static_cast<size_t>(codes[table].symbol_count));
        append_segment(out, 0xC4, payload, 17 + static_cast<size_t>(codes[table].symbol_count));
    }
    const uint8_t restart[2] = {static_cast<uint8_t>(interval >> 8), static_cast<uint8_t>(interval)};
    append_segment(out, 0xDD, restart, sizeof(restart));
    uint8_t scan[12];
    size_t length = 0;
    scan[length++] = static_cast<uint8_t>(header.components);
    for (int i = 0; i < header.components; ++i) {
        scan[length++] = header.component[i].id;
        scan[length++] = i == 0 ? 0x00 : 0x11;
    }
    scan[length++] = 0;
    scan[length++] = 63;
    scan[length++] = 0;
    append_segment(out, 0xDA, scan, length);
}

}  // namespace

bool rewrite_jpeg(ByteSpan file, const JpegHeader& header, const RewriteOptions& options, Bytes& out) {
    if (!header.huffman_sequential() || header.precision_bits != 8 || !header.interleaved_scan ||
        header.components > 3 || header.arithmetic_tables) {
        return false;
    }
    const int interval = choose_segment_mcus(mcu_grid(header), options.segment_px);
    auto reader = std::make_unique<Reader>();
    if (!reader->read(file, header, interval)) return false;

    HuffmanCode codes[kTables];
    struct Entry {
        uint16_t code;
        uint16_t length;
    };
    Entry entries[kTables << 8];
    size_t bits = 0;
    for (uint32_t table = 0; table < kTables; ++table) {
        const uint32_t* const frequency = reader->frequency(table);
        codes[table].build(frequency);
        for (uint32_t symbol = 0; symbol < 256; ++symbol) {
            entries[table << 8 | symbol] = {codes[table].code[symbol], codes[table].length[symbol]};
            bits += static_cast<size_t>(frequency[symbol]) * (codes[table].length[symbol] + (symbol & 15u));
        }
    }
    // Every byte could be stuffed, and every restart takes a marker and a partial byte.
    const size_t restarts = reader->frequency(kTables)[0] + 1;
    const size_t capacity = header.entropy_offset + 4 * (17 + 256 + 4) + 64 + 2 * (bits / 8 + restarts) + 3 * restarts + 16;
    out.set_size(0);
    if (!out.reserve(capacity)) return false;
    append_header(file, header, options, interval, codes, out);

    BitWriter writer(out.data() + out.size());
    unsigned restart = 0;
    for (const Token token : reader->tokens()) {
        if ((token & kRestart) != 0) {
            writer.align();
            writer.marker(static_cast<uint8_t>(0xD0 + restart++ % 8));
            continue;
        }
        const Entry entry = entries[token & kPlaceMask];
        const int extra = static_cast<int>(token & 15);
        writer.put(static_cast<uint32_t>(entry.code) << extra | token >> 16, entry.length + extra);
    }
    writer.align();
    writer.marker(0xD9);
    out.set_size(static_cast<size_t>(writer.end() - out.data()));
    return true;
}

}  // namespace feeder
