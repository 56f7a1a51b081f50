// The loop of entropy.h. For the entropy_*.cc only: everything is local to the file that includes it, since each is
// compiled for another CPU.
#pragma once

#include <cstring>

#include "cpu/jpeg/entropy.h"
#include "cpu/jpeg/zigzag.h"

namespace feeder {
namespace {

struct Places {
    uint8_t at[AcTable::kPlaces];
};

// Index in a block of the coefficient that moves the place to k. From 65 on it is the last one, which gets zeros, or a
// value that is corrected at once.
constexpr Places make_places(CoefficientOrder order) {
    Places places{};
    for (unsigned k = 1; k < AcTable::kPlaces; ++k) {
        const unsigned index = k <= 64 ? k - 1 : 63;
        places.at[k] = order == CoefficientOrder::zigzag ? static_cast<uint8_t>(index) : kNaturalOrder[index];
    }
    return places;
}
template <CoefficientOrder kOrder>
constexpr Places kPlaces = make_places(kOrder);

constexpr uint32_t kStop = 0xC000;  // the bits of a state whose place is 64 or more

template <CoefficientOrder kOrder>
struct Hot {
    const uint8_t* next;
    uint64_t bits;
    uint32_t state;
    const uint32_t* lookup;
    int16_t* block;

    FEEDER_INLINE void load(const EntropyStream& s) {
        next = s.next;
        bits = s.bits;
        state = s.state;
        lookup = s.lookup;
        block = *s.block;
    }
    FEEDER_INLINE void save(EntropyStream& s) const {
        s.next = next;
        s.bits = bits;
        s.state = state;
        s.lookup = lookup;
        s.block = reinterpret_cast<int16_t(*)[64]>(block);
    }
    FEEDER_INLINE size_t place() const { return state >> 8 & 0xFF; }

    // Afterwards at least 56 bits are valid, from the top down. More may be valid; they are loaded once more.
    FEEDER_INLINE void refill() {
        uint64_t word;
        std::memcpy(&word, next, sizeof(word));
        bits |= __builtin_bswap64(word) >> (~state & 63);
        next += state >> 3 & 31;
        state &= ~0xF8u;
    }
    FEEDER_INLINE void drop(uint32_t count) {
        bits <<= count;
        state += count;
    }
    // Returns the entry.
    template <bool kPairs>
    FEEDER_INLINE uint32_t step() {
        const uint32_t* const at = lookup + (bits >> (64 - AcTable::kLookupBits));
        const uint32_t entry = *at;
        bits <<= entry & 63;
        if constexpr (kPairs) {
            const auto* const values = reinterpret_cast<const int8_t*>(at) + 2;
            block[(kPlaces<kOrder>.at + 1)[place()]] = values[0];
            state += entry;
            block[kPlaces<kOrder>.at[place()]] = values[1];
        } else {
            state += entry;
            block[kPlaces<kOrder>.at[place()]] = static_cast<int16_t>(entry >> 16);
        }
        return entry;
    }
};

// The number in the first `size` bits; 0 for none.
FEEDER_INLINE int signed_value(uint64_t bits, uint32_t size) {
    const int value = static_cast<int>(bits >> 1 >> (63 - size));
    const int negative = static_cast<int>(static_cast<int64_t>(~bits) >> 63);
    return value + (negative & (1 - (1 << size)));
}

template <CoefficientOrder kOrder>
FEEDER_INLINE void read_coefficient(Hot<kOrder>& h, uint32_t length, uint32_t symbol) {
    const uint32_t size = symbol & 15, run = symbol >> 4;
    const int value = signed_value(h.bits << length, size);
    h.drop(length + size);
    h.state += (size != 0 || run == 15 ? run + 1 : AcTable::kEnd) << 8;
    h.block[kPlaces<kOrder>.at[h.place()]] = static_cast<int16_t>(value);
}

template <CoefficientOrder kOrder>
FEEDER_INLINE bool read_by_length(Hot<kOrder>& h, const HuffmanCodes& codes) {
    int length = 0;
    const int symbol = codes.find(static_cast<uint32_t>(h.bits >> 48), length);
    if (symbol < 0) return false;
    read_coefficient(h, static_cast<uint32_t>(length), static_cast<uint32_t>(symbol));
    return true;
}

// A symbol that is not wholly in the lookup table. False: there is no such code.
template <CoefficientOrder kOrder>
FEEDER_INLINE bool read_unusual(Hot<kOrder>& h, const HuffmanCodes& codes) {
    h.state -= AcTable::kUnusual << 8;
    h.block[kPlaces<kOrder>.at[h.place() + 1]] = h.block[63] = 0;
    h.refill();
    const uint32_t entry = h.lookup[h.bits >> (64 - AcTable::kLookupBits)] >> 16;
    if (entry == 0) [[unlikely]] return read_by_length(h, codes);
    read_coefficient(h, entry & 0xFF, entry >> 8);
    return true;
}

// Takes back an entry of which the first symbol filled the block, or more, and reads that symbol alone.
template <CoefficientOrder kOrder>
FEEDER_INLINE bool read_first_again(Hot<kOrder>& h, const EntropyStream& s, const HuffmanCodes& codes, uint32_t entry) {
    h.block[63] = 0;
    h.state -= entry & 0xFFFF;
    const int64_t position = 8 * static_cast<int64_t>(h.next - s.begin) - EntropyStream::kEmpty + (h.state & 0xFF);
    h.next = s.begin + position / 8;
    h.bits = 0;
    h.state = (h.state & 0xFF00) | EntropyStream::kEmpty;
    h.refill();
    h.drop(static_cast<uint32_t>(position % 8));
    return read_by_length(h, codes);
}

template <CoefficientOrder kOrder>
FEEDER_INLINE bool read_dc(Hot<kOrder>& h, EntropyStream& s, const McuPlan& plan) {
    const McuPlan::Block& block = plan.block[s.block_in_mcu];
    h.refill();
    const uint32_t entry = block.dc->lookup[h.bits >> (64 - DcTable::kLookupBits)];
    uint32_t size = entry >> 8 & 0xFF;
    uint32_t length = entry >> 16;
    if (entry == 0) [[unlikely]] {
        int found = 0;
        const int symbol = block.dc->codes.find(static_cast<uint32_t>(h.bits >> 48), found);
        if (symbol < 0) return false;
        size = static_cast<uint32_t>(symbol);
        length = static_cast<uint32_t>(found);
    }
    unsigned& prediction = s.dc[block.component];
    prediction += static_cast<unsigned>(signed_value(h.bits << length, size));
    h.block[0] = static_cast<int16_t>(prediction);
    h.drop(length + size);
    h.state = (h.state & 0xFF) | 1 << 8;
    h.lookup = block.ac->lookup;
    return true;
}

// Handles a place of 64 or more, after this entry. False: the stream's run is over, or it is bad.
template <bool kPairs, CoefficientOrder kOrder>
FEEDER_INLINE bool pass(Hot<kOrder>& h, EntropyStream& s, const McuPlan& plan, uint32_t entry) {
    // Keeps the compiler from computing anything below before the branch, for every symbol.
    asm("" : "+r"(h.state));
    uint32_t place = static_cast<uint32_t>(h.place());
    const bool none_second = kPairs && ((place > 64 && place < AcTable::kEnd) || place == AcTable::kEnd + 64);
    if (place >= AcTable::kUnusual || none_second) {
        const HuffmanCodes& codes = plan.block[s.block_in_mcu].ac->codes;
        if (!(none_second ? read_first_again(h, s, codes, entry) : read_unusual(h, codes))) [[unlikely]] {
            s.bad = true;
            return false;
        }
        if ((h.state & kStop) == 0) return true;
        place = static_cast<uint32_t>(h.place());
    }
    if (place > 64 && place < AcTable::kEnd) [[unlikely]] {
        s.bad = true;
        return false;
    }
    *s.last = static_cast<uint8_t>(place == 64 ? 63 : place - AcTable::kEnd - 1);
    s.last += s.step;
    h.block += 64 * s.step;
    if (++s.block_in_mcu == plan.blocks) {
        s.block_in_mcu = 0;
        h.save(s);
        // One check per MCU: up to here, at most kReadAheadBytes beyond the end have been read.
        s.bad = s.position() > s.end_bit;
        if (s.bad || --s.mcus_left == 0) return false;
    }
    if (!read_dc(h, s, plan)) [[unlikely]] {
        s.bad = true;
        return false;
    }
    return true;
}

void begin_run(EntropyStream& s, const McuPlan& plan) {
    Hot<CoefficientOrder::natural> h;  // its place is the first one in any order
    h.load(s);
    s.bad = !read_dc(h, s, plan);
    h.save(s);
}

template <int kStreams, bool kPairs, CoefficientOrder kOrder>
int run(EntropyStream* const* streams, const McuPlan& plan) {
    // Symbols between two refills: as many as the bits are sure to hold.
    constexpr int kRounds = 56 / AcTable::kLookupBits;
    Hot<kOrder> hot[kStreams];
#pragma GCC unroll 3
    for (int i = 0; i < kStreams; ++i) hot[i].load(*streams[i]);
    uint32_t entry;
    for (;;) {
#pragma GCC unroll 3
        for (int i = 0; i < kStreams; ++i) hot[i].refill();
#pragma GCC unroll 8
        for (int round = 0; round < kRounds; ++round) {
            // A branch for each stream: were one branch for all mispredicted, the next, which tells them apart, would be too.
            entry = hot[0].template step<kPairs>();
            if ((hot[0].state & kStop) != 0) goto pass_0;
            if constexpr (kStreams > 1) {
                entry = hot[1].template step<kPairs>();
                if ((hot[1].state & kStop) != 0) goto pass_1;
            }
            if constexpr (kStreams > 2) {
                entry = hot[2].template step<kPairs>();
                if ((hot[2].state & kStop) != 0) goto pass_2;
            }
        }
        continue;
        int over;
    pass_0:
        if (pass<kPairs>(hot[0], *streams[0], plan, entry)) continue;
        over = 0;
        goto end;
    pass_1: __attribute__((unused));
        if (kStreams > 1 && pass<kPairs>(hot[kStreams > 1 ? 1 : 0], *streams[1], plan, entry)) continue;
        over = 1;
        goto end;
    pass_2: __attribute__((unused));
        if (kStreams > 2 && pass<kPairs>(hot[kStreams > 2 ? 2 : 0], *streams[2], plan, entry)) continue;
        over = 2;
    end:
#pragma GCC unroll 3
        for (int i = 0; i < kStreams; ++i) hot[i].save(*streams[i]);
        return over;
    }
}

template <CoefficientOrder kOrder>
constexpr EntropyKernels kKernelsOf = {begin_run,
                                       {run<1, false, kOrder>, run<2, false, kOrder>, run<3, false, kOrder>},
                                       run<1, true, kOrder>};

const EntropyKernels& kernels_of(CoefficientOrder order) {
    return order == CoefficientOrder::natural ? kKernelsOf<CoefficientOrder::natural> : kKernelsOf<CoefficientOrder::zigzag>;
}

}  // namespace
}  // namespace feeder
