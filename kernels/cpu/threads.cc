#include "cpu/threads.h"

#include <csignal>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/per_process.h"

namespace feeder {
namespace {

class Helper {
  public:
    Helper() {
        // Signals are for the threads that Python knows of.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            std::thread([this] { loop(); }).detach();
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void start(const std::function<void()>& work) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
        }
        changed_.notify_one();
    }

    // Returns what the work threw; null if it ended well.
    std::exception_ptr wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return work_ == nullptr; });
        return std::exchange(error_, nullptr);
    }

  private:
    void loop() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return work_ != nullptr; });
            lock.unlock();
            std::exception_ptr error;
            try {
                (*work_)();
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            error_ = error;
            work_ = nullptr;
            done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_, done_;
    const std::function<void()>* work_ = nullptr;
    std::exception_ptr error_;
};

class Helpers {
  public:
    std::unique_ptr<Helper> take() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (!idle_.empty()) {
                std::unique_ptr<Helper> helper = std::move(idle_.back());
                idle_.pop_back();
                return helper;
            }
        }
        return std::make_unique<Helper>();
    }

    void give_back(std::unique_ptr<Helper> helper) {
        const std::lock_guard<std::mutex> lock(mutex_);
        idle_.push_back(std::move(helper));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Helper>> idle_;
};

// Waits for the helpers of a call, however it ends.
class Call {
  public:
    ~Call() { wait(); }

    // Returns the first exception of theirs; null if there is none.
    std::exception_ptr wait() {
        std::exception_ptr first;
        for (auto& helper : taken_) {
            std::exception_ptr error = helper->wait();
            if (first == nullptr) first = std::move(error);
            PerProcess<Helpers>::get().give_back(std::move(helper));
        }
        taken_.clear();
        return first;
    }

    void add(const std::function<void()>& work) {
        taken_.push_back(PerProcess<Helpers>::get().take());
        taken_.back()->start(work);
    }

  private:
    std::vector<std::unique_ptr<Helper>> taken_;
};

}  // namespace

void run_on_threads(int threads, const std::function<void()>& work) {
    Call call;
    for (int i = 1; i < threads; ++i) {
        try {
            call.add(work);
        } catch (const std::system_error&) {
            break;
        }
    }
    work();
    if (const std::exception_ptr error = call.wait()) std::rethrow_exception(error);
}

}  // namespace feeder
