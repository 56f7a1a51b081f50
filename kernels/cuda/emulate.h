// Runs the kernels on the CPU, one thread after the other. See Note [kernels in phases].
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/batch.h"
#include "cuda/grid.h"
#include "cuda/joined.h"

namespace feeder::cuda {

enum class Order { forward, backward, shuffled };

inline std::vector<uint32_t> in_order(uint32_t count, Order order, std::mt19937& random) {
    std::vector<uint32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    if (order == Order::backward) std::reverse(numbers.begin(), numbers.end());
    if (order == Order::shuffled) std::shuffle(numbers.begin(), numbers.end(), random);
    return numbers;
}

// Finds bytes of shared memory that two threads change in one phase. Orders of threads don't show it where each reads only what
// it wrote before itself.
template <typename Shared>
class Writers {
  public:
    void begin_phase(const Shared& shared) {
        std::memcpy(before_, &shared, sizeof(Shared));
        std::fill_n(changed_, sizeof(Shared), false);
    }
    // False: the thread that has just run changed what another one had changed.
    bool add_thread(const Shared& shared) {
        const auto* const after = reinterpret_cast<const uint8_t*>(&shared);
        bool good = true;
        for (size_t at = 0; at < sizeof(Shared); at += kPiece) {
            const size_t end = std::min(at + kPiece, sizeof(Shared));
            if (std::memcmp(before_ + at, after + at, end - at) == 0) continue;
            for (size_t i = at; i < end; ++i) {
                if (before_[i] == after[i]) continue;
                good = good && !changed_[i];
                changed_[i] = true;
                before_[i] = after[i];
            }
        }
        return good;
    }

  private:
    static constexpr size_t kPiece = 32;
    uint8_t before_[sizeof(Shared)];
    bool changed_[sizeof(Shared)];
};

// Runs `blocks` blocks of threads. Shared memory and what threads keep start as bytes that depend on the order, so that a
// read of what nobody wrote shows as a difference too. False: two threads changed the same shared memory in one phase, which
// is looked at in one order and in some blocks only, as it takes time.
template <typename Kernel>
bool emulate(const Batch& batch, uint32_t blocks, Order order) {
    static_assert(std::is_trivially_copyable_v<typename Kernel::Shared>);
    std::mt19937 random(7);
    const auto shared = std::make_unique<typename Kernel::Shared>();
    std::vector<typename Kernel::Local> locals(Kernel::kThreads);
    const int filling = 0x5A + static_cast<int>(order);
    constexpr bool has_shared = !std::is_empty_v<typename Kernel::Shared>;
    constexpr uint32_t watched_each = 8;
    const auto writers = std::make_unique<Writers<typename Kernel::Shared>>();
    bool good = true;
    for (const uint32_t block : in_order(blocks, order, random)) {
        const bool is_watched = has_shared && order == Order::forward && block % watched_each == 0;
        std::memset(static_cast<void*>(shared.get()), filling, sizeof(*shared));
        std::memset(static_cast<void*>(locals.data()), filling, locals.size() * sizeof(locals[0]));
        [&]<int... kPhases>(std::integer_sequence<int, kPhases...>) {
            const auto run_phase = [&]<int kPhase>(std::integral_constant<int, kPhase>) {
                if (is_watched) writers->begin_phase(*shared);
                for (const uint32_t thread : in_order(Kernel::kThreads, order, random)) {
                    Kernel::template run<kPhase>(batch, {block, thread}, *shared, locals[thread]);
                    if (is_watched) good = writers->add_thread(*shared) && good;
                }
            };
            (run_phase(std::integral_constant<int, kPhases>{}), ...);
        }(std::make_integer_sequence<int, Kernel::kPhases>{});
    }
    return good;
}

// What the kernels write for a batch, but for the weights, of which not all are needed.
struct Written {
    std::vector<int16_t> coefficients;
    std::vector<uint8_t> samples;
    std::vector<uint32_t> faults;
    std::vector<uint8_t> out;
    bool has_race = false;  // of writes to shared memory

    bool operator==(const Written&) const = default;
};

// The type, layout, scale and bias of the output.
struct Finish {
    uint32_t type = kUint8;
    uint32_t channels_last = 0;
    float scale[3] = {1, 1, 1};
    float bias[3] = {0, 0, 0};
};

// Runs all kernels for a batch of one output size in an order, as a stream does; `uploaded` is the memory that the places of its plans are in,
// aligned to words. Memory begins as bytes that depend on the order, but for what the caller of the kernels clears. Forward it
// is one piece each for the plans, the tables and the scratch, as on a GPU. In other orders each table has a piece of its own,
// of its length and no longer, so that AddressSanitizer sees what is read or written beside it.
inline Written emulate(const JoinedBatch& joined, ByteSpan uploaded, const Finish& finish, Order order) {
    const auto filling = static_cast<uint8_t>(0x5A + static_cast<int>(order));
    std::vector<uint8_t> tables(joined.tables_bytes(), filling), scratch(joined.scratch_bytes(), filling);
    joined.write(tables.data());
    std::fill_n(scratch.begin(), joined.zeroed_bytes(), uint8_t{0});
    Batch batch = joined.batch(reinterpret_cast<uint64_t>(tables.data()), reinterpret_cast<uint64_t>(uploaded.data()),
                               reinterpret_cast<uint64_t>(scratch.data()));
    batch = joined.batch(batch, 0, joined.image_count());

    const auto copied = []<typename T>(const T* from, size_t count) { return std::vector<T>(from, from + count); };
    const auto images = copied(batch.images, batch.image_count);
    const auto segments = copied(batch.segments, joined.segment_count());
    const auto lines = copied(batch.lines, batch.line_count);
    const auto codebooks = copied(batch.codebooks, joined.codebook_count());
    std::vector<uint32_t> words((joined.bytes_end() + kBytesPadding) / sizeof(uint32_t), 0x01010101u * filling);
    std::memcpy(words.data(), uploaded.data(), joined.bytes_end());
    std::vector<int32_t> weights(joined.weight_count(), 0x01010101 * filling);
    const size_t bytes = finish.type == kUint8 ? 1 : finish.type == kFloat32 ? 4 : 2, samples = 64 * size_t{batch.block_count};
    Written written{std::vector<int16_t>(samples, 0), std::vector<uint8_t>(samples, filling),
                    std::vector<uint32_t>(batch.image_count, 0),
                    std::vector<uint8_t>(size_t{batch.image_count} * 3 * batch.height * batch.width * bytes, filling)};
    const bool is_apart = order != Order::forward;
    if (is_apart) {
        batch.images = images.data();
        batch.segments = segments.data();
        batch.lines = lines.data();
        batch.codebooks = codebooks.data();
        batch.bytes = words.data();
        batch.weights = weights.data();
        batch.coefficients = written.coefficients.data();
        batch.samples = written.samples.data();
        batch.faults = written.faults.data();
    }
    batch.out = written.out.data();
    batch.type = finish.type;
    batch.channels_last = finish.channels_last;
    std::copy_n(finish.scale, 3, batch.scale);
    std::copy_n(finish.bias, 3, batch.bias);

    const Grid grid(batch, joined.segment_count());
    bool good = emulate<Huffman>(batch, grid.huffman, order);
    good = emulate<Unpack>(batch, grid.unpack, order) && good;
    good = emulate<InverseDct>(batch, grid.idct, order) && good;
    good = emulate<Filters>(batch, grid.filters, order) && good;
    good = emulate<Resize>(batch, grid.resize, order) && good;
    written.has_race = !good;
    if (!is_apart) {
        written.coefficients = copied(batch.coefficients, samples);
        written.samples = copied(batch.samples, samples);
        written.faults = copied(batch.faults, batch.image_count);
    }
    return written;
}

// Runs all kernels in three orders. False: they differ, or two threads wrote to one place, which is a race; or they read what
// nobody wrote.
inline bool emulate_in_all_orders(const JoinedBatch& joined, ByteSpan uploaded, const Finish& finish, Written& written) {
    written = emulate(joined, uploaded, finish, Order::forward);
    return !written.has_race && written == emulate(joined, uploaded, finish, Order::backward) &&
           written == emulate(joined, uploaded, finish, Order::shuffled);
}

}  // namespace feeder::cuda
