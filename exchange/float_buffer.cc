#include "exchange/float_buffer.h"

#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::exchange {

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
  size_t max_free ABSL_GUARDED_BY(mu) = 0;
  int64_t returns ABSL_GUARDED_BY(mu) = 0;
  CondVar returned;
};

BufferPool::BufferPool(int64_t size, int64_t max_free)
    : size_(size), state_(std::make_shared<State>()) {
  CAPSTAN_CHECK(size >= 1 && max_free >= 0);
  MutexLock lock(state_->mu);
  state_->max_free = static_cast<size_t>(max_free);
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
    std::unique_ptr<FloatBuffer> owned(p);  // let go outside the lock
    MutexLock lock(state->mu);
    ++state->returns;
    state->returned.NotifyAll();
    if (state->closed) return;
    if (state->free.size() < state->max_free) {
      state->free.push_back(std::move(owned));
    } else {
      --state->allocated;
    }
  });
}

void BufferPool::WaitForReturn(absl::Duration timeout) {
  const absl::Duration end = MonotonicNow() + timeout;
  MutexLock lock(state_->mu);
  for (const int64_t returns = state_->returns; state_->returns == returns;) {
    const absl::Duration left = end - MonotonicNow();
    if (left <= absl::ZeroDuration()) return;
    state_->returned.WaitWithTimeout(state_->mu, left);
  }
}

int64_t BufferPool::lent() const {
  MutexLock lock(state_->mu);
  return state_->allocated - static_cast<int64_t>(state_->free.size());
}

int64_t BufferPool::allocated() const {
  MutexLock lock(state_->mu);
  return state_->allocated;
}

}  // namespace capstan::exchange
