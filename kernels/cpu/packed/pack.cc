#include "cpu/packed/pack.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "cpu/jpeg/baseline.h"
#include "cpu/jpeg/unstuff.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/packed/shape_choice.h"

namespace feeder {
namespace {

constexpr size_t kMostTrailerBytes = 1 << 16;

Outcome refuse(const char* reason) { return {Status::unsupported, reason}; }

template <typename T>
void append_value(std::vector<uint8_t>& out, const T& value) {
    const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof(value));
}

constexpr const char* kOutOfRange = "coefficients out of range";

// The cheapest shape that holds a block; -1: none does.
int legal_shape(const ShapeTable& table, const BlockCosts& costs) {
    const int cheapest = choose_shape(table, costs);
    if (costs.is_legal(table.codes[cheapest])) return cheapest;
    int best = -1, least = 0;
    for (int i = 0; i < table.count; ++i) {
        if (!costs.is_legal(table.codes[i])) continue;
        int total = 0;
        for (size_t g = 0; g < kGroups; ++g) total += costs.of_code[g][table.codes[i][g]];
        if (best < 0 || total < least) {
            best = i;
            least = total;
        }
    }
    return best;
}

// The bytes of a line of blocks.
class LineWriter {
  public:
    // block(x) gives the coefficients. Returns nullptr, or why they can't be packed.
    template <typename BlockOf>
    const char* append(const ShapeTable& table, int blocks, const BlockOf& block, std::vector<uint8_t>& out) {
        const size_t count = static_cast<size_t>(blocks), groups = (count + 7) / 8;
        shapes_.resize(count);
        ordered_.resize(count);
        patch_groups_.resize(count);
        differences_.assign(8 * groups, 0);
        dc_codes_.assign((groups + 1) / 2, 0);
        patches_.clear();
        payload_.resize(8 * (kGroups * count + 2 * groups + 1));
        int prediction = 0;
        for (int x = 0; x < blocks; ++x) {
            const int16_t* const coefficients = block(x);
            OrderedBlock& ordered = ordered_[static_cast<size_t>(x)];
            ordered.set(coefficients);
            BlockCosts costs;
            costs.set(ordered);
            const int shape = legal_shape(table, costs);
            if (shape < 0) return kOutOfRange;
            shapes_[static_cast<size_t>(x)] = static_cast<uint8_t>(shape);
            unsigned groups_with_patches = 0;
            for (size_t g = 0; g < kGroups; ++g)
                groups_with_patches |= (costs.patch_bytes(g, table.codes[shape][g]) > 0 ? 1u : 0u) << g;
            patch_groups_[static_cast<size_t>(x)] = static_cast<uint8_t>(groups_with_patches);
            // Modulo 2^16, as the sum is.
            differences_[static_cast<size_t>(x)] = static_cast<int16_t>(coefficients[0] - prediction);
            prediction = coefficients[0];
        }
        uint8_t* to = payload_.data();
        for (size_t g = 0; g < groups; ++g) {
            const int code = cheapest_dc_code(differences_.data() + 8 * g);
            dc_codes_[g / 2] = static_cast<uint8_t>(dc_codes_[g / 2] | code << 4 * (g % 2));
            to = write_group(differences_.data() + 8 * g, kDcWidths[code], to);
        }
        for (int x = 0; x < blocks; ++x) {
            const size_t place = static_cast<size_t>(x);
            if (!patch(x, 0, differences_[place], kDcWidths[dc_codes_[place / 16] >> 4 * (x / 8 % 2) & 15]))
                return kOutOfRange;
            const OrderedBlock& ordered = ordered_[place];
            to = write_payload(table, shapes_[place], ordered, to);
            for (unsigned left = patch_groups_[place]; left != 0; left &= left - 1) {
                const int group = __builtin_ctz(left);
                const int width = kWidths[table.codes[shapes_[place]][static_cast<size_t>(group)]];
                for (int k = 8 * group; k < 8 * group + 8; ++k) patch(x, k, ordered.coefficients[k], width);
            }
        }
        if (patches_.size() > size_t{kMostPatches} * kPatchBytes) return "too many large coefficients in a row";
        append_value(out, static_cast<uint16_t>(patches_.size() / kPatchBytes));
        out.insert(out.end(), shapes_.begin(), shapes_.end());
        out.insert(out.end(), dc_codes_.begin(), dc_codes_.end());
        out.insert(out.end(), payload_.data(), to);
        out.insert(out.end(), patches_.begin(), patches_.end());
        return nullptr;
    }

  private:
    // Adds a patch if a number needs one. False: it is too large for that.
    bool patch(int block, int index, int number, int width) {
        const int low = low_part(number, width);
        if (number == low) return true;
        const int high = (number - low) >> width;
        const uint32_t bits = static_cast<uint32_t>(block) << 11 | static_cast<uint32_t>(index) << 5 |
                              (static_cast<uint32_t>(high) & 31);
        for (int i = 0; i < kPatchBytes; ++i) patches_.push_back(static_cast<uint8_t>(bits >> (8 * i)));
        return high >= kLeastHigh && high <= kMostHigh;
    }

    static int cheapest_dc_code(const int* numbers) {
        int best = kDcCodes - 1, least = INT32_MAX;
        for (int code = 0; code < kDcCodes; ++code) {
            int cost = kDcWidths[code];
            bool legal = true;
            for (int i = 0; i < 8; ++i) {
                legal = legal && holds(kDcWidths[code], numbers[i]);
                if (low_part(numbers[i], kDcWidths[code]) != numbers[i]) cost += kPatchBytes;
            }
            if (legal && cost < least) {
                best = code;
                least = cost;
            }
            if (cost == kDcWidths[code]) break;  // without a patch, and wider ones take more
        }
        return best;
    }

    // Writes the low parts of 8 numbers; the payload has memory for 8 bytes more.
    static uint8_t* write_group(const int* numbers, int width, uint8_t* to) {
        uint64_t word = 0;
        int filled = 0;
        for (int i = 0; i < 8 && width > 0; ++i) {
            const uint64_t field = static_cast<uint64_t>(numbers[i] + (1 << (width - 1))) & ((1u << width) - 1);
            word |= field << filled;
            filled += width;
            if (width > 8 && filled >= 32) {
                std::memcpy(to, &word, 4);
                to += 4;
                word >>= 32;
                filled -= 32;
            }
        }
        std::memcpy(to, &word, sizeof(word));
        return to + filled / 8;
    }

    std::vector<OrderedBlock> ordered_;
    std::vector<uint8_t> shapes_, patch_groups_, dc_codes_, payload_, patches_;
    std::vector<int> differences_;
};

// Appends all rows, and fills in their places.
const char* append_rows(const JpegHeader& header, const McuGrid& grid, const Codebook& codebook,
                        const int16_t (*blocks)[64], size_t places, std::vector<uint8_t>& out) {
    LineWriter writer;
    int blocks_per_mcu = 0;
    for (int i = 0; i < header.components; ++i) blocks_per_mcu += header.component[i].h * header.component[i].v;
    const auto set_place = [&](int row) {
        const uint32_t place = static_cast<uint32_t>(out.size());
        std::memcpy(out.data() + places + 4 * static_cast<size_t>(row), &place, 4);
        return out.size() <= UINT32_MAX - kMostTrailerBytes;
    };
    for (int row = 0; row < grid.rows; ++row) {
        if (!set_place(row)) return "too large";
        const int16_t(*const first)[64] = blocks + static_cast<ptrdiff_t>(row) * grid.columns * blocks_per_mcu;
        int of_mcu = 0;
        for (int i = 0; i < header.components; ++i) {
            const int h = header.component[i].h;
            for (int v = 0; v < header.component[i].v; ++v, of_mcu += h) {
                const auto block = [&](int x) {
                    return first[static_cast<ptrdiff_t>(x / h) * blocks_per_mcu + of_mcu + x % h];
                };
                if (const char* reason = writer.append(codebook.of_component(i), grid.columns * h, block, out))
                    return reason;
            }
        }
    }
    return set_place(grid.rows) ? nullptr : "too large";
}

// Why the scan of a JPEG is not as it would be written again. It is read symbol by symbol, and only when that is known.
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

int64_t JpegBlocks::read(ByteSpan file, const JpegHeader& header) {
    if (decoder_ == nullptr) decoder_ = std::make_unique<BaselineDecoder>();
    const McuGrid grid = mcu_grid(header);
    size_t blocks = 0;
    for (int i = 0; i < header.components; ++i) blocks += size_t{header.component[i].h} * header.component[i].v;
    if (header.components == 1) blocks = 1;
    blocks *= static_cast<size_t>(grid.columns) * static_cast<size_t>(grid.rows);
    // Each takes two bits or more: a header of a few bytes may claim gigabytes.
    if (blocks / 4 > file.size()) return -1;
    if (!storage_.reserve(blocks * sizeof(int16_t[64]))) throw std::bad_alloc();
    return decoder_->read_coefficients(file, header, reinterpret_cast<int16_t*>(storage_.data()));
}

JpegBlocks::JpegBlocks() = default;
JpegBlocks::~JpegBlocks() = default;

Outcome packable(ByteSpan file, int64_t max_pixels, JpegHeader& header) {
    Outcome outcome = parse_jpeg_header(file, header);
    if (!outcome.ok()) return outcome;
    if (const char* kind = unpackable_kind(header)) return refuse(kind);
    if (max_pixels > 0 && static_cast<int64_t>(header.width) * header.height > max_pixels) return refuse("too large");
    return {};
}

Outcome pack_jpeg(ByteSpan file, const CodebookId& id, const Codebook& codebook, int64_t max_pixels,
                  std::vector<uint8_t>& out) {
    JpegHeader header;
    Outcome outcome = packable(file, max_pixels, header);
    if (!outcome.ok()) return outcome;
    if (header.components == 1) {
        header.component[0].h = header.component[0].v = 1;
        header.h_max = header.v_max = 1;
    }
    JpegBlocks blocks;
    if (blocks.read(file, header) < 0) return refuse(ScanFault().find(file, header));

    const McuGrid grid = mcu_grid(header);
    PackedHead head{};
    std::memcpy(head.magic, kPackedMagic, sizeof(head.magic));
    std::copy(id.begin(), id.end(), head.codebook);
    head.header_bytes = static_cast<uint32_t>(header.entropy_offset);
    head.rows = static_cast<uint32_t>(grid.rows);
    out.assign(sizeof(head), 0);  // the head is written below, when all of it is known
    out.insert(out.end(), file.begin(), file.begin() + static_cast<ptrdiff_t>(header.entropy_offset));
    const size_t places = out.size();
    out.resize(places + 4 * (static_cast<size_t>(grid.rows) + 1));
    if (const char* reason = append_rows(header, grid, codebook, blocks.data(), places, out)) return refuse(reason);

    // It is packed only if the same scan comes out.
    Bytes unpacked;
    for (const bool ones : {true, false}) {
        head.ones = ones;
        head.jpeg_bytes = static_cast<uint32_t>(std::min<size_t>(file.size(), UINT32_MAX));
        std::memcpy(out.data(), &head, sizeof(head));
        PackedFile packed;
        outcome = packed.open(out, -1);
        if (!outcome.ok()) return outcome;
        outcome = unpack_scan(packed, codebook, unpacked);
        if (outcome.ok() && unpacked.size() + 2 <= file.size() &&
            std::memcmp(unpacked.data(), file.data(), unpacked.size()) == 0 && file[unpacked.size()] == 0xFF &&
            file[unpacked.size() + 1] == 0xD9) {
            head.trailer_bytes = static_cast<uint32_t>(file.size() - unpacked.size());
            break;
        }
    }
    if (head.trailer_bytes == 0) return refuse(ScanFault().find(file, header));
    if (head.trailer_bytes > kMostTrailerBytes) return refuse("much data after its end");
    std::memcpy(out.data(), &head, sizeof(head));
    out.insert(out.end(), file.end() - head.trailer_bytes, file.end());
    return {};
}

}  // namespace feeder
