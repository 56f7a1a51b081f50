// Threads that help with one call after the other.
#pragma once

#include <functional>

namespace feeder {

// Runs `work` on the calling thread and on others at the same time, `threads` in all, and returns when all of them are
// done: on fewer if the system has no more threads. What one of them throws is thrown. The other threads are kept for the
// next call. Any thread may call it at any time, also in a process that was forked off; see Note [after a fork].
void run_on_threads(int threads, const std::function<void()>& work);

}  // namespace feeder
