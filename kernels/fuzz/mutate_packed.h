// The mutator of inputs that are a JPEG or a packed JPEG, and some bytes of choices behind it.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/packed/pack.h"
#include "cpu/packed/packed_file.h"
#include "fuzz/mutate.h"

namespace feeder {

// Changes a packed JPEG's rows, and makes its head tell their new end: nearly every other change is refused at once.
inline size_t mutate_rows(uint8_t* data, size_t size, size_t most, const PackedFile& packed) {
    const size_t rows = packed.row_offset(0), trailer = packed.head().trailer_bytes;
    if (packed.row_offset(packed.grid().rows) < rows) return LLVMFuzzerMutate(data, size, most);
    const size_t end = size - trailer, last = rows - 4;
    std::vector<uint8_t> changed(data + rows, data + end), tail(data + end, data + size);
    changed.resize(most - rows - trailer);
    const size_t count = LLVMFuzzerMutate(changed.data(), end - rows, changed.size());
    std::memcpy(data + rows, changed.data(), count);
    std::copy(tail.begin(), tail.end(), data + rows + count);
    const uint32_t new_end = static_cast<uint32_t>(rows + count);
    std::memcpy(data + last, &new_end, sizeof(new_end));
    return rows + count + trailer;
}

// `codebook` is known under `id`.
inline size_t mutate_packed(uint8_t* data, size_t size, size_t most, unsigned seed, size_t choice_bytes,
                            const CodebookId& id, const Codebook& codebook) {
    if (size < choice_bytes || most < choice_bytes) return LLVMFuzzerMutate(data, size, most);
    const size_t file_bytes = size - choice_bytes;
    std::vector<uint8_t> choices(data + file_bytes, data + size);
    const auto with_choices = [&](size_t count) {
        std::copy(choices.begin(), choices.end(), data + count);
        return count + choice_bytes;
    };
    const unsigned kind = seed / 16 % 4;
    if (seed % 4 == 0) {
        LLVMFuzzerMutate(choices.data(), choice_bytes, choice_bytes);
        if (kind != 0) return with_choices(file_bytes);
    }
    PackedFile packed;
    if (packed.open({data, file_bytes}, -1).ok())
        return kind == 0 ? LLVMFuzzerMutate(data, size, most)
                         : with_choices(mutate_rows(data, file_bytes, most - choice_bytes, packed));
    std::vector<uint8_t> bytes;
    static JpegPacker packer;
    if (kind < 2 && packer.pack({data, file_bytes}, id, codebook, 0, bytes).ok() && bytes.size() + choice_bytes <= most) {
        std::copy(bytes.begin(), bytes.end(), data);
        return with_choices(bytes.size());
    }
    return mutate_jpeg(data, size, most, seed / 64, choice_bytes);
}

}  // namespace feeder
