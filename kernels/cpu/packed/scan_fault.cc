#include "cpu/packed/scan_fault.h"

#include <algorithm>
#include <cstring>

#include "cpu/jpeg/huffman.h"
#include "cpu/jpeg/segments.h"
#include "cpu/jpeg/unstuff.h"

namespace feeder {
namespace {

class ScanFault {
  public:
    const char* find(ByteSpan file, const JpegHeader& header) {
        for (int i = 0; i < header.components; ++i) {
            const TableRef& dc = header.dc_huffman[header.component[i].dc_table];
            const TableRef& ac = header.ac_huffman[header.component[i].ac_table];
            if (!dc_[i].build(file.subspan(dc.offset, dc.length)) || !ac_[i].build(file.subspan(ac.offset, ac.length)))
                return "a damaged Huffman table";
        }
        const McuGrid grid = mcu_grid(header);
        const int64_t total = static_cast<int64_t>(grid.columns) * grid.rows;
        const int64_t interval = header.restart_interval_mcus > 0 ? header.restart_interval_mcus : total;
        int paddings = 0;  // bit 0: with zeros, bit 1: with ones
        size_t at = header.entropy_offset;
        unsigned segment = 0;
        Bytes unstuffed;
        for (int64_t first = 0; first < total; first += interval, ++segment) {
            if (!unstuffed.reserve(file.size() - at + kReadAheadBytes)) return "too large";
            size_t stopped_at = 0;
            const size_t bytes = unstuff(file, at, file.size(), unstuffed.data(), stopped_at);
            std::memset(unstuffed.data() + bytes, 0, kReadAheadBytes);
            BitReader bits(unstuffed.data());
            const int64_t end = std::min(total, first + interval);
            for (int64_t mcu = first; mcu < end; ++mcu) {
                for (int i = 0; i < header.components; ++i) {
                    for (int n = header.component[i].h * header.component[i].v; n > 0; --n)
                        if (const char* fault = block(bits, i)) return fault;
                }
                if (bits.position() > 8 * static_cast<int64_t>(bytes)) return "a damaged scan";
            }
            const int64_t left = 8 * static_cast<int64_t>(bytes) - bits.position();
            if (left >= 8) return "bytes left over before a marker";
            if (left > 0) {
                bits.refill();
                const uint32_t filled = bits.peek(static_cast<int>(left));
                paddings |= filled == 0 ? 1 : filled == (1u << left) - 1 ? 2 : 3;
            }
            if (stopped_at + 2 > file.size()) return "no end-of-image marker";
            if (file[stopped_at + 1] == 0xFF) return "fill bytes";
            const uint8_t expected = end == total ? 0xD9 : static_cast<uint8_t>(0xD0 + segment % 8);
            if (file[stopped_at + 1] != expected) return end == total ? "no end-of-image marker" : "wrong restart markers";
            at = stopped_at + 2;
        }
        return paddings == 3 ? "mixed padding" : "an unusual Huffman code";
    }

  private:
    static int symbol(BitReader& bits, const HuffmanCodes& codes) {
        int length = 0;
        const int found = codes.find(bits.peek(16), length);
        if (found >= 0) bits.drop(length);
        return found;
    }

    const char* block(BitReader& bits, int component) const {
        bits.refill();
        const int size = symbol(bits, dc_[component]);
        if (size < 0 || size > 15) return "a damaged scan";
        bits.drop(size);
        bool after_zrl = false;
        for (int k = 1; k < 64; ++k) {
            bits.refill();
            const int found = symbol(bits, ac_[component]);
            if (found < 0) return "a damaged scan";
            if ((found & 15) == 0) {
                if (found != 0xF0) return found != 0 || after_zrl ? "an odd EOB or ZRL" : nullptr;
                after_zrl = true;
                k += 15;
                continue;
            }
            after_zrl = false;
            k += found >> 4;
            if (k > 63) return "a damaged scan";
            bits.drop(found & 15);
        }
        return after_zrl ? "an odd EOB or ZRL" : nullptr;
    }

    HuffmanCodes dc_[4];
    HuffmanCodes ac_[4];
};

}  // namespace

const char* scan_fault(ByteSpan file, const JpegHeader& header) { return ScanFault().find(file, header); }

}  // namespace feeder
