#include "cpu/packed/codebook.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

namespace feeder {
namespace {

constexpr uint8_t kMagic[4] = {'F', 'P', 'C', 1};
constexpr size_t kShapeBytes = 3;  // 3 bits a group
constexpr size_t kHeadBytes = sizeof(kMagic) + 2;

struct Entry {
    CodebookId id;
    Codebook codebook;
    const Entry* next = nullptr;
};

std::atomic<const Entry*> known{nullptr};

}  // namespace

void ShapeTable::fill(const std::vector<Shape>& shapes) {
    *this = ShapeTable();
    count = static_cast<int>(shapes.size());
    for (int i = 0; i < count; ++i) {
        codes[i] = shapes[static_cast<size_t>(i)];
        int rest = 0;
        for (int g = 0; g < kGroups; ++g) {
            const int width = kWidths[codes[i][static_cast<size_t>(g)]];
            offset[i][g] = bytes[i];
            for (int n = 0; n < 8; ++n) {
                mask[i][g] |= ((1ull << width) - 1) << (8 * n);
                bias[i][g] |= (width == 0 ? 0 : 1ull << (width - 1)) << (8 * n);
            }
            bytes[i] = static_cast<uint8_t>(bytes[i] + width);
            byte_mask[i] |= ((1ull << width) - 1) << (8 * g);
            if (g > 0) rest += width;
        }
        kind_and_bytes[i] = static_cast<uint8_t>(bytes[i] | (rest > 0 ? kFull : 0));
    }
    for (int i = 0; i < kMostShapes; ++i) {
        const Shape& shape = codes[std::min(i, count - 1)];
        for (size_t g = 0; g < kGroups; ++g) by_group[g][i] = shape[g];
        for (size_t p = 0; p < kGroups / 2; ++p)
            by_pair[p][i] = static_cast<uint8_t>(shape[2 * p] | shape[2 * p + 1] << 3);
    }
}

bool Codebook::parse(ByteSpan data) {
    if (data.size() < kHeadBytes || !std::equal(std::begin(kMagic), std::end(kMagic), data.begin())) return false;
    const size_t counts[2] = {size_t{data[4]} + 1, size_t{data[5]} + 1};
    if (data.size() != kHeadBytes + kShapeBytes * (counts[0] + counts[1])) return false;
    const uint8_t* at = data.data() + kHeadBytes;
    for (int t = 0; t < 2; ++t) {
        std::vector<Shape> shapes(counts[t]);
        for (Shape& shape : shapes) {
            const unsigned bits = at[0] | static_cast<unsigned>(at[1]) << 8 | static_cast<unsigned>(at[2]) << 16;
            for (int g = 0; g < kGroups; ++g) shape[static_cast<size_t>(g)] = bits >> (3 * g) & 7;
            at += kShapeBytes;
        }
        tables[t].fill(shapes);
    }
    return true;
}

std::vector<uint8_t> write_codebook(const std::vector<Shape>& luma, const std::vector<Shape>& chroma) {
    std::vector<uint8_t> out(std::begin(kMagic), std::end(kMagic));
    out.push_back(static_cast<uint8_t>(luma.size() - 1));
    out.push_back(static_cast<uint8_t>(chroma.size() - 1));
    for (const std::vector<Shape>* shapes : {&luma, &chroma}) {
        for (const Shape& shape : *shapes) {
            unsigned bits = 0;
            for (int g = 0; g < kGroups; ++g) bits |= static_cast<unsigned>(shape[static_cast<size_t>(g)]) << (3 * g);
            for (int i = 0; i < 3; ++i) out.push_back(static_cast<uint8_t>(bits >> (8 * i)));
        }
    }
    return out;
}

bool add_codebook(const CodebookId& id, ByteSpan bytes) {
    if (find_codebook(id) != nullptr) return true;
    std::unique_ptr<Entry> entry(new (std::nothrow) Entry);
    if (entry == nullptr || !entry->codebook.parse(bytes)) return false;
    entry->id = id;
    entry->next = known.load(std::memory_order_relaxed);
    while (!known.compare_exchange_weak(entry->next, entry.get(), std::memory_order_release)) {
    }
    entry.release();  // never freed: decoders may use it at any time
    return true;
}

std::string unknown_codebook(const CodebookId& id) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text = "packed JPEG: unknown codebook ";
    for (const uint8_t byte : id) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text + "; it is the first member of the image's shard, and in the shard set's index, of which "
                  "feeder.packed_decoder(SET) and feeder.decode_packed(data, codebooks) make the JPEG";
}

const Codebook* find_codebook(const CodebookId& id) {
    for (const Entry* entry = known.load(std::memory_order_acquire); entry != nullptr; entry = entry->next)
        if (entry->id == id) return &entry->codebook;
    return nullptr;
}

}  // namespace feeder
