// Walks over tensors of a batch by strides, for references.
#ifndef CAPSTAN_TRAINING_OPS_PLACES_H_
#define CAPSTAN_TRAINING_OPS_PLACES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "training/ops/types.h"

namespace capstan::training {

// By axis: how many elements further the next index lies.
using Strides = std::vector<int64_t>;

// Of a row-major tensor.
inline Strides StridesOf(const Shape& shape) {
  Strides strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    strides[i - 1] = stride;
    stride *= shape[i - 1];
  }
  return strides;
}

// Calls visit(places) for each index of `shape`, the last axis fastest. places[k] is at[k] plus the
// sum of index times stride over the axes of strides[k].
template <size_t kTensors, typename Visit>
void ForPlaces(const Shape& shape, const std::array<Strides, kTensors>& strides,
               std::array<int64_t, kTensors> at, Visit visit) {
  std::vector<int64_t> index(shape.size(), 0);
  while (true) {
    visit(at);
    size_t axis = shape.size();
    for (; axis > 0; --axis) {
      const bool more = ++index[axis - 1] < shape[axis - 1];
      for (size_t k = 0; k < kTensors; ++k) {
        at[k] += more ? strides[k][axis - 1] : -strides[k][axis - 1] * (shape[axis - 1] - 1);
      }
      if (more) break;
      index[axis - 1] = 0;
    }
    if (axis == 0) return;
  }
}

// The elements of axes [first, last) together.
inline int64_t ElementsBetween(const Shape& shape, size_t first, size_t last) {
  int64_t elements = 1;
  for (size_t i = first; i < last; ++i) elements *= shape[i];
  return elements;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_PLACES_H_
