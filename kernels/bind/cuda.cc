// The host's part of decoding on a GPU: plans of images, and batches of them. The GPU itself is Python's business.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind/buffer.h"
#include "bind/module.h"
#include "bind/output.h"
#include "bind/plans.h"
#include "cuda/grid.h"
#include "cuda/joined.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

using Boxes64 = nb::ndarray<const double, nb::shape<-1, -1, 4>, nb::c_contig, nb::device::cpu>;
using Boxes32 = nb::ndarray<const int32_t, nb::shape<-1, -1, 4>, nb::c_contig, nb::device::cpu>;
using Sizes32 = nb::ndarray<const int32_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using ViewSizes32 = nb::ndarray<const int32_t, nb::shape<-1, -1, 2>, nb::c_contig, nb::device::cpu>;
using Flags8 = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints32 = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints64 = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes8 = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::shape<3>, nb::c_contig, nb::device::cpu>;

nb::tuple plan_images(nb::sequence buffers, Boxes64 source_boxes, Boxes32 support_boxes, Flags8 flips, Bytes8 orientations,
                      Sizes32 image_sizes, ViewSizes32 output_sizes, int64_t max_pixels, std::optional<Ints32> first_rows) {
    const size_t count = nb::len(buffers), views = source_boxes.shape(1);
    const auto fits = [count](const auto& array) { return array.shape(0) == count; };
    if (!fits(source_boxes) || !fits(support_boxes) || !fits(flips) || !fits(orientations) || !fits(image_sizes) ||
        !fits(output_sizes) || (first_rows && !fits(*first_rows))) {
        bad("all arrays must have one entry per buffer (" + std::to_string(count) + ")");
    }
    if (support_boxes.shape(1) != views || flips.shape(1) != views || output_sizes.shape(1) != views)
        bad("all arrays must have the same views (" + std::to_string(views) + ")");
    std::vector<BufferView> files;
    files.reserve(count);
    for (nb::handle buffer : buffers) files.emplace_back(buffer);
    if (files.size() != count) bad("buffers changed meanwhile");
    Plans plans(count * views);
    auto back = std::make_unique<std::vector<int32_t>>(count * views);
    {
        nb::gil_scoped_release release;
        std::vector<View> of_image(views);
        for (size_t i = 0; i < count; ++i) {
            for (size_t v = 0, k = i * views; v < views; ++v, ++k) {
                View& view = of_image[v];
                std::copy_n(source_boxes.data() + 4 * k, 4, view.source_box);
                std::copy_n(support_boxes.data() + 4 * k, 4, view.support_box);
                view.flip = flips.data()[k] != 0;
                view.out.height = output_sizes.data()[2 * k];
                view.out.width = output_sizes.data()[2 * k + 1];
            }
            ImageJob job;
            job.file = files[i].bytes();
            job.image_height = image_sizes.data()[2 * i];
            job.image_width = image_sizes.data()[2 * i + 1];
            if (first_rows) job.first_row = first_rows->data()[i];
            job.orientation = orientations.data()[i];
            job.views = of_image;
            plans.add(job, max_pixels, back->data() + i * views);
        }
    }
    const nb::tuple made = plans.arrays();
    const size_t shape[2] = {count, views};
    int32_t* const data = back->data();
    nb::capsule owner(back.release(), [](void* p) noexcept { delete static_cast<std::vector<int32_t>*>(p); });
    return nb::make_tuple(made[0], made[1], nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>(data, 2, shape, owner));
}

nb::tuple upload_runs(nb::sequence plans) {
    // As far as the kernels go, words would do; a copy is fastest to where a line of the cache begins.
    constexpr size_t alignment = 256;
    struct Run {
        ByteSpan bytes;
        size_t place;
        nb::object owner;  // of the first plan
    };
    std::vector<Run> runs;
    auto places = std::make_unique<std::vector<int64_t>>();
    size_t end = 0;
    for (nb::handle plan : plans) {
        const ByteSpan bytes = BufferView(plan).bytes();
        if (!runs.empty() && bytes.data() == runs.back().bytes.data() + runs.back().bytes.size()) {
            runs.back().bytes = {runs.back().bytes.data(), runs.back().bytes.size() + bytes.size()};
        } else if (!bytes.empty()) {
            end = (end + alignment - 1) / alignment * alignment;
            runs.push_back({bytes, end, nb::borrow(plan)});
        }
        places->push_back(static_cast<int64_t>(end));
        end += bytes.size();
    }
    nb::list found;
    for (const Run& run : runs) {
        const size_t shape[1] = {run.bytes.size()};
        nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> array(const_cast<uint8_t*>(run.bytes.data()), 1, shape, run.owner);
        found.append(nb::make_tuple(array, run.place));
    }
    const size_t count[1] = {places->size()};
    int64_t* const data = places->data();
    nb::capsule owner(places.release(), [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
    return nb::make_tuple(nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(data, 1, count, owner), found, end);
}

// A kernel's name, its blocks of threads, the threads of each, and its argument.
using Launch = std::tuple<const char*, uint32_t, uint32_t, nb::bytes>;

class CudaBatch {
  public:
    CudaBatch(const CudaBatch&) = delete;
    CudaBatch& operator=(const CudaBatch&) = delete;
    CudaBatch(nb::sequence plans, Ints64 places, Ints64 planes, Ints64 bounds) {
        if (places.shape(0) != nb::len(plans) || planes.shape(0) != nb::len(plans))
            bad("places and planes must have one entry per plan");
        size_t i = 0;
        for (nb::handle plan : plans) {
            if (i == places.shape(0)) bad("plans changed meanwhile");
            files_.emplace_back(plan);
            if (!batch_.add(files_.back().bytes(), static_cast<uint64_t>(places.data()[i]),
                            static_cast<size_t>(planes.data()[i])))
                bad("entry " + std::to_string(i) + " is no plan, or one of other planes or an unknown codebook, or too large");
            ++i;
        }
        if (i == 0) bad("plans must have at least one entry");
        for (size_t k = 0; k < bounds.shape(0); ++k) bounds_.push_back(static_cast<size_t>(bounds.data()[k]));
        if (bounds_.size() < 2 || bounds_.front() != 0 || bounds_.back() != i)
            bad("bounds must go from 0 to the number of plans");
        for (size_t k = 0; k + 1 < bounds_.size(); ++k) {
            if (!batch_.is_of_one_size(bounds_[k], bounds_[k + 1]))
                bad("plans " + std::to_string(bounds_[k]) + " to " + std::to_string(bounds_[k + 1]) + " are not of one output size");
        }
    }

    size_t tables_bytes() const { return batch_.tables_bytes(); }
    size_t zeroed_bytes() const { return batch_.zeroed_bytes(); }
    size_t scratch_bytes() const { return batch_.scratch_bytes(); }
    size_t faults_at() const { return batch_.faults_at(); }

    void write(Memory memory) {
        if (files_.empty()) bad("a batch is written once");
        if (memory.shape(0) < tables_bytes() || reinterpret_cast<uintptr_t>(memory.data()) % 16 != 0)
            bad("memory must have tables_bytes, aligned to 16");
        {
            nb::gil_scoped_release release;
            batch_.write(memory.data());
        }
        files_.clear();
    }

    std::vector<Launch> decoding(uint64_t tables, uint64_t bytes, uint64_t scratch) const {
        const cuda::Batch batch = batch_.batch(tables, bytes, scratch);
        const cuda::Grid grid(batch, batch_.segment_count());
        std::vector<Launch> found;
        const auto add = [&](const char* name, uint32_t blocks, int threads) {
            if (blocks != 0) found.push_back(launch(name, blocks, threads, batch));
        };
        add("feeder_huffman", grid.huffman, cuda::Huffman::kThreads);
        add("feeder_unpack", grid.unpack, cuda::Unpack::kThreads);
        add("feeder_idct", grid.idct, cuda::InverseDct::kThreads);
        for (size_t k = 0; k + 1 < bounds_.size(); ++k) {
            const cuda::Batch part = batch_.batch(batch, bounds_[k], bounds_[k + 1]);
            found.push_back(launch("feeder_filters", cuda::Grid(part, 0).filters, cuda::Filters::kThreads, part));
        }
        return found;
    }

    Launch finishing(uint64_t tables, uint64_t bytes, uint64_t scratch, size_t part, uint64_t out, const std::string& dtype,
                     bool channels_last, std::optional<Floats> scale, std::optional<Floats> bias) const {
        if (part + 1 >= bounds_.size()) bad("there are " + std::to_string(bounds_.size() - 1) + " parts");
        cuda::Batch batch = batch_.batch(batch_.batch(tables, bytes, scratch), bounds_[part], bounds_[part + 1]);
        batch.out = reinterpret_cast<void*>(out);
        switch (dtype_of(dtype)) {
            case Dtype::uint8:
                batch.type = cuda::kUint8;
                break;
            case Dtype::float32:
                batch.type = cuda::kFloat32;
                break;
            case Dtype::float16:
                batch.type = cuda::kFloat16;
                break;
            case Dtype::bfloat16:
                batch.type = cuda::kBfloat16;
                break;
        }
        batch.channels_last = channels_last;
        for (int c = 0; c < 3; ++c) {
            batch.scale[c] = scale ? scale->data()[c] : 1.0f;
            batch.bias[c] = bias ? bias->data()[c] : 0.0f;
        }
        return launch("feeder_resize", cuda::Grid(batch, 0).resize, cuda::Resize::kThreads, batch);
    }

  private:
    static Launch launch(const char* name, uint32_t blocks, int threads, const cuda::Batch& batch) {
        return {name, blocks, static_cast<uint32_t>(threads), nb::bytes(reinterpret_cast<const char*>(&batch), sizeof(batch))};
    }

    std::vector<BufferView> files_;
    std::vector<size_t> bounds_;
    cuda::JoinedBatch batch_;
};

}  // namespace

void add_cuda(nb::module_& module) {
    module.def(
        "plan_images", &plan_images, "buffers"_a, "source_boxes"_a, "support_boxes"_a, "flips"_a, "orientations"_a,
        "image_sizes"_a, "output_sizes"_a, nb::kw_only(), "max_pixels"_a, "first_rows"_a = nb::none(),
        "Plans the decoding of V views of N images on a GPU, without the GIL.\n\n"
        "A plan is what the CUDA kernels need of a view: the restart segments or lines that its box needs, and tables. Views\n"
        "that lie close together are decoded together: the first one's plan has the segments or lines of all of them.\n\n"
        "Args:\n"
        "    buffers, orientations, first_rows: See decode_batch().\n"
        "    source_boxes, support_boxes, flips: As there, but of each view: [N, V, 4], [N, V, 4], [N, V].\n"
        "    image_sizes: int32 [N, 2], the upright (height, width) that the boxes were drawn for.\n"
        "    output_sizes: int32 [N, V, 2], (height, width) of each output.\n"
        "    max_pixels: Leaves larger images out.\n\n"
        "Returns:\n"
        "    (uint8 [bytes], the plans; int64 [N * V + 1], where each begins and the last one ends; int32 [N, V], how many views\n"
        "    before each the one is whose segments or lines it needs). A view without bytes is left to the CPU: of a kind that\n"
        "    the kernels lack, not perfect as far as the host looks, or with a box of so few pixels that decode_batch() decodes\n"
        "    it exactly.\n\n"
        "Raises:\n"
        "    ValueError: arrays of different lengths.");
    module.def(
        "upload_runs", &upload_runs, "plans"_a,
        "Lays plans out in memory of the GPU: those that lie back to back on the host stay so, and are one copy.\n\n"
        "Args:\n"
        "    plans: Of plan_images(), bytes-like.\n\n"
        "Returns:\n"
        "    (int64 [N], where each plan lies in that memory; the copies, each (uint8 [bytes], where it goes); the memory's\n"
        "    size in bytes). The arrays are views of the plans, not to be written to, and keep the first of theirs only.");
    nb::class_<CudaBatch>(module, "CudaBatch", "A batch of plans, for the CUDA kernels.")
        .def(nb::init<nb::sequence, Ints64, Ints64, Ints64>(), "plans"_a, "places"_a, "planes"_a, "bounds"_a,
             "Args:\n"
             "    plans: At least one of plan_images(), bytes-like; held until write().\n"
             "    places: int64 [N], where each lies in memory of the GPU, which is under 4 GiB; see upload_runs().\n"
             "    planes: int64 [N], for each the plan whose segments or lines it needs: itself, or an earlier one.\n"
             "    bounds: int64 [P + 1], where each part begins, whose outputs are of one size, and the last one ends.\n\n"
             "Raises:\n"
             "    ValueError: for bytes that are no plan, or plans that can't be in one batch.")
        .def_prop_ro("tables_bytes", &CudaBatch::tables_bytes, "Memory that write() takes, which the GPU needs.")
        .def_prop_ro("scratch_bytes", &CudaBatch::scratch_bytes, "Memory on the GPU that the kernels write.")
        .def_prop_ro("zeroed_bytes", &CudaBatch::zeroed_bytes, "Bytes of it, from its start on, that must be zeros.")
        .def_prop_ro("faults_at", &CudaBatch::faults_at,
                     "Offset in it of a uint32 for each plan; not 0: the image is left to the CPU. A view has the fault\n"
                     "of the plan whose segments or lines it needs.")
        .def("write", &CudaBatch::write, nb::lock_self(), nb::arg("memory").noconvert(),
             "Writes the batch's tables, without the GIL; once.\n\n"
             "Args:\n"
             "    memory: uint8, at least tables_bytes, aligned to 16 bytes.")
        .def("decoding", &CudaBatch::decoding, "tables"_a, "plans"_a, "scratch"_a,
             "Returns the launches from segments to planes and filters: (kernel, blocks, threads, argument) of each.\n\n"
             "Args:\n"
             "    tables, plans, scratch: Addresses on the GPU, aligned to 256 bytes.")
        .def("finishing", &CudaBatch::finishing, "tables"_a, "plans"_a, "scratch"_a, "part"_a, "out"_a, nb::kw_only(),
             "dtype"_a, "channels_last"_a, "scale"_a = nb::none(), "bias"_a = nb::none(),
             "Returns the launch after them, which writes the output of a part.\n\n"
             "Args:\n"
             "    tables, plans, scratch: See decoding().\n"
             "    part: Its number.\n"
             "    out: Address on the GPU of images [3, height, width], or channels last.\n"
             "    dtype, scale, bias: See decode_batch().\n"
             "    channels_last: True for images [height, width, 3].");
}

}  // namespace feeder::bind
