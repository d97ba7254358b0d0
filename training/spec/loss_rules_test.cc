// training.loss: classes or numbers as targets, and what the rest of a job file may then say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "training/graph/models.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/spec/graph_message.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using LossKeys = std::vector<std::pair<std::string, std::string>>;

constexpr char kNumbersJob[] = R"(version: 1
name: prices
model: {name: mlp, num_outputs: 3}
data: {uri: file:///data/prices.npz, format: npz}
training:
  epochs: 1
  global_batch_size: 64
  loss: mean_squared_error
  optimizer: {learning_rate: 0.1}
)";

std::string LossErrors(const LossKeys& keys) {
  return FormatErrors("j", ParseJobFile(kNumbersJob, keys).errors);
}

common::v1::DatasetInfo Prices(int32_t target_size) {
  common::v1::DatasetInfo info;
  info.set_train_samples(1000);
  info.set_test_samples(100);
  info.set_channels(1);
  info.set_height(1);
  info.set_width(13);
  info.set_target_size(target_size);
  if (target_size == 0) info.set_num_classes(10);
  return info;
}

absl::StatusOr<job::v1::ResolvedSpec> ResolveNumbers(const LossKeys& keys, int32_t target_size) {
  const JobFile file = ParseJobFile(kNumbersJob, keys);
  EXPECT_THAT(file.errors, IsEmpty()) << FormatErrors("j", file.errors);
  return Resolve(file.spec, Prices(target_size), {.job_id = "prices-x3n9", .storage_path = "/out"});
}

TEST(LossRulesTest, ANamedModelEndsWithTheNumbersOfATarget) {
  const auto spec = ResolveNumbers({}, 3);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->spec().model().has_num_classes());
  EXPECT_EQ(spec->spec().model().num_outputs(), 3);
  EXPECT_EQ(spec->spec().evaluation().metric(), "loss");
  const absl::StatusOr<Graph> graph = MakeGraph(*spec);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->nodes().back().op.name, MeanSquaredErrorLoss::kName);
  EXPECT_EQ(graph->target_size(), 3);
  // A service gets the same from the bytes.
  const std::string bytes = spec->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());

  const auto one = ResolveNumbers({{"model.num_outputs", "null"}}, 1);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(MakeGraph(*one)->target_size(), 1);
}

TEST(LossRulesTest, TheDataMustHaveAsManyNumbers) {
  EXPECT_EQ(ResolveNumbers({}, 2).status().message(),
            "'model.num_outputs' is 3, the data set has targets of 2 numbers");
  EXPECT_THAT(std::string(ResolveNumbers({}, 0).status().message()),
              HasSubstr("'model.num_outputs' is 3, the data set has labels up to 9"));
  const LossKeys classes = {{"training.loss", "null"}, {"model.num_outputs", "null"}};
  EXPECT_THAT(std::string(ResolveNumbers(classes, 1).status().message()),
              HasSubstr("'model.num_classes' is 10, the data set has targets of 1 number"));
}

TEST(LossRulesTest, KeysThatDoNotFitTheLossAreRefused) {
  const LossKeys classes = {{"training.loss", "null"}};
  EXPECT_EQ(LossErrors(classes),
            "j:3:33: error: 'model.num_outputs' is 3, but targets are classes: want the loss "
            "mean_squared_error, or 'model.num_classes'\n");
  EXPECT_THAT(LossErrors({{"model.num_classes", "10"}}),
              HasSubstr("'model.num_classes' is 10, but with the loss mean_squared_error targets "
                        "are numbers: 'model.num_outputs' says how many"));
  EXPECT_THAT(LossErrors({{"data.format", "idx"}}),
              HasSubstr("'training.loss' is mean_squared_error, but 'data.format' idx has classes: "
                        "want npz, csv or libsvm"));
  EXPECT_THAT(LossErrors({{"data.format", "csv"}}),
              HasSubstr("'model.num_outputs' is 3, a sample of 'csv' has 1 number as its target"));
  EXPECT_EQ(LossErrors({{"data.format", "libsvm"}, {"model.num_outputs", "1"}}), "");
  EXPECT_THAT(LossErrors({{"evaluation.metric", "accuracy"}}),
              HasSubstr("'evaluation.metric' is accuracy, which mean_squared_error does not have"));
  EXPECT_THAT(LossErrors({{"model.name", "gpt_nano"}}),
              HasSubstr("'training.loss' is mean_squared_error, and the model gpt_nano predicts "
                        "tokens"));
  for (const char* const outputs : {"0", "-1", "1000001"}) {
    EXPECT_THAT(LossErrors({{"model.num_outputs", outputs}}),
                HasSubstr(absl::StrCat("'model.num_outputs' must be between 1 and 1000000, found ",
                                       outputs)));
  }
  EXPECT_THAT(LossErrors({{"training.loss", "l2"}}),
              HasSubstr("'training.loss' must be one of softmax_cross_entropy, mean_squared_error, "
                        "found 'l2'"));
}

TEST(LossRulesTest, AClassifierMayBeComparedByItsLoss) {
  const LossKeys keys = {
      {"training.loss", "null"}, {"model.num_outputs", "null"}, {"evaluation.metric", "loss"}};
  EXPECT_EQ(LossErrors(keys), "");
}

constexpr char kLayersHead[] =
    "version: 1\nname: n\ndata: {uri: /data/set.npz, format: npz}\nmodel:\n";

JobFile LayersOfNumbers(const std::string& model, const std::string& loss) {
  return ParseJobFile(absl::StrCat(kLayersHead, model,
                                   "training:\n  epochs: 1\n  global_batch_size: 64\n", loss,
                                   "  optimizer: {learning_rate: 0.1}\n"));
}

// The loss may be written as the key or as the last layer, and the key may stand behind the list.
TEST(LossRulesTest, LayersEndWithTheNumbersOfATarget) {
  const std::string by_key = "  loss: mean_squared_error\n";
  for (const bool key : {true, false}) {
    SCOPED_TRACE(key);
    const JobFile file = LayersOfNumbers(absl::StrCat("  num_outputs: 4\n  layers: [flatten, gemm",
                                                      key ? "]\n" : ", mean_squared_error_loss]\n"),
                                         key ? by_key : "");
    EXPECT_EQ(FormatErrors("j", file.errors), "");
    EXPECT_TRUE(HasNumericTargets(file.spec));
    const absl::StatusOr<Graph> graph = GraphOf(file.spec.model().graph(), {1, 1, 13});
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->target_size(), 4);
    job::v1::JobSpec filled = file.spec;
    FillDefaults(filled);
    EXPECT_EQ(filled.training().loss(), "mean_squared_error");
    EXPECT_EQ(ValidateSpec(filled), absl::OkStatus());
  }
  EXPECT_THAT(
      FormatErrors(
          "j", LayersOfNumbers("  layers: [flatten, gemm: {out_features: 2}]\n", by_key).errors),
      HasSubstr("'model.layers[1].gemm.out_features' is 2, 'model.num_outputs' is 1"));
}

TEST(LossRulesTest, TheLossOfAGraphMustBeThatOfTheKey) {
  EXPECT_THAT(FormatErrors("j", LayersOfNumbers("  layers: [flatten, gemm, "
                                                "softmax_cross_entropy_loss]\n",
                                                "  loss: mean_squared_error\n")
                                    .errors),
              HasSubstr("'training.loss' is mean_squared_error, but the loss of 'model.graph' is "
                        "SoftmaxCrossEntropyLoss"));
  EXPECT_THAT(
      FormatErrors("j", LayersOfNumbers("  layers: [flatten, gemm, "
                                        "mean_squared_error_loss]\n",
                                        "  loss: softmax_cross_entropy\n")
                            .errors),
      HasSubstr("'training.loss' is softmax_cross_entropy, but the loss of 'model.graph' is "
                "MeanSquaredErrorLoss"));
}

TEST(LossRulesTest, AGraphMustHaveAsManyOutputs) {
  const JobFile file = LayersOfNumbers("  layers: [flatten, linear: {out_features: 2}]\n",
                                       "  loss: mean_squared_error\n");
  EXPECT_EQ(FormatErrors("j", file.errors), "");
  EXPECT_THAT(
      std::string(Resolve(file.spec, Prices(1), {.job_id = "j", .storage_path = "/out"})
                      .status()
                      .message()),
      HasSubstr("'model.graph' is refused: its loss reads 2 numbers, 'model.num_outputs' is "
                "1"));
}

TEST(LossRulesTest, EveryModelOfImagesCanPredictNumbers) {
  for (const absl::string_view name : ModelNames()) {
    const absl::StatusOr<Graph> graph = MakeRegressor(name, 1, {3, 64, 64});
    EXPECT_EQ(graph.ok(), !ModelReadsTokens(name)) << name << ": " << graph.status();
    if (graph.ok()) {
      EXPECT_EQ(graph->target_size(), 1) << name;
    }
  }
  EXPECT_THAT(std::string(MakeRegressor("gpt_nano", 2, {1, 1, 8}).status().message()),
              HasSubstr("its loss reads more than the logits"));
  EXPECT_THAT(std::string(MakeRegressor("mlp", 0, {4}).status().message()),
              HasSubstr("num_outputs: 0, want at least 1"));
}

}  // namespace
}  // namespace capstan::training::spec
