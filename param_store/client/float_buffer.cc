#include "param_store/client/float_buffer.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "services/check/check.h"
#include "services/sync/mutex.h"

namespace capstan::param_store::client {

constexpr std::align_val_t kAlignment{64};

void FloatBuffer::Free::operator()(float* p) const { ::operator delete[](p, kAlignment); }

FloatBuffer::FloatBuffer(int64_t size)
    : size_(size), data_(static_cast<float*>(::operator new[](sizeof(float) * size, kAlignment))) {
  std::memset(data_.get(), 0, sizeof(float) * size);
}

struct BufferPool::State {
  Mutex mu;
  bool closed ABSL_GUARDED_BY(mu) = false;
  std::vector<std::unique_ptr<FloatBuffer>> free ABSL_GUARDED_BY(mu);
  int64_t allocated ABSL_GUARDED_BY(mu) = 0;
};

BufferPool::BufferPool(int64_t size) : size_(size), state_(std::make_shared<State>()) {
  CAPSTAN_CHECK(size >= 1);
}

BufferPool::~BufferPool() {
  std::vector<std::unique_ptr<FloatBuffer>> free;
  MutexLock lock(state_->mu);
  state_->closed = true;
  free.swap(state_->free);
}

std::shared_ptr<FloatBuffer> BufferPool::Lend() {
  std::unique_ptr<FloatBuffer> buffer;
  {
    MutexLock lock(state_->mu);
    if (state_->free.empty()) {
      ++state_->allocated;
    } else {
      buffer = std::move(state_->free.back());
      state_->free.pop_back();
    }
  }
  if (buffer == nullptr) buffer = std::make_unique<FloatBuffer>(size_);
  return std::shared_ptr<FloatBuffer>(buffer.release(), [state = state_](FloatBuffer* p) {
    std::unique_ptr<FloatBuffer> owned(p);
    MutexLock lock(state->mu);
    if (!state->closed) state->free.push_back(std::move(owned));
  });
}

int64_t BufferPool::allocated() const {
  MutexLock lock(state_->mu);
  return state_->allocated;
}

}  // namespace capstan::param_store::client
