// Ten classes of grey 28x28 images, drawn from a seed: a data set that needs no file.
//
// A digit is a few strokes. Each image bends, rotates, shears, scales and shifts them, chooses
// thickness, ink and background, and adds noise to every pixel. The classes are easy for a network
// with convolutions (`lenet`: above 97 % after 3 epochs of 60 000) and hard for a linear one
// (softmax regression: below 90 %), because the meaning of a pixel varies.
//
// Image and label are pure functions of (seed, split, index): Philox with purpose kSynthetic and
// counter (block, low and high word of index, split). Block 0 gives the label in word 0. All
// arithmetic is IEEE float32 addition, multiplication, division and square root, without library
// calls whose last bit differs between machines. So every host draws the same bytes.
//
// Threads: immutable; calls may overlap.
#ifndef CAPSTAN_GPU_WORKER_DATA_SYNTHETIC_DIGITS_H_
#define CAPSTAN_GPU_WORKER_DATA_SYNTHETIC_DIGITS_H_

#include <cstdint>

#include "training/random/philox.h"

namespace capstan::data {

class SyntheticDigits {
 public:
  static constexpr int kSide = 28;               // rows and columns
  static constexpr int kPixels = kSide * kSide;  // bytes of an image
  static constexpr int kClasses = 10;

  // Splits are distinguished by number: 0 is the training set, 1 the test set.
  SyntheticDigits(uint64_t seed, uint32_t split)
      : philox_(seed, training::Purpose::kSynthetic), split_(split) {}

  // In [0, 10), uniform. index >= 0.
  int32_t Label(int64_t index) const;

  // Writes kPixels bytes, row by row: 0 background, 255 ink.
  void Draw(int64_t index, uint8_t* pixels) const;

 private:
  const training::Philox philox_;
  const uint32_t split_;
};

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_SYNTHETIC_DIGITS_H_
