// A table of floats that grows row by row without moving what it has.
#ifndef CAPSTAN_GPU_WORKER_DATA_FLOAT_ROWS_H_
#define CAPSTAN_GPU_WORKER_DATA_FLOAT_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace capstan::data {

// Threads: after the last Append, any number of readers.
class FloatRows {
 public:
  // Rows of `width` >= 1 floats. Memory is allocated in blocks of 256 KiB, or of a row if that is
  // larger.
  explicit FloatRows(int64_t width = 1)
      : width_(width), rows_of_block_(std::max<int64_t>(1, kBlockFloats / width)) {}

  // A new row, all zeros. Throws bad_alloc.
  float* Append() {
    if (count_ == rows_of_block_ * static_cast<int64_t>(blocks_.size())) {
      blocks_.push_back(std::make_unique<float[]>(static_cast<size_t>(rows_of_block_ * width_)));
    }
    return Place(count_++);
  }
  const float* Row(int64_t row) const { return Place(row); }
  int64_t count() const { return count_; }

 private:
  static constexpr int64_t kBlockFloats = 64 << 10;

  float* Place(int64_t row) const {
    return blocks_[static_cast<size_t>(row / rows_of_block_)].get() + row % rows_of_block_ * width_;
  }

  int64_t width_;
  int64_t rows_of_block_;
  int64_t count_ = 0;
  std::vector<std::unique_ptr<float[]>> blocks_;
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_FLOAT_ROWS_H_
