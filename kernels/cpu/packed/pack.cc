#include "cpu/packed/pack.h"

#include <algorithm>
#include <cstring>

#include "cpu/jpeg/segments.h"
#include "cpu/packed/jpeg_blocks.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/packed/line_writer.h"
#include "cpu/packed/scan_fault.h"

namespace feeder {
namespace {

constexpr size_t kMostTrailerBytes = 1 << 16, kMostKeptBytes = 64 << 20;

Outcome refuse(const char* reason) { return {Status::unsupported, reason}; }

// Appends all rows, and fills in their places.
const char* append_rows(const JpegHeader& header, const McuGrid& grid, const Codebook& codebook, OrderedBlock* blocks,
                        size_t places, LineWriter& writer, std::vector<uint8_t>& out) {
    int blocks_per_mcu = 0;
    for (int i = 0; i < header.components; ++i) blocks_per_mcu += header.component[i].h * header.component[i].v;
    const auto set_place = [&](int row) {
        const uint32_t place = static_cast<uint32_t>(out.size());
        std::memcpy(out.data() + places + 4 * static_cast<size_t>(row), &place, 4);
        return out.size() <= UINT32_MAX - kMostTrailerBytes;
    };
    for (int row = 0; row < grid.rows; ++row) {
        if (!set_place(row)) return "too large";
        OrderedBlock* first = blocks + static_cast<ptrdiff_t>(row) * grid.columns * blocks_per_mcu;
        for (int i = 0; i < header.components; ++i) {
            const int h = header.component[i].h;
            for (int v = 0; v < header.component[i].v; ++v, first += h) {
                const ShapeTable& table = codebook.of_component(i);
                if (const char* reason = writer.append(table, first, grid.columns * h, h, blocks_per_mcu, out))
                    return reason;
            }
        }
    }
    return set_place(grid.rows) ? nullptr : "too large";
}

}  // namespace

struct JpegPacker::Buffers {
    JpegBlocks blocks;
    LineWriter line;
    Bytes unpacked;
};

// A thread that has packed one huge image does not keep the memory for its coefficients.
struct JpegPacker::Trim {
    explicit Trim(JpegPacker& packer) : buffers(packer.buffers_) {}
    Trim(const Trim&) = delete;
    Trim& operator=(const Trim&) = delete;
    ~Trim() {
        if (buffers->blocks.kept_bytes() + buffers->unpacked.capacity() > kMostKeptBytes)
            buffers = std::make_unique<Buffers>();
    }
    std::unique_ptr<Buffers>& buffers;
};

JpegPacker::JpegPacker() : buffers_(std::make_unique<Buffers>()) {}
JpegPacker::~JpegPacker() = default;

Outcome JpegPacker::pack(ByteSpan file, const CodebookId& id, const Codebook& codebook, int64_t max_pixels,
                         std::vector<uint8_t>& out) {
    JpegHeader header;
    Outcome outcome = packable(file, max_pixels, header);
    if (!outcome.ok()) return outcome;
    if (header.components == 1) {
        header.component[0].h = header.component[0].v = 1;
        header.h_max = header.v_max = 1;
    }
    const Trim trim(*this);
    JpegBlocks& blocks = buffers_->blocks;
    if (blocks.read(file, header) < 0) return refuse(scan_fault(file, header));

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
    if (const char* reason = append_rows(header, grid, codebook, blocks.data(), places, buffers_->line, out))
        return refuse(reason);

    // It is packed only if the same scan comes out.
    Bytes& unpacked = buffers_->unpacked;
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
    if (head.trailer_bytes == 0) return refuse(scan_fault(file, header));
    if (head.trailer_bytes > kMostTrailerBytes) return refuse("much data after its end");
    std::memcpy(out.data(), &head, sizeof(head));
    out.insert(out.end(), file.end() - head.trailer_bytes, file.end());
    return {};
}

}  // namespace feeder
