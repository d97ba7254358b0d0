// The description of an operator. Each has one OpDef in its own folder, and one line in table.h.
//
// A node of a graph is an operator with attributes, inputs, and its own parameters
// ("<node>.weight"). Shapes are of one sample; the batch is not part of them.
//
// The references are plain loops over a whole batch. Every kernel is compared with them. The fake
// plug-in computes with them, and so does a CPU for an operator without a kernel. They add in
// double and store T, float or double; both come from the same source.
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

// The typed form of an operator, e.g. Conv; nullopt if `op` is another operator. Only for operators
// of a graph, because their attributes are complete.
template <typename T>
std::optional<T> As(const Operator& op) {
  if (op.name != T::kName) return std::nullopt;
  return T::Read(op.attributes);
}

// The initial value of a parameter.
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
  // A running statistic has no gradient. In training the operator makes the statistic of the batch,
  // and the update moves the running value towards it by `momentum`.
  bool statistic = false;
  double momentum = 0;
  // A bias, a scale or a shift, which weight decay may exclude.
  bool bias_like = false;
};

// A tensor that forward leaves for backward, beside inputs and output.
struct SavedTensor {
  Shape shape;
  bool per_sample = true;  // false: once for the whole batch
};

// Everything that follows from attributes and inputs.
struct Inference {
  ValueType output;
  std::vector<OpParameter> parameters;  // a weight before its bias, statistics last
  std::vector<SavedTensor> saved;
  // Floating-point operations of one sample's forward pass in products with parameters or of
  // matrices; a multiply-add counts as 2. The gradients by both factors cost as much again, each.
  // Saturated.
  int64_t flops = 0;
};

// The tensors that backward reads, beside the gradient by the output and the parameters.
struct BackwardReads {
  bool x = false;
  bool y = false;
};

enum class InPlace {
  kNever,
  kOutput,  // y may take the place of x[0] if it has as many elements, unless a later backward
            // reads x
  kView,    // y is x[0] in another shape; nothing is computed
};

// A node as the references see it.
struct OpInstance {
  Attributes attributes;
  std::vector<ValueType> x;
  Inference inferred;
  int index = 0;  // of the node in its graph; part of the counters of random numbers
};

// The samples of a batch.
struct SampleInfo {
  int64_t count = 0;
  bool training = false;            // false: statistics are read and nothing is random
  const int32_t* labels = nullptr;  // [count], for losses
  const float* targets = nullptr;   // [count, elements of x[0]], for losses with numeric_targets
  const int64_t* ids = nullptr;     // [count], places in the data set, for random numbers
  uint64_t seed = 0;
  uint32_t epoch = 0;
};

// Tensors are [count, shape of a sample]. Parameters and statistics have their own shapes.
template <typename T>
struct ForwardCall {
  const OpInstance& op;
  const SampleInfo& samples;
  std::vector<const T*> x;
  std::vector<const T*> parameters;
  T* y = nullptr;
  std::vector<T*> saved;  // only written in training
  // By parameter: if it is a statistic, the statistic of the batch, written in training.
  std::vector<T*> statistics;
};

// The backward of a forward in training.
template <typename T>
struct BackwardCall {
  const OpInstance& op;
  const SampleInfo& samples;
  std::vector<const T*> x;
  std::vector<const T*> parameters;
  const T* y = nullptr;
  std::vector<const T*> saved;
  const T* dy = nullptr;
  // Results are ADDED to what is there. Null: not wanted.
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
  // Attributes are complete and have their types. May resolve them further: auto_pad becomes pads.
  // InvalidArgument: something does not fit. The message gives found and wanted value, without the
  // node's name.
  absl::StatusOr<Inference> (*infer)(absl::Span<const ValueType> x,
                                     Attributes& attributes) = nullptr;
  BackwardReads reads;
  InPlace in_place = InPlace::kNever;
  bool couples_samples = false;  // the output for a sample depends on the other samples of its lane
  bool random = false;           // draws random numbers in training
  bool loss = false;             // takes labels; y [1] is a sample's loss; the last node of a graph
  bool numeric_targets = false;  // of a loss: takes targets in place of labels
  Reference<float> reference;
  Reference<double> reference_double;
};

// Null if there is no operator of this name.
const OpDef* FindOp(absl::string_view name);

// Every operator, sorted by name.
absl::Span<const OpDef* const> AllOps();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_OP_H_
