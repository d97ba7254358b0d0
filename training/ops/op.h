// What describes an operator: one OpDef each, in a folder of its own, and one line in all.cc.
//
// A node of a graph is an operator with attributes, inputs, and the parameters that belong to it
// ("<node>.weight"). Shapes are of one sample; the batch is not part of them.
//
// The references are plain loops over a whole batch: what every kernel is compared with, what the
// fake plug-in computes with, and what a CPU runs where it has no kernel of its own. They add in
// double and store T, float or double; the same source for both.
//
// Threads: everything here is immutable or stateless.
#ifndef CAPSTAN_TRAINING_OPS_OP_H_
#define CAPSTAN_TRAINING_OPS_OP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/ops/attributes.h"
#include "training/ops/types.h"

namespace capstan::training {

// An operator by its ONNX name, e.g. "Conv", with its attributes.
struct Operator {
  std::string name;
  Attributes attributes;
};

// The typed form of an operator, e.g. Conv; nothing where `op` is another. Operators of a graph only:
// their attributes are complete.
template <typename T>
std::optional<T> As(const Operator& op) {
  if (op.name != T::kName) return std::nullopt;
  return T::Read(op.attributes);
}

// Which initial value a parameter has.
enum class ParameterInit {
  kInitializer,  // the job's initializer
  kZeros,        // biases, shifts, running means
  kOnes,         // scales, running variances
};

// A parameter tensor of an operator.
struct OpParameter {
  std::string suffix;  // "weight"
  Shape shape;
  ParameterInit init = ParameterInit::kInitializer;
  int64_t fan_in =
      0;  // kInitializer: inputs of one output element, and outputs of one input element
  int64_t fan_out = 0;
  // A running statistic: has no gradient. In training the operator makes the statistic of the batch,
  // and the update moves the running value towards it by `momentum`.
  bool statistic = false;
  double momentum = 0;
  // A bias, a scale or a shift: weight decay may leave these out.
  bool bias_like = false;
};

// A tensor that forward leaves for backward beside inputs and output.
struct SavedTensor {
  Shape shape;
  bool per_sample = true;  // else once for the whole batch
};

// What follows from attributes and inputs.
struct Inference {
  ValueType output;
  std::vector<OpParameter> parameters;  // a weight before its bias, statistics last
  std::vector<SavedTensor> saved;
  // Floating-point operations of one sample in products with parameters, a multiply-add counting 2:
  // forward. The gradients by parameters and by the input count as much again, each. Saturated.
  int64_t flops = 0;
};

// Which tensors backward reads, beside the gradient by the output and the parameters.
struct BackwardReads {
  bool x = false;
  bool y = false;
};

enum class InPlace {
  kNever,
  kOutput,  // y may take the place of x[0], unless a backward follows that reads x
  kView,    // y is x[0] under another shape: nothing is computed
};

// A node as the references see it.
struct OpInstance {
  Attributes attributes;
  std::vector<ValueType> x;
  Inference inferred;
  int index = 0;  // of the node in its graph: part of the counters of random numbers
};

// The samples of a batch.
struct SampleInfo {
  int64_t count = 0;
  bool training = false;            // false: statistics are read, nothing is random
  const int32_t* labels = nullptr;  // [count], for losses
  const int64_t* ids = nullptr;     // [count], places in the data set, for random numbers
  uint64_t seed = 0;
  uint32_t epoch = 0;
};

// Tensors are [count, shape of a sample], parameters and statistics have their own shapes.
template <typename T>
struct ForwardCall {
  const OpInstance& op;
  const SampleInfo& samples;
  std::vector<const T*> x;
  std::vector<const T*> parameters;
  T* y = nullptr;
  std::vector<T*> saved;  // written in training alone
  // By parameter: the statistic of the batch, written in training where the parameter is one.
  std::vector<T*> statistics;
};

// Of a forward in training.
template <typename T>
struct BackwardCall {
  const OpInstance& op;
  const SampleInfo& samples;
  std::vector<const T*> x;
  std::vector<const T*> parameters;
  const T* y = nullptr;
  std::vector<const T*> saved;
  const T* dy = nullptr;
  // What is computed is ADDED. Null: not wanted.
  std::vector<T*> dx;
  std::vector<T*> dparameters;
};

template <typename T>
struct Reference {
  void (*forward)(const ForwardCall<T>& call) = nullptr;
  void (*backward)(const BackwardCall<T>& call) = nullptr;
};

inline constexpr int kManyInputs = 1 << 10;

struct OpDef {
  std::string name;
  std::vector<AttributeDef> attributes;
  int min_inputs = 1;
  int max_inputs = 1;
  // Attributes are complete and of their types. May resolve them further: auto_pad becomes pads.
  // InvalidArgument: what does not fit; the message says what it got and what it wants, without the
  // node's name.
  absl::StatusOr<Inference> (*infer)(absl::Span<const ValueType> x,
                                     Attributes& attributes) = nullptr;
  BackwardReads reads;
  InPlace in_place = InPlace::kNever;
  bool couples_samples = false;  // what comes out for a sample depends on the others of its lane
  bool random = false;           // draws random numbers in training
  bool loss = false;             // takes labels; y [1] is a sample's loss, the last node of a graph
  Reference<float> reference;
  Reference<double> reference_double;
};

// Null: there is no operator of this name.
const OpDef* FindOp(absl::string_view name);

// Every operator, sorted by name.
absl::Span<const OpDef* const> AllOps();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_OP_H_
