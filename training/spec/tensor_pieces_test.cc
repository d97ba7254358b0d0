// How many pieces of tensors a shard may have.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"

namespace capstan::training::spec {
namespace {

// 784 x 900,000 weights, their biases, and ten outputs.
absl::Status ResolveWideLayer(absl::string_view optimizer, int shards) {
  const JobFile file = ParseJobFile(absl::StrCat(R"(version: 1
name: wide
resources: {num_workers: 1, num_shards: )",
                                                 shards, R"(}
model:
  num_classes: 10
  graph:
    nodes:
      - {name: flatten, op: Flatten}
      - {name: wide, op: Gemm, attributes: {out_features: 900000}}
      - {name: relu, op: Relu}
      - {name: fc, op: Gemm, attributes: {out_features: 10}}
      - {name: loss, op: SoftmaxCrossEntropyLoss}
data: {format: synthetic_digits, train_samples: 64, test_samples: 10}
kvstore: {type: dist_sync}
training: {epochs: 1, global_batch_size: 64, optimizer: {name: )",
                                                 optimizer, ", learning_rate: 0.1}}\n"));
  EXPECT_TRUE(file.errors.empty()) << FormatErrors("job.yaml", file.errors);
  common::v1::DatasetInfo digits;
  digits.set_train_samples(64);
  digits.set_test_samples(10);
  digits.set_channels(1);
  digits.set_height(28);
  digits.set_width(28);
  digits.set_num_classes(10);
  return Resolve(file.spec, digits, {.job_id = "wide-x3n9", .storage_path = "/out"}).status();
}

// The squares of all its pieces would not fit into one message.
TEST(TensorPiecesLimitTest, AShardOfTrustRatiosHasALimitedNumberOfPieces) {
  EXPECT_EQ(ResolveWideLayer("sgd", 1), absl::OkStatus());
  for (const char* optimizer : {"lars", "lamb"}) {
    EXPECT_EQ(ResolveWideLayer(optimizer, 2), absl::OkStatus());
    // (784 + 1 + 10) * 900,000 + 10 floats are 43,671 chunks of 16,384. There are 4 tensors.
    EXPECT_EQ(std::string(ResolveWideLayer(optimizer, 1).message()),
              absl::StrCat("'training.optimizer.name' is '", optimizer,
                           "', and a shard would have 43675 pieces of tensors, 40000 is the "
                           "limit: give 'resources.num_shards' more"));
  }
}

}  // namespace
}  // namespace capstan::training::spec
