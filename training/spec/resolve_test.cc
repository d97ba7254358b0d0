#include "training/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "training/chunks/shard_memory.h"
#include "training/spec/job_file.h"
#include "training/spec/test_specs.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;

TEST(ResolveTest, NumbersOfTheD2lLenet) {
  const auto spec = Resolve(Spec(), FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->lanes(), 8);
  EXPECT_EQ(spec->num_shards(), 2);
  EXPECT_EQ(spec->steps_per_epoch(), 235);  // 60000 / 256 = 234.375
  EXPECT_EQ(spec->total_steps(), 2350);
  EXPECT_EQ(spec->evaluate_every_steps(), 235);
  EXPECT_EQ(spec->evaluation_blocks(), 10);  // 10000 / 1024 = 9.8
  EXPECT_EQ(spec->storage_path(), "/out/lenet-fmnist-x3n9");
  EXPECT_EQ(spec->chunk_floats(), 512);
  EXPECT_EQ(spec->spec().kvstore().type(), "dist_sync");
  int64_t floats = 0;
  for (const auto& p : spec->parameters()) {
    int64_t n = 1;
    for (const int64_t d : p.shape()) n *= d;
    floats += n;
  }
  EXPECT_EQ(floats, 129068);
  EXPECT_EQ(spec->parameters(0).name(), "conv1.weight");
  EXPECT_THAT(
      PlanText(*spec),
      HasSubstr("\n      LeNet of Dive into Deep Learning: convolutions 3x3 to 20 and 5x5 to 50 "
                "channels, average pooling, then 128\n"
                "      global batch 256 in 8 lanes, 235 steps/epoch (the last of 96), 2350 steps"));
}

// As a shard and a task parse the spec again. The momenta follow from the model.
TEST(ResolveTest, RunningStatisticsAreNamedAndCounted) {
  job::v1::JobSpec file = Spec();
  file.mutable_model()->set_name("resnet18_v1");
  const auto spec = Resolve(file, FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(PlanText(*spec),
              HasSubstr("resnet18_v1, 11172810 parameters and 9600 running statistics; "));
  EXPECT_FALSE(spec->parameters(0).is_stat());
  const auto& last = spec->parameters(spec->parameters_size() - 1);
  EXPECT_EQ(last.name(), "layer4.1.bn2.running_var");
  EXPECT_TRUE(last.is_stat());
  const auto layout = MakeLayout(*spec);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->total_floats(), spec->flat_floats());
  EXPECT_EQ(layout->Find(last.name())->spec.momentum, 0.1);
}

TEST(ResolveTest, DropoutIsANodeOfTheGraphAndOfTheDigestWhereItIsAboveZero) {
  const auto resolve = [](const char* dropout) {
    const auto spec = Resolve(Spec({{"model.dropout", dropout}}), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *spec;
  };
  const job::v1::ResolvedSpec plain = *Resolve(Spec(), FashionMnist(), kOptions);
  EXPECT_FALSE(plain.spec().model().has_dropout());
  EXPECT_EQ(resolve("0").SerializeAsString(), plain.SerializeAsString());
  const job::v1::ResolvedSpec drops = resolve("0.25");
  EXPECT_NE(drops.training_digest(), plain.training_digest());
  EXPECT_NE(drops.training_digest(), resolve("0.5").training_digest());
  EXPECT_EQ(MakeGraph(drops)->node_count(), MakeGraph(plain)->node_count() + 1);
  EXPECT_THAT(PlanText(drops), HasSubstr("\n      lenet_d2l (dropout 0.25), 129068 parameters; "));
  const std::string bytes = drops.SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());
}

TEST(ResolveTest, ThePlanSaysWhatTheJobComputesOn) {
  const auto plan = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanText(*spec);
  };
  EXPECT_THAT(plan({}), HasSubstr("\n      on GPUs if 2 workers have 1 each, else on CPUs\n"));
  EXPECT_THAT(plan({{"resources.min_workers", "1"}, {"resources.gpus_per_worker", "4"}}),
              HasSubstr("\n      on GPUs if 1 worker has 4, else on CPUs\n"));
  EXPECT_THAT(plan({{"resources.device", "gpu"}}), HasSubstr("\n      on GPUs only\n"));
  EXPECT_THAT(plan({{"resources.device", "cpu"}}), HasSubstr("\n      on CPUs\n"));
}

// The input has the data set's shape, whatever the model.
TEST(ResolveTest, ColorImagesOfAPartOfCifar10) {
  common::v1::DatasetInfo cifar = FashionMnist();
  cifar.set_train_samples(30000);
  cifar.set_channels(3);
  cifar.set_height(32);
  cifar.set_width(32);
  cifar.set_train_batches(3);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> models = {
      {"lenet", {6, 3, 5, 5}}, {"lenet_d2l", {20, 3, 3, 3}}, {"mlp", {128, 3072}}};
  for (const auto& [model, first_shape] : models) {
    const auto spec =
        Resolve(Spec({{"model.name", model}, {"data.format", "cifar10_bin"}}), cifar, kOptions);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_THAT(spec->parameters(0).shape(), testing::ElementsAreArray(first_shape)) << model;
    EXPECT_THAT(PlanText(*spec),
                HasSubstr("; file:///data/fashion-mnist, 3 of 5 batches, 30000 + 10000 samples\n"));
  }
  const auto refused =
      ParseJobFile("data: {format: cifar10_bin}", {{"model", "{name: mlp, num_classes: 100}"}});
  const std::string errors = FormatErrors("j", refused.errors);
  EXPECT_THAT(errors, HasSubstr("'model.num_classes' must be 10 for 'cifar10_bin', found 100"));
  EXPECT_THAT(errors, HasSubstr("'data.uri' is required"));
}

// The network reads the images as the transforms make them.
TEST(ResolveTest, TransformsDecideTheInputAndTheDigest) {
  const auto resolve = [](const std::string& transforms) {
    return Resolve(Spec({{"model.name", "mlp"}, {"data.transforms", transforms}}), FashionMnist(),
                   kOptions);
  };
  const auto plain = Resolve(Spec({{"model.name", "mlp"}}), FashionMnist(), kOptions);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto flipped = resolve("[{random_flip: {}}]");
  ASSERT_TRUE(flipped.ok()) << flipped.status();
  EXPECT_EQ(flipped->parameters(0).shape(1), 28 * 28);
  EXPECT_NE(flipped->training_digest(), plain->training_digest());
  EXPECT_NE(resolve("[{random_flip: {axis: vertical}}]")->training_digest(),
            flipped->training_digest());
  const auto small = resolve("[{resize: {size: 20}}, {random_crop: {size: 24, padding: 2}}]");
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->parameters(0).shape(1), 24 * 24);
  EXPECT_THAT(PlanText(*small), HasSubstr("\n      images resize, random_crop -> 1 x 24 x 24\n"));
  const std::string bytes = small->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());

  EXPECT_THAT(std::string(resolve("[{random_crop: {size: 33, padding: 2}}]").status().message()),
              HasSubstr("'data.transforms[0].random_crop.size' is 33, the image has 28 x 28 "
                        "pixels and padding 2"));
  EXPECT_THAT(
      std::string(resolve("[{random_flip: {}}, {normalize: {mean: [0, 0, 0], std: [1, 1, 1]}}]")
                      .status()
                      .message()),
      HasSubstr("'data.transforms[1].normalize.mean' has 3 entries, want 1 or 1 (channels"));
}

// Rows and columns have separate limits.
TEST(ResolveTest, CropsAndMeansFitTheImage) {
  auto info = FashionMnist();
  info.set_width(20);
  info.set_channels(3);
  const auto resolve = [&info](const char* transforms) {
    return Resolve(Spec({{"model.name", "mlp"}, {"data.transforms", transforms}}), info, kOptions);
  };
  const auto inputs = [&](const char* transforms) {
    const auto spec = resolve(transforms);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->parameters(0).shape(1);
  };
  EXPECT_EQ(inputs("[{random_crop: {padding: 4}}]"), 3 * 28 * 20);
  EXPECT_EQ(inputs("[{random_crop: {size: 24, padding: 2}}]"), 3 * 24 * 24);
  EXPECT_THAT(std::string(resolve("[{random_crop: {size: 25, padding: 2}}]").status().message()),
              HasSubstr("random_crop.size' is 25, the image has 28 x 20 pixels and padding 2"));
  info.set_height(20);
  info.set_width(28);
  EXPECT_EQ(inputs("[{random_crop: {size: 24, padding: 2}}]"), 3 * 24 * 24);
  EXPECT_FALSE(resolve("[{random_crop: {size: 25, padding: 2}}]").ok());
  EXPECT_TRUE(resolve("[{normalize: {mean: [0], std: [1]}}]").ok());
  EXPECT_TRUE(resolve("[{normalize: {mean: [0, 0, 0], std: [1, 1, 1]}}]").ok());
  EXPECT_THAT(std::string(resolve("[{normalize: {mean: [0, 0], std: [1, 1]}}]").status().message()),
              HasSubstr("normalize.mean' has 2 entries, want 1 or 3 (channels of the image)"));
}

// 129068 weights are 504.2 KiB. With tensors padded to 16 floats they are 129120. The fuller shard
// has 127 of 253 chunks of 512 floats, the last one of 96: 4 bytes * 64608 * (9 buffers + 3 states
// + 4 waiting lanes) = 3.94 MiB, rounded up.
TEST(ResolveTest, ThePlanInWords) {
  const auto plan = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanText(*spec);
  };
  EXPECT_EQ(plan({{"training.optimizer.momentum", "0.9"}}),
            R"(Plan  2 workers x 1 device + 2 shards, dist_sync, start all or none
      on GPUs if 2 workers have 1 each, else on CPUs
      lenet_d2l, 129068 parameters; file:///data/fashion-mnist, 60000 + 10000 samples
      LeNet of Dive into Deep Learning: convolutions 3x3 to 20 and 5x5 to 50 channels, average pooling, then 128
      global batch 256 in 8 lanes, 235 steps/epoch (the last of 96), 2350 steps
      8 lanes by default, of at least 16 samples: the same result on 1 to 8 devices
      504.2 KiB of weights in 253 chunks; per step and worker: push 504.4 KiB, pull 504.4 KiB
      memory of a shard at most 4.0 MiB
      checkpoint every 30 s; at most 3 restarts
      files of at most 5.5 MiB: 4 checkpoints of 1.2 MiB at a time, weights of 510.6 KiB
      files lie on the coordinator's host; a host that does not share the folder sends them over gRPC
)");
  EXPECT_EQ(plan({{"resources", "{device: cpu, lanes: 16}"},
                  {"kvstore.type", "local"},
                  {"training.global_batch_size", "240"},
                  {"training.max_steps", "1"},
                  {"checkpoint.every", "1 epoch"},
                  {"recovery.max_restarts", "1"}}),
            R"(Plan  1 worker x 1 device, local, start all or none
      on CPUs
      lenet_d2l, 129068 parameters; file:///data/fashion-mnist, 60000 + 10000 samples
      LeNet of Dive into Deep Learning: convolutions 3x3 to 20 and 5x5 to 50 channels, average pooling, then 128
      global batch 240 in 16 lanes, 250 steps/epoch, 1 step
      504.2 KiB of weights in 253 chunks
      checkpoint every 250 steps; at most 1 restart
      files of at most 1.1 MiB: a checkpoint of 586.5 KiB, weights of 510.6 KiB
      files lie on the coordinator's host; a host that does not share the folder sends them over gRPC
      warning: 15 samples per lane; below 16 a CPU spends more on lanes than on training
)");
  EXPECT_THAT(plan({{"resources.lanes", "16"}}), testing::Not(HasSubstr("warning")));  // 16 each
  EXPECT_THAT(plan({{"resources.min_workers", "1"}}), HasSubstr(", starts with 1 or more\n"));
  EXPECT_THAT(plan({{"data", "{format: synthetic_digits}"}}), HasSubstr("; synthetic_digits, "));
}

// 129120 padded floats, and as many of momentum; 300 bytes in headers for each of 2 x 253 tensors;
// 4 KiB for everything small in each of two shard files and the manifest. The weights: 129068
// floats in 8 tensors.
TEST(ResolveTest, TheFilesOfAJobAreCounted) {
  const auto need = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return StorageNeedOf(*spec);
  };
  const StorageNeed plain = need({{"training.optimizer.momentum", "0.9"}});
  EXPECT_EQ(plain.checkpoint_bytes, 4 * 129120 * 2 + 300 * 2 * 253 + 4096 * 3);
  EXPECT_EQ(plain.checkpoints, 4);  // keep_latest is 3
  EXPECT_EQ(plain.weights_bytes, 4 * 129068 + 300 * 8 + 4096);
  EXPECT_EQ(plain.log_bytes, 160 * 2350);
  EXPECT_EQ(need({{"training.gradient_clip_norm", "1"}}).log_bytes, 200 * 2350);
  EXPECT_EQ(plain.LastVersion(), plain.checkpoint_bytes + plain.weights_bytes + plain.log_bytes);
  EXPECT_EQ(plain.Most(), plain.LastVersion() + 3 * plain.checkpoint_bytes);
  EXPECT_EQ(need({}).checkpoint_bytes, 4 * 129120 + 300 * 253 + 4096 * 3);
  EXPECT_EQ(need({{"checkpoint", "{keep_latest: 2, keep_best: 5}"}}).checkpoints, 8);
  // No more than there are versions to save.
  EXPECT_EQ(need({{"checkpoint.every", "never"}}).checkpoints, 1);
  EXPECT_EQ(need({{"checkpoint.every", "1175 steps"}}).checkpoints, 2);
  EXPECT_EQ(need({{"checkpoint.every", "1174 steps"}}).checkpoints, 3);
  StorageNeed vast = plain;
  vast.checkpoint_bytes = int64_t{1} << 50;
  vast.checkpoints = int64_t{1} << 20;
  EXPECT_EQ(vast.Most(), INT64_MAX);
}

TEST(ResolveTest, ThePlanCountsFromOne) {
  const auto plan = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanText(*spec);
  };
  EXPECT_THAT(plan({{"checkpoint.every", "1 step"}}), HasSubstr("checkpoint every 1 step;"));
  EXPECT_THAT(plan({{"checkpoint.every", "1s"}}), HasSubstr("checkpoint every 1 s;"));
  // 16 samples for the one lane, and 15.
  const auto one = [&](const char* batch) {
    return plan({{"resources", "{lanes: 1}"}, {"training.global_batch_size", batch}});
  };
  EXPECT_THAT(one("16"), testing::Not(HasSubstr("warning")));
  EXPECT_THAT(one("15"), HasSubstr("warning: 15 samples per lane"));
}

TEST(ResolveTest, ThePlanHasBytesUpToTebibytes) {
  const auto plan = [](int64_t floats) {
    auto spec = *Resolve(Spec({{"resources", "{lanes: 1}"}}), FashionMnist(), kOptions);
    spec.clear_parameters();
    spec.add_parameters()->add_shape(floats);
    return PlanText(spec);
  };
  EXPECT_THAT(plan(255), HasSubstr("\n      1020 B of weights"));
  EXPECT_THAT(plan(256), HasSubstr("\n      1.0 KiB of weights"));
  EXPECT_THAT(plan(int64_t{1} << 18), HasSubstr("\n      1.0 MiB of weights"));
  EXPECT_THAT(plan(int64_t{1} << 28), HasSubstr("\n      1.0 GiB of weights"));
  EXPECT_THAT(plan(int64_t{1} << 48), HasSubstr("\n      1024.0 TiB of weights"));
}

TEST(ResolveTest, ABatchOfADeviceOrAWorkerIsThatOfAllOfThem) {
  const auto batch = [](const char* key) {
    const auto spec = Resolve(Spec({{"resources.gpus_per_worker", "4"},
                                    {"training.global_batch_size", "null"},
                                    {key, "32"}}),
                              FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->global_batch();
  };
  EXPECT_EQ(batch("training.batch_size_per_gpu"), 256);  // 2 workers of 4
  EXPECT_EQ(batch("training.batch_size_per_worker"), 64);
  EXPECT_EQ(batch("training.global_batch_size"), 32);
}

TEST(ResolveTest, NumbersOfEachParameter) {
  const auto spec = Resolve(Spec(), FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->parameters_size(), 8);
  const auto& weight = spec->parameters(0);  // 20 filters of 3 x 3 on one channel
  EXPECT_THAT(weight.shape(), testing::ElementsAre(20, 1, 3, 3));
  EXPECT_EQ(weight.fan_in(), 9);
  EXPECT_EQ(weight.fan_out(), 180);
  EXPECT_FALSE(weight.is_stat());
  EXPECT_EQ(spec->parameters(1).name(), "conv1.bias");
  EXPECT_EQ(spec->parameters(1).fan_in(), 0);
  EXPECT_EQ(spec->parameters(1).fan_out(), 0);
  EXPECT_EQ(spec->devices_per_worker(), 1);
  EXPECT_EQ(spec->num_workers(), 2);
  EXPECT_EQ(spec->job_id(), "lenet-fmnist-x3n9");
  EXPECT_EQ(spec->chunk_count(), 253);
  EXPECT_EQ(spec->flat_floats(), 129120);
}

TEST(ResolveTest, WhatTheFileSaysReachesThoseWhoDoIt) {
  const auto resolved = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *spec;
  };
  const auto samples = MakeSamplePlan(resolved({{"data.shuffle", "false"},
                                                {"data.partition", "contiguous"},
                                                {"training.seed", "42"},
                                                {"resources.lane_weights", "[1, 3]"}}));
  ASSERT_TRUE(samples.ok());
  EXPECT_FALSE(samples->options().shuffle);
  EXPECT_EQ(samples->options().partition, Partition::kContiguous);
  EXPECT_EQ(samples->options().seed, 42u);
  EXPECT_EQ(samples->options().lanes, 2);
  EXPECT_EQ(samples->options().global_batch, 256);
  EXPECT_EQ(samples->options().dataset_size, 60000);
  EXPECT_THAT(samples->options().lane_weights, testing::ElementsAre(1, 3));
  EXPECT_TRUE(MakeSamplePlan(resolved({}))->options().shuffle);
  EXPECT_EQ(MakeSamplePlan(resolved({}))->options().partition, Partition::kGlobal);

  const auto sgd = MakeOptimizer(resolved({{"training.optimizer.momentum", "0.5"},
                                           {"training.optimizer.nesterov", "true"},
                                           {"training.optimizer.weight_decay", "0.25"}}));
  ASSERT_TRUE(sgd.ok());
  const auto numbers = (*sgd)->Numbers({.learning_rate = 0.2});
  ASSERT_TRUE(numbers.has_value());
  EXPECT_EQ(numbers->form, RuleForm::kNesterov);
  EXPECT_TRUE(numbers->decay);
  EXPECT_EQ(numbers->numbers[0], 0.5f);
  EXPECT_EQ(numbers->numbers[1], 0.25f);
  EXPECT_EQ(numbers->numbers[2], 0.2f);

  const auto rate = [&](const char* schedule, int64_t step) {
    return MakeSchedule(resolved({{"training.optimizer.lr_schedule", schedule}}))
        ->LearningRate(step);
  };
  EXPECT_EQ(rate("constant", 2349), 0.2);
  EXPECT_EQ(rate("{name: step, every: 2 epochs, factor: 0.5}", 469), 0.2);
  EXPECT_EQ(rate("{name: step, every: 2 epochs, factor: 0.5}", 470), 0.1);
  EXPECT_EQ(rate("{name: step, every: 7 steps}", 6), 0.2);
  EXPECT_DOUBLE_EQ(rate("{name: step, every: 7 steps}", 7), 0.02);
  EXPECT_LT(rate("{name: constant, warmup: 10 steps}", 4), 0.2);
  EXPECT_EQ(rate("{name: constant, warmup: 10 steps}", 10), 0.2);
  EXPECT_DOUBLE_EQ(rate("{name: cosine, min_rate: 0.1}", 2350), 0.1);
  EXPECT_LT(rate("cosine", 2349), 0.001);

  const auto init = [&](const char* text) {
    return MakeInitOptions(resolved({{"model.initializer", text}}));
  };
  EXPECT_EQ(init("xavier").initializer, Initializer::kXavier);
  EXPECT_EQ(init("he").initializer, Initializer::kHe);
  EXPECT_EQ(init("zeros").initializer, Initializer::kZeros);
  EXPECT_EQ(init("{name: normal, scale: 0.5}").initializer, Initializer::kNormal);
  EXPECT_EQ(init("{name: normal, scale: 0.5}").scale, 0.5);
  EXPECT_EQ(init("{name: uniform, scale: 0.5}").initializer, Initializer::kUniform);
  EXPECT_TRUE(DynamicLossScale(resolved({{"training.precision", "fp16"}})));
  EXPECT_FALSE(DynamicLossScale(resolved({{"training.precision", "bf16"}})));
  EXPECT_EQ(resolved({{"evaluation.every", "2 epochs"}}).evaluate_every_steps(), 470);
}

TEST(ResolveTest, DataAtTheBordersAreTaken) {
  auto info = FashionMnist();
  info.set_num_classes(10);
  info.set_train_samples(256);  // one batch
  EXPECT_TRUE(Resolve(Spec(), info, kOptions).ok());
  info.set_train_samples(1);
  EXPECT_TRUE(
      Resolve(Spec({{"training.global_batch_size", "1"}, {"resources.lanes", "1"}}), info, kOptions)
          .ok());
  info.set_test_samples(0);
  const auto spec = Resolve(Spec({{"training.global_batch_size", "1"}, {"resources.lanes", "1"}}),
                            info, kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->evaluation_blocks(), 0);
  for (const auto& wrong : std::vector<void (*)(common::v1::DatasetInfo&)>{
           [](auto& i) { i.set_test_samples(-1); }, [](auto& i) { i.set_channels(0); },
           [](auto& i) { i.set_height(0); }, [](auto& i) { i.set_width(0); }}) {
    auto bad = FashionMnist();
    wrong(bad);
    EXPECT_THAT(std::string(Resolve(Spec(), bad, kOptions).status().message()),
                HasSubstr("the data set says"));
  }
}

TEST(ResolveTest, MaxStepsAndEpochsTakeWhicheverComesFirst) {
  EXPECT_EQ(Resolve(Spec({{"training.max_steps", "100"}}), FashionMnist(), kOptions)->total_steps(),
            100);
  EXPECT_EQ(
      Resolve(Spec({{"training.max_steps", "9999"}}), FashionMnist(), kOptions)->total_steps(),
      2350);
  const auto steps = [](const char* count) {
    return Resolve(Spec({{"training.epochs", "null"}, {"training.max_steps", count}}),
                   FashionMnist(), kOptions)
        ->total_steps();
  };
  EXPECT_EQ(steps("5"), 5);
  EXPECT_EQ(steps("9007199254740992"), int64_t{1} << 53);
  // The largest product of epochs and samples.
  auto large = FashionMnist();
  large.set_train_samples(int64_t{1} << 32);
  const auto most = Resolve(Spec({{"training.epochs", "1000000"},
                                  {"training.global_batch_size", "1"},
                                  {"resources", "{lanes: 1}"}}),
                            large, kOptions);
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->total_steps(), 1000000 * (int64_t{1} << 32));
}

TEST(ResolveTest, CheckpointsOfEpochsAreCountedInSteps) {
  const auto every = [](const char* text) {
    const auto spec = Resolve(Spec({{"checkpoint.every", text}}), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->checkpoint_every_steps();
  };
  EXPECT_EQ(every("2 epochs"), 470);  // 2 x 235
  EXPECT_EQ(every("500 steps"), 500);
  EXPECT_EQ(every("30s"), 0);
  EXPECT_EQ(Resolve(Spec(), FashionMnist(), kOptions)->checkpoint_every_steps(), 0);
}

TEST(ResolveTest, AJobIsSavedEvery30SecondsUnlessItSaysOtherwise) {
  const auto every = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return std::pair(CheckpointEvery(*spec), PlanText(*spec));
  };
  EXPECT_EQ(every({}).first, absl::Seconds(30));
  EXPECT_THAT(every({}).second, HasSubstr("checkpoint every 30 s; at most 3 restarts"));
  EXPECT_EQ(every({{"checkpoint.every", "5m"}}).first, absl::Minutes(5));
  EXPECT_EQ(every({{"checkpoint.every", "9 steps"}}).first, absl::InfiniteDuration());
  EXPECT_EQ(every({{"checkpoint.every", "never"}}).first, absl::InfiniteDuration());
  EXPECT_THAT(every({{"checkpoint.every", "never"}}).second, HasSubstr("only at the end"));
}

// This key alone deletes checkpoints of ended jobs, so the plan says so before anything starts.
TEST(ResolveTest, APlanSaysWhenCheckpointsOfAnEndedJobAreRemoved) {
  const auto plan = [](const std::vector<std::pair<std::string, std::string>>& overrides) {
    const auto spec = Resolve(Spec(overrides), FashionMnist(), kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return PlanText(*spec);
  };
  EXPECT_THAT(
      plan({{"limits.ttl_after_finished", "7d"}}),
      HasSubstr("      its checkpoints, weights included, are removed 168h after its end\n"));
  EXPECT_THAT(plan({}), Not(HasSubstr("are removed")));
  EXPECT_THAT(plan({{"limits.ttl_after_finished", "0s"}}), Not(HasSubstr("are removed")));
}

// A field that an earlier version did not set stays unset.
TEST(ResolveTest, ALaterDefaultIsNotFilledIntoAReceivedSpec) {
  auto spec = *Resolve(Spec({{"checkpoint.every", "never"}}), FashionMnist(), kOptions);
  spec.mutable_spec()->mutable_checkpoint()->clear_every_seconds();
  const std::string bytes = spec.SerializeAsString();
  const auto taken = ParseResolved(bytes, Digest(bytes));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(CheckpointEvery(*taken), absl::InfiniteDuration());
}

// Every version has filled these in. A spec without one comes from no version, and a restart would
// use other limits.
TEST(ResolveTest, AReceivedSpecHasTheFirstDefaults) {
  const auto message = [](auto change) {
    auto spec = *Resolve(Spec(), FashionMnist(), kOptions);
    change(*spec.mutable_spec());
    const std::string bytes = spec.SerializeAsString();
    return std::string(ParseResolved(bytes, Digest(bytes)).status().message());
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_THAT(message([](auto& s) { s.mutable_recovery()->clear_max_restarts(); }),
              HasSubstr("derived numbers"));
  EXPECT_THAT(message([](auto& s) { s.mutable_checkpoint()->clear_keep_latest(); }),
              HasSubstr("derived numbers"));
  EXPECT_THAT(message([](auto& s) { s.mutable_limits()->clear_stall_timeout_seconds(); }),
              HasSubstr("derived numbers"));
  EXPECT_THAT(message([](auto& s) { s.mutable_resources()->set_num_workers(0); }),
              HasSubstr("'resources.num_workers' must be between 1 and 1024, found 0"));
  const std::string none = "\xff\xff";
  EXPECT_THAT(std::string(ParseResolved(none, Digest(none)).status().message()),
              HasSubstr("no ResolvedSpec message"));
}

// What error feedback leaves out is kept in the jobs of this version, and lost in those of earlier ones.
TEST(ResolveTest, ResidualsAreKeptUnlessTheSpecSaysNothingOfThem) {
  const auto resolved = [](const char* kvstore) {
    return *Resolve(Spec({{"kvstore", kvstore}}), FashionMnist(), kOptions);
  };
  job::v1::ResolvedSpec spec = resolved("{type: dist_sync, gradient_compression: 2bit}");
  EXPECT_TRUE(KeepsResiduals(spec.spec()));
  EXPECT_FALSE(KeepsResiduals(resolved("{type: dist_async, gradient_compression: 2bit}").spec()));
  EXPECT_FALSE(
      resolved("{type: dist_sync, gradient_compression: int8}").spec().recovery().has_residuals());
  const StorageNeed kept = StorageNeedOf(spec);
  spec.mutable_spec()->mutable_recovery()->clear_residuals();
  const std::string bytes = spec.SerializeAsString();
  const auto earlier = ParseResolved(bytes, Digest(bytes));
  ASSERT_TRUE(earlier.ok()) << earlier.status();
  EXPECT_FALSE(KeepsResiduals(earlier->spec()));
  // A checkpoint has the model once more for each lane.
  EXPECT_GT(kept.checkpoint_bytes - StorageNeedOf(spec).checkpoint_bytes,
            4 * spec.flat_floats() * spec.lanes());
}

TEST(ResolveTest, ANameThatEarlierVersionsTookIsNoReasonToRefuseTheirJob) {
  auto spec = *Resolve(Spec(), FashionMnist(), kOptions);
  spec.mutable_spec()->set_name("-lenet");
  const std::string bytes = spec.SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());
}

// The files of its checkpoints hold chunks of that size.
TEST(ResolveTest, AReceivedSpecKeepsItsChunks) {
  auto spec = *Resolve(Spec(), FashionMnist(), kOptions);
  const auto taken = [&](int32_t chunk_floats, int32_t chunk_count) {
    spec.set_chunk_floats(chunk_floats);
    spec.set_chunk_count(chunk_count);
    const std::string bytes = spec.SerializeAsString();
    return ParseResolved(bytes, Digest(bytes)).status();
  };
  EXPECT_THAT(std::string(taken(4096, 32).message()),
              HasSubstr("derived numbers"));  // the training digest includes them
  EXPECT_EQ(MakeLayout(spec)->chunk_count(), 32);
  for (const int32_t wrong : {-16, 1, 15, 1000, 262160}) {
    EXPECT_EQ(taken(wrong, 32).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(ResolveTest, TrainingDigestIsOfTheNumbersAlone) {
  using Overrides = std::vector<std::pair<std::string, std::string>>;
  const auto digest = [](Overrides overrides, absl::string_view job = "j-x3n9") {
    overrides.insert(overrides.begin(), {"resources.lanes", "4"});
    const auto spec = Resolve(Spec(overrides), FashionMnist(),
                              {.job_id = std::string(job), .storage_path = absl::StrCat("/", job)});
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->training_digest() : "";
  };
  const std::string base = digest({});
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(digest({}, "other-b81c"), base);
  EXPECT_EQ(digest({{"resources.num_workers", "4"}, {"resources.num_shards", "3"}}), base);
  EXPECT_EQ(digest({{"name", "other"}, {"labels", "{a: b}"}, {"description", "x"}}), base);
  EXPECT_EQ(digest({{"checkpoint.every", "10 steps"}, {"checkpoint.keep_latest", "1"}}), base);
  EXPECT_EQ(digest({{"data.reader_threads", "4"}}), base);
  EXPECT_EQ(digest({{"evaluation.metric", "loss"}}), base);
  EXPECT_EQ(digest({{"resources.gpus_per_worker", "2"}}), base);
  // 128 for each of two workers are the 256 of the file.
  EXPECT_EQ(
      digest({{"training.global_batch_size", "null"}, {"training.batch_size_per_worker", "128"}}),
      base);
  EXPECT_EQ(digest({{"limits.stall_timeout", "9s"}, {"recovery.max_restarts", "0"}}), base);
  for (const std::pair<std::string, std::string>& other :
       Overrides{{"training.seed", "1"},
                 {"training.epochs", "11"},
                 {"training.global_batch_size", "128"},
                 {"training.optimizer.momentum", "0.9"},
                 {"training.optimizer.learning_rate", "0.1"},
                 {"training.optimizer.name", "adam"},
                 {"training.optimizer.decayed", "weights"},
                 {"training.gradient_clip_value", "1"},
                 {"training.gradient_clip_norm", "1"},
                 {"kvstore.type", "dist_async"},
                 {"training.accumulate_steps", "2"},
                 {"resources.lanes", "8"},
                 {"resources.lane_weights", "[1, 2, 1, 1]"},
                 {"data.partition", "contiguous"},
                 {"model.name", "lenet"},
                 {"evaluation.every", "2 epochs"}}) {
    EXPECT_NE(digest({other}), base) << other.first;
  }
  const auto store = [&](const char* keys) {
    return digest({{"resources.lanes", "4"}, {"kvstore", absl::StrCat("{type: ", keys, "}")}});
  };
  EXPECT_EQ(store("dist_async"), store("dist_device_async"));
  EXPECT_EQ(store("dist_async"), store("dist_async_device"));
  EXPECT_NE(store("dist_async"), store("dist_async, max_staleness: 0"));
  EXPECT_EQ(store("dist_sync"), store("dist_sync, max_staleness: 0"));
  EXPECT_EQ(store("dist_sync"), store("dist_sync, update_on_kvstore: true"));
  EXPECT_EQ(store("dist_sync"), store("dist_sync, update_on_kvstore: false"));
  EXPECT_EQ(store("dist_sync"), store("dist_sync, gradient_compression: none"));
  EXPECT_EQ(store("dist_sync, gradient_compression: 2bit"),
            store("dist_sync, gradient_compression: {type: 2bit, threshold: 0.5}"));
  EXPECT_EQ(store("dist_sync, gradient_compression: top_k"),
            store("dist_device_sync, gradient_compression: {type: top_k, ratio: 0.01}"));
  std::set<std::string> compressed = {store("dist_sync")};
  for (const char* how : {"fp16", "bf16", "int8", "1bit", "2bit", "{type: 2bit, threshold: 1}",
                          "top_k", "{type: top_k, ratio: 0.02}"}) {
    compressed.insert(store(absl::StrCat("dist_sync, gradient_compression: ", how).c_str()));
  }
  EXPECT_EQ(compressed.size(), 9);
  const auto ftrl = [&](const char* keys) {
    return digest(
        {{"training.optimizer", absl::StrCat("{name: ftrl, learning_rate: 1", keys, "}")}});
  };
  EXPECT_EQ(ftrl(""), ftrl(", l1: 0.01, beta: 1"));  // the defaults
  EXPECT_NE(ftrl(""), ftrl(", l1: 0.02"));
  EXPECT_NE(ftrl(""), ftrl(", beta: 2"));
  const auto of = [&](const char* keys) {
    return digest({{"training.optimizer", absl::StrCat("{learning_rate: 1, name: ", keys, "}")}});
  };
  EXPECT_EQ(of("lars"), of("lars, eta: 0.001, epsilon: 1e-8"));
  EXPECT_NE(of("lars"), of("lars, eta: 0.002"));
  EXPECT_EQ(of("lamb"), of("lamb, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, bias_correction: true"));
  for (const char* key : {"bias_correction: false", "lower_bound: 0", "upper_bound: 10"}) {
    EXPECT_NE(of("lamb"), of(absl::StrCat("lamb, ", key).c_str())) << key;
  }
}

// Earlier versions left out the same fields, so their jobs continue from their checkpoints.
TEST(ResolveTest, TheTrainingDigestIsThatOfTheNumbersBytes) {
  job::v1::ResolvedSpec numbers = *Resolve(Spec(), FashionMnist(), kOptions);
  const std::string digest = numbers.training_digest();
  numbers.clear_job_id();
  numbers.clear_storage_path();
  numbers.clear_num_workers();
  numbers.clear_devices_per_worker();
  numbers.clear_num_shards();
  numbers.clear_training_digest();
  numbers.clear_checkpoint_every_steps();
  job::v1::JobSpec& spec = *numbers.mutable_spec();
  spec.clear_name();
  spec.mutable_resources()->Clear();  // present, but empty
  spec.clear_checkpoint();
  spec.clear_limits();
  spec.clear_recovery();
  spec.clear_kvstore();
  spec.mutable_training()->clear_batch_size();
  EXPECT_EQ(Digest(numbers.SerializeAsString()), digest);
}

// Within the kvstore group, the place where sums are made does not count, and everything else does.
TEST(ResolveTest, FieldsOfTheKvstoreThatThisVersionDoesNotKnowAreOfTheNumbers) {
  const std::vector<std::pair<std::string, std::string>> one = {{"resources", "{lanes: 4}"}};
  const auto digest = [&](const char* type) {
    auto overrides = one;
    overrides.push_back({"kvstore.type", type});
    return Resolve(Spec(overrides), FashionMnist(), kOptions)->training_digest();
  };
  for (const char* type : {"local", "device", "dist", "dist_device_sync", "dist_sync_device"}) {
    EXPECT_EQ(digest(type), digest("dist_sync")) << type;
  }
  auto spec = Spec();
  const auto before = Resolve(spec, FashionMnist(), kOptions)->training_digest();
  auto& store = *spec.mutable_kvstore();
  store.GetReflection()->MutableUnknownFields(&store)->AddVarint(15, 1);
  EXPECT_NE(Resolve(spec, FashionMnist(), kOptions)->training_digest(), before);
}

// A service older than the coordinator would ignore the field and train something else.
TEST(ResolveTest, AFieldOfANewerVersionIsRefusedWhereItDecidesTheNumbers) {
  const auto refused = [](auto group) {
    auto spec = *Resolve(Spec(), FashionMnist(), kOptions);
    auto& message = *group(spec);
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1000, 1);
    const auto again = Resolve(spec.spec(), FashionMnist(), kOptions);
    if (again.ok()) spec.set_training_digest(again->training_digest());
    const std::string bytes = spec.SerializeAsString();
    return std::string(ParseResolved(bytes, Digest(bytes)).status().message());
  };
  EXPECT_THAT(refused([](auto& s) { return s.mutable_spec()->mutable_kvstore(); }),
              HasSubstr("newer version: spec.kvstore.field 1000 is not known here"));
  EXPECT_THAT(
      refused([](auto& s) { return s.mutable_spec()->mutable_training()->mutable_optimizer(); }),
      HasSubstr("spec.training.optimizer.field 1000"));
  EXPECT_EQ(refused([](auto& s) { return s.mutable_spec()->mutable_checkpoint(); }), "");
  EXPECT_EQ(refused([](auto& s) { return s.mutable_spec()->mutable_limits(); }), "");
}

TEST(ResolveTest, WhatDoesNotFitTheDataSetIsNamed) {
  auto small = FashionMnist();
  small.set_train_samples(100);
  EXPECT_EQ(std::string(Resolve(Spec(), small, kOptions).status().message()),
            "'training.global_batch_size' is 256, the training set has 100 samples");
  const auto batch = [&](const char* key) {
    return std::string(
        Resolve(Spec({{"training.global_batch_size", "null"}, {key, "64"}}), small, kOptions)
            .status()
            .message());
  };
  EXPECT_EQ(batch("training.batch_size_per_gpu"),
            "'training.batch_size_per_gpu' makes a global batch of 128, the training set has 100 "
            "samples");
  EXPECT_THAT(batch("training.batch_size_per_worker"),
              HasSubstr("'training.batch_size_per_worker' makes a global batch of 128, "));
  for (const char* schedule : {"cosine", "polynomial"}) {
    const auto warmup = [&](const char* period) {
      return std::string(
          Resolve(Spec({{"training.max_steps", "20"},
                        {"training.optimizer.lr_schedule",
                         absl::StrCat("{name: ", schedule, ", warmup: ", period, "}")}}),
                  FashionMnist(), kOptions)
              .status()
              .message());
    };
    EXPECT_EQ(warmup("19 steps"), "");
    EXPECT_EQ(warmup("20 steps"),
              absl::StrCat("'training.optimizer.lr_schedule.warmup' is 20 steps, the job has 20: '",
                           schedule, "' must have some after its warm-up"));
    EXPECT_THAT(warmup("1 epoch"), HasSubstr("lr_schedule.warmup' is 235 steps, the job has 20"));
  }
  auto empty = FashionMnist();
  empty.set_train_samples(0);
  EXPECT_THAT(std::string(Resolve(Spec(), empty, kOptions).status().message()),
              HasSubstr("no samples"));
  auto classes = FashionMnist();
  classes.set_num_classes(11);
  EXPECT_THAT(std::string(Resolve(Spec(), classes, kOptions).status().message()),
              HasSubstr("labels up to 10"));
  auto narrow = FashionMnist();
  narrow.set_width(4);
  EXPECT_EQ(Resolve(Spec(), narrow, kOptions).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Resolve(Spec({{"resources.num_shards", "256"}}), FashionMnist(), kOptions)
                              .status()
                              .message()),
              HasSubstr("'resources.num_shards' is 256"));
  EXPECT_EQ(Resolve(Spec({{"resources.lanes", "300"}}), FashionMnist(), kOptions).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ResolveTest, LocalUsesNoShard) {
  const auto spec = Resolve(
      Spec({{"kvstore.type", "local"}, {"resources", "{num_workers: 1, gpus_per_worker: 2}"}}),
      FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(UsesShards(*spec));
  EXPECT_EQ(spec->lanes(), 8);
}

// The largest power of two up to 8 that leaves each lane 16 samples, so that the result is the same
// on any number of devices up to that. One lane per device if there are more devices, or if samples
// of a lane depend on each other. The plan gives the reason.
TEST(ResolveTest, LanesByDefault) {
  using Keys = std::vector<std::pair<std::string, std::string>>;
  const auto resolved = [](const Keys& keys) {
    auto info = FashionMnist();
    if (!keys.empty() && keys[0].second == "resnet18_v1") info.set_channels(3);
    const auto spec = Resolve(Spec(keys), info, kOptions);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return *spec;
  };
  const auto lanes = [&](const std::string& resources, const std::string& batch) {
    return resolved({{"resources", resources}, {"training.global_batch_size", batch}}).lanes();
  };
  EXPECT_EQ(lanes("{num_workers: 1}", "1000"), 8);
  EXPECT_EQ(lanes("{num_workers: 1}", "128"), 8);
  EXPECT_EQ(lanes("{num_workers: 1}", "127"), 4);
  EXPECT_EQ(lanes("{num_workers: 1}", "33"), 2);
  EXPECT_EQ(lanes("{num_workers: 1}", "15"), 1);
  EXPECT_EQ(lanes("{num_workers: 3}", "256"), 8);
  EXPECT_EQ(lanes("{num_workers: 3}", "32"), 3);
  EXPECT_EQ(lanes("{num_workers: 3, gpus_per_worker: 4}", "256"), 12);
  EXPECT_EQ(lanes("{num_workers: 2, device: gpu}", "256"), 2);
  EXPECT_EQ(lanes("{num_workers: 2, lane_weights: [3, 1]}", "256"), 2);
  EXPECT_EQ(lanes("{num_workers: 2, lanes: 5}", "256"), 5);
  const Keys per_worker = {{"training.global_batch_size", "null"},
                           {"training.batch_size_per_worker", "64"}};
  EXPECT_EQ(resolved(per_worker).lanes(), 8);  // of 2 workers
  Keys one = per_worker;
  one.push_back({"resources", "{num_shards: 1}"});
  EXPECT_EQ(resolved(one).lanes(), 4);
  EXPECT_EQ(resolved({{"model.name", "resnet18_v1"}}).lanes(), 2);

  const auto plan = [&](const Keys& keys) { return PlanText(resolved(keys)); };
  EXPECT_THAT(plan({{"training.global_batch_size", "64"}}),
              HasSubstr("4 lanes by default, of at least 16 samples: the same result on 1 to 4 "
                        "devices\n"));
  EXPECT_THAT(plan({{"model.name", "resnet18_v1"}}),
              HasSubstr("one lane per device, the default: resnet18_v1 couples the samples of a "
                        "lane; lanes follow num_workers, set resources.lanes to keep the bits\n"));
  EXPECT_THAT(plan({{"resources.device", "gpu"}}),
              HasSubstr("one lane per device, the default on GPUs; lanes follow num_workers, set "
                        "resources.lanes to keep the bits\n"));
  EXPECT_THAT(plan({{"resources.num_workers", "9"}}),
              HasSubstr("one lane per device, the default; lanes follow num_workers, set "
                        "resources.lanes to keep the bits\n"));
  EXPECT_THAT(plan({{"resources.lanes", "5"}}), testing::Not(HasSubstr("default")));
  EXPECT_THAT(
      plan({{"resources.num_workers", "3"}}),
      HasSubstr("warning: 8 lanes on 3 devices: some compute 3, others 2; resources.lanes: 3 "
                "shares them evenly, with other bits\n"));
  EXPECT_THAT(plan({{"resources.num_workers", "4"}}), testing::Not(HasSubstr("warning")));
}

TEST(ResolveTest, ThePlanSaysWhatTheDefaultTypeDoes) {
  const auto spec =
      Resolve(Spec({{"resources", "{gpus_per_worker: 2}"}}), FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(UsesShards(*spec));
  EXPECT_THAT(PlanText(*spec), HasSubstr("Plan  1 worker x 2 devices, device (GPUs add and update; "
                                         "CPUs as local), start all or none\n"));
}

TEST(ResolveTest, AReceivedSpecIsCheckedAgainstItsDigestAndItself) {
  const auto spec = Resolve(Spec(), FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok());
  const std::string bytes = spec->SerializeAsString();
  EXPECT_TRUE(ParseResolved(bytes, Digest(bytes)).ok())
      << ParseResolved(bytes, Digest(bytes)).status();
  EXPECT_FALSE(ParseResolved(bytes, Digest(bytes + "x")).ok());
  auto forged = *spec;
  forged.set_chunk_floats(1);
  const std::string other = forged.SerializeAsString();
  EXPECT_FALSE(ParseResolved(other, Digest(other)).ok());
}

// The bytes of a map come in a different order in each message.
TEST(ResolveTest, ASpecWithManyLabelsIsTakenBack) {
  job::v1::JobSpec job = Spec();
  for (int i = 0; i < 32; ++i) (*job.mutable_labels())[absl::StrCat("label", i)] = "x";
  const auto spec = Resolve(job, FashionMnist(), kOptions);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::string bytes = spec->SerializeAsString();
  EXPECT_EQ(ParseResolved(bytes, Digest(bytes)).status(), absl::OkStatus());
}

}  // namespace
}  // namespace capstan::training::spec
