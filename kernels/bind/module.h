// The topics of feeder._native, one file each.
//
// Note [without the GIL]
// On a free-threaded Python methods that change an object are bound with nb::lock_self(), or their argument with lock():
// nanobind then holds the object's lock for them as the GIL is held elsewhere, and lets go of it where they let go of the
// GIL. Other objects are used by one thread at a time, or do not change.
#pragma once

#include <nanobind/nanobind.h>

namespace feeder::bind {

void add_resize(nanobind::module_& module);
void add_status(nanobind::module_& module);
void add_bands(nanobind::module_& module);
void add_crc32c(nanobind::module_& module);
void add_transcode(nanobind::module_& module);
void add_decode(nanobind::module_& module);
void add_libjpeg(nanobind::module_& module);
void add_packed(nanobind::module_& module);
void add_shard_rows(nanobind::module_& module);
void add_part(nanobind::module_& module);
void add_png(nanobind::module_& module);
void add_mask(nanobind::module_& module);
void add_order(nanobind::module_& module);
void add_cuda(nanobind::module_& module);
void add_augment(nanobind::module_& module);

}  // namespace feeder::bind
