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

// Runs `blocks` blocks of threads. Shared memory and what threads keep start as bytes that depend on the order, so that a
// read of what nobody wrote shows as a difference too.
template <typename Kernel>
void emulate(const Batch& batch, uint32_t blocks, Order order) {
    static_assert(std::is_trivially_copyable_v<typename Kernel::Shared>);
    std::mt19937 random(7);
    const auto shared = std::make_unique<typename Kernel::Shared>();
    std::vector<typename Kernel::Local> locals(Kernel::kThreads);
    const int filling = 0x5A + static_cast<int>(order);
    for (const uint32_t block : in_order(blocks, order, random)) {
        std::memset(static_cast<void*>(shared.get()), filling, sizeof(*shared));
        std::memset(static_cast<void*>(locals.data()), filling, locals.size() * sizeof(locals[0]));
        [&]<int... kPhases>(std::integer_sequence<int, kPhases...>) {
            const auto run_phase = [&]<int kPhase>(std::integral_constant<int, kPhase>) {
                for (const uint32_t thread : in_order(Kernel::kThreads, order, random))
                    Kernel::template run<kPhase>(batch, {block, thread}, *shared, locals[thread]);
            };
            (run_phase(std::integral_constant<int, kPhases>{}), ...);
        }(std::make_integer_sequence<int, Kernel::kPhases>{});
    }
}

// What the kernels write for a batch, but for the weights, of which not all are needed.
struct Written {
    std::vector<int16_t> coefficients;
    std::vector<uint8_t> samples;
    std::vector<uint32_t> faults;
    std::vector<uint8_t> out;

    bool operator==(const Written&) const = default;
};

// The type, layout, scale and bias of the output.
struct Finish {
    uint32_t type = kUint8;
    uint32_t channels_last = 0;
    float scale[3] = {1, 1, 1};
    float bias[3] = {0, 0, 0};
};

// Runs all kernels for a batch in an order, as a stream does. Memory begins as bytes that depend on the order, but for what
// the caller of the kernels clears. Forward it is one piece for the upload and one for the scratch, as on a GPU. In other
// orders each table has a piece of its own, of its length and no longer, so that AddressSanitizer sees what is read or
// written beside it.
inline Written emulate(const JoinedBatch& joined, const Finish& finish, Order order) {
    const auto filling = static_cast<uint8_t>(0x5A + static_cast<int>(order));
    std::vector<uint8_t> upload(joined.upload_bytes(), filling), scratch(joined.scratch_bytes(), filling);
    joined.write(upload.data());
    std::fill_n(scratch.begin(), joined.zeroed_bytes(), uint8_t{0});
    Batch batch = joined.batch(reinterpret_cast<uint64_t>(upload.data()), reinterpret_cast<uint64_t>(scratch.data()));

    const auto copied = []<typename T>(const T* from, size_t count) { return std::vector<T>(from, from + count); };
    const auto images = copied(batch.images, batch.image_count);
    const auto segments = copied(batch.segments, joined.segment_count());
    const auto lines = copied(batch.lines, batch.line_count);
    const auto codebooks = copied(batch.codebooks, joined.codebook_count());
    const auto words = copied(batch.bytes, (joined.byte_count() + kBytesPadding) / sizeof(uint32_t));
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
    emulate<Huffman>(batch, grid.huffman, order);
    emulate<Unpack>(batch, grid.unpack, order);
    emulate<InverseDct>(batch, grid.idct, order);
    emulate<Filters>(batch, grid.filters, order);
    emulate<Resize>(batch, grid.resize, order);
    if (!is_apart) {
        written.coefficients = copied(batch.coefficients, samples);
        written.samples = copied(batch.samples, samples);
        written.faults = copied(batch.faults, batch.image_count);
    }
    return written;
}

// Runs all kernels in three orders. False: they differ, which is a race, or a read of what nobody wrote.
inline bool emulate_in_all_orders(const JoinedBatch& joined, const Finish& finish, Written& written) {
    written = emulate(joined, finish, Order::forward);
    return written == emulate(joined, finish, Order::backward) && written == emulate(joined, finish, Order::shuffled);
}

}  // namespace feeder::cuda
