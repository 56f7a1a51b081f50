// Huffman decoding, a thread a restart segment.
#pragma once

#include "cpu/jpeg/zigzag.h"
#include "cuda/batch.h"

namespace feeder::cuda {

// Decodes the segments to coefficients in natural order; those of blocks outside the window are dropped. Accepts nothing
// that BaselineDecoder would refuse; everything else is left to it.
struct Huffman {
    static constexpr int kThreads = 64;  // segments, all of one image
    static constexpr int kPhases = 3;
    static constexpr int kLookupBits = 10;

    struct Table {
        uint16_t lookup[1 << kLookupBits];  // length | symbol << 8; 0: longer than kLookupBits, or no code
        uint32_t longer_from[18];           // of each length, left-aligned to 16 bits: the first code that is longer
        int32_t value_offset[17];
        uint8_t values[256];
    };
    struct Shared {
        Table table[kHuffmanTables];
        uint8_t natural[64];
        int prediction[kComponents][kThreads];  // of DC
    };
    using Local = Nothing;

    // Reads bits, most significant first, and removes the zeros that are stuffed after every FF.
    struct BitStream {
        const uint32_t* words;
        uint32_t at, end;
        uint64_t bits = 0;
        int left = 0;     // valid bits, from the top down
        int missing = 0;  // of them from beyond the end
        bool marker = false;

        // Afterwards at least 32 bits are valid: a code and its extra bits take at most 31.
        FEEDER_DEVICE void refill() {
            if (left >= 32) return;
            const uint32_t word = swap_bytes(load32(words, at));
            const uint32_t ones = ~word;  // a byte of it is 0 where the word's is FF
            if (at + 4 <= end && ((ones - 0x01010101u) & ~ones & 0x80808080u) == 0) {
                bits |= static_cast<uint64_t>(word) << (32 - left);
                left += 32;
                at += 4;
                return;
            }
            for (int i = 0; i < 4; ++i) {
                uint64_t byte = 0;
                if (at < end) {
                    byte = load32(words, at++) & 0xFF;
                    if (byte == 0xFF) {
                        marker = marker || at >= end || (load32(words, at) & 0xFF) != 0;
                        ++at;
                    }
                } else {
                    missing += 8;
                }
                bits |= byte << (56 - left);
                left += 8;
            }
        }
        FEEDER_DEVICE void drop(uint32_t count) {
            bits <<= count;
            left -= static_cast<int>(count);
        }
        // The number in the next `size` bits, 0 to 15 of them.
        FEEDER_DEVICE int take(uint32_t size) {
            const int value = static_cast<int>(bits >> 1 >> (63 - size));
            const int negative = static_cast<int>(static_cast<int64_t>(~bits) >> 63);
            drop(size);
            return value + (negative & (1 - (1 << size)));
        }
        FEEDER_DEVICE bool beyond() const { return left < missing || marker; }
        // True if all is read but for the bits that fill the last byte.
        FEEDER_DEVICE bool at_end() const { return at >= end && left - missing < 8; }
    };

    FEEDER_DEVICE static uint32_t length_of(const Table& table, uint32_t next16) {
        uint32_t length = 1;
        while (next16 >= table.longer_from[length]) ++length;
        return length;
    }
    FEEDER_DEVICE static uint32_t symbol_of(const Table& table, uint32_t next16, uint32_t length) {
        return table.values[(static_cast<int>(next16 >> (16 - length)) + table.value_offset[length]) & 0xFF];
    }
    // A symbol; above 255: there is no such code.
    FEEDER_DEVICE static uint32_t read(const Table& table, BitStream& stream) {
        stream.refill();
        const uint32_t entry = table.lookup[stream.bits >> (64 - kLookupBits)];
        if (entry != 0) {
            stream.drop(entry & 0xFF);
            return entry >> 8;
        }
        const uint32_t next16 = static_cast<uint32_t>(stream.bits >> 48), length = length_of(table, next16);
        if (length > 16) return 256;
        stream.drop(length);
        return symbol_of(table, next16, length);
    }

    // Decodes a block to `out`, or to nowhere.
    FEEDER_DEVICE static uint32_t decode_block(const Shared& shared, const Table& dc, const Table& ac, BitStream& stream,
                                               int& prediction, int16_t* out) {
        const uint32_t dc_size = read(dc, stream);
        if (dc_size > 15) return kBadCode;
        prediction += stream.take(dc_size);
        if (prediction != static_cast<int16_t>(prediction)) return kBadLevel;
        if (out != nullptr) out[0] = static_cast<int16_t>(prediction);
        for (uint32_t k = 1; k < 64; ++k) {
            const uint32_t symbol = read(ac, stream);
            if (symbol > 255) return kBadCode;
            const uint32_t size = symbol & 15;
            if (size == 0 && symbol != 0xF0) return 0;  // end of block
            k += symbol >> 4;
            if (k > 63) return kBadCode;
            const int value = stream.take(size);
            if (out != nullptr && size != 0) out[shared.natural[k]] = static_cast<int16_t>(value);
        }
        return 0;
    }

    FEEDER_DEVICE static uint32_t decode_segment(const Batch& batch, const ImageRow& image, const SegmentRow& row,
                                                 Shared& shared, uint32_t thread) {
        BitStream stream{batch.bytes, row.offset, row.offset + row.length};
        for (int c = 0; c < kComponents; ++c) shared.prediction[c][thread] = 0;
        const uint32_t end = least(row.first_mcu + image.interval, image.mcus);
        uint32_t mcu_row = row.first_mcu / image.mcu_columns, mcu_column = row.first_mcu % image.mcu_columns;
        for (uint32_t mcu = row.first_mcu; mcu < end; ++mcu) {
            const bool wanted = mcu_row >= image.first_row && mcu_row < image.end_row &&
                                mcu_column >= image.first_column && mcu_column < image.end_column;
FEEDER_KEPT_LOOP
            for (uint32_t c = 0; c < image.components; ++c) {
                const Table& dc = shared.table[image.dc_table[c]];
                const Table& ac = shared.table[image.ac_table[c]];
                uint32_t block_row = (mcu_row - image.first_row) * image.v[c];
FEEDER_KEPT_LOOP
                for (uint32_t v = 0; v < image.v[c]; ++v, ++block_row) {
                    uint32_t block_column = (mcu_column - image.first_column) * image.h[c];
FEEDER_KEPT_LOOP
                    for (uint32_t h = 0; h < image.h[c]; ++h, ++block_column) {
                        int16_t* out = nullptr;
                        if (wanted) {
                            const uint32_t block = image.first_block[c] + block_row * image.block_columns[c] + block_column;
                            out = batch.coefficients + 64 * static_cast<uint64_t>(block);
                        }
                        const uint32_t fault =
                            decode_block(shared, dc, ac, stream, shared.prediction[c][thread], out);
                        if (fault != 0) return fault;
                    }
                }
            }
            if (stream.beyond()) return kBadLength;
            if (++mcu_column == image.mcu_columns) {
                mcu_column = 0;
                ++mcu_row;
            }
        }
        // Behind the image's last MCU libjpeg ignores what is left.
        return end == image.mcus || stream.at_end() ? 0u : static_cast<uint32_t>(kBadLength);
    }

    template <int kPhase>
    FEEDER_DEVICE static void run(const Batch& batch, Place place, Shared& shared, Local&) {
        const SegmentRow& row = batch.segments[place.block * kThreads + place.thread];
        const ImageRow& image = batch.images[row.image];
        if constexpr (kPhase == 0) {
            shared.natural[place.thread] = kNaturalOrder[place.thread];
            for (int t = 0; t < kHuffmanTables; ++t) {
                const HuffmanPayload& codes = image.codes[t];
                for (int i = 0; i < 256; i += kThreads)
                    shared.table[t].values[i + place.thread] = codes.values[i + place.thread];
            }
            if (place.thread < kHuffmanTables) {
                const HuffmanPayload& codes = image.codes[place.thread];
                Table& table = shared.table[place.thread];
                uint32_t code = 0;
                int index = 0;
                for (int length = 1; length <= 16; ++length) {
                    table.value_offset[length] = index - static_cast<int>(code);
                    index += codes.counts[length - 1];
                    code += codes.counts[length - 1];
                    table.longer_from[length] = code << (16 - length);
                    code <<= 1;
                }
                table.longer_from[17] = UINT32_MAX;
            }
        } else if constexpr (kPhase == 1) {
            for (int t = 0; t < kHuffmanTables; ++t) {
                Table& table = shared.table[t];
                for (uint32_t i = place.thread; i < 1u << kLookupBits; i += kThreads) {
                    const uint32_t next16 = i << (16 - kLookupBits), length = length_of(table, next16);
                    const bool fits = length <= kLookupBits;
                    table.lookup[i] = fits ? static_cast<uint16_t>(length | symbol_of(table, next16, length) << 8) : 0;
                }
            }
        } else {
            if (row.length == 0) return;
            const uint32_t fault = decode_segment(batch, image, row, shared, place.thread);
            if (fault != 0) set_bits(batch.faults + row.image, fault);
        }
    }
};

}  // namespace feeder::cuda
