// A growing byte buffer that is reused, never zeroed, and whose growth can fail without an exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

namespace feeder {

using ByteSpan = std::span<const uint8_t>;

// For code shared by files that are compiled for certain CPUs: always inlined, so that the linker has no copies to choose
// among.
#define FEEDER_INLINE inline __attribute__((always_inline))

// malloc and a flag rather than std::vector: libjpeg's callbacks grow it, and no exception may cross C frames.
class Bytes {
  public:
    Bytes() = default;
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes() { std::free(data_); }

    uint8_t* data() { return data_; }
    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    size_t capacity() const { return capacity_; }
    ByteSpan span() const { return {data_, size_}; }

    // Grows to `capacity` bytes and keeps the contents. False: no memory.
    [[nodiscard]] bool reserve(size_t capacity) {
        if (capacity <= capacity_) return true;
        void* grown = std::realloc(data_, capacity);
        if (grown == nullptr) return false;
        data_ = static_cast<uint8_t*>(grown);
        capacity_ = capacity;
        return true;
    }

    // The caller has reserved the memory.
    void set_size(size_t size) { size_ = size; }

    void append(const uint8_t* bytes, size_t count) {
        std::memcpy(data_ + size_, bytes, count);
        size_ += count;
    }

    void append(uint8_t byte) { data_[size_++] = byte; }

  private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    size_t capacity_ = 0;
};

}  // namespace feeder
