#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <vector>

#include "bind/module.h"
#include "bind/output.h"
#include "cpu/part/philox.h"
#include "cpu/permutation.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Keys = nb::ndarray<const uint64_t, nb::shape<-1, Permutation::rounds>, nb::c_contig, nb::device::cpu>;

template <typename T>
nb::ndarray<nb::numpy, T> new_array(T* numbers, std::initializer_list<size_t> shape) {
    nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return nb::ndarray<nb::numpy, T>(numbers, shape, owner);
}

nb::ndarray<nb::numpy, uint32_t> words(Column<uint64_t> seeds, Column<uint32_t> epochs, Column<uint64_t> keys,
                                       uint32_t stream, size_t blocks) {
    const size_t count = keys.shape(0), of_seed = seeds.shape(0) == 1 ? 0 : 1, of_epoch = epochs.shape(0) == 1 ? 0 : 1;
    if ((of_seed && seeds.shape(0) != count) || (of_epoch && epochs.shape(0) != count))
        bad("seeds and epochs must be one, or one for each key");
    uint32_t* const found = new uint32_t[4 * blocks * count + 1];
    for (size_t i = 0; i < count; ++i)
        for (size_t block = 0; block < blocks; ++block)
            feeder::philox(seeds.data()[i * of_seed], epochs.data()[i * of_epoch], keys.data()[i], stream,
                           static_cast<uint32_t>(block), found + 4 * (i * blocks + block));
    return new_array(found, {count, 4 * blocks});
}

nb::ndarray<nb::numpy, int64_t> permute(Column<int64_t> positions, Column<int64_t> sizes, Keys keys,
                                        Column<int64_t> groups, bool inverse) {
    const size_t count = positions.shape(0), kinds = sizes.shape(0);
    if (keys.shape(0) != kinds || groups.shape(0) != count) bad("give keys for each size, and a group for each position");
    std::vector<Permutation> all;
    for (size_t k = 0; k < kinds; ++k)
        all.emplace_back(static_cast<uint64_t>(sizes.data()[k]), keys.data() + k * Permutation::rounds);
    for (size_t i = 0; i < count; ++i) {
        const auto group = static_cast<uint64_t>(groups.data()[i]);
        if (group >= kinds || positions.data()[i] < 0 || positions.data()[i] >= sizes.data()[group])
            bad("positions must be 0 to size - 1 of their group");  // another one might never end
    }
    int64_t* const found = new int64_t[count + 1];
    for (size_t i = 0; i < count; ++i) {
        const Permutation& own = all[static_cast<size_t>(groups.data()[i])];
        const auto position = static_cast<uint64_t>(positions.data()[i]);
        found[i] = static_cast<int64_t>(inverse ? own.inverse(position) : own(position));
    }
    return new_array(found, {count});
}

}  // namespace

void add_order(nb::module_& module) {
    module.def("philox", &words, "seeds"_a, "epochs"_a, "keys"_a, "stream"_a, "blocks"_a,
               "Draws words, uint32 [N, 4 * blocks], see feeder.order.random.philox().");
    module.def("permute", &permute, "positions"_a, "sizes"_a, "keys"_a, "groups"_a, "inverse"_a,
               "Maps positions by keyed permutations, int64 [N], see feeder.order.permutation.permute_each().");
}

}  // namespace feeder::bind
