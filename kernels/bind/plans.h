// Plans for the CUDA kernels, image by image, in memory that becomes a NumPy array.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/boxes.h"
#include "cpu/bytes.h"
#include "cpu/decode.h"
#include "cpu/view_groups.h"
#include "cuda/joined.h"
#include "cuda/plan.h"

namespace feeder::bind {

// Memory of plans that are gone, kept for later ones: the system would clear each new page.
class PlanMemory {
  public:
    std::unique_ptr<Bytes> take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (idle_.empty()) return std::make_unique<Bytes>();
        std::unique_ptr<Bytes> bytes = std::move(idle_.back());
        idle_.pop_back();
        bytes->set_size(0);
        return bytes;
    }
    void give_back(std::unique_ptr<Bytes> bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (idle_.size() < kMost && bytes->capacity() <= kMostBytes) idle_.push_back(std::move(bytes));
    }
    static PlanMemory& shared() {
        static PlanMemory* const memory = new PlanMemory;  // never destroyed: arrays may be freed at exit
        return *memory;
    }

  private:
    static constexpr size_t kMost = 4, kMostBytes = size_t{64} << 20;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Bytes>> idle_;
};

// The plans of images, one after the other.
class Plans {
  public:
    explicit Plans(size_t count) { places_.reserve(count + 1); }

    // Adds an image with one view. False, and an image without bytes: it is left to the CPU, see plan_images() in
    // feeder/_native.pyi. Needs no GIL. Throws std::bad_alloc.
    bool add(const ImageJob& job, int height, int width, int64_t max_pixels) {
        thread_local cuda::ImagePlan plan;
        bool is_planned = job.orientation >= 1 && job.orientation <= 8 && height >= 1 && width >= 1 && height <= 65535 &&
                          width <= 65535 && job.image_height >= 1 && job.image_width >= 1 &&
                          static_cast<int64_t>(job.image_height) * job.image_width <= max_pixels &&
                          !is_for_exactness(job.views.front(), height, width);
        if (is_planned) {
            is_planned = plan.make(job, static_cast<uint32_t>(height), static_cast<uint32_t>(width), *bytes_);
            if (is_planned && !cuda::append_planned(plan, *bytes_)) throw std::bad_alloc();
        }
        end_image();
        return is_planned;
    }
    // Adds an image without bytes.
    void end_image() { places_.push_back(static_cast<int64_t>(bytes_->size())); }

    // (uint8 [bytes], int64 [N + 1]); leaves nothing behind.
    nanobind::tuple arrays() {
        const size_t bytes[1] = {bytes_->size()}, entries[1] = {places_.size()};
        uint8_t* const data = bytes_->data();
        nanobind::capsule bytes_owner(bytes_.release(), [](void* p) noexcept {
            PlanMemory::shared().give_back(std::unique_ptr<Bytes>(static_cast<Bytes*>(p)));
        });
        auto* const places = new std::vector<int64_t>(std::move(places_));
        nanobind::capsule places_owner(places, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
        return nanobind::make_tuple(
            nanobind::ndarray<nanobind::numpy, uint8_t, nanobind::ndim<1>>(data, 1, bytes, bytes_owner),
            nanobind::ndarray<nanobind::numpy, int64_t, nanobind::ndim<1>>(places->data(), 1, entries, places_owner));
    }

  private:
    // True if the CPU backend decodes the view as for Fidelity::exact, see kFewPixels. A turn does not change an area.
    static bool is_for_exactness(const View& view, int height, int width) {
        int box[4];
        std::copy_n(view.support_box, 4, box);
        if (box[0] < 0 || box[1] < 0 || box[0] >= box[2] || box[1] >= box[3]) return false;  // refused later
        narrow_support(view.source_box, height, width, box);
        return static_cast<int64_t>(box[2] - box[0]) * (box[3] - box[1]) <= kFewPixels;
    }

    std::unique_ptr<Bytes> bytes_ = PlanMemory::shared().take();
    std::vector<int64_t> places_{0};
};

}  // namespace feeder::bind
