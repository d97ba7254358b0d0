// The state of an import, and the view of one node that the converters of operators work with.
#ifndef CAPSTAN_TRAINING_ONNX_IMPORTER_H_
#define CAPSTAN_TRAINING_ONNX_IMPORTER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "capstan/onnx/v1/onnx.pb.h"
#include "training/onnx/constant.h"
#include "training/onnx/onnx_model.h"
#include "training/ops/op.h"
#include "training/ops/slice/slice.h"

namespace capstan::training::onnx {

// "conv1" of a tensor "conv1.weight" if `suffix` is ".weight"; empty if the tensor has no such
// name.
std::string ModuleOf(absl::string_view tensor, absl::string_view suffix);

// A parameter of a node, by its suffix: "weight".
struct NodeWeight {
  std::string suffix;
  Shape shape;
  std::vector<float> values;
};

// A node of the result. Its output is the value with the number of the node plus 1.
struct ImportedNode {
  Operator op;
  std::vector<ValueId> inputs;
  Inference inferred;
  std::vector<NodeWeight> weights;  // in the order of the operator's parameters
  std::string module;               // the name by its weights, or empty
  std::string file_name;            // the name of the node in the file, or empty
  std::string output;               // the name that the file gives the output
};

// Gives every node a valid and unique name: the module's, else the file's, else one by its
// operator.
std::vector<std::string> NodeNames(const std::vector<ImportedNode>& nodes);

// A value of the file: one of the graph, or a constant.
struct Binding {
  ValueId value = -1;  // -1: a constant
  int constant = -1;
  bool whole = false;  // of a value: the file's type is one of whole numbers
};

// kTraining: with a loss that contains a softmax; kRegression: with one that contains none.
enum class ImportPurpose { kTraining, kRegression, kPrediction };

// The graph as far as it is imported.
class Importer {
 public:
  // The model must outlive this.
  Importer(const capstan::onnx::v1::ModelProto& model, ImportPurpose purpose,
           const OnnxLimits& limits)
      : model_(model), file_(model.graph()), purpose_(purpose), limits_(limits) {}

  absl::StatusOr<OnnxModel> Import();                           // kTraining, kRegression
  absl::StatusOr<OnnxNetwork> ImportNetwork(std::string name);  // kPrediction

 private:
  friend class NodeConversion;

  // Everything up to the nodes of the result.
  absl::Status ImportNodes();
  absl::Status CheckFile();
  absl::Status FindOperatorSet();
  absl::Status CheckNames() const;
  absl::Status BindInitializers();
  absl::Status BindInputs();
  absl::Status CheckInput(const capstan::onnx::v1::ValueInfoProto& input, Shape& sample);
  // Of kPrediction: the graph's input is a row of all inputs, if its shape is not theirs.
  absl::Status BindRow();
  absl::Status FindMakers();
  // Which nodes the outputs depend on, and how often each value is read by these.
  void FindNeeded();
  absl::Status ConvertNode(int index);
  // Compares with the shapes that the file states.
  absl::Status CheckShapes() const;
  absl::Status CheckShape(const capstan::onnx::v1::ValueInfoProto& value) const;
  bool LossContains(const ImportedNode& softmax) const;
  void DropSoftmaxBeforeViews();
  // Leaves out the nodes that no value of `ends` depends on, as after arithmetic on shapes.
  void DropUnread(std::vector<ValueId>& ends);
  absl::StatusOr<OnnxModel> Finish();
  absl::StatusOr<OnnxNetwork> FinishNetwork(std::string name);
  // The value that the file calls so. InvalidArgument: there is none, or it is a constant.
  absl::StatusOr<ValueId> OutputValue(const std::string& name) const;
  std::vector<GraphNode> NamedNodes() const;
  // The weights of the first nodes of `graph`, which are nodes_.
  std::vector<OnnxWeight> TakeWeights(const Graph& graph);

  int AddConstant(Constant constant);
  // "node 'conv1'", or by its output if it has no name.
  std::string Label(const capstan::onnx::v1::NodeProto& node) const;

  const capstan::onnx::v1::ModelProto& model_;
  const capstan::onnx::v1::GraphProto& file_;
  const ImportPurpose purpose_;
  const OnnxLimits limits_;
  int64_t operator_set_ = 0;
  int64_t batch_ = 0;  // as the file says it; 0: unknown
  absl::flat_hash_map<std::string, Binding> bindings_;
  absl::flat_hash_map<std::string, int> makers_;   // by value: the node of the file
  absl::flat_hash_map<std::string, int> readers_;  // by value: nodes of needed_, and the output
  std::vector<bool> needed_;
  int last_needed_ = -1;
  std::deque<Constant> constants_;                   // addresses stay
  std::deque<capstan::onnx::v1::TensorProto> made_;  // by nodes; constants_ refers to them
  std::vector<ValueType> values_;                    // by ValueId
  std::vector<ImportedNode> nodes_;
  int64_t weight_elements_ = 0;  // of all nodes_
  int64_t folded_elements_ = 0;  // of what was computed from constants
  // By constant and shape: the value of the Parameter or Constant that holds it.
  absl::flat_hash_map<std::string, ValueId> operands_;
  std::vector<OnnxValue> inputs_;
  absl::flat_hash_set<std::string> whole_inputs_;
  absl::flat_hash_map<std::string, int> weight_readers_;
  OnnxModel result_;
};

// One node of the file for its converter. The first error is kept. After an error, accessors return
// nothing useful (null, -1, empty or the default) and the rest has no effect. So a converter reads
// all that it wants and then asks ok() before it uses the results.
class NodeConversion {
 public:
  NodeConversion(Importer& importer, const capstan::onnx::v1::NodeProto& node, int index);

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Refuse(absl::string_view what);
  int64_t operator_set() const { return importer_.operator_set_; }
  bool for_training() const { return importer_.purpose_ != ImportPurpose::kPrediction; }
  const std::string& op() const { return node_.op_type(); }
  std::string output_name() const { return node_.output_size() > 0 ? node_.output(0) : ""; }
  // Whether its first output is what the graph makes, and a loss follows that contains a softmax.
  bool makes_softmax_output() const {
    return importer_.purpose_ == ImportPurpose::kTraining && index_ == importer_.last_needed_;
  }

  // Inputs. Those that are left out have no name.
  int input_count() const { return node_.input_size(); }
  bool Has(int input) const { return input < input_count() && !node_.input(input).empty(); }
  bool IsConstant(int input) const;
  // A constant that no other node reads, also not as part of another constant.
  bool IsOwnConstant(int input) const;
  // A value of the graph whose type in the file is one of whole numbers.
  bool IsWholeValue(int input) const;
  ValueId GraphInput(int input);             // -1: an error
  const Constant* ConstantInput(int input);  // null: an error
  // None may be constant, and all have as many dimensions: ONNX broadcasts from the last one on, so
  // others would meet the batch.
  std::vector<ValueId> AllGraphInputs();
  // A value, or a constant as a value that is the same for every sample: a Parameter that begins as
  // `init` without the file's weights, or a Constant. `rank` is that of the value that it meets, to
  // whose last axes ONNX aligns it. The header of onnx_model.h says which are trained.
  ValueId Operand(int input, int64_t rank, const char* init);
  bool AllConstant() const;  // there is an input, and none depends on the graph's input
  std::vector<int64_t> Integers(int input);          // a constant list
  std::vector<ShapeNumber> ShapeNumbers(int input);  // likewise, in which the batch may stand
  bool Flag(int input);                   // a constant of one number: whether it is not 0
  bool Scalar(int input, double& value);  // a constant number; false: an error
  const Shape& ShapeOf(ValueId value) const { return importer_.values_[value].shape; }
  // Dimensions in the file: the sample's and the batch.
  int64_t RankOf(ValueId value) const { return static_cast<int64_t>(ShapeOf(value).size()) + 1; }
  // The size of the batch that the file states, so that a shape with it in front means the batch;
  // 0: unknown.
  int64_t batch() const { return importer_.batch_; }

  // Attributes. What the converter does not ask for is refused in Finish.
  bool HasAttribute(absl::string_view name) const { return FindAttribute(name) != nullptr; }
  int64_t Int(absl::string_view name, int64_t otherwise);
  double Float(absl::string_view name, double otherwise);  // as the shortest decimal fraction
  std::string Text(absl::string_view name, absl::string_view otherwise);
  std::vector<int64_t> Ints(absl::string_view name);
  const capstan::onnx::v1::TensorProto* Tensor(absl::string_view name);
  std::vector<float> Floats(absl::string_view name);
  void Ignore(absl::string_view name) { asked_.emplace(name); }
  // Copies every attribute of the file that the operator has in training/ops.
  void CopyAttributes(Operator& op);

  // An axis of a value with `rank` dimensions, counted from the end if negative. Refuses those that
  // do not exist, and 0, the batch.
  int64_t SampleAxis(int64_t axis, int64_t rank);

  // Refuses elements that exceed the limit of all weights.
  bool CountWeights(int64_t elements);
  // Refuses elements that exceed the limit of all that is computed from constants.
  bool CountFolded(int64_t elements);
  // All elements. Counts them as weights.
  std::vector<float> TakeFloats(const Constant& constant);
  NodeWeight Weight(const std::string& suffix, const Constant& constant);

  // "conv1" if an input is a constant with the name "conv1.weight" and `suffix` is ".weight"; else
  // empty.
  std::string ModuleOfInput(int input, absl::string_view suffix) const;

  // Adds a node to the graph and returns its value.
  ValueId Append(Operator op, std::vector<ValueId> inputs, std::vector<NodeWeight> weights = {},
                 std::string module = "");
  // As Append, with a name and an output of the file other than this node's.
  ValueId AppendAs(Operator op, std::vector<ValueId> inputs, std::vector<NodeWeight> weights,
                   std::string module, std::string file_name, std::string output);
  const std::string& file_name() const { return node_.name(); }
  // The node that makes an input and that only this node reads; null if there is none.
  ImportedNode* OnlyReaderOf(int input);
  // Infers a node of OnlyReaderOf again after a change. Its output becomes this node's.
  void Absorb(ImportedNode& node);

  // What the first output is.
  void Output(ValueId value) { OutputAt(0, value); }
  void Output(Constant constant) { OutputAt(0, std::move(constant)); }
  // What another one is.
  int output_count() const { return node_.output_size(); }
  const std::string& output_name(int output) const { return node_.output(output); }
  bool IsRead(int output) const { return importer_.readers_.contains(node_.output(output)); }
  // Its numbers are whole if those of input 0 are, unless SetWhole says more.
  void OutputAt(int output, ValueId value);
  void OutputAt(int output, Constant constant);
  // A tensor that lives as long as the import.
  capstan::onnx::v1::TensorProto& MakeTensor() { return importer_.made_.emplace_back(); }
  const OnnxLimits& limits() const { return importer_.limits_; }
  void SetWhole(bool whole) { whole_ = whole; }
  void DropFinalActivation(ValueId value);

  absl::Status Finish();

 private:
  const capstan::onnx::v1::AttributeProto* FindAttribute(absl::string_view name) const;
  const capstan::onnx::v1::AttributeProto* Ask(absl::string_view name,
                                               capstan::onnx::v1::AttributeType type);
  const Binding* Find(int input);
  // A node for a constant operand, of which there is none yet. `shown` names it in messages.
  ValueId AppendOperand(const Constant& view, const std::string& key, absl::string_view shown,
                        const char* init);
  bool Infer(ImportedNode& node);

  Importer& importer_;
  const capstan::onnx::v1::NodeProto& node_;
  const int index_;
  absl::Status status_;
  absl::flat_hash_set<std::string> asked_;
  std::optional<bool> whole_;
  bool has_output_ = false;
};

using ConvertFunction = void (*)(NodeConversion& node);

struct Converter {
  const char* op;
  ConvertFunction convert;
};

// The tables of convert_*.cc.
absl::Span<const Converter> ConstantConverters();
absl::Span<const Converter> FoldedConverters();
absl::Span<const Converter> LayerConverters();
absl::Span<const Converter> PointwiseConverters();
absl::Span<const Converter> PoolConverters();
absl::Span<const Converter> ShapeConverters();
absl::Span<const Converter> SliceConverters();

// Nodes whose inputs all are constants. A whole number that stands for the batch may be moved, and
// multiplied by 1. FoldArithmetic: Add, Div, Mul and Sub. `slice` has ONNX's axes of a constant.
void FoldArithmetic(NodeConversion& node);
void FoldCast(NodeConversion& node, bool to_whole);
void FoldConcat(NodeConversion& node);
void FoldGather(NodeConversion& node);
void FoldSlice(NodeConversion& node, SliceNode slice);

// Null: the operator cannot be imported.
ConvertFunction FindConverter(absl::string_view op);

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_IMPORTER_H_
