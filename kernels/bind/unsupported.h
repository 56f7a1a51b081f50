// The exception for a JPEG that an operation does not support.
#pragma once

#include "cpu/status.h"

namespace feeder::bind {

// Raises feeder._native.Unsupported with the reason, and with the status as an attribute so that callers can count by kind.
[[noreturn]] void raise_unsupported(const Outcome& outcome);

}  // namespace feeder::bind
