#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "bind/buffer.h"
#include "bind/module.h"
#include "bind/unsupported.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/packed/pack.h"
#include "cpu/packed/train.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {
namespace {

CodebookId id_of(const nb::bytes& bytes) {
    if (bytes.size() != kCodebookIdBytes) throw nb::value_error("a codebook's id has 8 bytes");
    CodebookId id;
    std::memcpy(id.data(), bytes.c_str(), id.size());
    return id;
}

const Codebook& known(const CodebookId& id) {
    const Codebook* const codebook = find_codebook(id);
    if (codebook == nullptr) raise_unsupported({Status::corrupt, unknown_codebook(id)});
    return *codebook;
}

void add(const nb::bytes& id, nb::handle data) {
    const BufferView codebook(data);
    if (!add_codebook(id_of(id), codebook.bytes())) throw nb::value_error("not a codebook of packed JPEGs");
}

nb::bytes pack(nb::handle data, const nb::bytes& codebook_id, const nb::bytes& sha256, int64_t max_pixels,
               bool sequential_copy) {
    if (sha256.size() != kDigestBytes) throw nb::value_error("sha256 must have 32 bytes");
    const BufferView file(data);
    const CodebookId id = id_of(codebook_id);
    const Codebook& codebook = known(id);
    std::vector<uint8_t> out;
    Outcome outcome;
    {
        nb::gil_scoped_release release;
        static thread_local JpegPacker packer;
        outcome = packer.pack(file.bytes(), id, codebook, max_pixels, out);
    }
    if (!outcome.ok()) raise_unsupported(outcome);
    std::memcpy(out.data() + offsetof(PackedHead, sha256), sha256.c_str(), kDigestBytes);
    out[offsetof(PackedHead, sequential_copy)] = sequential_copy ? 1 : 0;
    return nb::bytes(out.data(), out.size());
}

nb::bytes unpack(nb::handle data, nb::handle given) {
    const BufferView file(data);
    PackedFile packed;
    Outcome outcome = packed.open(file.bytes(), -1);
    if (!outcome.ok()) raise_unsupported(outcome);
    const Codebook* codebook = find_codebook(packed.codebook_id());
    std::unique_ptr<Codebook> own;
    if (codebook == nullptr && !given.is_none()) {
        own = std::make_unique<Codebook>();
        if (!own->parse(BufferView(given).bytes())) throw nb::value_error("not a codebook of packed JPEGs");
        codebook = own.get();
    }
    if (codebook == nullptr) raise_unsupported({Status::corrupt, unknown_codebook(packed.codebook_id())});
    Bytes out;
    {
        nb::gil_scoped_release release;
        outcome = unpack_jpeg(packed, *codebook, out);
    }
    if (!outcome.ok()) raise_unsupported(outcome);
    return nb::bytes(out.data(), out.size());
}

nb::bytes train(const nb::list& images, int64_t max_pixels) {
    std::vector<BufferView> files;
    for (const nb::handle image : images) files.emplace_back(image);
    std::vector<uint8_t> codebook;
    {
        nb::gil_scoped_release release;
        CodebookTrainer trainer;
        for (const BufferView& file : files) trainer.add(file.bytes(), max_pixels);
        codebook = trainer.train();
    }
    return nb::bytes(codebook.data(), codebook.size());
}

}  // namespace

void add_packed(nb::module_& module) {
    module.def("train_codebook", &train, "images"_a, nb::kw_only(), "max_pixels"_a = 0,
               "Trains a codebook for packed JPEGs.\n\n"
               "Args:\n"
               "    images: A sample of the JPEGs, bytes-like. Those that can't be packed are left out.\n"
               "    max_pixels: Leaves larger images out; 0 for no limit.\n\n"
               "Returns:\n"
               "    The codebook: the same bytes for the same images in the same order.");
    module.def("add_codebook", &add, "id"_a, "data"_a,
               "Makes a codebook known to all decoders of this process, under the first 8 bytes of its SHA-256.\n\n"
               "Raises:\n"
               "    ValueError: not a codebook.");
    module.def("pack", &pack, "data"_a, "codebook_id"_a, "sha256"_a, nb::kw_only(), "max_pixels"_a = 0,
               "sequential_copy"_a = false,
               "Packs a JPEG, if unpacking it gives the same bytes again.\n\n"
               "Args:\n"
               "    data: The JPEG, bytes-like.\n"
               "    codebook_id: The id of a known codebook.\n"
               "    sha256: The JPEG's SHA-256, 32 bytes, which goes into the packed file.\n"
               "    max_pixels: Refuses larger images; 0 for no limit.\n"
               "    sequential_copy: Notes that the JPEG is a sequential copy of a progressive file.\n\n"
               "Raises:\n"
               "    Unsupported: with the reason why the JPEG should be kept as it is.");
    module.def("unpack", &unpack, "data"_a, "codebook"_a.none() = nb::none(),
               "Returns the JPEG that was packed. Its SHA-256 is not checked.\n\n"
               "Args:\n"
               "    data: The packed JPEG, bytes-like.\n"
               "    codebook: Its codebook, bytes-like, if that is not known; it is not afterwards, either.\n\n"
               "Raises:\n"
               "    Unsupported: the packed JPEG is damaged, or its codebook is not known.\n"
               "    ValueError: not a codebook.");
}

}  // namespace feeder::bind
