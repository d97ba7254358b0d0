#include "gpu_worker/engine/plugin/fake/fake_operations.h"

#include "gpu_worker/engine/cuda/pool_math.h"
#include "services/check/check.h"

namespace capstan::engine::cuda {
namespace {

template <typename T>
const T* In(const void* pointer) {
  return static_cast<const T*>(pointer);
}
template <typename T>
T* Out(void* pointer) {
  return static_cast<T*>(pointer);
}

}  // namespace

template <typename T>
void FakeOperations<T>::LoadImages(int64_t n, const BatchHeader* header, const void* images,
                                   int image_type, void* x) {
  const int32_t channels = program_.image_channels, pixels = program_.image_pixels;
  if (image_type == CAPSTAN_IMAGE_KEPT) {
    const int64_t size = int64_t{channels} * pixels;
    for (int32_t i = 0; i < n * size; ++i) {
      const int32_t from =
          program_.input_nhwc ? CanonicalPlace(i, channels, pixels) : i;  // index in the batch
      Out<T>(x)[i] =
          T(static_cast<Sum<T>>(kept_[In<int32_t>(images)[i / size] * size + from % size]));
    }
    return;
  }
  for (int32_t i = 0; i < n * channels * pixels; ++i) {
    const int32_t from = program_.input_nhwc ? CanonicalPlace(i, channels, pixels) : i;
    using S = Sum<T>;
    Out<T>(x)[i] =
        T(image_type == CAPSTAN_IMAGE_UINT8
              ? static_cast<S>(In<uint8_t>(images)[from]) * static_cast<S>(header->image_scale) +
                    static_cast<S>(header->image_shift)
              : static_cast<S>(In<float>(images)[from]));
  }
}

template <typename T>
void FakeOperations<T>::CopyWeights(const std::vector<WeightCopy>& copies) {
  for (const WeightCopy& copy : copies) {
    for (int32_t i = 0; i < copy.elements; ++i) {
      Out<T>(copy.to)[i] = T(In<Sum<T>>(copy.from)[CanonicalPlace(i, copy.channels, copy.pixels)]);
    }
  }
}

template <typename T>
void FakeOperations<T>::GradientToFlat(const Stage& stage, const void* from, void* to) {
  for (int32_t i = 0; i < stage.weight_elements(); ++i) {
    Out<Sum<T>>(to)[CanonicalPlace(i, stage.weight_channels, stage.weight_pixels)] =
        stage.rounded_gradient ? Sum<T>(In<T>(from)[i]) : In<Sum<T>>(from)[i];
  }
}

template <typename T>
void FakeOperations<T>::ToChannelsLast(int64_t rows, int32_t channels, int32_t pixels,
                                       const void* from, void* to) {
  for (int32_t i = 0; i < rows * channels * pixels; ++i) {
    Out<T>(to)[i] = In<T>(from)[CanonicalPlace(i, channels, pixels)];
  }
}

template <typename T>
void FakeOperations<T>::ToCanonical(int64_t rows, int32_t channels, int32_t pixels,
                                    const void* from, void* to) {
  for (int32_t i = 0; i < rows * channels * pixels; ++i) {
    Out<T>(to)[CanonicalPlace(i, channels, pixels)] = In<T>(from)[i];
  }
}

template <typename T>
void FakeOperations<T>::LinearForward(int stage, int64_t n, const void* x, const void* weight,
                                      const void* bias, void* y) {
  const Stage& s = program_.stages[stage];
  for (int32_t i = 0; i < n * program_.tensors[s.y].elements; ++i) {
    Out<T>(y)[i] = ConvForwardAt(s.window, In<T>(x), In<T>(weight), In<T>(bias), s.relu, i);
  }
}

template <typename T>
void FakeOperations<T>::LinearWeightGradient(int stage, int64_t n, const void* x, const void* dy,
                                             void* dw) {
  const Stage& s = program_.stages[stage];
  for (int32_t i = 0; i < s.weight_elements(); ++i) {
    const Sum<T> sum = ConvWeightGradientPart(s.window, static_cast<int32_t>(n), In<T>(x),
                                              In<T>(dy), i, /*part=*/0, /*parts=*/1);
    if (s.rounded_gradient) {
      Out<T>(dw)[i] = T(sum);
    } else {
      Out<Sum<T>>(dw)[i] = sum;
    }
  }
}

template <typename T>
void FakeOperations<T>::LinearDataGradient(int stage, int64_t n, const void* dy, const void* weight,
                                           void* dx) {
  const Stage& s = program_.stages[stage];
  for (int32_t i = 0; i < n * program_.tensors[s.x].elements; ++i) {
    Out<T>(dx)[i] = ConvDataGradientAt(s.window, In<T>(dy), In<T>(weight), i);
  }
}

template <typename T>
void FakeOperations<T>::BiasGradient(int64_t rows, int32_t columns, const void* dy, void* parts,
                                     void* db) {
  for (int32_t part = 0; part < kSumParts; ++part) {
    for (int32_t c = 0; c < columns; ++c) {
      Out<Sum<T>>(parts)[part * columns + c] =
          ColumnSumPart(In<T>(dy), static_cast<int32_t>(rows), columns, c, part, kSumParts);
    }
  }
  for (int32_t c = 0; c < columns; ++c) {
    Out<Sum<T>>(db)[c] = ColumnSumPart(In<Sum<T>>(parts), kSumParts, columns, c, 0, 1);
  }
}

template <typename T>
void FakeOperations<T>::PoolForward(const Stage& stage, int64_t n, const void* x, void* y) {
  const bool max = stage.kind == StageKind::kMaxPool;
  for (int32_t i = 0; i < n * program_.tensors[stage.y].elements; ++i) {
    Out<T>(y)[i] = PoolForwardAt(stage.window, max, stage.relu, In<T>(x), i);
  }
}

template <typename T>
void FakeOperations<T>::PoolBackward(const Stage& stage, int64_t n, const void* x, const void* dy,
                                     void* dx) {
  const bool max = stage.kind == StageKind::kMaxPool;
  if (WindowsTile(stage.window)) {
    for (int32_t i = 0; i < n * program_.tensors[stage.y].elements; ++i) {
      PoolBackwardWindow(stage.window, max, stage.relu, In<T>(x), In<T>(dy), Out<T>(dx), i);
    }
    return;
  }
  for (int32_t i = 0; i < n * program_.tensors[stage.x].elements; ++i) {
    Out<T>(dx)[i] = PoolBackwardAt(stage.window, max, stage.relu, In<T>(x), In<T>(dy), i);
  }
}

template <typename T>
void FakeOperations<T>::ReluForward(int64_t elements, void* x) {
  for (int64_t i = 0; i < elements; ++i) Out<T>(x)[i] = Positive(Out<T>(x)[i]);
}

template <typename T>
void FakeOperations<T>::ReluBackward(int64_t elements, const void* y, void* dy) {
  for (int64_t i = 0; i < elements; ++i) Out<T>(dy)[i] = MaskedBy(In<T>(y)[i], Out<T>(dy)[i]);
}

template <typename T>
void FakeOperations<T>::OperatorForward(int, const OperatorCall&) {
  CAPSTAN_CHECK(false);
}

template <typename T>
void FakeOperations<T>::OperatorBackward(int, const OperatorCall&) {
  CAPSTAN_CHECK(false);
}

template <typename T>
void FakeOperations<T>::AddInto(int64_t elements, const void* from, void* to) {
  for (int64_t i = 0; i < elements; ++i) Out<T>(to)[i] = T(Out<T>(to)[i] + In<T>(from)[i]);
}

template <typename T>
void FakeOperations<T>::Clear(int64_t elements, void* x) {
  for (int64_t i = 0; i < elements; ++i) Out<T>(x)[i] = T(0);
}

template <typename T>
void FakeOperations<T>::Loss(const Stage&, int64_t n, int32_t classes, const BatchHeader* header,
                             const void* targets, const float*, const void* x, void* dx,
                             double* row_loss, int32_t* row_correct) {
  const auto* const labels = static_cast<const int32_t*>(targets);  // of a plain chain
  for (int64_t i = 0; i < n; ++i) {
    const LossOfRow row =
        SoftmaxLossRow(In<T>(x) + i * classes, classes, labels[i], header->loss_scale,
                       dx == nullptr ? nullptr : Out<T>(dx) + i * classes);
    row_loss[i] = row.loss;
    row_correct[i] = row.correct;
  }
}

template <typename T>
void FakeOperations<T>::SumRows(int64_t n, const double* row_loss, const int32_t* row_correct,
                                capstan_result* sums) {
  *sums = {0, 0};
  for (int64_t i = 0; i < n; ++i) {
    sums->loss_sum += row_loss[i];
    sums->correct += row_correct[i];
  }
}

template class FakeOperations<float>;
template class FakeOperations<double>;
template class FakeOperations<Bf16>;
template class FakeOperations<Fp16>;

}  // namespace capstan::engine::cuda
