#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/module.h"
#include "bind/output.h"
#include "bind/plans.h"
#include "bind/programs.h"
#include "bind/shard_rows.h"
#include "cpu/part/base_draws.h"
#include "cpu/part/part_runner.h"
#include "cpu/part/philox.h"
#include "cpu/part/stage_meter.h"
#include "cpu/stage_times.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

template <typename T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sizes64 = nb::ndarray<const int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::shape<3>, nb::c_contig, nb::device::cpu>;
using Pair = std::pair<double, double>;
using Padding = std::tuple<int64_t, int64_t, int64_t, int64_t>;

// The ops of a base path, added one by one in Python's terms.
class BaseOps {
  public:
    void add_random_resized_crop(uint32_t stream, int64_t height, int64_t width, Pair scale, Pair ratio, Pair log_ratio) {
        DrawOp& op = add(DrawOp::Kind::random_resized_crop, stream, height, width);
        op.scale[0] = scale.first, op.scale[1] = scale.second;
        op.ratio[0] = ratio.first, op.ratio[1] = ratio.second;
        op.log_ratio[0] = log_ratio.first, op.log_ratio[1] = log_ratio.second;
    }
    void add_random_crop(uint32_t stream, int64_t height, int64_t width, Padding padding, bool pads_if_needed) {
        DrawOp& op = add(DrawOp::Kind::random_crop, stream, height, width);
        set_padding(op, padding);
        op.pads_if_needed = pads_if_needed;
    }
    void add_pad(Padding padding) { set_padding(add(DrawOp::Kind::pad, 0, 0, 0), padding); }
    void add_letterbox(int64_t height, int64_t width) { add(DrawOp::Kind::letterbox, 0, height, width); }
    void add_center_crop(int64_t height, int64_t width) { add(DrawOp::Kind::center_crop, 0, height, width); }
    void add_resize(const std::string& side, int64_t height, int64_t width, int64_t most) {
        DrawOp& op = add(DrawOp::Kind::resize, 0, height, width);
        op.most = most;
        if (side == "both") op.side = DrawOp::Side::both;
        else if (side == "shorter") op.side = DrawOp::Side::shorter;
        else if (side == "longer") op.side = DrawOp::Side::longer;
        else if (side == "cover") op.side = DrawOp::Side::cover;
        else bad("side must be \"both\", \"shorter\", \"longer\" or \"cover\", not \"" + side + "\"");
    }
    void add_horizontal_flip(uint32_t stream, double p) { add(DrawOp::Kind::horizontal_flip, stream, 0, 0).p = p; }

    nb::list draw(uint64_t seed, uint32_t epoch, Column<const int64_t> keys, Sizes64 sizes) const {
        if (keys.shape(0) != sizes.shape(0)) bad("keys and sizes must be of one length");
        nb::list found;
        for (size_t i = 0; i < keys.shape(0); ++i) {
            const int64_t height = sizes.data()[2 * i], width = sizes.data()[2 * i + 1];
            if (height < 1 || width < 1 || height > INT32_MAX || width > INT32_MAX) bad("sizes must be 1 to 2**31-1");
            BaseDraw drawn;
            if (!draw_base(ops, seed, epoch, static_cast<uint64_t>(keys.data()[i]), height, width, drawn)) {
                found.append(nb::none());
                continue;
            }
            const double* const source = drawn.source_box;
            const int32_t* const support = drawn.support_box;
            const int64_t* const frame = drawn.frame;
            found.append(nb::make_tuple(nb::make_tuple(source[0], source[1], source[2], source[3]),
                                        nb::make_tuple(support[0], support[1], support[2], support[3]),
                                        nb::make_tuple(drawn.height, drawn.width), drawn.flip,
                                        nb::make_tuple(frame[0], frame[1], frame[2], frame[3])));
        }
        return found;
    }

    std::vector<DrawOp> ops;

  private:
    static void set_padding(DrawOp& op, const Padding& padding) {
        const int64_t sides[4] = {std::get<0>(padding), std::get<1>(padding), std::get<2>(padding), std::get<3>(padding)};
        for (const int64_t side : sides)
            if (side < 0 || side > UINT16_MAX) bad("padding must be 0 to 65,535");
        std::copy_n(sides, 4, op.padding);
    }
    DrawOp& add(DrawOp::Kind kind, uint32_t stream, int64_t height, int64_t width) {
        if (stream > UINT16_MAX) bad("stream must be 0 to 65,535");
        if (height < 0 || width < 0 || height > UINT16_MAX || width > UINT16_MAX) bad("sizes must be at most 65,535");
        DrawOp& op = ops.emplace_back();
        op.kind = kind, op.stream = stream, op.height = height, op.width = width;
        return op;
    }
};

nb::ndarray<nb::numpy, double, nb::ndim<2>> uniform(uint64_t seed, uint32_t epoch, Column<const int64_t> keys,
                                                    uint32_t stream, uint32_t count) {
    if (stream > UINT16_MAX) bad("stream must be 0 to 65,535");
    if (count > 2u << 16) bad("count must be at most 131,072");
    const size_t samples = keys.shape(0);
    double* const numbers = new double[samples * count + 1];
    nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<double*>(p); });
    for (size_t i = 0; i < samples; ++i) {
        Uniforms drawn(seed, epoch, static_cast<uint64_t>(keys.data()[i]), stream);
        for (uint32_t k = 0; k < count; ++k) numbers[i * count + k] = drawn(k);
    }
    const size_t shape[2] = {samples, count};
    return nb::ndarray<nb::numpy, double, nb::ndim<2>>(numbers, 2, shape, owner);
}

// Where a PartRunner counts its stages: offsets in an int64 array.
struct Stages {
    size_t read, draw, decode, transform;
};

class Runner {
  public:
    Runner(const BaseOps& ops, uint64_t seed, bool exif, uint64_t large_bytes, std::optional<int64_t> made_ns,
           int64_t max_pixels, const std::string& fidelity, int threads, const std::string& dtype,
           std::optional<Floats> scale, std::optional<Floats> bias, std::vector<size_t> stages, const std::string& filter,
           std::tuple<int, int, int> fill)
        : runner_(options(ops, seed, exif, large_bytes, made_ns, max_pixels, fidelity, threads, filter, fill)),
          max_pixels_(max_pixels),
          dtype_(dtype_of(dtype)),
          has_affine_(scale.has_value()) {
        if (scale.has_value() != bias.has_value()) bad("scale and bias go together");
        if (has_affine_ == (dtype_ == Dtype::uint8)) bad("scale and bias are for floats, which need them");
        if (scale) std::copy_n(scale->data(), 3, scale_);
        if (bias) std::copy_n(bias->data(), 3, bias_);
        if (stages.size() != 4) bad("stages must be four offsets: of read, draw, decode and transform");
        stages_ = {stages[0], stages[1], stages[2], stages[3]};
        most_ = *std::max_element(stages.begin(), stages.end());
    }

    nb::object run(HeldIndex& index, OpenShards& shards, std::optional<Column<const int64_t>> shard_numbers,
                   int64_t per_shard, Column<const int64_t> rows, Column<const int64_t> ids,
                   Column<const int64_t> repeats, int64_t samples, uint32_t epoch, OutArray out,
                   std::optional<Column<int64_t>> labels, Column<int64_t> words, int64_t brought_ns,
                   std::optional<size_t> advise_from, bool is_last, nb::callable heartbeat,
                   std::optional<Programs> programs, std::optional<Column<const int64_t>> places) {
        const size_t count = rows.shape(0);
        if (labels && labels->shape(0) != out.shape(0)) bad("labels and out must be of one length");
        PartOutput output = output_of(out);
        if (places) {
            output.places = {places->data(), places->shape(0)};
            check_places(output.places, count, out.shape(0));
        } else if (out.shape(0) != count) {
            bad("rows and out must be of one length");
        }
        if (programs) {
            check_programs(*programs, count, output.first.height, output.first.width);
            output.programs = {program_of(*programs, 0).data(), count * programs->shape(1)};
        }
        const Running running(is_running_);
        Spent spent;
        nb::object unread = read(index, shards, shard_numbers, per_shard, rows, ids, repeats, samples, epoch, words, brought_ns,
                                 advise_from, is_last, heartbeat, running, spent);
        if (unread.is_valid()) return unread;
        int64_t started = now_ns();
        {
            nb::gil_scoped_release release;
            runner_.decode(output);
        }
        const int64_t decode_ns = now_ns() - started;
        nb::list others;
        int slow = 0;
        StageMeter decode(words.data() + stages_.decode), transform(words.data() + stages_.transform);
        int64_t written = 0;
        for (size_t i = 0; i < count; ++i) {
            if (!runner_.is_done(i)) {
                others.append(i);
                continue;
            }
            const Outcome& outcome = runner_.outcome(i);
            if (outcome.decode_ns > 0) decode.add(outcome.decode_ns);
            if (outcome.transform_ns > 0) transform.add(outcome.transform_ns);
            slow += outcome.slow;
            written += static_cast<int64_t>(output.image_bytes);
            if (labels) labels->data()[places ? places->data()[i] : i] = runner_.label(i);
        }
        transform.add_bytes(written);
        count_stages(words, spent);
        return nb::make_tuple(others, spent.read_ns, spent.draw_ns + decode_ns, runner_.read_bytes(), slow);
    }

    nb::object plan(HeldIndex& index, OpenShards& shards, std::optional<Column<const int64_t>> shard_numbers,
                    int64_t per_shard, Column<const int64_t> rows, Column<const int64_t> ids,
                    Column<const int64_t> repeats, int64_t samples, uint32_t epoch, std::pair<int, int> size,
                    std::optional<Column<int64_t>> labels, Column<int64_t> words, int64_t brought_ns,
                    std::optional<size_t> advise_from, bool is_last, nb::callable heartbeat) {
        const size_t count = rows.shape(0);
        if (labels && labels->shape(0) != count) bad("labels and rows must be of one length");
        const Running running(is_running_);
        Spent spent;
        nb::object unread = read(index, shards, shard_numbers, per_shard, rows, ids, repeats, samples, epoch, words, brought_ns,
                                 advise_from, is_last, heartbeat, running, spent);
        if (unread.is_valid()) return unread;
        const int64_t started = now_ns();
        PartOutput output;
        output.first.height = size.first;
        output.first.width = size.second;
        Plans plans(count);
        {
            nb::gil_scoped_release release;
            const std::span<const ImageJob> jobs = runner_.jobs(output);
            size_t k = 0;
            for (size_t i = 0; i < count; ++i) {
                int32_t back = 0;
                if (k == jobs.size() || runner_.sample_of(k) != i) plans.end_view();
                else if (!plans.add(jobs[k++], max_pixels_, &back)) runner_.leave_out(i);
            }
        }
        const int64_t plan_ns = now_ns() - started;
        nb::list others;
        for (size_t i = 0; i < count; ++i) {
            if (!runner_.is_done(i)) others.append(i);
            else if (labels) labels->data()[i] = runner_.label(i);
        }
        nb::tuple made = plans.arrays();
        count_stages(words, spent);
        return nb::make_tuple(others, spent.read_ns, spent.draw_ns + plan_ns, runner_.read_bytes(), plan_ns, made[0], made[1]);
    }

  private:
    struct Spent {
        int64_t read_ns, draw_ns;
    };
    // The runner is in use by this thread, unless another one uses it, which has given the GIL away, or this object's lock.
    struct Running {
        bool& flag;
        const bool is_ours;
        explicit Running(bool& is_running) : flag(is_running), is_ours(!is_running) { flag = true; }
        Running(const Running&) = delete;
        ~Running() {
            if (is_ours) flag = false;
        }
    };

    // Finds, draws and reads a part. Returns no object then; else what the caller is to be told: None if another thread uses
    // the runner, or a list of shards.
    nb::object read(HeldIndex& index, OpenShards& shards, const std::optional<Column<const int64_t>>& shard_numbers,
                    int64_t per_shard, const Column<const int64_t>& rows, const Column<const int64_t>& ids,
                    const Column<const int64_t>& repeats, int64_t samples, uint32_t epoch, const Column<int64_t>& words,
                    int64_t brought_ns, std::optional<size_t> advise_from, bool is_last, const nb::callable& heartbeat,
                    const Running& running, Spent& spent) {
        const size_t count = rows.shape(0);
        if (ids.shape(0) != count || repeats.shape(0) != count || (shard_numbers && shard_numbers->shape(0) != count))
            bad("shards, rows, ids and repeats must be of one length");
        if (words.shape(0) < most_ + StageMeter::kWords) bad("the meter is too short for its stages");
        if (!running.is_ours) return nb::none();
        int64_t started = now_ns();
        samples_.resize(count);
        for (size_t i = 0; i < count; ++i) {
            const int64_t row = rows.data()[i];
            PartSample& one = samples_[i];
            one.shard = shard_numbers ? shard_numbers->data()[i] : per_shard > 0 ? row / per_shard : -1;
            one.row = per_shard > 0 ? row - one.shard * per_shard : row;
            one.key = static_cast<uint64_t>(ids.data()[i]) +
                      static_cast<uint64_t>(repeats.data()[i]) * static_cast<uint64_t>(samples);
        }
        if (!runner_.find(samples_, index.index(), shards, is_last, missing_)) {
            nb::list missing;
            for (const int64_t shard : missing_) missing.append(shard);
            return missing;
        }
        spent.read_ns = brought_ns + now_ns() - started;
        started = now_ns();
        runner_.draw(samples_, epoch, index.index());
        spent.draw_ns = now_ns() - started;
        {
            nb::gil_scoped_release release;
            started = now_ns();
            runner_.read(shards, advise_from.value_or(SIZE_MAX));
            spent.read_ns += now_ns() - started;
        }
        heartbeat();
        return nb::object();
    }

    void count_stages(const Column<int64_t>& words, const Spent& spent) const {
        StageMeter(words.data() + stages_.read).add(spent.read_ns, runner_.read_bytes());
        StageMeter(words.data() + stages_.draw).add(spent.draw_ns);
    }

    static PartOptions options(const BaseOps& ops, uint64_t seed, bool exif, uint64_t large_bytes,
                               std::optional<int64_t> made_ns, int64_t max_pixels, const std::string& fidelity,
                               int threads, const std::string& filter, const std::tuple<int, int, int>& fill) {
        if (threads < 1) bad("threads must be at least 1, not " + std::to_string(threads));
        PartOptions options;
        options.ops = ops.ops;
        options.seed = seed;
        options.exif = exif;
        options.large_bytes = large_bytes;
        options.made_ns = made_ns;
        options.decode = {fidelity_of(fidelity), max_pixels};
        options.threads = threads;
        options.filter = filter_of(filter);
        fill_of(fill, options.fill);
        return options;
    }

    // Each sample has a row of its own, as threads write them at the same time.
    static void check_places(std::span<const int64_t> places, size_t count, size_t rows) {
        if (places.size() != count) bad("rows and places must be of one length");
        int64_t before = -1;
        for (const int64_t place : places) {
            if (place <= before || static_cast<size_t>(place) >= rows) bad("places must be rows of out, ascending");
            before = place;
        }
    }

    // A batch that is C-contiguous, or one of which the images' pixels are interleaved.
    PartOutput output_of(const OutArray& out) const {
        if (!array_holds(out, dtype_) || (out.shape(1) != 3 && out.shape(1) != 1) || out.shape(2) < 1 || out.shape(2) > UINT16_MAX ||
            out.shape(3) < 1 || out.shape(3) > UINT16_MAX)
            bad("out must be [N, 3 or 1, H, W] of the dtype, 1-65535 pixels high and wide");
        const size_t planar[4] = {0, 1, 2, 3}, interleaved[4] = {0, 2, 3, 1};
        const auto is_dense = [&](const size_t axes[4]) {
            size_t dense = 1;
            for (size_t k = 4; k-- > 0; dense *= out.shape(axes[k]))
                if (out.shape(axes[k]) > 1 && static_cast<size_t>(out.stride(axes[k])) != dense) return false;
            return true;
        };
        if (!is_dense(planar) && !is_dense(interleaved)) bad("out must be C-contiguous, by channel or by pixel");
        PartOutput output;
        output.first.data = out.data();
        output.first.dtype = dtype_;
        output.first.layout = is_dense(planar) ? Layout::nchw : Layout::nhwc;
        output.first.height = static_cast<int>(out.shape(2));
        output.first.width = static_cast<int>(out.shape(3));
        output.first.scale = has_affine_ ? scale_ : nullptr;
        output.first.bias = has_affine_ ? bias_ : nullptr;
        output.first.channels = static_cast<int>(out.shape(1));
        output.image_bytes = out.shape(1) * out.shape(2) * out.shape(3) * dtype_bytes(dtype_);
        return output;
    }

    PartRunner runner_;
    bool is_running_ = false;  // by another thread, while this one has the GIL, or this object's lock
    int64_t max_pixels_;
    Dtype dtype_;
    bool has_affine_;
    float scale_[3] = {}, bias_[3] = {};
    Stages stages_{};
    size_t most_ = 0;
    std::vector<PartSample> samples_;
    std::vector<int64_t> missing_;
};

}  // namespace

void add_part(nb::module_& module) {
    module.def("uniform", &uniform, "seed"_a, "epoch"_a, "keys"_a, "stream"_a, "count"_a,
               "Draws uniform numbers, float64 [N, count], see feeder.order.random.uniform().");
    nb::class_<BaseOps>(module, "BaseOps", "The ops of a recipe's base path, for their draws.")
        .def(nb::init<>())
        .def("add_random_resized_crop", &BaseOps::add_random_resized_crop, "stream"_a, "height"_a, "width"_a, "scale"_a,
             "ratio"_a, "log_ratio"_a)
        .def("add_random_crop", &BaseOps::add_random_crop, "stream"_a, "height"_a, "width"_a, "padding"_a, "pads_if_needed"_a)
        .def("add_pad", &BaseOps::add_pad, "padding"_a)
        .def("add_letterbox", &BaseOps::add_letterbox, "height"_a, "width"_a)
        .def("add_center_crop", &BaseOps::add_center_crop, "height"_a, "width"_a)
        .def("add_resize", &BaseOps::add_resize, "side"_a, "height"_a, "width"_a, "most"_a)
        .def("add_horizontal_flip", &BaseOps::add_horizontal_flip, "stream"_a, "p"_a)
        .def("draw", &BaseOps::draw, "seed"_a, "epoch"_a, "keys"_a, "sizes"_a,
             "Draws for N images: each (source box, support box, (height, width), flip, frame), or None if undecided.");
    nb::class_<OpenShards>(module, "OpenShards", "The open shards of one thread.")
        .def(nb::init<>())
        .def("put", [](OpenShards& self, int64_t shard, int descriptor, uint64_t size_bytes, int64_t changed_ns) {
                 self.put(shard, {descriptor, size_bytes, changed_ns});
             }, "shard"_a, "descriptor"_a, "size_bytes"_a, "changed_ns"_a)
        .def("remove", &OpenShards::remove, "shard"_a);
    nb::class_<Runner>(module, "PartRunner", "Makes parts of batches: from sample ids to pixels.")
        .def(nb::init<const BaseOps&, uint64_t, bool, uint64_t, std::optional<int64_t>, int64_t, const std::string&, int,
                      const std::string&, std::optional<Floats>, std::optional<Floats>, std::vector<size_t>, const std::string&,
                      std::tuple<int, int, int>>(),
             "ops"_a, nb::kw_only(), "seed"_a, "exif"_a, "large_bytes"_a, "made_ns"_a.none(), "max_pixels"_a, "fidelity"_a,
             "threads"_a, "dtype"_a, "scale"_a, "bias"_a, "stages"_a,
             "filter"_a, "fill"_a)
        .def("run", &Runner::run, nb::lock_self(), "index"_a.lock(), "open_shards"_a, "shards"_a.none(), "per_shard"_a,
             "rows"_a, "ids"_a, "repeats"_a, "samples"_a, "epoch"_a, nb::arg("out").noconvert(), nb::arg("labels").noconvert().none(),
             nb::arg("words").noconvert(), "brought_ns"_a, "advise_from"_a.none(), "is_last"_a, "heartbeat"_a,
             "programs"_a = nb::none(), "places"_a = nb::none(),
             "Makes N samples, most of the time without the GIL; see feeder/_native.pyi.")
        .def("plan", &Runner::plan, nb::lock_self(), "index"_a.lock(), "open_shards"_a, "shards"_a.none(), "per_shard"_a,
             "rows"_a, "ids"_a, "repeats"_a, "samples"_a, "epoch"_a, "size"_a, nb::arg("labels").noconvert().none(),
             nb::arg("words").noconvert(), "brought_ns"_a, "advise_from"_a.none(), "is_last"_a, "heartbeat"_a,
             "Plans N samples for the CUDA kernels, most of the time without the GIL; see feeder/_native.pyi.");
}

}  // namespace feeder::bind
