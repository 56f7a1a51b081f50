// A Python object's bytes, held during this object's life.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/bytes.h"

namespace feeder::bind {

// Made and destroyed with the GIL held; its bytes may be read without it.
class BufferView {
  public:
    explicit BufferView(nanobind::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
    }
    BufferView(BufferView&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;
    BufferView& operator=(BufferView&&) = delete;
    ~BufferView() {
        if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }

    ByteSpan bytes() const { return {static_cast<const uint8_t*>(view_.buf), static_cast<size_t>(view_.len)}; }

  private:
    Py_buffer view_;
};

}  // namespace feeder::bind
