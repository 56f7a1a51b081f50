// One object for each process, shared by its threads and never destroyed: they may still use it at exit.
//
// Note [after a fork]
// A process that is forked off has the memory of its parent, but not its threads: a lock may be held for ever, and a
// thread that is waited for be gone. So it gets an object of its own, and leaves the inherited one alone.
#pragma once

#include <pthread.h>

#include <atomic>

namespace feeder {

template <typename T>
class PerProcess {
  public:
    static T& get() {
        (void)registered_;
        T* found = current_.load(std::memory_order_acquire);
        if (found != nullptr) return *found;
        T* const made = new T;
        if (current_.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
        delete made;
        return *found;
    }

  private:
    static inline std::atomic<T*> current_{nullptr};
    static inline const int registered_ =
        pthread_atfork(nullptr, nullptr, [] { current_.store(nullptr, std::memory_order_relaxed); });
};

}  // namespace feeder
