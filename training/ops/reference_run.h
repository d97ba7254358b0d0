// For tests: the tensors of one node over a batch, and a run of its references on them.
#ifndef CAPSTAN_TRAINING_OPS_REFERENCE_RUN_H_
#define CAPSTAN_TRAINING_OPS_REFERENCE_RUN_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "training/ops/op.h"
#include "training/random/philox.h"

namespace capstan::training {

template <typename T>
using Tensors = std::vector<std::vector<T>>;

// Null for an empty tensor.
template <typename T, typename Pointer>
std::vector<Pointer> PointersTo(Tensors<T>& tensors) {
  std::vector<Pointer> pointers;
  for (std::vector<T>& tensor : tensors) {
    pointers.push_back(tensor.empty() ? nullptr : tensor.data());
  }
  return pointers;
}

// Everything is public, so that a test can change it between calls. An emptied gradient is not
// computed.
template <typename T>
class ReferenceRun {
 public:
  // Inputs, parameters and dy have values that are exact floats and depend on nothing else. No two
  // elements of the inputs are nearer than 4 / (elements of all), and none is nearer to 0 than a
  // quarter of that, so that small steps do not move maxima and kinks. Gradients start at 0.
  ReferenceRun(const OpDef& of, const OpInstance& instance, int64_t count) : def(of), op(instance) {
    samples.count = count;
    samples.training = true;
    samples.seed = 5;
    samples.epoch = 2;
    for (int64_t n = 0; n < count; ++n) {
      const bool classes = !op.x.empty() && !op.x[0].shape.empty();
      labels.push_back(static_cast<int32_t>((3 * n + 1) % (classes ? op.x[0].shape.back() : 1)));
      ids.push_back((int64_t{1} << 33) + 100 - 7 * n);
    }
    const int64_t numbers = def.numeric_targets ? count * Elements(op.x[0].shape) : 0;
    for (int64_t i = 0; i < numbers; ++i) {
      targets.push_back(static_cast<float>(Number(98, static_cast<uint32_t>(i))));
    }
    for (const ValueType& type : op.x) {
      x.emplace_back(count * Elements(type.shape));
      dx.emplace_back(x.back().size());
    }
    for (const OpParameter& parameter : op.inferred.parameters) {
      const size_t size = static_cast<size_t>(Elements(parameter.shape));
      parameters.emplace_back(size);
      dparameters.emplace_back(parameter.statistic ? 0 : size);
      statistics.emplace_back(parameter.statistic ? size : 0);
    }
    for (const SavedTensor& tensor : op.inferred.saved) {
      saved.emplace_back((tensor.per_sample ? count : 1) * Elements(tensor.shape));
    }
    y.resize(count * Elements(op.inferred.output.shape));
    dy.resize(y.size());
    Fill();
  }

  void Forward() {
    SetSamples();
    reference().forward({op, samples, PointersTo<T, const T*>(x),
                         PointersTo<T, const T*>(parameters), y.data(), PointersTo<T, T*>(saved),
                         PointersTo<T, T*>(statistics)});
  }
  void Backward() {
    SetSamples();
    reference().backward({op, samples, PointersTo<T, const T*>(x),
                          PointersTo<T, const T*>(parameters), y.data(),
                          PointersTo<T, const T*>(saved), dy.data(), PointersTo<T, T*>(dx),
                          PointersTo<T, T*>(dparameters)});
  }

  const Reference<T>& reference() const {
    if constexpr (sizeof(T) == sizeof(double)) {
      return def.reference_double;
    } else {
      return def.reference;
    }
  }

  // A float in [-1, 1).
  static double Number(uint32_t stream, uint32_t i) {
    return 2.0 * Philox(11, Purpose::kSynthetic).Uniform({i, stream, 0, 0}) - 1.0;
  }

  const OpDef& def;
  OpInstance op;
  SampleInfo samples;
  std::vector<int32_t> labels;
  std::vector<float> targets;
  std::vector<int64_t> ids;
  Tensors<T> x, dx, parameters, dparameters, statistics, saved;
  std::vector<T> y, dy;

 private:
  void SetSamples() {
    samples.labels = labels.data();
    samples.targets = targets.data();
    samples.ids = ids.data();
  }

  void Fill() {
    uint32_t elements = 0, stream = 1;
    for (const std::vector<T>& tensor : x) elements += static_cast<uint32_t>(tensor.size());
    std::vector<uint32_t> places(elements);
    std::iota(places.begin(), places.end(), 0);
    const Philox philox(11, Purpose::kSynthetic);
    for (uint32_t i = elements; i > 1; --i) {
      std::swap(places[i - 1], places[philox.Bounded({i, 0, 0, 0}, i)]);
    }
    uint32_t next = 0;
    for (std::vector<T>& tensor : x) {
      for (T& value : tensor) {
        const double place = places[next++] + 0.25 - elements / 2.0;
        value = static_cast<T>(static_cast<float>(place * 4 / elements));
      }
    }
    for (size_t p = 0; p < parameters.size(); ++p, ++stream) {
      const bool ones = op.inferred.parameters[p].init == ParameterInit::kOnes;
      for (uint32_t i = 0; i < parameters[p].size(); ++i) {
        // Scales and variances lie around 1, never near 0.
        const double value = Number(stream, i);
        parameters[p][i] = static_cast<T>(static_cast<float>(ones ? 1 + value / 2 : value));
      }
    }
    for (uint32_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<T>(Number(stream, i));
  }
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_REFERENCE_RUN_H_
