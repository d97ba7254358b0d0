// Flat float32 vectors of one length, lent out by reference count and used again.
//
// A buffer is lent until the last shared_ptr to it is gone, on whichever thread that happens: the
// exchange gives gRPC references to gradient buffers, and a device may still read an older version
// of the weights while the next two arrive.
//
// Threads: BufferPool is thread-safe; a buffer's content belongs to whoever may write it by the
// rules of its user.
#ifndef CAPSTAN_EXCHANGE_FLOAT_BUFFER_H_
#define CAPSTAN_EXCHANGE_FLOAT_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace capstan::exchange {

// 64-byte aligned; zero at first, afterwards as its last user left it.
class FloatBuffer {
 public:
  explicit FloatBuffer(int64_t size);
  FloatBuffer(const FloatBuffer&) = delete;
  FloatBuffer& operator=(const FloatBuffer&) = delete;

  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  absl::Span<float> span() { return {data_.get(), static_cast<size_t>(size_)}; }
  absl::Span<const float> span() const { return {data_.get(), static_cast<size_t>(size_)}; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  int64_t size_;
  std::unique_ptr<float[], Free> data_;
};

class BufferPool {
 public:
  // Buffers of `size` floats, >= 1. More than `max_free` free ones are given back to the system.
  explicit BufferPool(int64_t size, int64_t max_free = std::numeric_limits<int64_t>::max());
  // Buffers that are lent stay valid.
  ~BufferPool();

  // A free buffer, or a new one: who holds how many is what bounds the number.
  std::shared_ptr<FloatBuffer> Lend();
  // Until a buffer is given back, or the time is over.
  void WaitForReturn(absl::Duration timeout);
  // Buffers that exist, lent or free.
  int64_t allocated() const;
  // Buffers that are lent.
  int64_t lent() const;
  int64_t size() const { return size_; }

 private:
  struct State;
  const int64_t size_;
  const std::shared_ptr<State> state_;  // shared with the deleters of lent buffers
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_FLOAT_BUFFER_H_
