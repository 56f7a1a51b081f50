#include "cpu/crc32c.h"

#include <nanobind/nanobind.h>

#include "bind/buffer.h"
#include "bind/module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace feeder::bind {

void add_crc32c(nb::module_& module) {
    module.def(
        "crc32c",
        [](nb::handle data, uint32_t before, bool portable) {
            const BufferView view(data);
            nb::gil_scoped_release release;
            return portable ? crc32c_portable(view.bytes(), before) : crc32c(view.bytes(), before);
        },
        "data"_a, "before"_a = 0, nb::kw_only(), "portable"_a = false,
        "Returns the CRC-32C of bytes that follow others whose checksum is `before`, without the GIL.");
}

}  // namespace feeder::bind
