// The loss of a job, and what follows from it: classes or numbers as targets.
#include "absl/strings/str_cat.h"
#include "training/graph/models.h"
#include "training/ops/limits.h"
#include "training/ops/op.h"
#include "training/spec/rules.h"

namespace capstan::training::spec {
namespace {

constexpr char kSoftmaxCrossEntropy[] = "softmax_cross_entropy";

// The loss at the end of model.graph. Null: there is no graph, or its last node is no loss, which
// other rules refuse.
const OpDef* LossOfGraph(const job::v1::Model& model) {
  if (!model.has_graph() || model.graph().nodes_size() == 0) return nullptr;
  const OpDef* const def = FindOp(model.graph().nodes().rbegin()->op());
  return def != nullptr && def->loss ? def : nullptr;
}

// Of targets that are numbers.
void CheckNumbers(const job::v1::JobSpec& spec, Rules& rules) {
  const job::v1::Model& m = spec.model();
  if (m.has_num_classes()) {
    rules.Fail("model.num_classes",
               absl::StrCat("is ", m.num_classes(), ", but with the loss ", kMeanSquaredError,
                            " targets are numbers: 'model.num_outputs' says how many"));
  }
  if (ModelReadsTokens(m.name())) {
    rules.Fail("training.loss", absl::StrCat("is ", kMeanSquaredError, ", and the model ", m.name(),
                                             " predicts tokens, which are classes"));
  }
  const std::string& format = spec.data().format();
  const bool table = format == "csv" || format == "libsvm";
  if (spec.data().has_format() && !table && format != "npz") {
    rules.Fail("training.loss", absl::StrCat("is ", kMeanSquaredError, ", but 'data.format' ",
                                             format, " has classes: want npz, csv or libsvm"));
  }
  if (table && m.num_outputs() > 1) {
    rules.Fail("model.num_outputs", absl::StrCat("is ", m.num_outputs(), ", a sample of '", format,
                                                 "' has 1 number as its target; npz takes more"));
  }
  if (spec.evaluation().metric() == "accuracy") {
    rules.Fail("evaluation.metric",
               absl::StrCat("is accuracy, which ", kMeanSquaredError, " does not have: want loss"));
  }
}

}  // namespace

bool HasNumericTargets(const job::v1::JobSpec& spec) {
  if (spec.training().has_loss()) return spec.training().loss() == kMeanSquaredError;
  const OpDef* const loss = LossOfGraph(spec.model());
  return loss != nullptr && loss->numeric_targets;
}

void CheckLoss(const job::v1::JobSpec& spec, Rules& rules) {
  const job::v1::Model& m = spec.model();
  const bool numbers = HasNumericTargets(spec);
  const OpDef* const of_graph = LossOfGraph(m);
  if (spec.training().has_loss()) {
    rules.OneOf("training.loss", spec.training().loss(), {kSoftmaxCrossEntropy, kMeanSquaredError});
    if (of_graph != nullptr && of_graph->numeric_targets != numbers) {
      rules.Fail("training.loss",
                 absl::StrCat("is ", spec.training().loss(), ", but the loss of 'model.graph' is ",
                              of_graph->name));
    }
  }
  if (m.has_num_outputs()) {
    rules.Range<int64_t>("model.num_outputs", m.num_outputs(), 1, kMaxOutputs);
    if (!numbers) {
      rules.Fail("model.num_outputs",
                 absl::StrCat("is ", m.num_outputs(), ", but targets are classes: want the loss ",
                              kMeanSquaredError, ", or 'model.num_classes'"));
    }
  }
  if (spec.evaluation().has_metric()) {
    rules.OneOf("evaluation.metric", spec.evaluation().metric(), {"accuracy", "loss"});
  }
  if (numbers) CheckNumbers(spec, rules);
}

void FillLossDefaults(job::v1::JobSpec& spec) {
  if (!HasNumericTargets(spec)) return;
  spec.mutable_training()->set_loss(kMeanSquaredError);
  if (!spec.model().has_num_outputs()) spec.mutable_model()->set_num_outputs(1);
  if (!spec.evaluation().has_metric()) spec.mutable_evaluation()->set_metric("loss");
}

}  // namespace capstan::training::spec
