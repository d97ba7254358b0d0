#include "gpu_worker/task/checkpoint_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "gpu_worker/data/failure.h"
#include "gpu_worker/task/test_job.h"
#include "param_store/checkpoint/base_weights.h"
#include "services/files/files.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::gpu_worker {
namespace {

using ::testing::ElementsAre;

class CheckpointFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = *services::MakePrivateDir("checkpoint-test");
    TestJob test;
    test.storage_path = folder_;
    const node::v1::StartTask start = test.Start();
    job_ = *MakeJob(start.resolved_spec(), start.spec_digest());
    weights_.resize(job_->layout.total_floats());
    for (const training::TensorSlot& slot : job_->layout.slots()) {
      for (int64_t i = 0; i < slot.size; ++i) {
        weights_[slot.offset + i] = 1000.0f * slot.index + i % 997;
      }
    }
  }
  void TearDown() override { EXPECT_TRUE(services::RemoveTree("/tmp", folder_).ok()); }
  std::string Read(const std::string& name) {
    return *services::ReadWholeFile(CheckpointFolder(*job_, 2, 40) + "/" + name, 1 << 26);
  }

  std::string folder_;
  std::shared_ptr<const Job> job_;
  std::vector<float> weights_;
};

TEST_F(CheckpointFilesTest, WeightsAreInForwardOrderUnderPyTorchsNames) {
  const auto written = WriteWeightsFile(*job_, 2, 40, weights_);
  ASSERT_TRUE(written.ok()) << written.status();
  const std::string bytes = Read("weights.safetensors");
  EXPECT_EQ(written->file.name(), "weights.safetensors");
  EXPECT_EQ(written->file.size_bytes(), static_cast<int64_t>(bytes.size()));
  training::Sha256 hash;
  hash.Update(bytes);
  const auto digest = hash.Finish();
  EXPECT_EQ(written->file.sha256(), std::string(digest.begin(), digest.end()));

  const auto header =
      *training::ParseSafetensorsHeader("w", bytes, static_cast<int64_t>(bytes.size()));
  std::vector<std::string> names;
  for (const auto& tensor : header.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight",
                                 "fc3.bias"));
  EXPECT_THAT(header.Find("fc1.weight")->shape, ElementsAre(128, 784));
  EXPECT_EQ(header.metadata.at("step"), "40");
  // The tensors are contiguous, so the hash of the data is weights_sha256.
  EXPECT_EQ(written->weights_sha256,
            training::Sha256Hex(absl::string_view(bytes).substr(header.data_start)));
  float second_bias[2];
  std::memcpy(second_bias, bytes.data() + header.data_start + header.Find("fc2.bias")->begin, 8);
  EXPECT_EQ(second_bias[1], 3001.0f);
}

// Another job can begin with the weights that a task writes at its end.
TEST_F(CheckpointFilesTest, WeightsComeBackAsInitialWeights) {
  ASSERT_TRUE(WriteWeightsFile(*job_, 2, 40, weights_).ok());
  const std::string path = CheckpointFolder(*job_, 2, 40) + "/weights.safetensors";
  std::vector<float> back(weights_.size(), -1.0f);
  const param_store::BaseWeightsError error =
      param_store::FillBaseWeights(job_->layout, {.initial_weights = "file://" + path},
                                   {0, job_->layout.total_floats()}, absl::MakeSpan(back));
  ASSERT_TRUE(error.status.ok()) << error.status;
  EXPECT_EQ(back, weights_);
}

}  // namespace
}  // namespace capstan::gpu_worker
