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

// The plans of views, one after the other, and those of an image behind each other.
class Plans {
  public:
    explicit Plans(size_t views) { places_.reserve(views + 1); }

    // Adds an image with its views. A view that is left to the CPU, see plan_images() in feeder/_native.pyi, has no bytes.
    // `back` gets for each view how many views before it the one is whose planes it shares. False: all are left to the CPU.
    // Needs no GIL. Throws std::bad_alloc.
    bool add(const ImageJob& job, int64_t max_pixels, int32_t* back) {
        thread_local cuda::ImagePlan plan;
        thread_local std::vector<cuda::PlannedView> sharing;  // by view; those that are no group's first
        const auto has_size = [](const View& view) {
            return view.out.height >= 1 && view.out.width >= 1 && view.out.height <= 65535 && view.out.width <= 65535;
        };
        const bool is_open = job.orientation >= 1 && job.orientation <= 8 && job.image_height >= 1 && job.image_width >= 1 &&
                             static_cast<int64_t>(job.image_height) * job.image_width <= max_pixels &&
                             std::all_of(job.views.begin(), job.views.end(), has_size) && plan.open(job);
        sharing.assign(job.views.size(), {});
        bool is_planned = false;
        for (size_t view = 0; view < job.views.size(); ++view, end_view()) {
            if (!is_open) continue;
            if (sharing[view].height != 0) {
                if (!cuda::append_sharing(sharing[view], *bytes_)) throw std::bad_alloc();
                continue;
            }
            const auto leads = [view](const ViewGroup& group) { return group.views.front() == view; };
            const auto group = std::find_if(plan.groups().begin(), plan.groups().end(), leads);
            if (group == plan.groups().end() || group->fidelity != Fidelity::fast || !plan.make(*group, *bytes_)) continue;
            if (!cuda::append_planned(plan, *bytes_)) throw std::bad_alloc();
            is_planned = true;
            for (size_t i = 1; i < group->views.size(); ++i) {
                sharing[group->views[i]] = plan.views()[i];
                back[group->views[i]] = static_cast<int32_t>(group->views[i] - view);
            }
        }
        return is_planned;
    }
    // Adds a view without bytes, or ends one.
    void end_view() { places_.push_back(static_cast<int64_t>(bytes_->size())); }

    // (uint8 [bytes], int64 [views + 1]); leaves nothing behind.
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
    std::unique_ptr<Bytes> bytes_ = PlanMemory::shared().take();
    std::vector<int64_t> places_{0};
};

}  // namespace feeder::bind
