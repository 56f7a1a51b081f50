#include "cpu/packed/train.h"

#include <algorithm>
#include <utility>

#include "cpu/packed/codebook.h"

namespace feeder {
namespace {

// Shapes that take part in the merging, the most frequent ones. More cost time, and the result hardly changes.
constexpr size_t kMostCandidates = 1000;
// Blocks of an image that are looked at, luma or chroma.
constexpr int64_t kBlocksPerImage = 512;
constexpr int kRounds = 12;

struct Candidate {
    Shape shape;
    uint64_t blocks;
};

int bytes_of(const Shape& shape) {
    int bytes = 0;
    for (const uint8_t code : shape) bytes += kWidths[code];
    return bytes;
}

Shape joined(const Shape& a, const Shape& b) {
    Shape shape;
    for (size_t g = 0; g < kGroups; ++g) shape[g] = std::max(a[g], b[g]);
    return shape;
}

// The bytes that are lost if one shape that holds both takes the place of two.
uint64_t loss(const Candidate& a, const Candidate& b) {
    int bytes = 0;
    for (size_t g = 0; g < kGroups; ++g) bytes += kWidths[std::max(a.shape[g], b.shape[g])];
    return static_cast<uint64_t>(bytes - bytes_of(a.shape)) * a.blocks +
           static_cast<uint64_t>(bytes - bytes_of(b.shape)) * b.blocks;
}

std::vector<Candidate> candidates(const std::vector<BlockCosts>& blocks) {
    std::vector<Shape> seen;
    for (const BlockCosts& block : blocks) seen.push_back(block.best());
    std::sort(seen.begin(), seen.end());
    std::vector<Candidate> found;
    for (size_t i = 0; i < seen.size();) {
        const size_t first = i;
        while (i < seen.size() && seen[i] == seen[first]) ++i;
        found.push_back({seen[first], i - first});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Candidate& a, const Candidate& b) { return a.blocks > b.blocks; });
    if (found.size() > kMostCandidates) found.resize(kMostCandidates);
    return found;
}

// Merges the pair that loses least, until `wanted` are left.
std::vector<Shape> merged(std::vector<Candidate> all, size_t wanted) {
    std::vector<size_t> nearest(all.size());
    std::vector<uint64_t> least(all.size());
    const auto find_nearest = [&](size_t i) {
        least[i] = UINT64_MAX;
        for (size_t j = 0; j < all.size(); ++j) {
            if (j == i || all[j].blocks == 0) continue;
            const uint64_t lost = loss(all[i], all[j]);
            if (lost < least[i]) {
                least[i] = lost;
                nearest[i] = j;
            }
        }
    };
    for (size_t i = 0; i < all.size(); ++i) find_nearest(i);
    for (size_t left = all.size(); left > wanted; --left) {
        size_t i = all.size();
        for (size_t k = 0; k < all.size(); ++k)
            if (all[k].blocks != 0 && (i == all.size() || least[k] < least[i])) i = k;
        const size_t gone = nearest[i];
        all[i] = {joined(all[i].shape, all[gone].shape), all[i].blocks + all[gone].blocks};
        all[gone].blocks = 0;
        find_nearest(i);
        for (size_t k = 0; k < all.size(); ++k) {
            if (all[k].blocks == 0 || k == i) continue;
            if (nearest[k] == gone || nearest[k] == i) {
                find_nearest(k);
            } else if (const uint64_t lost = loss(all[k], all[i]); lost < least[k]) {
                least[k] = lost;
                nearest[k] = i;
            }
        }
    }
    std::vector<Shape> shapes;
    for (const Candidate& one : all)
        if (one.blocks != 0) shapes.push_back(one.shape);
    return shapes;
}

// Makes shapes fit the blocks that choose them, by turns, as in k-means: the best width of a group does not depend on the
// other groups.
void fit(const std::vector<BlockCosts>& blocks, std::vector<Shape>& shapes) {
    struct Total {
        uint64_t cost[kGroups][8] = {};
        uint64_t blocks = 0;
    };
    for (int round = 0; round < kRounds; ++round) {
        ShapeTable table;
        table.fill(shapes);
        std::vector<Total> totals(shapes.size());
        for (const BlockCosts& block : blocks) {
            Total& total = totals[static_cast<size_t>(choose_shape(table, block).shape)];
            ++total.blocks;
            for (int g = 0; g < kGroups; ++g)
                for (int code = 0; code < 8; ++code) total.cost[g][code] += block.of_code[g][code];
        }
        for (size_t i = 0; i < shapes.size(); ++i) {
            if (totals[i].blocks == 0) continue;
            for (size_t g = 0; g < kGroups; ++g) {
                const uint64_t* const cost = totals[i].cost[g];
                shapes[i][g] = static_cast<uint8_t>(std::min_element(cost, cost + 8) - cost);
            }
        }
    }
}

std::vector<Shape> trained(const std::vector<BlockCosts>& blocks) {
    std::vector<Shape> shapes = merged(candidates(blocks), kMostShapes - 1);
    if (!shapes.empty()) fit(blocks, shapes);
    // Any block has its place, with patches only for what no width holds.
    shapes.push_back({7, 7, 7, 7, 7, 7, 7, 7});
    std::sort(shapes.begin(), shapes.end());
    shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
    return shapes;
}

}  // namespace

bool CodebookTrainer::add(ByteSpan file, int64_t max_pixels) {
    JpegHeader header;
    if (!packable(file, max_pixels, header).ok()) return false;
    const int64_t count = blocks_.read(file, header);
    if (count < 0) return false;
    int luma = 1, all = 1;  // blocks of an MCU
    if (header.components > 1) {
        luma = header.component[0].h * header.component[0].v;
        all = luma;
        for (int i = 1; i < header.components; ++i) all += header.component[i].h * header.component[i].v;
    }
    const int64_t mcus = count / all;
    for (int t = 0; t < 2; ++t) {
        const int first = t == 0 ? 0 : luma, per_mcu = t == 0 ? luma : all - luma;
        const int64_t total = mcus * per_mcu, wanted = std::min(total, kBlocksPerImage);
        for (int64_t n = 0; n < wanted; ++n) {
            const int64_t place = n * total / wanted;  // evenly over the image
            OrderedBlock block = blocks_.data()[place / per_mcu * all + first + place % per_mcu];
            block.coefficients[0] = 0;
            seen_[t].emplace_back().set(block);
        }
    }
    return true;
}

std::vector<uint8_t> CodebookTrainer::train() const {
    std::vector<Shape> shapes[2];
    for (int t = 0; t < 2; ++t) shapes[t] = trained(seen_[t]);
    return write_codebook(shapes[0], shapes[1]);
}

}  // namespace feeder
