// The part of the CUDA driver's API that feeder calls, on the CPU: launches run the kernels of emulate.h, at once. The tests
// compile it (tests/support/cuda_driver.py), and load it in place of libcuda.
#include <cstdint>
#include <cstring>

#include "cuda/emulate.h"

using namespace feeder::cuda;

namespace {

// Codes of CUresult.
constexpr int kInvalidValue = 1, kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201, kNotFound = 500,
              kLaunchFailed = 719;

struct {
    int version = 13000, major = 9, minor = 0;
    int refused = 0, refused_load = 0;  // what the next launch answers, and the next load
    int loaded = 0, launches = 0;
    Order order = Order::forward;
} driver;

thread_local int contexts = 0;  // pushed by this thread

struct Kernel {
    const char* name;
    uint32_t threads;
    bool (*run)(const Batch&, uint32_t, Order);  // false: a race
};
template <typename K>
constexpr Kernel kernel_of(const char* name) {
    return {name, K::kThreads, [](const Batch& batch, uint32_t blocks, Order order) { return emulate<K>(batch, blocks, order); }};
}
constexpr Kernel kKernels[] = {kernel_of<Huffman>("feeder_huffman"), kernel_of<Unpack>("feeder_unpack"),
                               kernel_of<InverseDct>("feeder_idct"), kernel_of<Filters>("feeder_filters"),
                               kernel_of<Resize>("feeder_resize")};

}  // namespace

extern "C" {

void feeder_set_driver(int version, int major, int minor, int order) {
    driver.version = version;
    driver.major = major;
    driver.minor = minor;
    driver.order = static_cast<Order>(order);
    driver.refused = driver.refused_load = driver.loaded = driver.launches = 0;
}
void feeder_refuse_launch(int code) { driver.refused = code; }
void feeder_refuse_load(int code) { driver.refused_load = code; }
int feeder_count_loaded() { return driver.loaded; }
int feeder_count_launches() { return driver.launches; }

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
    *version = driver.version;
    return 0;
}
int cuDeviceGet(int* device, int number) {
    *device = 7;  // not its number
    return number == 0 ? 0 : kInvalidDevice;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device != 7 || (attribute != 75 && attribute != 76)) return kInvalidValue;
    *value = attribute == 75 ? driver.major : driver.minor;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = &driver;
    return device == 7 ? 0 : kInvalidDevice;
}
int cuCtxPushCurrent_v2(void* context) {
    if (context != &driver) return kInvalidContext;
    ++contexts;
    return 0;
}
int cuCtxPopCurrent_v2(void** context) {
    if (contexts == 0) return kInvalidContext;
    --contexts;
    *context = &driver;
    return 0;
}
int cuModuleLoadData(void** module, const void* image) {
    constexpr unsigned char magic[] = {0x50, 0xED, 0x55, 0xBA};
    if (contexts == 0) return kInvalidContext;
    if (driver.refused_load != 0) return driver.refused_load;
    if (std::memcmp(image, magic, sizeof(magic)) != 0) return kInvalidImage;
    ++driver.loaded;
    *module = &driver.loaded;
    return 0;
}
int cuModuleGetFunction(const void** function, void* module, const char* name) {
    if (contexts == 0 || module != &driver.loaded) return kInvalidContext;
    for (const Kernel& kernel : kKernels) {
        if (std::strcmp(kernel.name, name) != 0) continue;
        *function = &kernel;
        return 0;
    }
    return kNotFound;
}
int cuLaunchKernel(const void* function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared_bytes, void* stream, void** arguments, void** extra) {
    const auto* const kernel = static_cast<const Kernel*>(function);
    if (contexts == 0) return kInvalidContext;
    if (driver.refused != 0) return driver.refused;
    if (blocks == 0 || threads != kernel->threads || y != 1 || z != 1 || ty != 1 || tz != 1 || shared_bytes != 0 ||
        stream != nullptr || extra != nullptr) {
        return kInvalidValue;
    }
    Batch batch;
    std::memcpy(&batch, arguments[0], sizeof(batch));
    if (!kernel->run(batch, blocks, driver.order)) return kLaunchFailed;
    ++driver.launches;
    return 0;
}
int cuGetErrorName(int code, const char** name) {
    *name = code == kInvalidImage ? "CUDA_ERROR_INVALID_IMAGE" : code == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : nullptr;
    return *name == nullptr ? kInvalidValue : 0;
}

}  // extern "C"
