#include "tests/support/fake_cuda/cudnn_conv.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "gpu_worker/engine/cuda/half16.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda::dnn {
namespace {

using Order = std::array<int, 4>;  // of dimensions, slowest first

// Sixteen sums at a time fit into the registers of every CPU. What is packed for them is padded to
// 16.
using Four = float __attribute__((vector_size(16)));
constexpr int64_t kLanes = 16;
int64_t Padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// ThreadSanitizer does not watch code that touches only private copies: there is no race to find,
// and watching every factor would make a convolution take seconds.
struct Sixteen {
  Four a = {}, b = {}, c = {}, d = {};
};

__attribute__((no_sanitize("thread"))) inline Four FourAt(const float* values) {
  Four four;
  std::memcpy(&four, values, sizeof four);
  return four;
}

__attribute__((no_sanitize("thread"))) inline void AddProduct(float factor, const float* values,
                                                              Sixteen& sums) {
  sums.a += factor * FourAt(values);
  sums.b += factor * FourAt(values + 4);
  sums.c += factor * FourAt(values + 8);
  sums.d += factor * FourAt(values + 12);
}

__attribute__((no_sanitize("thread"))) inline void Store(const Sixteen& sums, float* values) {
  std::memcpy(values, &sums, kLanes * sizeof(float));
}

float RoundToTf32(float v) {
  const uint32_t bits = engine::cuda::BitsOf(v);
  if ((bits & 0x7f800000u) == 0x7f800000u) return v;  // infinity or NaN
  return engine::cuda::FloatOf((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
}

template <typename Visit>
void VisitType(cudnnDataType_t type, void* data, Visit visit) {
  if (type == CUDNN_DATA_BFLOAT16) {
    visit(static_cast<engine::cuda::Bf16*>(data));
  } else if (type == CUDNN_DATA_HALF) {
    visit(static_cast<engine::cuda::Fp16*>(data));
  } else {
    visit(static_cast<float*>(data));
  }
}

// Calls visit(place in the tensor, place in the packed copy) for every element.
template <typename Visit>
void ForEachPlace(const ConvTensor& tensor, const Order& order, int64_t row, Visit visit) {
  std::array<int64_t, 4> dims, strides;
  for (size_t i = 0; i < 4; ++i) {
    dims[i] = tensor.dims[static_cast<size_t>(order[i])];
    strides[i] = tensor.strides[static_cast<size_t>(order[i])];
  }
  int64_t packed = 0;
  for (int64_t i = 0; i < dims[0]; ++i) {
    for (int64_t j = 0; j < dims[1]; ++j) {
      for (int64_t k = 0; k < dims[2]; ++k, packed += row) {
        const int64_t place = i * strides[0] + j * strides[1] + k * strides[2];
        for (int64_t l = 0; l < dims[3]; ++l) visit(place + l * strides[3], packed + l);
      }
    }
  }
}

int64_t PackedElements(const ConvTensor& tensor, const Order& order, int64_t row) {
  const auto dim = [&](size_t i) { return tensor.dims[static_cast<size_t>(order[i])]; };
  return dim(0) * dim(1) * dim(2) * row;
}

// The tensor as float32 in the given order. The last dimension is in rows of `row`, padded with
// zeros.
std::vector<float> Pack(const ConvTensor& tensor, const Order& order, int64_t row, bool rounds) {
  std::vector<float> packed(static_cast<size_t>(PackedElements(tensor, order, row)));
  VisitType(tensor.type, tensor.data, [&](const auto* data) {
    ForEachPlace(tensor, order, row, [&](int64_t from, int64_t to) {
      const float v = data[from];
      packed[static_cast<size_t>(to)] = rounds ? RoundToTf32(v) : v;
    });
  });
  return packed;
}

// The places in the input of an output's taps: [output][tap], -1 if there is none.
std::vector<int64_t> InputPlaces(const ConvWork& work, size_t axis) {
  const int64_t taps = work.w.dims[2 + axis], inputs = work.x.dims[2 + axis];
  std::vector<int64_t> places;
  for (int64_t out = 0; out < work.y.dims[2 + axis]; ++out) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t in = out * work.strides[axis] + tap * work.dilations[axis] - work.pads[axis];
      places.push_back(in >= 0 && in < inputs ? in : -1);
    }
  }
  return places;
}

// The same in the other direction: [input][tap].
std::vector<int64_t> OutputPlaces(const ConvWork& work, size_t axis) {
  const int64_t taps = work.w.dims[2 + axis], outputs = work.y.dims[2 + axis];
  std::vector<int64_t> places;
  for (int64_t in = 0; in < work.x.dims[2 + axis]; ++in) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t ahead = in + work.pads[axis] - tap * work.dilations[axis];
      const int64_t out = ahead / work.strides[axis];
      const bool meets = ahead >= 0 && ahead % work.strides[axis] == 0 && out < outputs;
      places.push_back(meets ? out : -1);
    }
  }
  return places;
}

// Images [n, height, width, channels] that are the source or the target of a sum.
struct PackedImages {
  int64_t height = 1, width = 1, channels = 1;  // channels: with padding
};
struct Taps {
  int64_t height = 1, width = 1;
  const int64_t* rows = nullptr;  // [height of an image][taps in height]: rows of the other image
  const int64_t* columns = nullptr;
};

// to[n, i, j, :] = sum over taps r, s and channels c of from[n, rows[i, r], columns[j, s], c] *
// w[r, s, c, :]. For forward and for the data gradient.
__attribute__((no_sanitize("thread"))) void SumToImages(int64_t n, const Taps& taps,
                                                        const PackedImages& from_shape,
                                                        const float* from, const float* w,
                                                        const PackedImages& to_shape, float* to) {
  const int64_t channels = from_shape.channels, lanes = to_shape.channels;
  for (int64_t image = 0; image < n; ++image) {
    for (int64_t i = 0; i < to_shape.height; ++i) {
      for (int64_t j = 0; j < to_shape.width; ++j) {
        float* const sums_at = to + ((image * to_shape.height + i) * to_shape.width + j) * lanes;
        for (int64_t first = 0; first < lanes; first += kLanes) {
          Sixteen sums;
          for (int64_t r = 0; r < taps.height; ++r) {
            const int64_t row = taps.rows[i * taps.height + r];
            if (row < 0) continue;
            for (int64_t s = 0; s < taps.width; ++s) {
              const int64_t column = taps.columns[j * taps.width + s];
              if (column < 0) continue;
              const float* const factors =
                  from + ((image * from_shape.height + row) * from_shape.width + column) * channels;
              const float* const weights = w + (r * taps.width + s) * channels * lanes + first;
              for (int64_t c = 0; c < channels; ++c) {
                AddProduct(factors[c], weights + c * lanes, sums);
              }
            }
          }
          Store(sums, sums_at + first);
        }
      }
    }
  }
}

// w[r, s, c, :] = sum over n, i, j of x[n, rows[i, r], columns[j, s], c] * y[n, i, j, :].
__attribute__((no_sanitize("thread"))) void SumToFilter(int64_t n, const Taps& taps,
                                                        const PackedImages& x_shape, const float* x,
                                                        const PackedImages& y_shape, const float* y,
                                                        float* w) {
  const int64_t channels = x_shape.channels, lanes = y_shape.channels;
  for (int64_t r = 0; r < taps.height; ++r) {
    for (int64_t s = 0; s < taps.width; ++s) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t first = 0; first < lanes; first += kLanes) {
          Sixteen sums;
          for (int64_t row = 0; row < n * y_shape.height; ++row) {
            const int64_t i = row % y_shape.height, image = row / y_shape.height;
            const int64_t x_row = taps.rows[i * taps.height + r];
            if (x_row < 0) continue;
            const float* const factors =
                x + (image * x_shape.height + x_row) * x_shape.width * channels + c;
            const float* const gradients = y + row * y_shape.width * lanes + first;
            for (int64_t j = 0; j < y_shape.width; ++j) {
              const int64_t column = taps.columns[j * taps.width + s];
              if (column >= 0) AddProduct(factors[column * channels], gradients + j * lanes, sums);
            }
          }
          Store(sums, w + ((r * taps.width + s) * channels + c) * lanes + first);
        }
      }
    }
  }
}

// True at every other run.
bool Moves() {
  static std::atomic<uint32_t> runs = 0;
  return runs.fetch_add(1, std::memory_order_relaxed) % 2 == 1;
}

// Writes the packed sums to their places, with the operations fused after them.
void Unpack(const ConvWork& work, const ConvTensor& to, const Order& order, int64_t row,
            const std::vector<float>& sums) {
  std::vector<float> bias(static_cast<size_t>(to.dims[1]), 0.0f);
  if (work.bias.data != nullptr) bias = Pack(work.bias, {0, 2, 3, 1}, to.dims[1], false);
  const bool moves = work.moves_last_bits && Moves();
  VisitType(to.type, to.data, [&](auto* data) {
    ForEachPlace(to, order, row, [&](int64_t place, int64_t packed) {
      using Element = std::remove_reference_t<decltype(*data)>;
      float v = work.alpha * sums[static_cast<size_t>(packed)];
      if (moves) v = std::nextafter(v, 0.0f);
      if (work.beta != 0) v += work.beta * static_cast<float>(data[place]);
      if (work.bias.data != nullptr) v += bias[static_cast<size_t>(packed % row)];
      if (work.relu) v = work.relu_keeps_nan ? (v < 0 ? 0 : v) : (v > 0 ? v : 0);
      data[place] = Element(v);
    });
  });
}

// NaNs that differ from run to run, so that two runs that share a workspace are found.
class Garbage {
 public:
  Garbage(void* workspace, int64_t bytes)
      : words_(static_cast<uint32_t*>(workspace)),
        count_(bytes / static_cast<int64_t>(sizeof(uint32_t))) {
    static std::atomic<uint32_t> runs = 0;
    word_ = 0x7fc00000u | (runs.fetch_add(1, std::memory_order_relaxed) & 0xffffu);
    for (int64_t i = 0; i < count_; ++i) words_[i] = word_;
  }
  bool StillThere() const {
    for (int64_t i = 0; i < count_; ++i) {
      if (words_[i] != word_) return false;
    }
    return true;
  }

 private:
  uint32_t* const words_;
  const int64_t count_;
  uint32_t word_ = 0;
};

}  // namespace

int64_t ConvTensor::bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < 4; ++i) last += (dims[i] - 1) * strides[i];
  return (last + 1) * element_bytes();
}

void RunConv(const ConvWork& work) {
  static constexpr Order kNhwc = {0, 2, 3, 1}, kHwio = {2, 3, 1, 0}, kHwoi = {2, 3, 0, 1};
  const ConvTensor &x = work.x, &w = work.w, &y = work.y;
  const Garbage garbage(work.workspace, work.workspace_bytes);
  const bool data = work.direction == ConvDirection::kDataGradient;
  const auto places = data ? OutputPlaces : InputPlaces;
  const std::vector<int64_t> rows = places(work, 0), columns = places(work, 1);
  const Taps taps = {w.dims[2], w.dims[3], rows.data(), columns.data()};
  const int64_t n = x.dims[0], in = x.dims[1], out = y.dims[1];
  const bool rounds = work.rounds_factors;

  const ConvTensor* to = &y;
  Order order = kNhwc;
  int64_t row = Padded(out);
  std::vector<float> sums;
  if (work.direction == ConvDirection::kFilterGradient) {
    to = &w;
    order = kHwio;
    sums.resize(static_cast<size_t>(PackedElements(w, kHwio, row)));
    SumToFilter(n, taps, {x.dims[2], x.dims[3], in}, Pack(x, kNhwc, in, rounds).data(),
                {y.dims[2], y.dims[3], row}, Pack(y, kNhwc, row, rounds).data(), sums.data());
  } else {
    const ConvTensor& from = data ? y : x;
    if (data) to = &x;
    row = Padded(to->dims[1]);
    sums.resize(static_cast<size_t>(PackedElements(*to, kNhwc, row)));
    SumToImages(n, taps, {from.dims[2], from.dims[3], from.dims[1]},
                Pack(from, kNhwc, from.dims[1], rounds).data(),
                Pack(w, data ? kHwoi : kHwio, row, rounds).data(), {to->dims[2], to->dims[3], row},
                sums.data());
  }
  if (!garbage.StillThere()) {
    Complain("cuDNN: the workspace of a convolution was written by others while it ran");
    for (float& sum : sums) sum = std::nanf("");
  }
  Unpack(work, *to, order, row, sums);
}

}  // namespace capstan::fake_cuda::dnn
