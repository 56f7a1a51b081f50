#include "cpu/transcode/huffman_code.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace feeder {

void HuffmanCode::build(const uint32_t frequency[256]) {
    *this = HuffmanCode();
    constexpr int kReserved = 256;  // takes the code of all ones, which JPEG forbids
    uint64_t weight[257];
    int next[257];  // chains of symbols that share a subtree
    int depth[257] = {};
    std::vector<int> live;
    for (int i = 0; i <= kReserved; ++i) {
        weight[i] = i == kReserved ? 1 : frequency[i];
        next[i] = -1;
        if (weight[i] != 0) live.push_back(i);
    }
    // The two lightest subtrees become one, until one is left. Of equal ones the later symbol comes first, so that the
    // reserved one gets the longest code.
    const auto take_lightest = [&] {
        size_t best = 0;
        for (size_t i = 1; i < live.size(); ++i) {
            if (weight[live[i]] < weight[live[best]] ||
                (weight[live[i]] == weight[live[best]] && live[i] > live[best])) {
                best = i;
            }
        }
        const int found = live[best];
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(best));
        return found;
    };
    while (live.size() > 1) {
        const int first = take_lightest();
        const int second = take_lightest();
        weight[second] += weight[first];
        int last = second;
        for (int i = second; i >= 0; i = next[i]) {
            ++depth[i];
            last = i;
        }
        next[last] = first;
        for (int i = first; i >= 0; i = next[i]) ++depth[i];
        live.push_back(second);
    }

    int bits[258] = {};
    int longest = 0;
    for (int i = 0; i <= kReserved; ++i) {
        if (weight[i] == 0 && depth[i] == 0) continue;
        ++bits[depth[i]];
        longest = std::max(longest, depth[i]);
    }
    // Codes over 16 bits: a pair moves up, and a shorter code is split to make room (Annex K.2, figure K.3).
    for (int i = longest; i > 16; --i) {
        while (bits[i] > 0) {
            int j = i - 2;
            while (bits[j] == 0) --j;
            bits[i] -= 2;
            ++bits[i - 1];
            bits[j + 1] += 2;
            --bits[j];
        }
    }
    int last = 16;
    while (last > 0 && bits[last] == 0) --last;
    --bits[last];  // the reserved one

    for (int i = 1; i <= 16; ++i) counts[i - 1] = static_cast<uint8_t>(bits[i]);
    for (int wanted = 1; wanted <= longest; ++wanted) {
        for (int i = 0; i < 256; ++i) {
            if (depth[i] == wanted) symbols[symbol_count++] = static_cast<uint8_t>(i);
        }
    }
    unsigned value = 0;
    int index = 0;
    for (int i = 1; i <= 16; ++i, value <<= 1) {
        for (int n = 0; n < bits[i]; ++n, ++index, ++value) {
            code[symbols[index]] = static_cast<uint16_t>(value);
            length[symbols[index]] = static_cast<uint8_t>(i);
        }
    }
}

}  // namespace feeder
