// Every limit of a job file, at its boundary.
#include "training/spec/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "training/spec/job_file.h"

namespace capstan::training::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Keys = std::vector<std::pair<std::string, std::string>>;

constexpr char kJob[] = R"(version: 1
name: lenet
resources: {num_workers: 2}
model: {name: lenet}
data: {uri: /data, format: idx}
training: {epochs: 10, global_batch_size: 256, optimizer: {learning_rate: 0.2}}
)";

std::string ErrorsOf(const Keys& keys) {
  return FormatErrors("j", ParseJobFile(kJob, keys).errors);
}

struct Border {
  const char* key;
  std::vector<const char*> good;  // the smallest and the largest
  std::vector<const char*> bad;   // their neighbours
  Keys with = {};
};

TEST(BordersTest, TheLastGoodValueIsTakenAndTheNextOneRefused) {
  const Keys synthetic = {{"data", "{format: synthetic_digits}"}};
  const Keys no_batch = {{"training.global_batch_size", "null"}};
  const std::string base = "training.optimizer.lr_schedule";
  const Keys adam = {{"training.optimizer.name", "adam"}};
  const Keys rmsprop = {{"training.optimizer.name", "rmsprop"}};
  const Keys ftrl = {{"training.optimizer.name", "ftrl"}};
  const Keys lars = {{"training.optimizer.name", "lars"}};
  const Keys lamb = {{"training.optimizer.name", "lamb"}};
  const Keys step = {{base, "{name: step, every: 1 epoch}"}};
  const Keys cosine = {{base, "{name: cosine}"}};
  const Keys polynomial = {{base, "{name: polynomial}"}};
  const Keys cycle = {{base, "{name: one_cycle}"}};
  const std::vector<Border> borders = {
      {"resources.num_workers", {"1", "1024"}, {"0", "-1", "1025"}},
      {"resources.gpus_per_worker", {"1", "64"}, {"0", "65"}},
      {"resources.lanes", {"1", "4096"}, {"0", "4097"}},
      {"resources.num_shards", {"1", "256"}, {"0", "257"}},
      {"resources.min_workers", {"1", "2"}, {"0", "3"}},
      {"resources.min_workers", {"1"}, {"0", "2"}, {{"resources.num_workers", "null"}}},
      {"resources.lane_weights", {"[1e-9, 1000000]"}, {"[0, 1]", "[1, -1]", "[1, 1000001]"}},
      {"resources.lane_weights",
       {"[1, 2, 3]"},
       {"[1, 2]", "[1, 2, 3, 4]"},
       {{"resources.lanes", "3"}}},
      {"resources.device", {"auto", "cpu", "gpu"}, {"tpu"}},
      {"resources.devices", {"[0]", "[63]"}, {"[-1]", "[64]"}},
      {"model.num_classes", {"2", "1000000"}, {"1", "1000001"}},
      {"model.num_classes", {"10"}, {"9", "11"}, synthetic},
      {"model.dropout", {"0", "1e-9", "0.999"}, {"-0.001", "1", "1.5"}},
      {"model.initializer", {"he", "{name: normal, scale: 1e-9}"}, {"{name: normal, scale: 0}"}},
      {"model.initializer", {"{name: uniform, scale: 1}"}, {"{name: he, scale: 1}", "uniform"}},
      {"data.prefetch_batches", {"1", "64"}, {"0", "65"}},
      {"data.train_samples", {"10", "10000000"}, {"9", "10000001"}, synthetic},
      {"data.test_samples", {"10", "10000000"}, {"9", "10000001"}, synthetic},
      {"data.train_samples", {}, {"10"}},
      {"data.test_samples", {}, {"10"}},
      {"data.uri", {}, {"/data"}, synthetic},
      {"data.partition", {"global", "contiguous"}, {"lanes"}},
      {"data.transforms",
       {"[{random_crop: {size: 1, padding: 0}}]", "[{random_crop: {size: 4096, padding: 4096}}]"},
       {"[{random_crop: {size: 4097}}]", "[{random_crop: {padding: 4097}}]"}},
      {"data.transforms",
       {"[{resize: {size: 1}}]", "[{cutout: {size: 4096}}]"},
       {"[{resize: {size: 0}}]", "[{resize: {size: 4097}}]", "[{cutout: {size: 0}}]"}},
      {"data.transforms",
       {"[{normalize: {mean: [0], std: [1e-30]}}]", "[{normalize: {mean: [-1], std: [1e30]}}]"},
       {"[{normalize: {mean: [0], std: [9e-31]}}]", "[{normalize: {mean: [0], std: [1.1e30]}}]",
        "[{normalize: {std: [1]}}]"}},
      {"training.epochs", {"1", "1000000"}, {"0", "1000001"}},
      {"training.max_steps", {"1", "9007199254740992"}, {"0", "9007199254740993"}},
      {"training.global_batch_size", {"1", "2147483647"}, {"0", "2147483648"}},
      {"training.batch_size_per_gpu", {"1", "2147483647"}, {"0", "2147483648"}, no_batch},
      {"training.batch_size_per_worker", {"1", "2147483647"}, {"0", "2147483648"}, no_batch},
      {"kvstore.local_steps", {"1", "1024"}, {"0", "-1", "1025"}},
      {"training.accumulate_steps", {"1", "512"}, {"0", "-1", "513", "1024", "1025"}},
      {"training.accumulate_steps", {"1024"}, {"1025"}, {{"resources.lanes", "4"}}},
      {"training.loss", {"softmax_cross_entropy"}, {"l2"}},
      {"training.seed", {"0", "18446744073709551615"}, {"-1", "18446744073709551616"}},
      {"training.deterministic", {"true", "false"}, {"yes", "'true'"}},
      {"training.optimizer.learning_rate", {"1e-300", "1e300"}, {"0", "-0.1"}},
      {"training.optimizer.momentum", {"0", "0.999"}, {"-0.001", "1"}},
      {"training.optimizer.nesterov", {"false"}, {"true"}},
      {"training.optimizer.nesterov", {"true"}, {}, {{"training.optimizer.momentum", "0.1"}}},
      {"training.optimizer.weight_decay", {"0", "10"}, {"-1e-9"}},
      {"training.optimizer.name",
       {"sgd", "adam", "adamw", "rmsprop", "adagrad", "ftrl", "lars", "lamb"},
       {"Lars", "Adam", "nadam"}},
      {"training.optimizer.beta1", {"0", "0.999"}, {"-0.001", "1"}, adam},
      {"training.optimizer.beta2", {"0", "0.9999"}, {"-0.001", "1"}, adam},
      {"training.optimizer.epsilon", {"1e-30", "1000"}, {"0", "9e-31", "1001"}, adam},
      {"training.optimizer.epsilon", {"1e-10"}, {"0"}, {{"training.optimizer.name", "adagrad"}}},
      {"training.optimizer.momentum", {"0"}, {"0.9"}, adam},
      {"training.optimizer.nesterov", {"false"}, {"true"}, adam},
      {"training.optimizer.alpha", {"0", "0.999"}, {"-0.001", "1"}, rmsprop},
      {"training.optimizer.momentum", {"0", "0.9"}, {"1"}, rmsprop},
      {"training.optimizer.centered", {"true", "false"}, {"1"}, rmsprop},
      {"training.optimizer.alpha", {}, {"0.9"}, adam},
      {"training.optimizer.centered", {}, {"false"}, adam},
      {"training.optimizer.beta1", {}, {"0.9"}, rmsprop},
      {"training.optimizer.epsilon", {}, {"1e-8"}},
      {"training.optimizer.l1", {"0", "1e6"}, {"-1e-9", "1000001", ".nan"}, ftrl},
      {"training.optimizer.beta", {"1e-30", "1000"}, {"0", "9e-31", "1001"}, ftrl},
      {"training.optimizer.weight_decay", {"0", "10"}, {"-1e-9"}, ftrl},
      {"training.optimizer.epsilon", {}, {"1e-8"}, ftrl},
      {"training.optimizer.momentum", {"0"}, {"0.9"}, ftrl},
      {"training.optimizer.beta1", {}, {"0.9"}, ftrl},
      {"training.optimizer.l1", {}, {"0.01"}},
      {"training.optimizer.eta", {"1e-30", "1000"}, {"0", "9e-31", "1001"}, lars},
      {"training.optimizer.epsilon", {"1e-30", "1000"}, {"0", "1001"}, lars},
      {"training.optimizer.momentum", {"0", "0.9"}, {"1"}, lars},
      {"training.optimizer.beta1", {}, {"0.9"}, lars},
      {"training.optimizer.eta", {}, {"0.1"}, lamb},
      {"training.optimizer.eta", {}, {"0.1"}},
      {"training.optimizer.momentum", {"0"}, {"0.9"}, lamb},
      {"training.optimizer.beta1", {"0", "0.9"}, {"1"}, lamb},
      {"training.optimizer.beta2", {"0", "0.9"}, {"1"}, lamb},
      {"training.optimizer.epsilon", {"1e-30", "1000"}, {"0", "1001"}, lamb},
      {"training.optimizer.lower_bound", {"0", "1e30"}, {"-1", "1.1e30"}, lamb},
      {"training.optimizer.upper_bound", {"0", "1e30"}, {"-1", "1.1e30"}, lamb},
      {"training.optimizer.lower_bound", {}, {"1"}, lars},
      {"training.optimizer.upper_bound", {}, {"1"}},
      {"training.optimizer.bias_correction", {}, {"true"}, adam},
      {"training.optimizer.l1", {}, {"0"}, adam},
      {"training.optimizer.beta", {}, {"1"}, adam},
      {"training.optimizer.decayed", {"all", "weights"}, {"biases"}},
      {"training.gradient_clip_value", {"1e-30", "1e30"}, {"0", "-1", "9e-31", "1.1e30"}},
      {"training.gradient_clip_norm", {"1e-30", "1e30"}, {"0", "-1", "9e-31", "1.1e30"}},
      {"training.optimizer.lr_schedule.every",
       {"1 step", "1000000 epochs"},
       {"0 steps", "1000001 epochs"},
       step},
      {"training.optimizer.lr_schedule.every",
       {"9007199254740992 steps"},
       {"9007199254740993 steps"},
       step},
      {"training.optimizer.lr_schedule.every", {}, {"1 epoch"}, cosine},
      {"training.optimizer.lr_schedule.factor", {"1e-9", "1"}, {"0", "1.001"}, step},
      {"training.optimizer.lr_schedule.factor", {}, {"0.5"}, cosine},
      {"training.optimizer.lr_schedule.warmup",
       {"1 step", "1000000 epochs"},
       {"0 steps", "0 epochs"},
       cosine},
      {"training.optimizer.lr_schedule.min_rate", {"0", "0.2"}, {"-1e-9", "0.201"}, cosine},
      {"training.optimizer.lr_schedule.min_rate", {}, {"0.1"}, step},
      {"training.optimizer.lr_schedule.power", {"1e-9", "1e9"}, {"0", "-1"}, polynomial},
      {"training.optimizer.lr_schedule.pct_start", {"0", "1"}, {"-1e-9", "1.001"}, cycle},
      {"training.optimizer.lr_schedule.div_factor", {"1", "1e9"}, {"0.999"}, cycle},
      {"training.optimizer.lr_schedule.final_div_factor", {"1", "1e9"}, {"0.999"}, cycle},
      {"evaluation.every",
       {"1 epoch", "1000000 epochs"},
       {"0 epochs", "1000001 epochs", "5 steps"}},
      {"checkpoint.every",
       {"1s", "32000000s", "never", "1 step"},
       {"0.999s", "32000001s", "0 steps"}},
      {"checkpoint.keep_latest", {"1", "1000"}, {"0", "1001"}},
      {"checkpoint.keep_best", {"0", "1000"}, {"-1", "1001"}},
      {"recovery.max_restarts", {"0", "1000"}, {"-1", "1001"}},
      {"recovery.backoff.initial", {"0s", "86400s"}, {"-1s", "86401s"}},
      {"recovery.backoff.max", {"1s", "86400s"}, {"0.999s", "86401s"}},
      {"recovery.backoff.max", {"9s"}, {"8.999s"}, {{"recovery.backoff.initial", "9s"}}},
      {"limits.active_deadline", {"0s", "32000000s"}, {"-1s", "32000001s"}},
      {"limits.ttl_after_finished", {"0s", "7d", "32000000s"}, {"-1s", "32000001s"}},
      {"limits.stall_timeout", {"1s", "86400s"}, {"0.999s", "86401s"}},
      {"limits.orphan_timeout", {"1s", "604800s"}, {"0.999s", "604801s"}},
  };
  for (const Border& border : borders) {
    for (const char* good : border.good) {
      Keys keys = border.with;
      keys.push_back({border.key, good});
      EXPECT_EQ(ErrorsOf(keys), "") << border.key << ": " << good;
    }
    for (const char* bad : border.bad) {
      Keys keys = border.with;
      keys.push_back({border.key, bad});
      EXPECT_THAT(ErrorsOf(keys), HasSubstr(absl::StrCat("'", border.key)))
          << border.key << ": " << bad;
    }
  }
}

TEST(BordersTest, TextsHaveLimits) {
  const auto errors = [](const std::string& key, const std::string& value) {
    return ErrorsOf({{key, absl::StrCat("\"", value, "\"")}});
  };
  EXPECT_EQ(errors("name", std::string(63, 'a')), "");
  EXPECT_THAT(errors("name", std::string(64, 'a')), HasSubstr("'name' must be 1 to 63"));
  EXPECT_THAT(errors("name", ""), HasSubstr("'name' must be 1 to 63"));
  EXPECT_THAT(errors("name", std::string(100, 'A')), HasSubstr("found 'AAAA"));
  EXPECT_THAT(
      errors("name", std::string(101, 'A')),
      HasSubstr(absl::StrCat("found 101 bytes that begin with '", std::string(40, 'A'), "'\n")));
  EXPECT_THAT(errors("name", "a\\nb"), HasSubstr("found 'a\\nb'\n"));
  EXPECT_EQ(errors("description", std::string(1024, 'a')), "");
  EXPECT_THAT(errors("description", std::string(1025, 'a')),
              HasSubstr("'description' has 1025 bytes, 1024 is the limit"));

  const auto labels = [](int count, const std::string& key, const std::string& value) {
    job::v1::JobSpec spec = ParseJobFile(kJob).spec;
    for (int i = 1; i < count; ++i) (*spec.mutable_labels())[absl::StrCat(i)] = "";
    (*spec.mutable_labels())[key] = value;
    return ValidateSpec(spec);
  };
  EXPECT_EQ(labels(32, std::string(63, 'k'), std::string(63, 'v')), absl::OkStatus());
  EXPECT_THAT(std::string(labels(33, "k", "v").message()), HasSubstr("has 33 entries"));
  for (const auto& [key, value] : Keys{{std::string(64, 'k'), "v"},
                                       {"k", std::string(64, 'v')},
                                       {"", "v"},
                                       {"k\n", "v"},
                                       {"k", "\x7f"}}) {
    EXPECT_THAT(std::string(labels(1, key, value).message()), HasSubstr("'labels' takes keys of"));
  }
}

TEST(BordersTest, AScheduleHasAtMostAThousandMilestones) {
  const auto errors = [](int count) {
    std::string list = "[1 step";
    for (int i = 1; i < count; ++i) absl::StrAppend(&list, ", ", i + 1, " steps");
    return ErrorsOf({{"training.optimizer.lr_schedule",
                      absl::StrCat("{name: multi_step, milestones: ", list, "]}")}});
  };
  EXPECT_EQ(errors(1000), "");
  EXPECT_EQ(errors(1001),
            "j: error: 'training.optimizer.lr_schedule.milestones' has 1001 entries, 1000 is the "
            "limit\n");
}

// The exact text, for each kind of rule.
TEST(BordersTest, ErrorsNameFieldValueAndLimit) {
  EXPECT_EQ(ErrorsOf({{"training.optimizer.momentum", "1"}}),
            "j: error: 'training.optimizer.momentum' must be at least 0 and below 1, found 1\n");
  EXPECT_EQ(ErrorsOf({{"training.optimizer.weight_decay", "-0.5"}}),
            "j: error: 'training.optimizer.weight_decay' must be a finite number of at least 0, "
            "found -0.5\n");
  EXPECT_EQ(ErrorsOf({{"training.optimizer.learning_rate", "0"}}),
            "j: error: 'training.optimizer.learning_rate' must be a finite number above 0, found "
            "0\n");
  EXPECT_EQ(ErrorsOf({{"checkpoint.every", "0.5s"}}),
            "j: error: 'checkpoint.every' must be between 1 and 3.2e+07, found 0.5\n");
  EXPECT_EQ(ErrorsOf({{"training.optimizer.lr_schedule", "{name: cosine, min_rate: 0.3}"}}),
            "j: error: 'training.optimizer.lr_schedule.min_rate' must not be above the learning "
            "rate 0.2, found 0.3\n");
  EXPECT_EQ(
      ErrorsOf({{"training.optimizer.lr_schedule", "{name: step, every: 1 step, factor: 2}"}}),
      "j: error: 'training.optimizer.lr_schedule.factor' must be above 0 and at most 1, "
      "found 2\n");
  EXPECT_EQ(ErrorsOf({{"training.optimizer.alpha", "0.9"}}),
            "j: error: 'training.optimizer.alpha' is for the optimizer 'rmsprop' only, found "
            "'sgd'\n");
  EXPECT_EQ(ErrorsOf({{"training.optimizer.l1", "0.1"}}),
            "j: error: 'training.optimizer.l1' is for the optimizer 'ftrl' only, found 'sgd'\n");
  EXPECT_EQ(ErrorsOf({{"training.optimizer.name", "ftrl"}, {"training.optimizer.beta", "0"}}),
            "j: error: 'training.optimizer.beta' must be between 1e-30 and 1000, found 0\n");
  EXPECT_EQ(ErrorsOf({{"resources.lane_weights", "[1, 0]"}}),
            "j: error: 'resources.lane_weights' takes numbers above 0 up to 1000000, found 0\n");
  EXPECT_EQ(ErrorsOf({{"resources.lane_weights", "[1, 1, 1]"}}),
            "j: error: 'resources.lane_weights' has 3 entries, want one for each of the 2 lanes\n");
  EXPECT_EQ(ErrorsOf({{"evaluation.metric", "f1"}}),
            "j: error: 'evaluation.metric' must be one of accuracy, loss, found 'f1'\n");
  EXPECT_EQ(ErrorsOf({{"data.train_samples", "10"}}),
            "j: error: 'data.train_samples' is for 'synthetic_digits' only\n");
  EXPECT_EQ(ErrorsOf({{"model.initializer", "{name: he, scale: 1}"}}),
            "j: error: 'model.initializer.scale' has no meaning for 'he'\n");
}

TEST(BordersTest, LanesThatFollowFromWorkersAndDevicesHaveTheirLimit) {
  EXPECT_THAT(ErrorsOf({{"resources", "{num_workers: 241, gpus_per_worker: 17}"}}),
              HasSubstr("'resources.lanes' comes to 4097"));
  EXPECT_EQ(ErrorsOf({{"resources", "{num_workers: 64, gpus_per_worker: 64}"}}), "");
  EXPECT_THAT(ErrorsOf({{"resources", "{num_workers: 65, gpus_per_worker: 64}"}}),
              HasSubstr("'resources.lanes' comes to 4160 (workers x devices), 4096 is the limit"));
  EXPECT_EQ(ErrorsOf({{"resources", "{num_workers: 65, gpus_per_worker: 64, lanes: 64}"}}), "");
  // An error is not reported twice.
  EXPECT_EQ(ParseJobFile(kJob, {{"resources", "{num_workers: 9999}"}}).errors.size(), 1u);
  EXPECT_EQ(ParseJobFile(kJob, {{"resources", "{gpus_per_worker: 9999}"}}).errors.size(), 1u);
  EXPECT_EQ(ParseJobFile(kJob, {{"resources", "{num_workers: 0, min_workers: 1}"}}).errors.size(),
            1u);
  EXPECT_THAT(ErrorsOf({{"resources", "{num_workers: 9999, min_workers: 1025}"}}),
              HasSubstr("'resources.min_workers' must be between 1 and 1024, found 1025"));
}

TEST(BordersTest, WhatAKvstoreDoesNotUseIsRefused) {
  for (const char* type : {"local", "device"}) {
    const auto errors = [type](const char* resources) {
      return ErrorsOf({{"kvstore.type", type}, {"resources", resources}});
    };
    EXPECT_EQ(errors("{num_workers: 1, num_shards: 1}"), "");
    EXPECT_EQ(errors("{lanes: 2}"), "");
    EXPECT_THAT(errors("{num_workers: 2}"), HasSubstr("'resources.num_workers' must be 1 with"));
    EXPECT_THAT(errors("{num_shards: 2}"), HasSubstr("'resources.num_shards' must be left out"));
  }
  EXPECT_THAT(ErrorsOf({{"kvstore.type", "nccl"}}), HasSubstr("is not supported in this version"));
  EXPECT_THAT(ErrorsOf({{"kvstore.type", "ring"}}), HasSubstr("'kvstore.type' must be one of"));
}

TEST(BordersTest, AJobWithLocalStepsLacksSomeKeys) {
  const auto errors = [](const std::string& key, const std::string& value) {
    return ErrorsOf({{"kvstore", "{type: dist_sync, local_steps: 4}"}, {key, value}});
  };
  const std::string with = " does not go together with kvstore.local_steps 4: ";
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"kvstore.type", "dist_async"},
           {"kvstore.gradient_compression.type", "2bit"},
           {"kvstore.gradient_compression.type", "1bit"},
           {"kvstore.gradient_compression.type", "top_k"},
           {"kvstore.gradient_compression.type", "fp16"},
           {"training.accumulate_steps", "2"},
           {"training.precision", "fp16"},
           {"training.optimizer.name", "lars"},
           {"training.optimizer.name", "lamb"},
           {"training.optimizer.name", "ftrl"}}) {
    EXPECT_THAT(errors(key, value), HasSubstr(absl::StrCat("'", key, "'", with))) << value;
    EXPECT_EQ(ErrorsOf({{"kvstore", "{type: dist_sync, local_steps: 1}"}, {key, value}}), "");
  }
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"kvstore.type", "dist_device_sync"},
                                                        {"kvstore.gradient_compression", "int8"},
                                                        {"kvstore.gradient_compression", "bf16"},
                                                        {"training.precision", "bf16"},
                                                        {"training.optimizer.name", "adam"},
                                                        {"training.gradient_clip_norm", "1"}}) {
    EXPECT_EQ(errors(key, value), "") << key;
  }
  EXPECT_THAT(
      ErrorsOf({{"kvstore.local_steps", "1024"}, {"training.global_batch_size", "16385"}}),
      HasSubstr("'kvstore.local_steps' is 1024: a round has 16778240 samples, 16777216 is"));
}

TEST(BordersTest, WorkersUpdateOnlyInSynchronousJobs) {
  const auto errors = [](const std::string& keys) {
    return ErrorsOf({{"kvstore", absl::StrCat("{update_on_kvstore: false, ", keys, "}")}});
  };
  for (const char* fits :
       {"type: dist_sync", "type: dist_device_sync", "type: dist_sync, local_steps: 1",
        "type: dist_sync, gradient_compression: 2bit", "type: dist_sync, max_staleness: 0"}) {
    EXPECT_EQ(errors(fits), "") << fits;
  }
  for (const char* type : {"local", "device"}) {
    EXPECT_EQ(ErrorsOf({{"resources", "{num_workers: 1}"},
                        {"kvstore", absl::StrCat("{update_on_kvstore: false, type: ", type, "}")}}),
              "");
  }
  const std::string with = "'kvstore.update_on_kvstore' is false, which does not go together with ";
  EXPECT_THAT(errors("type: dist_async"), HasSubstr(with + "kvstore 'dist_async': each worker's"));
  EXPECT_THAT(errors("type: dist_sync, local_steps: 4"),
              HasSubstr(with + "kvstore.local_steps 4: shards average weights"));
  EXPECT_EQ(ErrorsOf({{"kvstore", "{update_on_kvstore: true, type: dist_async}"}}), "");
  EXPECT_EQ(ErrorsOf({{"kvstore", "{update_on_kvstore: true, type: dist_sync, local_steps: 4}"}}),
            "");
}

TEST(BordersTest, AnAsynchronousJobHasItsOwnKeysAndLacksOthers) {
  for (const char* type : {"dist_async", "dist_device_async", "dist_async_device"}) {
    const auto errors = [type](const std::string& key, const std::string& value) {
      return ErrorsOf({{"kvstore.type", type}, {key, value}});
    };
    EXPECT_EQ(errors("kvstore.max_staleness", "0"), "");
    EXPECT_EQ(errors("kvstore.max_staleness", "9007199254740992"), "");
    EXPECT_THAT(errors("kvstore.max_staleness", "-1"),
                HasSubstr("'kvstore.max_staleness' must be between 0 and 9007199254740992"));
    EXPECT_THAT(errors("training.accumulate_steps", "2"),
                HasSubstr("'training.accumulate_steps' does not go together with kvstore '"));
    EXPECT_THAT(errors("training.precision", "fp16"),
                HasSubstr("'training.precision' does not go together with kvstore '"));
    EXPECT_EQ(errors("training.precision", "bf16"), "");
    EXPECT_EQ(errors("training.accumulate_steps", "1"), "");
    EXPECT_EQ(errors("training.gradient_clip_value", "1"), "");
    EXPECT_EQ(errors("training.gradient_clip_norm", "1"), "");
    for (const char* name : {"lars", "lamb"}) {
      EXPECT_THAT(errors("training.optimizer.name", name),
                  HasSubstr(absl::StrCat("'training.optimizer.name' does not go together with "
                                         "kvstore '",
                                         type, "': '", name, "' needs the norms of whole")));
    }
  }
  EXPECT_EQ(ErrorsOf({{"kvstore", "{type: dist_sync, max_staleness: 0}"}}), "");
  EXPECT_THAT(
      ErrorsOf({{"kvstore", "{type: dist_sync, max_staleness: 2}"}}),
      HasSubstr("'kvstore.max_staleness' is 2, but only kvstore 'dist_async' trains on old"));
}

TEST(BordersTest, ATrustRatioRefusesClippingThatItCannotSee) {
  const auto errors = [](const char* name, const char* key) {
    return ErrorsOf({{"training.optimizer.name", name}, {key, "1"}});
  };
  EXPECT_EQ(errors("lars", "training.gradient_clip_norm"), "");
  EXPECT_THAT(errors("lars", "training.gradient_clip_value"),
              HasSubstr("'training.gradient_clip_value' does not go together with the optimizer "
                        "'lars': its trust ratio needs the norm of the whole gradient"));
  EXPECT_THAT(errors("lamb", "training.gradient_clip_value"), HasSubstr("the optimizer 'lamb'"));
  EXPECT_THAT(errors("lamb", "training.gradient_clip_norm"),
              HasSubstr("'training.gradient_clip_norm' does not go together with the optimizer "
                        "'lamb': shards compute the norm of its direction before"));
  EXPECT_THAT(ErrorsOf({{"training.optimizer.name", "lamb"},
                        {"training.optimizer.lower_bound", "3"},
                        {"training.optimizer.upper_bound", "2"}}),
              HasSubstr("'training.optimizer.lower_bound' must be between 0 and 2, found 3"));
}

TEST(BordersTest, ResidualsAreOfErrorFeedback) {
  const auto errors = [](const std::string& residuals, const std::string& compression,
                         const std::string& type = "dist_sync") {
    return ErrorsOf({{"kvstore.type", type},
                     {"kvstore.gradient_compression", compression},
                     {"recovery.residuals", residuals}});
  };
  for (const char* compression : {"2bit", "1bit", "top_k"}) {
    EXPECT_EQ(errors("rollback", compression), "");
    EXPECT_EQ(errors("drop", compression), "");
    EXPECT_EQ(errors("drop", compression, "dist_async"), "");
    EXPECT_THAT(errors("rollback", compression, "dist_async"),
                HasSubstr("'recovery.residuals' 'rollback' does not go together with kvstore.type "
                          "'dist_async'"));
    EXPECT_THAT(errors("keep", compression),
                HasSubstr("'recovery.residuals' must be one of rollback, drop, found 'keep'"));
  }
  for (const char* compression : {"none", "fp16", "bf16", "int8"}) {
    EXPECT_THAT(errors("drop", compression),
                HasSubstr("'recovery.residuals' has no meaning without error feedback"));
  }
}

TEST(BordersTest, ACompressionHasItsOwnOptions) {
  const auto errors = [](const std::string& compression) {
    return ErrorsOf({{"kvstore.gradient_compression", compression}});
  };
  for (const char* type : {"none", "fp16", "bf16", "int8", "2bit", "1bit", "top_k"}) {
    EXPECT_EQ(errors(type), "");
    EXPECT_EQ(errors(absl::StrCat("{type: ", type, "}")), "");
  }
  EXPECT_THAT(errors("2bits"), HasSubstr("'kvstore.gradient_compression.type' must be one of"));
  EXPECT_THAT(errors("{ratio: 0.5}"), HasSubstr("'kvstore.gradient_compression.type' is required"));
  EXPECT_EQ(errors("{type: 2bit, threshold: 1e-20}"), "");
  EXPECT_EQ(errors("{type: 2bit, threshold: 1e20}"), "");
  for (const char* bad : {"0", "-1", "1e21"}) {
    EXPECT_THAT(errors(absl::StrCat("{type: 2bit, threshold: ", bad, "}")),
                HasSubstr("'kvstore.gradient_compression.threshold' must be between 1e-20 and"));
  }
  EXPECT_EQ(errors("{type: top_k, ratio: 0.000001}"), "");
  EXPECT_EQ(errors("{type: top_k, ratio: 1}"), "");
  for (const char* bad : {"0", "1.01", "1e-7"}) {
    EXPECT_THAT(errors(absl::StrCat("{type: top_k, ratio: ", bad, "}")),
                HasSubstr("'kvstore.gradient_compression.ratio' must be between 1e-06 and 1"));
  }
  EXPECT_THAT(errors("{type: 1bit, threshold: 1}"),
              HasSubstr("'kvstore.gradient_compression.threshold' has no meaning for '1bit'"));
  EXPECT_THAT(errors("{type: 2bit, ratio: 0.1}"),
              HasSubstr("'kvstore.gradient_compression.ratio' has no meaning for '2bit'"));
}

// No file can express this.
TEST(BordersTest, AReceivedSpecSaysHowOftenInOneWay) {
  job::v1::JobSpec spec = ParseJobFile(kJob).spec;
  spec.mutable_checkpoint()->mutable_every();
  EXPECT_EQ(std::string(ValidateSpec(spec).message()),
            "'checkpoint.every' must be a number of steps or epochs, like '10 epochs'");
  spec.mutable_checkpoint()->mutable_every()->set_steps(1);
  EXPECT_EQ(ValidateSpec(spec), absl::OkStatus());
  spec.mutable_checkpoint()->set_every_seconds(5);
  EXPECT_EQ(std::string(ValidateSpec(spec).message()),
            "'checkpoint.every' is given in steps or epochs and as a duration: give one");
}

TEST(BordersTest, AReceivedSpecHoldsNoNumberThatIsNone) {
  job::v1::JobSpec spec = ParseJobFile(kJob).spec;
  ASSERT_THAT(Validate(spec), IsEmpty());
  const auto refused = [&spec](auto set, double value, const char* key) {
    job::v1::JobSpec changed = spec;
    set(changed, value);
    EXPECT_THAT(std::string(ValidateSpec(changed).message()), HasSubstr(key)) << value;
  };
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    refused(
        [](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_learning_rate(v); },
        bad, "learning_rate");
    refused(
        [](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_weight_decay(v); },
        bad, "weight_decay");
    refused([](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_momentum(v); },
            bad, "momentum");
    refused([](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_beta2(v); }, bad,
            "beta2");
    refused([](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_epsilon(v); },
            bad, "epsilon");
    refused([](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_l1(v); }, bad,
            "optimizer.l1");
    refused([](auto& s, double v) { s.mutable_training()->mutable_optimizer()->set_beta(v); }, bad,
            "optimizer.beta");
    refused([](auto& s, double v) { s.mutable_training()->set_gradient_clip_value(v); }, bad,
            "gradient_clip_value");
    refused([](auto& s, double v) { s.mutable_training()->set_gradient_clip_norm(v); }, bad,
            "gradient_clip_norm");
    refused([](auto& s, double v) { s.mutable_model()->set_dropout(v); }, bad, "dropout");
    refused(
        [](auto& s, double v) {
          auto& normalize = *s.mutable_data()->add_transforms()->mutable_normalize();
          normalize.add_mean(v);
          normalize.add_std(1);
        },
        bad, "'data.transforms[0].normalize.mean' takes finite numbers, found ");
    refused(
        [](auto& s, double v) {
          auto& normalize = *s.mutable_data()->add_transforms()->mutable_normalize();
          normalize.add_mean(0);
          normalize.add_std(v);
        },
        bad, "'data.transforms[0].normalize.std' takes numbers above 0, found ");
    refused([](auto& s, double v) { s.mutable_limits()->set_stall_timeout_seconds(v); }, bad,
            "stall_timeout");
    refused(
        [](auto& s, double v) {
          for (int lane = 0; lane < 2; ++lane) s.mutable_resources()->add_lane_weights(v);
        },
        bad, "lane_weights");
  }
}

}  // namespace
}  // namespace capstan::training::spec
