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
#include "cuda/plan.h"

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

// What the kernels write for a batch.
struct Written {
    std::vector<int16_t> coefficients;
    std::vector<uint8_t> samples;
    std::vector<int32_t> weights;
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

// Runs all kernels for a batch in an order, as a stream does. Samples and output begin as bytes that depend on the order.
inline Written emulate(const BatchPlan& plan, const Finish& finish, Order order) {
    Batch batch = plan.batch();
    const std::vector<uint32_t> words(plan.words().begin(), plan.words().end());  // of that length and no longer
    batch.bytes = words.data();
    const auto filling = static_cast<uint8_t>(0x5A + static_cast<int>(order));
    const size_t blocks = plan.block_count();
    Written written;
    written.coefficients.assign(64 * blocks, 0);
    written.samples.assign(64 * blocks, filling);
    written.weights.assign(plan.weight_count(), 0);
    written.faults.assign(batch.image_count, 0);
    const size_t bytes = finish.type == kUint8 ? 1 : finish.type == kFloat32 ? 4 : 2;
    written.out.assign(size_t{batch.image_count} * 3 * batch.height * batch.width * bytes, filling);
    batch.coefficients = written.coefficients.data();
    batch.samples = written.samples.data();
    batch.weights = written.weights.data();
    batch.faults = written.faults.data();
    batch.out = written.out.data();
    batch.type = finish.type;
    batch.channels_last = finish.channels_last;
    std::copy_n(finish.scale, 3, batch.scale);
    std::copy_n(finish.bias, 3, batch.bias);
    const Grid grid(batch, static_cast<uint32_t>(plan.segments().size()));
    emulate<Huffman>(batch, grid.huffman, order);
    emulate<Unpack>(batch, grid.unpack, order);
    emulate<InverseDct>(batch, grid.idct, order);
    emulate<Filters>(batch, grid.filters, order);
    emulate<Resize>(batch, grid.resize, order);
    return written;
}

}  // namespace feeder::cuda
