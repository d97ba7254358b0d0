// That a pool gives back the memory of its buffers: counted, so not under a sanitizer, which counts itself.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "exchange/float_buffer.h"

namespace {

std::atomic<int> g_aligned_arrays{0};  // that live: what buffers are made of

}  // namespace

void* operator new[](size_t size, std::align_val_t alignment) {
  const auto multiple = static_cast<size_t>(alignment);
  void* const p = std::aligned_alloc(multiple, (size + multiple - 1) / multiple * multiple);
  if (p == nullptr) throw std::bad_alloc();
  ++g_aligned_arrays;
  return p;
}
void operator delete[](void* p, std::align_val_t) noexcept {
  if (p != nullptr) --g_aligned_arrays;
  std::free(p);
}
void operator delete[](void* p, size_t, std::align_val_t alignment) noexcept {
  ::operator delete[](p, alignment);
}

namespace capstan::exchange {
namespace {

TEST(BufferPoolTest, WhatIsFreeGoesWithThePool) {
  const int before = g_aligned_arrays.load();
  std::shared_ptr<FloatBuffer> kept;
  {
    BufferPool pool(4);
    kept = pool.Lend();
    pool.Lend();
    EXPECT_EQ(g_aligned_arrays.load(), before + 2);
  }
  EXPECT_EQ(g_aligned_arrays.load(), before + 1);
  kept.reset();
  EXPECT_EQ(g_aligned_arrays.load(), before);
}

}  // namespace
}  // namespace capstan::exchange
