// A layout of three chunks, for the tests of this folder.
#ifndef CAPSTAN_EXCHANGE_TEST_CHUNKS_H_
#define CAPSTAN_EXCHANGE_TEST_CHUNKS_H_

#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "training/chunks/flat_layout.h"

namespace capstan::exchange {

inline constexpr absl::Duration kNow = absl::Seconds(5);

// Two whole chunks and one of 16 floats.
inline training::FlatLayout ThreeChunks() {
  training::TensorSpec spec;
  spec.name = "fc.weight";
  spec.shape = {2 * training::kSmallChunkFloats + 16};
  spec.fan_in = spec.fan_out = 1;
  auto layout = training::FlatLayout::Create({spec});
  EXPECT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->chunk_count(), 3);
  return *std::move(layout);
}

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TEST_CHUNKS_H_
